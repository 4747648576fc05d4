"""What a model takes on a GPU, to the byte and before anything is reserved, and whether it fits.

Knows the sizes through a `Sketch`, and the words for what does not fit; touches no device. Called by
`cuda_open` and by `engine.preview`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from engine.backends.cuda_model import DeviceModel, Wanted
from engine.backends.cuda_weights import allocate_weights
from engine.config import KVType, LoadOptions
from engine.errors import BudgetError
from engine.tiers.budget import Budget, shown_bytes
from engine.tiers.vram import SLOT_BYTES
from kernels.cuda import launch_settings
from kernels.cuda.launch_settings import LaunchSettings
from kernels.cuda.sketch import DeviceKind, Sketch
from kernels.errors import DeviceMemoryError

DEFAULT = Budget(percent=Fraction(90))
"""Of the GPU's memory that is free: the rest is for the desktop and for what else begins on it."""
BESIDE_BYTES = SLOT_BYTES + (256 << 20)
"""What weights pass through while they load; and what CUDA needs itself as kernels and graphs come."""


SETTINGS_FILE = "launch_settings.toml"
"""In `LoadOptions.cache_dir`: what a search measured on this device."""


class DevicePlan(NamedTuple):
    """Memory of a GPU for one model; bytes."""

    weights: int
    kv: int
    computing: int
    """For passes and draws, and `BESIDE_BYTES`."""
    budget: int
    """What all of it may take."""

    @property
    def n_bytes(self) -> int:
        """Everything."""
        return self.weights + self.kv + self.computing


def settings_for(device: DeviceKind, options: LoadOptions) -> LaunchSettings:
    """How kernels are launched on a device of this kind."""
    return launch_settings.load(device, options.cache_dir and options.cache_dir / SETTINGS_FILE)


def plan_model(device: DeviceKind, wanted: Wanted, settings: LaunchSettings, free: int) -> DevicePlan:
    """What the model would take on a device of this kind of which `free` bytes are free.

    Raises BudgetError with figures where that is more than the budget, and ValueError for shapes that no
    kernel takes.
    """
    granted = min(free, (wanted.options.vram_budget or DEFAULT).resolve(free))
    stored = Sketch(device)
    allocate_weights(stored, wanted.weights, wanted.config)
    sketch = Sketch(device)
    kv = DeviceModel(sketch, wanted, settings).kv
    computing = sketch.n_bytes + BESIDE_BYTES - stored.n_bytes - kv.n_bytes
    plan = DevicePlan(stored.n_bytes, kv.n_bytes, computing, granted)
    if plan.n_bytes > granted:
        raise _does_not_fit(device, wanted, settings, plan, free)
    return plan


def ran_out(device: DeviceKind, plan: DevicePlan, refused: DeviceMemoryError) -> BudgetError:
    """The error for a plan that did fit, until somebody else took memory."""
    return BudgetError(
        f"the model does not fit the memory of {device.name} any more: it takes {shown_bytes(plan.n_bytes)}, "
        f"{shown_bytes(refused.asked)} of it could not be had, and {shown_bytes(refused.free)} are free: "
        "another program has taken memory meanwhile; close it, or load the model again"
    )


def _does_not_fit(
    device: DeviceKind, wanted: Wanted, settings: LaunchSettings, plan: DevicePlan, free: int
) -> BudgetError:
    """What the model takes, what there is, and what would make it fit."""

    def needed(changed: Wanted) -> int:
        sketch = Sketch(device)
        DeviceModel(sketch, changed, settings)
        return sketch.n_bytes + BESIDE_BYTES

    ways = []
    contexts = range(64, wanted.max_context, 64)
    n_fitting = bisect_right(
        contexts, plan.budget, key=lambda context: needed(wanted._replace(max_context=context))
    )
    if n_fitting:
        ways.append(f"a context of {contexts[n_fitting - 1]} or less (-c)")
    smaller = replace(wanted.options, kv_type=KVType.Q8_0)
    if needed(wanted._replace(options=smaller)) <= plan.budget:
        ways.append(f"a cache of 8 bits (--kv-type {KVType.Q8_0})")
    enough = -(-plan.n_bytes // 10**6)  # rounded up: what is named must do
    if enough * 10**6 <= free:
        ways.append(f"a budget of {enough}M or more (--vram-budget)")
    advice = f"; it would with {', or '.join(ways)}" if ways else ""
    return BudgetError(
        f"the model does not fit the memory of {device.name}: {shown_bytes(plan.weights)} of weights, "
        f"{shown_bytes(plan.kv)} for a context of {wanted.max_context} tokens and "
        f"{shown_bytes(plan.computing)} for computing, and the budget is {shown_bytes(plan.budget)} of "
        f"{shown_bytes(free)} that are free{advice}"
    )
