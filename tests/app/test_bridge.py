"""How a reply ended, in words that say what to do next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.bridge import Bridge, LiveReply
from app.conversation import Conversation, TurnStatus
from app.store import Store
from engine import (
    ContextError,
    EngineSnapshot,
    EngineState,
    FinishReason,
    GenerationStats,
    LoadOptions,
    Reply,
    Request,
    SamplingParams,
)
from tests.fakes import FakeEngine

PATH = Path("m.gguf")


class StillEngine:
    """An engine whose replies grow when the test says so."""

    def __init__(self, name: str) -> None:
        fake = FakeEngine()
        fake.close()
        model = replace(fake._model(PATH), name=name, max_context=100)
        self.snapshot = EngineSnapshot(seq=1, state=EngineState.READY, model=model)
        self.reply: Reply | None = None

    def load(self, options: LoadOptions) -> None:
        pass

    def ask(self, request: Request) -> Reply:
        self.reply = Reply(request)
        return self.reply

    def close(self) -> None:
        pass


class Nobody:
    """Listens to nothing."""

    def engine_changed(self, snapshot: EngineSnapshot) -> None:
        pass

    def reply_grew(self, live: LiveReply) -> None:
        pass

    def reply_ended(self, live: LiveReply) -> None:
        pass


@pytest.mark.parametrize(
    ("reason", "completed", "error", "note"),
    [
        (FinishReason.STOP, 5, None, ""),
        (FinishReason.LENGTH, 5, None, "ended here: the limit of tokens was reached"),
        (
            FinishReason.LENGTH,
            90,
            None,
            "ended here: the context of 100 tokens is full; ^N begins a new conversation, or raise `context`"
            " in settings.toml",
        ),
        (
            FinishReason.ERROR,
            0,
            ContextError("too long: load the model with a larger context (-c)"),
            "too long: load the model with a larger context (`context` in settings.toml); ^N begins a new"
            " conversation",
        ),
    ],
)
def test_a_reply_that_ended_says_what_to_do_next(
    tmp_path: Path, reason: FinishReason, completed: int, error: ContextError | None, note: str
) -> None:
    bridge, engine, live = _asked(tmp_path)
    assert engine.reply is not None
    engine.reply.finish(reason, GenerationStats(prompt_tokens=10, completion_tokens=completed), error)
    engine.snapshot = EngineSnapshot(seq=2, state=EngineState.LOADING)  # the next model is on its way
    bridge.pull()
    assert live.turn.note == note
    assert not bridge.busy


def test_a_name_that_is_no_unicode_can_be_stored(tmp_path: Path) -> None:
    bridge, engine, live = _asked(tmp_path, "m\udcff")
    assert engine.reply is not None
    engine.reply.finish(FinishReason.ERROR, GenerationStats(), ContextError("in m\udcff.gguf"))
    bridge.pull()
    assert live.turn.status is TurnStatus.ERROR
    assert (live.turn.model + live.turn.note).encode()


def _asked(tmp_path: Path, name: str = "M") -> tuple[Bridge, StillEngine, LiveReply]:
    bridge, engine = Bridge(Store(tmp_path / "c.db"), Nobody()), StillEngine(name)
    bridge.load(LoadOptions(PATH))
    bridge.attach(engine)
    conversation = Conversation()
    conversation.add("user", "hello")
    live = bridge.ask(conversation, "", SamplingParams())
    bridge.pull()
    return bridge, engine, live
