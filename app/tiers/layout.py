"""Where each weight block is drawn: cells in the order of layers, cut into lines of a given width.

Knows blocks, columns and how several cells become one; does not know colours, terminals or the engine's
counters. Every block has exactly one cell, whatever the width. Called by the map's widget and by the text of
the command line, so that both draw the same map.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Final

from app.i18n import _
from engine import BlockPlace, Executor, Tier

_LETTERS: Final = {Tier.VRAM: "V", Tier.RAM: "R", Tier.NVME: "N"}
_COPIED: Final = {Tier.RAM: "S", Tier.NVME: "D"}
"""Of blocks that are copied to the GPU for every step: streamed from memory, or from the disk."""
_TIERS: Final = {**{letter: tier for tier, letter in _LETTERS.items()}, "S": Tier.RAM, "D": Tier.NVME}
_ORDER: Final = "VRSND"
"""From the fastest place to the slowest."""
GUTTER: Final = 5
"""Columns before the cells of a line, for its label."""
EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
SKIPPED: Final = "·"
"""What stands for a block that passes leave out."""


class Activity(IntEnum):
    """What happens to a block now; of several the highest is shown."""

    STILL = 0
    STAGED = 1
    """In a staging ring, until the pass has used it."""
    MOVING = 2
    """On its way into a ring, or to another tier."""
    ACTIVE = 3
    """It is computed from a ring."""


class Use(IntEnum):
    """Whether passes use what a cell stands for."""

    ALL = 0
    PART = 1
    """Some of its blocks are left out."""
    NOTHING = 2


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the map."""

    letter: str
    """Of the tier, and of who computes from there."""
    activity: Activity = Activity.STILL
    eighths: int = 0
    """How much of a moving block is there."""
    mixed: bool = False
    """Whether it stands for blocks of faster tiers as well."""
    use: Use = Use.ALL

    @property
    def glyph(self) -> str:
        """One character that says it all without colour."""
        if self.skipped:
            return SKIPPED
        match self.activity:
            case Activity.ACTIVE:
                return "▶"
            case Activity.MOVING:
                return EIGHTHS[self.eighths] if self.eighths else "↑"
            case Activity.STAGED:
                return "•"
            case _:
                return self.letter.lower() if self.mixed else self.letter

    @property
    def skipped(self) -> bool:
        """Whether it is shown as left out: what moves is shown as moving."""
        return self.use is Use.NOTHING and self.activity <= Activity.STAGED


@cache
def cell(
    letter: str,
    activity: Activity = Activity.STILL,
    eighths: int = 0,
    *,
    mixed: bool = False,
    use: Use = Use.ALL,
) -> Cell:
    """Return the cell of these, always the same object."""
    return Cell(letter, activity, eighths, mixed, use)


def letter_of(block: BlockPlace) -> str:
    """Return the letter of where a block is and who computes it from there."""
    if block.executor is Executor.STREAM:
        return _COPIED.get(block.tier, _LETTERS[block.tier])
    return _LETTERS[block.tier]


def letter_of_tier(tier: Tier) -> str:
    """Return the letter of a tier."""
    return _LETTERS[tier]


def tier_of(letter: str) -> Tier:
    """Return the tier that a letter stands for."""
    return _TIERS[letter]


def in_order(letters: Iterable[str]) -> tuple[str, ...]:
    """Return these letters from the fastest place to the slowest, each once."""
    return tuple(sorted(set(letters), key=_ORDER.index))


def worst(cells: Sequence[Cell]) -> Cell:
    """Return one cell for several: the slowest place, and what happens to any of them; of those that passes
    leave out only where they leave out all.
    """
    if len(cells) == 1:
        return cells[0]
    used = [one for one in cells if one.use is not Use.NOTHING]
    use = Use.NOTHING if not used else Use.PART if len(used) < len(cells) else Use.ALL
    cells = used or cells
    letter = max((one.letter for one in cells), key=_ORDER.index)
    slowest = [one for one in cells if one.letter == letter]
    activity = max(one.activity for one in cells)
    if activity is Activity.STAGED and any(one.activity is Activity.STILL for one in slowest):
        activity = Activity.STILL  # one that is staged says nothing about the others
    eighths = max(one.eighths for one in cells) if activity is Activity.MOVING else 0
    return cell(letter, activity, eighths, mixed=len(slowest) < len(cells), use=use)


@dataclass(frozen=True, slots=True)
class MapLine:
    """One line of the map."""

    label: str
    """For the gutter, to be cut or filled to its width."""
    groups: tuple[tuple[int, ...], ...] = ()
    """For each cell the indices of its blocks."""
    ruler: str = ""
    """Numbers of layers, on a line without cells."""
    cell_width: int = 1


def strip_groups(blocks: Sequence[BlockPlace], width: int) -> tuple[tuple[int, ...], ...]:
    """Return one line of at most `width` cells, in the order of a pass.

    A cell is a block if all fit, else a layer or as few layers as fit; embedding and head are a cell each.
    """
    if len(blocks) <= width:
        return tuple((index,) for index in range(len(blocks)))
    before, layers, after = _parts(blocks)
    numbers = sorted(layers)
    ends = bool(before) + bool(after)
    room = max(1, width - ends)
    fold = max(1, -(-len(numbers) // room))
    folded = [
        tuple(index for number in numbers[start : start + fold] for index in layers[number])
        for start in range(0, len(numbers), fold)
    ]
    return tuple(filter(None, (tuple(before), *folded, tuple(after))))


def map_lines(blocks: Sequence[BlockPlace], width: int, widest_cell: int = 1) -> tuple[MapLine, ...]:
    """Return the whole map: for each run of layers a line for each kind of block, then embedding and head.

    Cells are up to `widest_cell` columns wide when all layers then still fit side by side.
    """
    room = max(1, width - GUTTER)
    numbers = sorted({block.layer for block in blocks if block.layer is not None})
    cell_width = max(1, min(widest_cell, room // max(1, len(numbers))))
    run = room // cell_width
    if run < len(numbers) and run > 10:
        run -= run % 10
    kinds = dict.fromkeys(block.kind for block in blocks if block.layer is not None)
    placed: dict[tuple[int | None, str], list[int]] = {}
    for index, block in enumerate(blocks):
        placed.setdefault((block.layer, block.kind), []).append(index)
    lines: list[MapLine] = []
    if numbers:
        shown = numbers[:run]
        lines.append(MapLine("", ruler=_ruler(len(shown), shown[0], cell_width)))
    for start in range(0, len(numbers), run):
        part = numbers[start : start + run]
        for row, kind in enumerate(kinds):
            number = f"{part[0]:<2}" if row == 0 else ""
            label = f"{number:>2} {kind[:1]}" if len(number) < 3 else number + kind[:1]
            groups = tuple(tuple(placed.get((number, kind), ())) for number in part)
            lines.append(MapLine(label, groups, cell_width=cell_width))
    return (*lines, *_other_lines(blocks, run, cell_width))


def _other_lines(blocks: Sequence[BlockPlace], run: int, cell_width: int) -> list[MapLine]:
    """Blocks that belong to no layer, a cell each."""
    labels = {"embedding": _("emb"), "head": _("head")}
    lines: list[MapLine] = []
    for kind in dict.fromkeys(block.kind for block in blocks if block.layer is None):
        own = [(i,) for i, block in enumerate(blocks) if block.layer is None and block.kind == kind]
        for start in range(0, len(own), run):
            label = labels.get(kind, kind) if start == 0 else ""
            lines.append(MapLine(label, tuple(own[start : start + run]), cell_width=cell_width))
    return lines


def _parts(blocks: Sequence[BlockPlace]) -> tuple[list[int], dict[int, list[int]], list[int]]:
    """Indices before the layers, of each layer, and after them."""
    before: list[int] = []
    after: list[int] = []
    layers: dict[int, list[int]] = {}
    for index, block in enumerate(blocks):
        if block.layer is not None:
            layers.setdefault(block.layer, []).append(index)
        else:
            (after if layers else before).append(index)
    return before, layers, after


def _ruler(n_layers: int, first: int, cell_width: int) -> str:
    """Numbers of every tenth layer above its cell."""
    ruler = ""
    for number in range(0, n_layers, 10):
        at, text = number * cell_width + (cell_width > 2), str(first + number)
        if at + len(text) <= n_layers * cell_width or number == 0:
            ruler = ruler.ljust(at) + text
    return ruler
