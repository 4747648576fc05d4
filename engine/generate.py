"""The loop: prefill the prompt; draw an id; then draft, verify and accept more of them, until something ends
the reply. A round without drafts is the plain decode step.

Ids in, ids out. Knows models and caches through `Transformer` and `Session`; does not know text.
Called by `answer` (requests), `benchmark` and `calibration_report`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from engine.cancel import CancelToken
from engine.drafting.base import Draw
from engine.drafting.step_costs import StepCosts
from engine.errors import ContextError
from engine.events import FinishReason
from engine.logits import Logits
from engine.model import Transformer
from engine.session import Session
from engine.skipping.skip_choice import NOTHING, SkipSet
from engine.speculative import Drawn, Speculation, Way


def prefill(
    model: Transformer,
    session: Session,
    token_ids: Sequence[int],
    *,
    chunk: int,
    cancel: CancelToken,
    on_progress: Callable[[int], None],
    skip: SkipSet = NOTHING,
) -> Logits:
    """Run ids that follow what the session holds, `chunk` at a time -> logits [V] after the last one.

    Calls on_progress with the number of ids done after each chunk. Raises CancelledError; whole chunks that
    were done stay in the session.
    """
    for start in range(0, len(token_ids), chunk):
        part = token_ids[start : start + chunk]
        hidden = model.hidden(part, len(session.ids), session.kv, cancel, skip)
        session.extend(part, skip)
        on_progress(start + len(part))
    return model.next_logits(hidden, cancel, skip)


def recompute(
    model: Transformer,
    session: Session,
    token_ids: Sequence[int],
    skip: SkipSet,
    *,
    chunk: int,
    cancel: CancelToken,
    on_progress: Callable[[int, int], None],
) -> int:
    """Run those of the ids that the session lacks, or has of passes that do not serve -> how many.

    What it has of them is their beginning. Calls on_progress with the number of ids done, and that of all
    there are to do, at the beginning and after each chunk; not where there are none. Raises CancelledError as
    `prefill`.
    """
    session.cut(session.serving(skip))
    start = len(session.ids)
    total = len(token_ids) - start
    if total > 0:
        on_progress(0, total)
    for first in range(start, len(token_ids), chunk):
        part = token_ids[first : first + chunk]
        model.hidden(part, first, session.kv, cancel, skip)
        session.extend(part, skip)
        on_progress(len(session.ids) - start, total)
    return total


def decode_step(
    model: Transformer,
    session: Session,
    token_id: int,
    cancel: CancelToken,
    skip: SkipSet = NOTHING,
    *,
    ahead: bool = True,
) -> Logits:
    """Run one id -> logits [V] after it; `ahead`: the id drawn from them will be run next, alone."""
    hidden = model.hidden([token_id], len(session.ids), session.kv, cancel, skip)
    session.extend([token_id], skip)
    return model.next_logits(hidden, cancel, skip if ahead else None)


def verify(
    model: Transformer,
    session: Session,
    token_id: int,
    drafts: Sequence[int],
    cancel: CancelToken,
    skip: SkipSet,
) -> Sequence[Logits]:
    """Run one id and drafts to follow it -> logits [V] after each.

    The session takes note of the id alone: which drafts count is known when ids have been drawn.
    """
    hidden = model.hidden([token_id, *drafts], len(session.ids), session.kv, cancel, skip)
    session.extend([token_id], skip)
    return model.each_logits(hidden, cancel)


def plainly() -> Way:
    """All blocks, one id after the other."""
    return Way()


def generate(
    model: Transformer,
    session: Session,
    token_ids: Sequence[int],
    draw: Draw,
    *,
    max_tokens: int | None,
    stop_ids: frozenset[int],
    chunk: int,
    cancel: CancelToken,
    on_prefill: Callable[[int], None],
    on_recompute: Callable[[int, int], None] = lambda n_done, n_all: None,
    ways: Callable[[], Way] = plainly,
    speculation: Speculation | None = None,
) -> Generator[Drawn, None, FinishReason]:
    """Yield the ids of a reply to what the session holds and token_ids together, the stop id not included.

    `ways` is asked before each pass how to compute it; what the session lacks by then, or has of passes that
    left other blocks out, is computed again, of which `on_recompute` is told as by `recompute`. The
    generator's value is why it ended. Raises ContextError when the prompt leaves no room, CancelledError when
    it is told to stop.
    """
    speculation = speculation or Speculation(StepCosts())
    ids = [*session.ids, *token_ids]
    room = session.kv.max_context - len(ids)
    if room < 1:
        raise ContextError(
            f"the prompt has {len(ids)} tokens and the context holds {session.kv.max_context}: "
            "shorten it, or load the model with a larger context (-c)"
        )
    way = ways()
    session.cut(session.serving(way.skip))
    missing = ids[len(session.ids) :]
    logits = prefill(
        model, session, missing, chunk=chunk, cancel=cancel, on_progress=on_prefill, skip=way.skip
    )
    left = room if max_tokens is None else min(room, max_tokens)
    drawn = [Drawn(draw(logits, session.ids))] if left else []
    while left:
        for token in drawn:
            if token.token_id in stop_ids:
                return FinishReason.STOP
            ids.append(token.token_id)
            left -= 1
            yield token
        if left:
            way = ways()
            speculation.recomputed += recompute(
                model,
                session,
                ids[:-1],
                way.skip,
                chunk=chunk,
                cancel=cancel,
                on_progress=on_recompute,
            )
            drafts = speculation.draft(way, ids, min(left, chunk) - 1, draw, cancel)
            if drafts:
                rows = verify(model, session, ids[-1], drafts, cancel, way.skip)
            else:
                ahead = speculation.off and left > 1
                rows = [decode_step(model, session, ids[-1], cancel, way.skip, ahead=ahead)]
            drawn = speculation.accept(rows, drafts, draw, session, stop_ids)
    return FinishReason.LENGTH
