"""Where cells are: each block once whatever the width, folded cells no better than their worst block."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.tiers.layout import GUTTER, Activity, Cell, Use, cell, map_lines, strip_groups, worst
from tests.app.tiers.models import blocks

WIDTHS = st.integers(min_value=20, max_value=200)
MODELS = st.builds(
    blocks, st.integers(1, 130), st.integers(1, 70), tied=st.booleans(), kept=st.integers(0, 4)
)
CELLS = st.builds(cell, st.sampled_from("RNV"), st.sampled_from(Activity), st.integers(0, 7))


@given(MODELS, WIDTHS, st.integers(1, 5))
def test_every_block_has_one_cell_in_the_map(placed: tuple[object, ...], width: int, widest: int) -> None:
    lines = map_lines(placed, width, widest)  # type: ignore[arg-type]
    shown = [index for line in lines for group in line.groups for index in group]
    assert sorted(shown) == list(range(len(placed)))
    for line in lines:
        assert GUTTER + max(len(line.ruler), len(line.groups) * line.cell_width) <= width
        assert len(line.label) < GUTTER


@given(MODELS, WIDTHS)
def test_every_block_has_one_cell_in_the_strip_and_cells_are_in_the_order_of_a_pass(
    placed: tuple[object, ...], width: int
) -> None:
    groups = strip_groups(placed, width)  # type: ignore[arg-type]
    assert [index for group in groups for index in group] == list(range(len(placed)))
    assert len(groups) <= width


@given(st.lists(CELLS, min_size=1, max_size=8))
def test_a_folded_cell_is_no_better_than_its_worst_block(cells: list[Cell]) -> None:
    folded = worst(cells)
    assert folded.letter == max((one.letter for one in cells), key="VRN".index)
    if any(one.activity is Activity.ACTIVE for one in cells):
        assert folded.activity is Activity.ACTIVE


def test_a_folded_cell_tells_that_part_of_it_is_in_a_faster_tier() -> None:
    assert worst([cell("N"), cell("N")]).glyph == "N"
    assert worst([cell("R"), cell("N")]).glyph == "n"
    assert worst([cell("R"), cell("N", Activity.STAGED)]).glyph == "•"
    assert worst([cell("N"), cell("N", Activity.STAGED)]).glyph == "N"


def test_every_state_reads_without_colour() -> None:
    states = [cell("V"), cell("R"), cell("N"), cell("N", Activity.STAGED), cell("N", Activity.ACTIVE)]
    states += [cell("N", Activity.MOVING, eighths) for eighths in range(8)]
    states += [cell("R", use=Use.NOTHING)]
    assert len({one.glyph for one in states}) == len(states)


def test_what_is_left_out_counts_only_where_all_is() -> None:
    out, used = cell("N", use=Use.NOTHING), cell("R")
    assert worst([out, out]).glyph == "·"
    part = worst([out, used])
    assert (part.glyph, part.use, part.skipped) == ("R", Use.PART, False)
    assert worst([out, cell("N", Activity.ACTIVE)]).glyph == "▶"
    assert cell("R", Activity.STAGED, use=Use.NOTHING).glyph == "·", "what nobody waits for"
    assert cell("R", Activity.MOVING, 4, use=Use.NOTHING).glyph == "▄", "its place goes to another"


def test_a_run_begins_at_a_round_number_of_layers() -> None:
    labels = [line.label for line in map_lines(blocks(80), 37) if line.label.endswith("a")]
    assert labels == ["0  a", "30 a", "60 a"]
    assert map_lines(blocks(32), 37)[0].ruler == "0         10        20        30"
