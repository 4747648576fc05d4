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
    Budget,
    Calibration,
    CancelToken,
    DecodingOptions,
    DraftKind,
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
    Tier,
    TierEvent,
    TierEventKind,
    TierSnapshot,
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
    prefill_steps: int = 1
    """In how many parts a prompt is read."""
    dropped_messages: Sequence[int] = (0,)
    """How many messages do not fit, for each reply in turn; the last one repeats."""
    tiers: TierSnapshot | None = None
    """Where the weights of a loaded model are."""
    backend: str = "fake"
    reason: str = ""
    """Why this backend."""
    threads: int = 2
    refuse_budget: str = ""
    """Why no other budget is taken; empty takes every one."""
    refuse_pin: str = ""
    """Why no block goes elsewhere; empty moves every one at once."""
    calibration: Calibration | None = None
    """What measuring finds out about leaving blocks out; None has the engine leave nothing out."""
    calibrated: bool = False
    """Whether that was measured before the model was loaded."""
    calibrate_steps: int = 4
    """In how many parts it is measured."""
    acceptance: float = 0.75
    """Share of drafts that are taken: reported, nothing is drafted."""
    plain_step_s: float = 0.0
    """A plain step of this conversation, reported with drafts or blocks left out."""
    draft_model: str = ""
    """Name of the smaller model that is loaded as well; empty for none."""
    load_progress: float = 1.0
    """How far a model is loaded when it is ready; less than 1 goes with tiers that have not settled."""


class FakeEngine:
    """One thread, one queue of commands, replies that grow."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        self.snapshot = EngineSnapshot(cores=2)
        self.requests: list[Request] = []
        self.loaded: list[Path] = []
        self.budgets: list[Budget | None] = []
        self.vram_budgets: list[Budget | None] = []
        self.pins: list[tuple[int, Tier | None]] = []
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._loads: set[CancelToken] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fake-engine", daemon=True)
        self._thread.start()

    def load(self, options: LoadOptions) -> None:
        cancel = CancelToken()
        self._loads.add(cancel)
        self._commands.put(lambda: self._load(options, cancel))

    def stop_loading(self) -> None:
        for cancel in list(self._loads):
            cancel.cancel()

    def ask(self, request: Request) -> Reply:
        reply = Reply(request)
        self.requests.append(request)
        number = len(self.requests)
        self._commands.put(lambda: self._generate(reply, number))
        return reply

    def unload(self) -> None:
        self._commands.put(
            lambda: self._set(
                state=EngineState.EMPTY, model=None, tiers=None, ram_budget=None, vram_budget=None
            )
        )

    def set_ram_budget(self, budget: Budget | None) -> None:
        self.budgets.append(budget)
        before = self.snapshot
        if before.model is None:
            return
        text = self.script.refuse_budget
        n_bytes = (budget or Budget(8 << 30)).resolve(8 << 30)
        done = {"notices": (*before.notices, text)} if text else {"ram_budget": budget}
        if before.tiers is not None:
            events = (*before.tiers.events, TierEvent(0.0, text or f"the memory budget is {n_bytes}"))
            budget_bytes = before.tiers.budget_bytes if text else n_bytes
            self._set(**done, tiers=replace(before.tiers, budget_bytes=budget_bytes, events=events))
        else:
            self._set(**done)

    def set_vram_budget(self, budget: Budget | None) -> None:
        self.vram_budgets.append(budget)
        tiers = self.snapshot.tiers
        if tiers is None or tiers.gpu is None:
            return
        if text := self.script.refuse_budget:
            self._set(tiers=_told(tiers, text, TierEventKind.WARNING))
            return
        n_bytes = (budget or Budget(20 << 30)).resolve(20 << 30)
        told = _told(tiers, f"the budget of the GPU is {n_bytes}")
        self._set(vram_budget=budget, tiers=replace(told, vram_budget_bytes=n_bytes))

    def pin_block(self, index: int, tier: Tier | None) -> None:
        self.pins.append((index, tier))
        tiers = self.snapshot.tiers
        assert tiers is not None, "a model is loaded"
        if text := self.script.refuse_pin:
            self._set(tiers=_told(tiers, text, TierEventKind.WARNING))
            return
        blocks = list(tiers.blocks)
        blocks[index] = replace(blocks[index], tier=tier or blocks[index].tier)
        self._set(tiers=replace(_told(tiers, f"{blocks[index].name} as asked"), blocks=tuple(blocks)))

    def count_tokens(self, text: str) -> int | None:
        return None if self.snapshot.model is None else len(text) // 4 + 1

    def close(self) -> None:
        self._closing.set()
        self._commands.put(None)
        self._thread.join(5)

    def _run(self) -> None:
        while (command := self._commands.get()) is not None:
            command()
        self._set(state=EngineState.CLOSED)

    def _set(self, **changes: object) -> None:
        with self._lock:
            self.snapshot = replace(self.snapshot, seq=self.snapshot.seq + 1, **changes)  # type: ignore[arg-type]

    def _load(self, options: LoadOptions, cancel: CancelToken) -> None:
        for step in range(5):
            if not cancel.cancelled:
                self._set(state=EngineState.LOADING, load_stage="loading weights", load_progress=step / 5)
                self._closing.wait(self.script.load_s / 5)
        self._loads.discard(cancel)
        if cancel.cancelled:
            self._set(state=EngineState.EMPTY, load_stage="", load_progress=0.0, model=None, tiers=None)
            return
        if self.script.load_error:
            error = GGUFError(self.script.load_error)
            self._set(state=EngineState.FAILED, error=str(error), model=None)
            return
        self.loaded.append(options.path)
        self._set(
            state=EngineState.READY,
            load_stage="",
            load_progress=self.script.load_progress,
            model=self._model(options.path),
            backend=self.script.backend,
            backend_reason=self.script.reason,
            threads=self.script.threads,
            notices=self.script.notices,
            tiers=self.script.tiers,
            ram_budget=options.ram_budget,
            vram_budget=options.vram_budget,
            calibration=self.script.calibration if self.script.calibrated else None,
            draft_model=self._draft_model(options),
            error="",
        )

    def _draft_model(self, options: LoadOptions) -> ModelInfo | None:
        name = self.script.draft_model
        return (
            replace(self._model(options.draft_model or Path("/models/draft.gguf")), name=name)
            if name
            else None
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

    def _generate(self, reply: Reply, number: int) -> None:
        script = self.script
        text = script.replies[min(number, len(script.replies)) - 1]
        prompt_tokens = 10 * number
        stats = GenerationStats(
            prompt_tokens=prompt_tokens,
            seed=7,
            dropped_messages=script.dropped_messages[min(number, len(script.dropped_messages)) - 1],
        )
        self._set(state=EngineState.GENERATING)
        stats = self._decoding(reply, reply.take_decoding(), stats)
        reply.update(ReplyStatus.PREFILL, stats)
        for step in range(1, script.prefill_steps + 1):
            self._closing.wait(script.token_s)
            done = prompt_tokens * step // script.prefill_steps
            stats = replace(stats, prefilled_tokens=done, prefill_s=0.05 * step / script.prefill_steps)
            reply.update(ReplyStatus.PREFILL, stats)
        stats = replace(stats, ttft_s=0.06)
        error: EngineError | None = None
        if text.startswith("!"):
            text, error = "", EngineError(text[1:])
        reason = FinishReason.ERROR if error else FinishReason.STOP
        for count, start in enumerate(range(0, len(text), script.piece), start=1):
            self._closing.wait(script.token_s)
            if reply.cancel_token.cancelled or self._closing.is_set():
                reason = FinishReason.CANCELLED
                break
            reply.take_sampling()
            stats = self._decoding(reply, reply.take_decoding(), stats)
            stats = replace(stats, completion_tokens=count, decode_s=(count - 1) / TOK_S)
            reply.append(text[start : start + script.piece], [count], stats)
            self._set(context_used=prompt_tokens + count, decode_tok_s=stats.decode_tok_s)
        self._set(state=EngineState.READY)
        reply.finish(reason, stats, error)

    def _decoding(self, reply: Reply, options: DecodingOptions, stats: GenerationStats) -> GenerationStats:
        """What statistics say of these options, after measuring what has to be known."""
        calibration, script = self.snapshot.calibration, self.script
        if options.skip is not None and calibration is None and script.calibration is not None:
            for step in range(script.calibrate_steps):
                if not reply.cancel_token.cancelled:
                    share = step / script.calibrate_steps
                    reply.update(ReplyStatus.CALIBRATE, replace(stats, calibrated_share=share))
                    self._closing.wait(script.token_s)
            calibration = script.calibration
            self._set(calibration=calibration)
        skip, skipped = options.skip, frozenset[int]()
        if calibration is not None and skip is not None:
            skipped = calibration.choose(skip)
        self._show_skipped(skipped)
        drafts = options.draft is not DraftKind.OFF and script.acceptance > 0
        drafted = stats.drafted_tokens + 4 if drafts else stats.drafted_tokens
        return replace(
            stats,
            skipped_blocks=len(skipped),
            skip_effect=calibration.effect(skipped) if calibration is not None and skipped else None,
            drafted_tokens=drafted,
            accepted_tokens=round(drafted * script.acceptance),
            drafts_at_once=(options.draft_k or 4) if drafts else 0,
            plain_step_s=script.plain_step_s if drafts or skipped else 0.0,
        )

    def _show_skipped(self, skipped: frozenset[int]) -> None:
        """Mark the layer blocks of the map that are left out."""
        tiers = self.snapshot.tiers
        if tiers is not None:
            layers = (i for i, block in enumerate(tiers.blocks) if block.layer is not None)
            shown = frozenset(place for number, place in enumerate(layers) if number in skipped)
            if shown != tiers.skipped:
                self._set(tiers=replace(tiers, skipped=shown))


def _told(tiers: TierSnapshot, text: str, kind: TierEventKind = TierEventKind.MOVE) -> TierSnapshot:
    return replace(tiers, events=(*tiers.events, TierEvent(0.0, text, kind)))
