"""From how a reply is to be decoded to how its next pass is: the set left out of it, and the drafter.

Knows the loaded model and what is known of its blocks; has measured what is needed and is not known. Does not
know the loop (`generate`) or how many drafts pay (`speculative`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.config import DecodingOptions, DraftKind
from engine.drafting.base import Drafter
from engine.drafting.draft_set import draft_set, expected_loss, measured_draft_set
from engine.drafting.ngram import NgramDrafter
from engine.drafting.own_blocks import OwnBlocks, blocks_from
from engine.errors import DecodingError
from engine.events import Reply
from engine.loading import LoadedModel
from engine.skipping.block_costs import block_costs
from engine.skipping.calibrate import chosen_set, ensure_calibrated
from engine.skipping.skip_choice import NOTHING, SkipChoice, SkipSet
from engine.speculative import Way

__all__ = ["Way", "ways"]

_MOVES_EVERY = 32
"""Passes after which it is looked where blocks are now: they move while a reply runs."""


def ways(
    loaded: LoadedModel, reply: Reply, prompt_ids: Sequence[int], on_calibration: Callable[[float], None]
) -> Callable[[], Way]:
    """What to ask before each pass of a reply how to compute it, as `Reply.change_decoding` wants it by then.

    Asking may measure what leaving blocks out does, on what the reply has been so far or else our own text:
    the session is empty then, and `on_calibration` is told how far it is, 0 to 1. It raises DecodingError
    where the reply began with what cannot be done with this model (later changes are refused, and the reply
    goes on as before), CancelledError, and what a pass raises.
    """
    return _Ways(loaded, reply, prompt_ids, on_calibration).now


class _Ways:
    """The way that was found last, until something changes."""

    def __init__(
        self,
        loaded: LoadedModel,
        reply: Reply,
        prompt_ids: Sequence[int],
        on_calibration: Callable[[float], None],
    ) -> None:
        """Nothing is found before it is asked for."""
        self._loaded, self._reply = loaded, reply
        self._prompt_ids, self._on_calibration = prompt_ids, on_calibration
        self._options: DecodingOptions | None = None
        self._way = Way()
        self._near = NOTHING
        self._asked = 0

    def now(self) -> Way:
        """How to compute the next pass."""
        options = self._reply.take_decoding()
        self._asked += 1
        is_new = options != self._options
        if is_new or (self._asked % _MOVES_EVERY == 0 and self._moved()):
            self._near = self._blocks_near()
            try:
                self._way = self._find(options, is_new=is_new)
            except DecodingError as error:
                if self._options is None:  # the reply was asked for like that
                    raise
                self._reply.refuse_decoding(self._options, str(error))
            else:
                self._options = options
        return self._way

    def _moved(self) -> bool:
        wanted = self._way.kind in (DraftKind.RESIDENT, DraftKind.SELF)
        return wanted and self._blocks_near() != self._near

    def _blocks_near(self) -> SkipSet:
        tiers = self._loaded.backend.tiers
        return self._all_blocks() if tiers is None else tiers.near

    def _all_blocks(self) -> SkipSet:
        return frozenset(range(2 * self._loaded.info.n_layers))

    def _find(self, options: DecodingOptions, *, is_new: bool) -> Way:
        if not is_new:
            skip = self._way.skip
        else:
            skip = NOTHING if options.skip is None else self._chosen(options.skip)
        drafter = self._drafter(options, skip, is_new=is_new)
        loss = self._expected_loss(options, skip, drafter)
        way = Way(skip, None if loss else drafter, options.draft_k, options.draft, loss)
        tiers = self._loaded.backend.tiers
        if is_new and tiers is not None:  # last: what is refused moves nothing
            tiers.leave_out(skip)
        return way

    def _chosen(self, choice: SkipChoice) -> SkipSet:
        known = ensure_calibrated(
            self._loaded, choice, self._ids_so_far(), self._reply.cancel_token, self._on_calibration
        )
        return chosen_set(known, choice)

    def _ids_so_far(self) -> Sequence[int]:
        return [*self._prompt_ids, *self._reply.token_ids]

    def _drafter(self, options: DecodingOptions, skip: SkipSet, *, is_new: bool) -> Drafter | None:
        if options.draft is DraftKind.OFF:
            return None
        if options.draft is DraftKind.NGRAM:
            return self._way.drafter if isinstance(self._way.drafter, NgramDrafter) else NgramDrafter()
        if options.draft is DraftKind.MODEL:
            if self._loaded.draft is None:
                raise DecodingError("no draft model is loaded: load the model again with one (--draft-model)")
            return self._loaded.draft
        left_out = self._left_out_of_drafts(options, is_new=is_new) | skip
        if left_out == skip or left_out == self._all_blocks():
            return None  # a draft would be as much work as what it saves, or know nothing of the text
        return OwnBlocks(self._loaded.model, self._loaded.session, left_out)

    def _expected_loss(self, options: DecodingOptions, skip: SkipSet, drafter: Drafter | None) -> float:
        """What calibration promises of a drafter that is not worth a trial; 0 of others.

        It tells how drafts agree with the whole model: where every pass leaves blocks out it promises
        nothing, and where a number of drafts was asked for they are made in any case.
        """
        known = self._loaded.calibration
        if known is None or options.draft is not DraftKind.SELF or not isinstance(drafter, OwnBlocks):
            return 0.0
        if skip or options.draft_k is not None:
            return 0.0
        return expected_loss(known, block_costs(self._loaded, self._near), drafter.skip)

    def _left_out_of_drafts(self, options: DecodingOptions, *, is_new: bool) -> SkipSet:
        """What a draft by the model itself leaves out, beside what every pass does."""
        n_layers = self._loaded.info.n_layers
        if options.draft is DraftKind.EXIT:
            layer = max(1, n_layers // 2) if options.exit_layer is None else options.exit_layer
            return blocks_from(layer, n_layers)
        if options.draft is DraftKind.RESIDENT:
            return self._all_blocks() - self._near
        known = self._loaded.calibration
        if is_new or known is None:
            return measured_draft_set(
                self._loaded,
                self._near,
                self._ids_so_far(),
                self._reply.cancel_token,
                self._on_calibration,
            )
        return draft_set(known, block_costs(self._loaded, self._near), self._near)
