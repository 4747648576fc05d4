"""A scripted engine that sleeps: the surface of the real one, without numpy, models or a busy processor.

Sleeping matters: Textual's pilot waits for the process to be idle, which a computing engine never is.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine import (
    EngineError,
    EngineSnapshot,
    EngineState,
    FinishReason,
    GenerationStats,
    GGUFError,
    LoadOptions,
    ModelInfo,
    Reply,
    ReplyStatus,
    Request,
)

TOK_S = 50.0
"""Decode speed that is reported, however slow the script is: screenshots must not vary."""


@dataclass(frozen=True)
class Script:
    """What the fake engine does, and how slowly."""

    replies: Sequence[str] = ("Hello from the script.",)
    """Texts of the replies, in turn; the last one repeats. An exception's text after `!` fails."""
    token_s: float = 0.002
    load_s: float = 0.02
    piece: int = 4
    """Characters of a token."""
    model_name: str = "Fake-1M-Instruct"
    has_template: bool = True
    notices: tuple[str, ...] = ()
    load_error: str = ""
    max_context: int = 2048


class FakeEngine:
    """One thread, one queue of commands, replies that grow."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        self.snapshot = EngineSnapshot()
        self.requests: list[Request] = []
        self.loaded: list[Path] = []
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fake-engine", daemon=True)
        self._thread.start()

    def load(self, options: LoadOptions) -> None:
        self._commands.put(lambda: self._load(options))

    def ask(self, request: Request) -> Reply:
        reply = Reply(request)
        self.requests.append(request)
        self._commands.put(lambda: self._generate(reply))
        return reply

    def unload(self) -> None:
        self._commands.put(lambda: self._set(state=EngineState.EMPTY, model=None))

    def close(self) -> None:
        self._closing.set()
        self._commands.put(None)
        self._thread.join(5)

    def _run(self) -> None:
        while (command := self._commands.get()) is not None:
            command()
        self._set(state=EngineState.CLOSED)

    def _set(self, **changes: object) -> None:
        self.snapshot = replace(self.snapshot, seq=self.snapshot.seq + 1, **changes)  # type: ignore[arg-type]

    def _load(self, options: LoadOptions) -> None:
        for step in range(5):
            self._set(state=EngineState.LOADING, load_stage="loading weights", load_progress=step / 5)
            self._closing.wait(self.script.load_s / 5)
        if self.script.load_error:
            error = GGUFError(self.script.load_error)
            self._set(state=EngineState.FAILED, error=str(error), model=None)
            return
        self.loaded.append(options.path)
        self._set(
            state=EngineState.READY,
            load_progress=1.0,
            model=self._model(options.path),
            backend="fake",
            threads=2,
            notices=self.script.notices,
        )

    def _model(self, path: Path) -> ModelInfo:
        return ModelInfo(
            path=path,
            name=self.script.model_name,
            architecture="llama",
            n_layers=30,
            hidden_size=576,
            vocab_size=49152,
            n_parameters=135_000_000,
            quantisation="Q4_1",
            file_bytes=98_362_432,
            training_context=8192,
            max_context=self.script.max_context,
            kv_bytes=94_371_840,
            has_template=self.script.has_template,
            template_origin="tokenizer.chat_template" if self.script.has_template else "none",
        )

    def _generate(self, reply: Reply) -> None:
        script = self.script
        text = script.replies[min(len(self.requests), len(script.replies)) - 1]
        prompt_tokens = 10 * len(self.requests)
        stats = GenerationStats(prompt_tokens=prompt_tokens, seed=7)
        self._set(state=EngineState.GENERATING)
        reply.update(ReplyStatus.PREFILL, stats)
        self._closing.wait(script.token_s)
        stats = replace(stats, prefilled_tokens=prompt_tokens, prefill_s=0.05, ttft_s=0.06)
        error: EngineError | None = None
        if text.startswith("!"):
            text, error = "", EngineError(text[1:])
        reason = FinishReason.ERROR if error else FinishReason.STOP
        for count, start in enumerate(range(0, len(text), script.piece), start=1):
            self._closing.wait(script.token_s)
            if reply.cancel_token.cancelled or self._closing.is_set():
                reason = FinishReason.CANCELLED
                break
            stats = replace(stats, completion_tokens=count, decode_s=(count - 1) / TOK_S)
            reply.append(text[start : start + script.piece], [count], stats)
            self._set(context_used=prompt_tokens + count)
        self._set(state=EngineState.READY)
        reply.finish(reason, stats, error)
