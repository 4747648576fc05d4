"""Which blocks the model leaves out when it drafts for itself: the set that promises the fastest reply.

Knows calibrations and what blocks cost; does not draft. What a draft set does is proven by the drafts that
are accepted: here it is only expected, and so is a loss that is too clear to be tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf, log, sqrt

import numpy as np

from engine.cancel import CancelToken
from engine.config import MOST_DRAFTS
from engine.loading import LoadedModel
from engine.skipping.block_costs import BlockCosts, block_costs
from engine.skipping.calibrate import ensure_calibrated
from engine.skipping.calibrated import Calibration
from engine.skipping.grown_skips import leaves_too_little
from engine.skipping.skip_choice import NOTHING, SkipChoice, SkipRule, SkipSet

_MOST_MEASURED = 4
"""Sets that are measured because they promise more than those that were; each turns out to be less."""
_SURE = 1.96
"""Standard errors that an agreement may be off by: the calibration's text is short."""


def draft_set(calibration: Calibration, costs: BlockCosts, near: SkipSet) -> SkipSet:
    """The set whose drafts promise the most speed, be it less than without; NOTHING where none can draft.

    Tried are the grown sets, and sets that leave out first what is not `near`; how often the drafts of a set
    that was never measured agree is guessed from the sets that were.
    """
    best, most, known = NOTHING, 0.0, _Known(calibration)
    for skip in _candidates(calibration, costs, near):
        gain = _gain(known, costs, skip)
        if gain > most:
            best, most = skip, gain
    return best


def measured_draft_set(
    loaded: LoadedModel,
    near: SkipSet,
    conversation_ids: Sequence[int],
    cancel: CancelToken,
    on_progress: Callable[[float], None],
) -> SkipSet:
    """The same for a loaded model, which is calibrated where it was not yet, of sets that were measured only.

    Empties the session where it measures. Raises as `ensure_calibrated`.
    """
    costs = block_costs(loaded, near)
    calibration = ensure_calibrated(loaded, None, conversation_ids, cancel, on_progress)
    for _ in range(_MOST_MEASURED):
        skip = draft_set(calibration, costs, near)
        if not skip or calibration.effect(skip) is not None:
            return skip
        choice = SkipChoice(SkipRule.BLOCKS, blocks=skip)
        calibration = ensure_calibrated(loaded, choice, conversation_ids, cancel, on_progress)
    known = _Known(calibration)
    return max(known.effects, key=lambda skip: _gain(known, costs, skip))


def expected_loss(calibration: Calibration, costs: BlockCosts, skip: SkipSet) -> float:
    """What the drafts of a set promise of plain decoding's speed, where that is clearly a loss; else 0.

    Clearly: with the best number of drafts, passes that verify them for the price of one id, and drafts that
    agree as often as the 95 % interval of their agreement allows, plain decoding would still be faster.
    """
    agreement, cost = _Known(calibration).agreement(skip), _share_left(costs, skip)
    most = agreement + _SURE * sqrt(agreement * (1 - agreement) / calibration.tokens)
    return expected_gain(agreement, cost) if expected_gain(min(1.0, most), cost) < 1 else 0.0


def expected_gain(agreement: float, cost: float) -> float:
    """Speed against plain decoding at the best number of drafts, which cost `cost` of a whole pass each.

    The pass that verifies k drafts is taken to cost as much as one of a single id, as it does where weights
    are read from memory.
    """
    gains = []
    emitted = 1.0
    for n_drafts in range(1, MOST_DRAFTS + 1):
        emitted += agreement**n_drafts
        gains.append(emitted / (1 + n_drafts * cost))
    return max(gains)


def _candidates(calibration: Calibration, costs: BlockCosts, near: SkipSet) -> Iterator[SkipSet]:
    yield from calibration.grown
    alone = {block: calibration.effect(frozenset((block,))) for block in range(calibration.n_blocks)}
    losses = {block: -log(max(effect.top1, 1e-9)) for block, effect in alone.items() if effect is not None}
    # What is far goes first, and of each kind what costs most for the agreement that it takes.
    order = sorted(losses, key=lambda block: (block in near, losses[block] / costs.layers[block]))
    for count in range(1, len(order) + 1):
        skip = frozenset(order[:count])
        if not leaves_too_little(skip, calibration.n_blocks):
            yield skip


class _Known:
    """What a calibration says of any set; every reply asks it of dozens."""

    def __init__(self, calibration: Calibration) -> None:
        """Sets change more than their blocks do one by one, and grown sets tell how much more."""
        self.effects = {effect.skipped: effect for effect in calibration.effects}
        self._alone = {min(skip): effect.kl for skip, effect in self.effects.items() if len(skip) == 1}
        grown = [self.effects[skip] for skip in calibration.grown if skip in self.effects]
        self._changes = [0.0, *(self._together(effect.skipped) for effect in grown)]
        self._agreements = [1.0, *(effect.top1 for effect in grown)]

    def agreement(self, skip: SkipSet) -> float:
        """Share of drafts that agree: measured, or that of grown sets whose blocks alone change as much.

        Beyond the largest of them nothing is known, and nothing hoped for.
        """
        if skip in self.effects:
            return self.effects[skip].top1
        return float(np.interp(self._together(skip), self._changes, self._agreements, right=0.0))

    def _together(self, skip: SkipSet) -> float:
        """Nats that blocks change the output by, each of them alone, taken together."""
        return sum(self._alone.get(block, inf) for block in skip)


def _gain(known: _Known, costs: BlockCosts, skip: SkipSet) -> float:
    return expected_gain(known.agreement(skip), _share_left(costs, skip))


def _share_left(costs: BlockCosts, skip: SkipSet) -> float:
    whole = sum(costs.layers) + costs.rest
    return 1 - sum(costs.layers[block] for block in skip) / whole
