"""More or less memory for a model that is loaded, or another place for a block, between two passes.

Knows what is counted beside the weights, as at loading; where blocks go is the business of `TieredWeights`
and `GpuTiers`. Called by the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.backends.cuda_plan import granted_bytes
from engine.config import DEFAULT_CHUNK
from engine.errors import BudgetError, ContextError, StreamError
from engine.events import Tier, TierEventKind
from engine.loading import LoadedModel
from engine.machine import available_memory
from engine.requirements import Room, room_for_gpu_host, room_for_weights, scratch_bytes
from engine.tiers.budget import Budget
from engine.tiers.gpu_tiers import GpuTiers
from engine.tiers.store import TieredWeights
from engine.tiers.wishes import PlaceRule

_MAPPED = "weights that NumPy computes with are mapped from the file: a memory budget changes nothing"
_NO_GPU = "no GPU computes: only a GPU's memory has blocks that can be placed by hand"
_NO_VRAM = "no GPU computes: a budget for its memory changes nothing"


def change_ram_budget(loaded: LoadedModel, budget: Budget | None, stopped: Callable[[], bool]) -> bool:
    """Give `loaded` this budget for all that it has in memory, None for the default.

    False when `stopped` ended it. What cannot be done is told in `LoadedModel.budget_notices` and an event.
    """
    tiers = loaded.backend.tiers
    options = replace(loaded.options, ram_budget=budget)
    if isinstance(tiers, GpuTiers):
        room = room_for_gpu_host(
            loaded.model.config,
            loaded.granted(options),
            loaded.info.max_context,
            available_memory() + tiers.ram_held,
        )
        budgets = tiers.where.budgets._replace(ram=room.weights)
        if _changed(loaded, tiers, "memory budget", lambda: tiers.change(budgets)):
            loaded.options, loaded.budget_notices = options, room.notices
        return True
    if not isinstance(tiers, TieredWeights):
        loaded.budget_notices = (_MAPPED,)
        return True
    try:
        room = _room(loaded, tiers, budget)
    except (BudgetError, ContextError) as error:
        _tell(loaded, tiers, f"the memory budget was not changed: {error}")
        return True
    loaded.options = options
    loaded.budget_notices = room.notices
    try:
        return tiers.change_budget(room.weights, stopped)
    except (StreamError, MemoryError) as error:
        reason = str(error) or "memory ran out: close other programs, or give a smaller budget"
        _tell(loaded, tiers, f"not all blocks came into memory: {reason}")
        return True


def change_vram_budget(loaded: LoadedModel, budget: Budget | None) -> bool:
    """Give `loaded` this budget for all that it has in its GPU's memory, None for the default; True.

    Blocks move from then on. What cannot be done is told as in `change_ram_budget`.
    """
    tiers = loaded.backend.tiers
    if not isinstance(tiers, GpuTiers):
        loaded.budget_notices = (_NO_VRAM,)
        return True
    options = replace(loaded.options, vram_budget=budget)
    granted = granted_bytes(loaded.granted(options), tiers.vram_available)
    budgets = tiers.where.budgets._replace(vram=granted)
    if _changed(loaded, tiers, "GPU memory budget", lambda: tiers.change(budgets)):
        loaded.options, loaded.budget_notices = options, ()
    return True


def pin_block(loaded: LoadedModel, index: int, tier: Tier | None) -> bool:
    """Let a block stay in a tier, None to let the plan choose again; True. It moves from then on."""
    tiers = loaded.backend.tiers
    if not isinstance(tiers, GpuTiers):
        loaded.budget_notices = (_NO_GPU,)
        return True
    block = tiers.where.blocks[index]
    layer, kind = block.layer or 0, "" if block.layer is None else str(block.kind)
    pinned = PlaceRule("blk" if kind else str(block.kind), layer, layer, kind, str(tier or Tier.VRAM))
    rules = tuple(rule for rule in tiers.where.rules if replace(rule, tier=pinned.tier) != pinned)
    if tier is not None:
        rules = (*rules, pinned)
    if _changed(loaded, tiers, f"place of {block.name}", lambda: tiers.change(tiers.where.budgets, rules)):
        loaded.options = replace(loaded.options, place=rules)
    return True


def _changed(loaded: LoadedModel, tiers: GpuTiers[Any], what: str, change: Callable[[], None]) -> bool:
    """Whether a change that may be refused was made; else it is told."""
    try:
        change()
    except (BudgetError, MemoryError) as error:
        reason = str(error) or "memory ran out: close other programs"
        _tell(loaded, tiers, f"the {what} was not changed: {reason}")
        return False
    return True


def _tell(loaded: LoadedModel, tiers: TieredWeights | GpuTiers[Any], text: str) -> None:
    loaded.budget_notices = (text,)
    tiers.note(text, TierEventKind.WARNING)


def _room(loaded: LoadedModel, tiers: TieredWeights, budget: Budget | None) -> Room:
    """Divide the budget; what the model holds already counts as available to it. Raises as loading does."""
    config, context = loaded.model.config, loaded.info.max_context
    options = loaded.granted(replace(loaded.options, ram_budget=budget))
    cache = loaded.info.kv_bytes * len(loaded.session.ids) // context  # what was never written takes nothing
    chunk = min(options.chunk or DEFAULT_CHUNK, context)
    held = tiers.plan.ram_bytes + scratch_bytes(config, chunk) + cache
    return room_for_weights(tiers.blocks, config, options, context, available_memory() + held)
