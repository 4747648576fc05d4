"""What a model takes on a GPU, to the byte and before anything is reserved, and whether it fits.

Knows the sizes through a `Sketch`, and the words for what does not fit; touches no device, and does not
choose what is to be on the GPU (`tiers.gpu_planner` does, by the sizes told here). Called by `cuda_open` and
by `engine.preview`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from engine.backends.cuda_attention import DeviceKV
from engine.backends.cuda_model import DeviceLayout, DeviceModel, Wanted
from engine.backends.cuda_weights import allocate_weights, block_bytes, embedding_bytes, head_bytes, number_of
from engine.config import LoadOptions
from engine.errors import BudgetError
from engine.kv_cache import kv_bytes
from engine.model_config import ModelConfig
from engine.requirements import scratch_bytes
from engine.tiers.blocks import Block, BlockKind, weight_blocks
from engine.tiers.budget import Budget, shown_bytes
from engine.tiers.link import BUFFER_BYTES
from engine.tiers.loader import n_slots, slot_bytes
from engine.tiers.tier_plan import GpuSizes, TierPlan
from kernels.cuda import launch_settings
from kernels.cuda.launch_settings import LaunchSettings
from kernels.cuda.sampling import MOST_IDS
from kernels.cuda.sketch import DeviceKind, Sketch, allocated_bytes
from kernels.errors import DeviceMemoryError

DEFAULT = Budget(percent=Fraction(90))
"""Of the GPU's memory that is free: the rest is for the desktop and for what else begins on it."""
BESIDE_BYTES = 256 << 20
"""What CUDA needs itself as kernels and graphs come."""
CHUNKS = (512, 1024, 2048)
"""Prompt tokens per pass that a plan may choose from."""
SETTINGS_FILE = "launch_settings.toml"
"""In `LoadOptions.cache_dir`: what a search measured on this device."""


class DevicePlan(NamedTuple):
    """Memory of a GPU for one model; bytes."""

    weights: int
    """Those that stay."""
    kv: int
    ring: int
    """Slots and buffers that others pass through."""
    computing: int
    """For passes and draws, and `BESIDE_BYTES`."""
    budget: int
    """What all of it may take."""

    @property
    def n_bytes(self) -> int:
        """Everything."""
        return self.weights + self.kv + self.ring + self.computing


def settings_for(device: DeviceKind, options: LoadOptions) -> LaunchSettings:
    """How kernels are launched on a device of this kind."""
    return launch_settings.load(device, options.cache_dir and options.cache_dir / SETTINGS_FILE)


def granted_bytes(options: LoadOptions, free: int) -> int:
    """What a model may take of a GPU's memory of which `free` bytes are free."""
    return min(free, (options.vram_budget or DEFAULT).resolve(free))


def gpu_sizes(device: DeviceKind, wanted: Wanted, settings: LaunchSettings) -> GpuSizes:
    """What the parts of a model would take on a device of this kind, for the planner.

    The sum of parts is never less than what `plan_model` finds for them together. Raises ValueError for
    shapes that no kernel takes.
    """
    weights, config, options, max_context, chunk = wanted
    blocks = weight_blocks(weights.gguf, config)
    in_slots = {
        block.index: allocated_bytes(block_bytes(weights, number_of(block)))
        for block in blocks
        if block.layer is not None
    }
    of_blocks = dict(in_slots)
    head = tuple(block.index for block in blocks if block.kind is BlockKind.HEAD)
    of_blocks.update(_shared_out(allocated_bytes(head_bytes(weights, config)), [blocks[i] for i in head]))
    embedding = next((block.index for block in blocks if block.kind is BlockKind.EMBEDDING), None)
    if embedding is not None:
        of_blocks[embedding] = allocated_bytes(embedding_bytes(weights))
    chunks = (chunk,) if options.chunk is not None else sorted({min(each, max_context) for each in CHUNKS})
    fixed, spare = {}, {}
    for each in chunks:
        sketch = Sketch(device)
        model = DeviceModel(sketch, wanted, settings, _without_blocks(each))
        fixed[each], spare[each] = sketch.n_bytes + BESIDE_BYTES, model.spare_bytes
    layer_bytes = 2 * model.kv.memory.layout.layer_bytes
    passed_through = n_slots() * slot_bytes(blocks)
    counted = scratch_bytes(config, chunk)
    slack = _kv_rounding(model.kv, config.n_layers)
    return GpuSizes(
        block_bytes=of_blocks,
        slot_bytes=in_slots,
        kv_layer_bytes=layer_bytes,
        host_kv_layer_bytes=kv_bytes(config, max_context, options.precision) // config.n_layers,
        host_fixed_bytes={
            each: passed_through + 4 * config.hidden_size * max(each, MOST_IDS) for each in chunks
        },
        host_rows_bytes={each: max(0, scratch_bytes(config, each) - counted) for each in chunks},
        fixed_bytes={each: n_bytes + slack for each, n_bytes in fixed.items()},
        spare_bytes=spare,
        head=head,
        embedding=embedding,
    )


def layout_of(plan: TierPlan, blocks: Sequence[Block], config: ModelConfig) -> DeviceLayout:
    """What is on the GPU by a plan."""
    head = all(block.index in plan.vram for block in blocks if block.kind is BlockKind.HEAD)
    embedding = any(block.index in plan.vram for block in blocks if block.kind is BlockKind.EMBEDDING)
    in_vram = [block for block in blocks if block.layer is not None and block.index in plan.vram]
    return DeviceLayout(
        vram=frozenset(map(number_of, in_vram)),
        head=head,
        embedding=head if config.tied_head else embedding,
        kv_layers=tuple(layer for layer in range(config.n_layers) if layer not in plan.cpu_attention),
        slots=plan.slots,
        slot_bytes=plan.slot_bytes,
        landing=plan.landing,
        chunk=plan.chunk,
        staging_bytes=BUFFER_BYTES,
    )


def plan_model(
    device: DeviceKind, wanted: Wanted, settings: LaunchSettings, free: int, layout: DeviceLayout
) -> DevicePlan:
    """What the parts of the model in `layout` would take on a device of this kind with `free` bytes free.

    Raises BudgetError with figures where that is more than the budget, and ValueError for shapes that no
    kernel takes.
    """
    stored = Sketch(device)
    allocate_weights(
        stored, wanted.weights, wanted.config, layout.vram, head=layout.head, embedding=layout.embedding
    )
    sketch = Sketch(device)
    model = DeviceModel(sketch, wanted, settings, layout)
    passed_through = [*model.slots, *model.buffers, *([] if model.landing is None else [model.landing])]
    ring = sum(allocated_bytes(array.nbytes) for array in passed_through)
    computing = sketch.n_bytes + BESIDE_BYTES - stored.n_bytes - model.kv.n_bytes - ring
    granted = granted_bytes(wanted.options, free)
    plan = DevicePlan(stored.n_bytes, model.kv.n_bytes, ring, computing, granted)
    if plan.n_bytes > granted:
        raise _does_not_fit(device, wanted, plan, free)
    return plan


def ran_out(device: DeviceKind, plan: DevicePlan, refused: DeviceMemoryError) -> BudgetError:
    """The error for a plan that did fit, until somebody else took memory."""
    missing = shown_bytes(refused.asked) if refused.asked else "some"  # the driver does not always say
    return BudgetError(
        f"the model does not fit the memory of {device.name} any more: it takes {shown_bytes(plan.n_bytes)}, "
        f"{missing} of it could not be had, and {shown_bytes(refused.free)} are free: "
        "another program has taken memory meanwhile; close it, or load the model again"
    )


def _without_blocks(chunk: int) -> DeviceLayout:
    """What is on the GPU whatever is not."""
    return DeviceLayout(
        vram=frozenset(),
        head=False,
        embedding=False,
        kv_layers=(),
        slots=0,
        slot_bytes=0,
        landing=False,
        chunk=chunk,
        staging_bytes=BUFFER_BYTES,
    )


def _shared_out(n_bytes: int, blocks: Sequence[Block]) -> Iterator[tuple[int, int]]:
    """One allocation, by index of the blocks in it: in proportion to their rows."""
    total, before, rows = sum(block.pieces[0].n_rows for block in blocks), 0, 0
    for block in blocks:
        rows += block.pieces[0].n_rows
        until = n_bytes * rows // total
        yield block.index, until - before
        before = until


def _kv_rounding(kv: DeviceKV, n_layers: int) -> int:
    """The most by which keys and values of some layers take more than those of one times their number."""
    layer_bytes = kv.memory.layout.layer_bytes
    return max(2 * (allocated_bytes(n * layer_bytes) - n * layer_bytes) for n in range(n_layers + 1))


def _does_not_fit(device: DeviceKind, wanted: Wanted, plan: DevicePlan, free: int) -> BudgetError:
    """What the model takes, what there is, and what to do."""
    enough = -(-plan.n_bytes // 10**6)  # rounded up: what is named must do
    ways = "a smaller context (-c)"
    if enough * 10**6 <= free:
        ways = f"{enough}M or more (--vram-budget), or {ways}"
    return BudgetError(
        f"the model does not fit the memory of {device.name}: {shown_bytes(plan.weights)} of weights, "
        f"{shown_bytes(plan.ring)} that others pass through, {shown_bytes(plan.kv)} for a context of "
        f"{wanted.max_context} tokens and {shown_bytes(plan.computing)} for computing, and the budget is "
        f"{shown_bytes(plan.budget)} of {shown_bytes(free)} that are free; give {ways}"
    )
