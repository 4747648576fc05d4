"""More or less memory for a model that is loaded, between two passes.

Knows what is counted beside the weights, as at loading; where blocks go is the business of `TieredWeights`.
Called by the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.errors import BudgetError, ContextError, StreamError
from engine.events import TierEventKind
from engine.loading import LoadedModel
from engine.machine import available_memory
from engine.requirements import Room, room_for_weights, scratch_bytes
from engine.tiers.budget import Budget
from engine.tiers.store import TieredWeights

_MAPPED = "weights that NumPy computes with are mapped from the file: a memory budget changes nothing"
_ON_GPU = "the GPU holds all of the model: a memory budget changes nothing"


def change_budget(loaded: LoadedModel, budget: Budget | None, stopped: Callable[[], bool]) -> bool:
    """Give `loaded` this budget for the whole model, None for the default; False when `stopped` ended it.

    What cannot be done is told in `LoadedModel.budget_notices` and in an event.
    """
    tiers = loaded.backend.tiers
    if not isinstance(tiers, TieredWeights):
        loaded.budget_notices = (_MAPPED if tiers is None else _ON_GPU,)
        return True
    try:
        room = _room(loaded, tiers, budget)
    except (BudgetError, ContextError) as error:
        _tell(loaded, tiers, f"the memory budget was not changed: {error}")
        return True
    loaded.options = replace(loaded.options, ram_budget=budget)
    loaded.budget_notices = room.notices
    try:
        return tiers.change_budget(room.weights, stopped)
    except (StreamError, MemoryError) as error:
        reason = str(error) or "memory ran out: close other programs, or give a smaller budget"
        _tell(loaded, tiers, f"not all blocks came into memory: {reason}")
        return True


def _tell(loaded: LoadedModel, tiers: TieredWeights, text: str) -> None:
    loaded.budget_notices = (text,)
    tiers.note(text, TierEventKind.WARNING)


def _room(loaded: LoadedModel, tiers: TieredWeights, budget: Budget | None) -> Room:
    """Divide the budget; what the model holds already counts as available to it. Raises as loading does."""
    config, context = loaded.model.config, loaded.info.max_context
    options = replace(loaded.options, ram_budget=budget)
    cache = loaded.info.kv_bytes * len(loaded.session.ids) // context  # what was never written takes nothing
    held = tiers.plan.ram_bytes + scratch_bytes(config, options.chunk) + cache
    return room_for_weights(tiers.blocks, config, options, context, available_memory() + held)
