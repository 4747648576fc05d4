"""Which blocks so many bytes of a GPU's memory hold: one fixed order, and what a person wants of it.

After what computing takes and the staging ring come the KV cache, attention, the head, and feed-forward
blocks, these in an order that spreads any number of them evenly over the layers. The first that does not
fit ends it: with more memory nothing that was there leaves, so that moves cannot go in circles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from engine.errors import BudgetError
from engine.events import Tier
from engine.tiers.blocks import Block, BlockKind
from engine.tiers.budget import shown_bytes
from engine.tiers.tier_plan import GpuSizes
from engine.tiers.wishes import PlaceRule, wanted_tiers

FEWEST_SLOTS = 2
"""One slot is computed from while another is filled."""


class Wishes(NamedTuple):
    """Blocks whose tier is not for the planner to choose, by index."""

    vram: frozenset[int]
    not_vram: frozenset[int]
    """Those for memory and disk among them."""
    ram: frozenset[int]
    disk: frozenset[int]
    gpu_layers: int | None
    """How many layers were asked for, if that is how."""


class Reserved(NamedTuple):
    """What GPU memory holds whichever blocks there are."""

    chunk: int
    """Prompt tokens per pass."""
    slots: int
    """Of the staging ring."""
    landing: bool
    """Whether there is one slot more, for blocks from disk."""


class InVram(NamedTuple):
    """What a GPU's memory holds."""

    blocks: frozenset[int]
    cpu_attention: frozenset[int]
    """Layers whose KV it does not hold."""
    n_bytes: int
    """Everything counted."""


def read_wishes(
    blocks: Sequence[Block],
    sizes: GpuSizes,
    gpu_layers: int | None,
    rules: Sequence[PlaceRule],
    keep: frozenset[int],
) -> Wishes:
    """What was asked for, rules before a number of layers; `keep` is in GPU memory whatever they say.

    Raises BudgetError naming a rule that is about no block.
    """
    tiers: dict[int, Tier | None] = {}
    if gpu_layers is not None:
        for block in blocks:
            if block.layer is not None:
                tiers[block.index] = Tier.VRAM if block.layer < gpu_layers else None
    tiers |= wanted_tiers(rules, blocks)
    tiers |= dict.fromkeys(keep, Tier.VRAM)
    for tier in (tiers[index] for index in sizes.head if index in tiers):
        tiers |= dict.fromkeys(sizes.head, tier)  # it is on the GPU as one matrix
        break

    def having(*wanted: Tier | None) -> frozenset[int]:
        return frozenset(index for index, tier in tiers.items() if tier in wanted)

    return Wishes(
        vram=having(Tier.VRAM),
        not_vram=having(Tier.RAM, Tier.NVME, None),
        ram=having(Tier.RAM),
        disk=having(Tier.NVME),
        gpu_layers=gpu_layers,
    )


class VramOrder:
    """The fixed order for one model and one person's wishes."""

    def __init__(
        self,
        blocks: Sequence[Block],
        sizes: GpuSizes,
        wishes: Wishes,
        cpu_attention: frozenset[int] | None = None,
        idle: frozenset[int] = frozenset(),
    ) -> None:
        """With `cpu_attention` these layers and no others have their KV in the computer's memory.

        Passes leave blocks in `idle` out: they come last.
        """
        self._sizes = sizes
        self._wishes = wishes
        self._cpu_attention = cpu_attention
        self._idle = idle
        self._attention = [block.index for block in blocks if block.kind is BlockKind.ATTENTION]
        self._feed_forward = [block.index for block in blocks if block.kind is BlockKind.FEED_FORWARD]
        self._must_bytes = sum(sizes.block_bytes[index] for index in wishes.vram)
        layers = (*self._attention, *self._feed_forward)
        self.slot_bytes = max(
            (sizes.slot_bytes[index] for index in layers if index not in wishes.vram), default=0
        )
        """Whatever is in GPU memory: for every block that may have to pass through a slot."""

    def fill(self, budget: int, reserved: Reserved) -> InVram | None:
        """What is in memory of `budget` bytes; None where not even what has to be there fits."""
        must = self._wishes.vram
        room = budget - self._reserved_bytes(reserved) - self._must_bytes
        cpu_attention = self._without_kv(room)
        room -= self._sizes.kv_layer_bytes * (len(self._attention) - len(cpu_attention))
        if room < 0:
            return None
        inside = set(must)
        for group in self._groups(cpu_attention):
            n_bytes = sum(self._sizes.block_bytes[index] for index in group if index not in must)
            if n_bytes > room:
                break
            room -= n_bytes
            inside.update(group)
        return InVram(frozenset(inside), cpu_attention, budget - room)

    def next_outside(self, inside: InVram, among: Set[int], most_bytes: int) -> int | None:
        """The largest layer block of `among` that so many bytes hold and memory does not; None where none is.

        Of several the one that would come next, so that what is left lies evenly. None that passes leave out.
        """
        in_slots = self._sizes.slot_bytes
        fit = [
            index
            for group in self._groups(inside.cpu_attention)
            for index in group
            if index in among and in_slots.get(index, most_bytes + 1) <= most_bytes
        ]
        return max((i for i in fit if i not in self._idle), key=lambda i: in_slots[i], default=None)

    def copied(self, inside: InVram) -> list[int]:
        """Layer blocks that the GPU computes in a long pass though its memory does not hold them."""
        attention = [i for layer, i in enumerate(self._attention) if layer not in inside.cpu_attention]
        return [index for index in (*attention, *self._feed_forward) if index not in inside.blocks]

    def least(self, chunk: int, slots: int) -> list[int]:
        """Budgets of which the smallest that works is one, smallest first."""
        kv_layers = self._kv_layers()
        must = self._must_bytes + kv_layers * self._sizes.kv_layer_bytes
        with_ring = [
            must + self._reserved_bytes(Reserved(chunk, slots, landing)) for landing in (False, True)
        ]
        every = {i for group in self._groups(self._cpu_attention or frozenset()) for i in group}
        every -= {*self._sizes.head, self._sizes.embedding} - self._wishes.vram
        kv = len(self._attention) - len(self._cpu_attention or ())
        whole = (
            self._reserved_bytes(Reserved(chunk, 0, False))
            + kv * self._sizes.kv_layer_bytes
            + sum(self._sizes.block_bytes[index] for index in every | self._wishes.vram)
        )
        whole_with_head = whole + sum(
            self._sizes.block_bytes[index] for index in self._sizes.head if index not in self._wishes.vram
        )
        return sorted([*with_ring, whole_with_head])

    def refusal(self, budget: int, smallest: int, reserved: Reserved) -> BudgetError:
        """The error for a budget in which what has to be there does not fit."""
        enough = f"give at least {-(-smallest // 10**6)}M (--vram-budget)"
        beside = self._reserved_bytes(reserved)
        text = f"the GPU memory budget of {shown_bytes(budget)} is too little: "
        if not self._must_bytes and not self._kv_layers():
            return BudgetError(
                f"{text}computing in passes of {reserved.chunk} tokens and {reserved.slots} slots for blocks "
                f"that pass through take {shown_bytes(beside)}; {enough}, use a smaller context (-c), or let "
                "the processor compute (--device cpu)"
            )
        kv = self._kv_layers() * self._sizes.kv_layer_bytes
        fewer = ""
        if self._wishes.gpu_layers is not None:
            fewer = f"ask for {self._layers_that_fit(budget - beside)} layers or fewer (--gpu-layers), or "
        return BudgetError(
            f"{text}the blocks that are to be in it take {shown_bytes(self._must_bytes)}, their KV cache "
            f"{shown_bytes(kv)}, and computing and the staging ring {shown_bytes(beside)}; {fewer}{enough}"
        )

    def _layers_that_fit(self, room: int) -> int:
        n_layers = 0
        for attention, feed_forward in zip(self._attention, self._feed_forward, strict=True):
            room -= self._sizes.kv_layer_bytes
            room -= self._sizes.block_bytes[attention] + self._sizes.block_bytes[feed_forward]
            if room < 0:
                break
            n_layers += 1
        return n_layers

    def _reserved_bytes(self, reserved: Reserved) -> int:
        slots = reserved.slots + reserved.landing
        return self._sizes.fixed_bytes[reserved.chunk] + slots * self.slot_bytes

    def _kv_layers(self) -> int:
        """Layers whose KV has to be in GPU memory."""
        if self._cpu_attention is not None:
            return len(self._attention) - len(self._cpu_attention)
        return sum(index in self._wishes.vram for index in self._attention)

    def _without_kv(self, room: int) -> frozenset[int]:
        """As few layers as possible, the last ones: between blocks of one processor nothing has to cross."""
        if self._cpu_attention is not None:
            return self._cpu_attention
        n_layers = len(self._attention)
        n_inside = n_layers
        if self._sizes.kv_layer_bytes:
            n_inside = max(0, min(n_layers, room // self._sizes.kv_layer_bytes))
        may_leave = [layer for layer in range(n_layers) if self._attention[layer] not in self._wishes.vram]
        return frozenset(may_leave[len(may_leave) - min(len(may_leave), n_layers - n_inside) :])

    def _groups(self, cpu_attention: frozenset[int]) -> Iterator[tuple[int, ...]]:
        """What comes into memory together, the first first."""
        on_gpu = [i for layer, i in enumerate(self._attention) if layer not in cpu_attention]
        order: list[tuple[int, ...]] = [(on_gpu[i],) for i in spread(len(on_gpu))]
        order.append(self._sizes.head)
        order += [(self._feed_forward[i],) for i in spread(len(self._feed_forward))]
        if self._sizes.embedding is not None:
            order.append((self._sizes.embedding,))
        order.sort(key=self._idle.issuperset)  # which keeps the order of the others, and of these
        return (group for group in order if not self._wishes.not_vram.intersection(group))


def spread(n: int) -> list[int]:
    """All numbers below `n`, of which the first few, however many, lie evenly: van der Corput's sequence."""
    n_bits = max(0, n - 1).bit_length()
    seen: dict[int, None] = {}
    for i in range(1 << n_bits):
        reversed_bits = int(f"{i:0{n_bits}b}"[::-1], 2) if n_bits else 0
        seen[reversed_bits * n >> n_bits] = None
    return [number for number in seen if number < n]
