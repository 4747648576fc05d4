"""The loop: prefill the prompt, then draw an id and decode it, until something ends the reply.

Ids in, ids out. Knows models and caches through `Transformer` and `Session`; does not know text.
Called by `answer` (requests) and `benchmark`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from engine.cancel import CancelToken
from engine.errors import ContextError
from engine.events import FinishReason
from engine.logits import Logits
from engine.model import Transformer
from engine.session import Session

Draw = Callable[[Logits, Sequence[int]], int]
"""The id that follows all ids so far, from their logits [V]: a `Sampler`."""


def prefill(
    model: Transformer,
    session: Session,
    token_ids: Sequence[int],
    *,
    chunk: int,
    cancel: CancelToken,
    on_progress: Callable[[int], None],
) -> Logits:
    """Run ids that follow what the session holds, `chunk` at a time -> logits [V] after the last one.

    Calls on_progress with the number of ids done after each chunk. Raises CancelledError; whole chunks that
    were done stay in the session.
    """
    for start in range(0, len(token_ids), chunk):
        part = token_ids[start : start + chunk]
        hidden = model.hidden(part, len(session.ids), session.kv, cancel)
        session.ids.extend(part)
        on_progress(start + len(part))
    return model.next_logits(hidden, cancel)


def decode_step(model: Transformer, session: Session, token_id: int, cancel: CancelToken) -> Logits:
    """Run one id -> logits [V] after it."""
    hidden = model.hidden([token_id], len(session.ids), session.kv, cancel)
    session.ids.append(token_id)
    return model.next_logits(hidden, cancel)


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
) -> Generator[int, None, FinishReason]:
    """Yield the ids of a reply to what the session holds and token_ids together, the stop id not included.

    The generator's value is why it ended. Raises ContextError when the prompt leaves no room,
    CancelledError when it is told to stop.
    """
    n_prompt = len(session.ids) + len(token_ids)
    room = session.kv.max_context - n_prompt
    if room < 1:
        raise ContextError(
            f"the prompt has {n_prompt} tokens and the context holds {session.kv.max_context}: "
            "shorten it, or load the model with a larger context (-c)"
        )
    logits = prefill(model, session, token_ids, chunk=chunk, cancel=cancel, on_progress=on_prefill)
    for left in range(room if max_tokens is None else min(room, max_tokens), 0, -1):
        token_id = draw(logits, session.ids)
        if token_id in stop_ids:
            return FinishReason.STOP
        yield token_id
        if left > 1:
            logits = decode_step(model, session, token_id, cancel)
    return FinishReason.LENGTH
