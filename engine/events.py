"""What the engine shows to the outside: replies that grow, and an immutable snapshot of its state.

The engine never calls its reader. A `Reply` is append-only and its reader keeps an offset, so nothing is
ever dropped; the `EngineSnapshot` is swapped by reference. Knows no terminal and no model arithmetic.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine.cancel import CancelToken
from engine.config import DecodingOptions, Request, SamplingParams
from engine.errors import EngineError
from engine.skipping.calibrated import Calibration, SkipEffect
from engine.tiers.budget import Budget


class FinishReason(StrEnum):
    """Why a reply ended."""

    STOP = "stop"
    """The model ended its turn, or a stop string was met."""
    LENGTH = "length"
    """max_tokens or the context was reached."""
    CANCELLED = "cancelled"
    """The person stopped it; the text so far is kept."""
    ERROR = "error"
    """It failed; `Reply.error` says why; the text so far is kept."""


class ReplyStatus(StrEnum):
    """Where a reply stands."""

    QUEUED = "queued"
    CALIBRATE = "calibrate"
    """What leaving blocks out would do is being measured, since the reply is to do so."""
    PREFILL = "prefill"
    RECOMPUTE = "recompute"
    """Ids are computed again in the middle of the reply: other blocks are left out than when they were."""
    DECODE = "decode"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """Counts and times of one reply; times in seconds."""

    prompt_tokens: int = 0
    """Ids of the whole prompt, cached ones included."""
    cached_tokens: int = 0
    """Ids of the prompt that were already in the KV cache."""
    prefilled_tokens: int = 0
    """Ids of the prompt computed so far; ends at prompt_tokens - cached_tokens."""
    completion_tokens: int = 0
    """Ids drawn so far, the stop id not counted."""
    prefill_s: float = 0.0
    """From the start of prefill to its end."""
    decode_s: float = 0.0
    """From the first drawn id to the last."""
    ttft_s: float = 0.0
    """From `Engine.ask`, or the end of loading if that was later, to the first id; 0 before it."""
    seed: int = 0
    """The seed that was used."""
    nvme_read_bytes: int = 0
    """Bytes of weights read from disk."""
    stall_s: float = 0.0
    """Time during which computing waited for the disk, or for copies to a GPU."""
    h2d_bytes: int = 0
    """Bytes of weights copied to a GPU."""
    dropped_messages: int = 0
    """Messages of the request, its oldest but for the system prompt, that did not fit and were left out."""

    calibrated_share: float = 0.0
    """How far calibration is, 0 to 1, while the reply waits for it."""
    drafted_tokens: int = 0
    """Ids proposed and verified."""
    accepted_tokens: int = 0
    """Of those, the ids that were taken; the id that corrects a wrong one is not counted."""
    drafts_at_once: int = 0
    """Ids proposed at a time now; 0 where drafting is off, or does not pay at present."""
    expected_speed_up: float = 0.0
    """Decoding speed against plain steps that calibration expects of drafts at best, where that is clearly a
    loss and so none is tried; 0 where they are tried, or off."""
    skipped_blocks: int = 0
    """Layer blocks left out of every pass now."""
    skip_effect: SkipEffect | None = None
    """What leaving them out does; None where nothing is left out, or nothing was measured."""
    recomputed_share: float = 0.0
    """How far computing ids again is, 0 to 1, while the reply waits for it."""
    recomputed_tokens: int = 0
    """Ids computed again because other blocks are left out now than when they were computed."""
    plain_step_s: float = 0.0
    """A decode step without drafts and with all blocks, as measured in this conversation; 0 before any."""

    @property
    def acceptance_rate(self) -> float:
        """Share of the proposed ids that were taken; 0 before any."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @property
    def speed_up(self) -> float:
        """Decoding speed against plain steps; 0 where either was not measured."""
        return self.decode_tok_s * self.plain_step_s

    @property
    def prefill_tok_s(self) -> float:
        """Computed prompt tokens per second."""
        return self.prefilled_tokens / self.prefill_s if self.prefill_s > 0 else 0.0

    @property
    def decode_tok_s(self) -> float:
        """Decode steps per second; the first id comes from prefill and is not counted."""
        steps = self.completion_tokens - 1
        return steps / self.decode_s if self.decode_s > 0 and steps > 0 else 0.0


class Reply:
    """A reply that grows. The engine thread writes; any thread reads, keeping its own offset."""

    def __init__(self, request: Request) -> None:
        """Create a queued reply to `request`."""
        self.request = request
        self.status = ReplyStatus.QUEUED
        self.finish_reason: FinishReason | None = None
        self.error: EngineError | None = None
        self.stats = GenerationStats()
        self.sampling = request.sampling
        """What the next token is drawn with, as far as the engine has taken note."""
        self.sampling_changes: tuple[tuple[int, SamplingParams], ...] = ()
        """What `change_sampling` changed: the tokens drawn before, and what was in effect from then on."""
        self.wanted_sampling = request.sampling
        """What was asked for last; the engine thread takes it over between two tokens."""
        self.decoding = request.decoding
        """How ids are computed, as far as the engine has taken note."""
        self.decoding_changes: tuple[tuple[int, DecodingOptions], ...] = ()
        """What `change_decoding` changed: the tokens drawn before, and what was in effect from then on."""
        self.wanted_decoding = request.decoding
        """What was asked for last; the engine thread takes it over between two passes."""
        self.decoding_refusal = ""
        """Why what `change_decoding` asked for last is not in effect; empty where it is, or waits."""
        self.token_ids: list[int] = []
        self.from_draft: list[bool] = []
        """Of each of them, whether it had been proposed before it was drawn."""
        self._parts: list[str] = []
        self._condition = threading.Condition()
        self.cancel_token = CancelToken()
        """Polled by the engine thread and its kernels; set by `cancel`."""

    # -- for the reader

    def read(self, offset: int) -> tuple[str, int]:
        """Return the text that came after `offset` (0 at first) and the next offset."""
        parts = self._parts[offset:]
        return "".join(parts), offset + len(parts)

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._parts)

    @property
    def done(self) -> bool:
        """Whether the reply has ended, for whatever reason."""
        return self.status is ReplyStatus.DONE

    def wait(self, offset: int, timeout: float | None = None) -> bool:
        """Block until there is text after `offset` or the reply is done; False on timeout."""
        with self._condition:
            return self._condition.wait_for(lambda: self.done or len(self._parts) > offset, timeout)

    def cancel(self) -> None:
        """Ask the engine to stop this reply; the text so far is kept. Safe from any thread, idempotent."""
        self.cancel_token.cancel()

    def change_sampling(self, params: SamplingParams) -> None:
        """Draw with `params` from the next token on; `sampling` tells when they hold. Safe from any thread.

        The seed stays that of the request: what has been drawn cannot be drawn again.
        """
        self.wanted_sampling = params

    def change_decoding(self, options: DecodingOptions) -> None:
        """Compute with `options` from the next pass on; `decoding` tells when they hold.

        Safe from any thread.
        """
        with self._condition:
            self.decoding_refusal, self.wanted_decoding = "", options

    # -- for the engine thread

    def take_decoding(self) -> DecodingOptions:
        """Take over what `change_decoding` asked for, and return how the next pass is to be computed."""
        wanted = self.wanted_decoding
        if wanted != self.decoding:
            self.decoding_changes = (*self.decoding_changes, (len(self.token_ids), wanted))
            self.decoding = wanted
        return wanted

    def refuse_decoding(self, still: DecodingOptions, why: str) -> None:
        """Undo the last `take_decoding`: the model cannot do that, and `still` holds."""
        with self._condition:
            if (
                self.wanted_decoding == self.decoding
            ):  # else another change came meanwhile, and is not refused
                self.wanted_decoding, self.decoding_refusal = still, why
        self.decoding_changes = self.decoding_changes[:-1]
        self.decoding = still

    def take_sampling(self) -> SamplingParams:
        """Take over what `change_sampling` asked for, and return what the next token is drawn with."""
        wanted = self.wanted_sampling
        if wanted != self.sampling:
            self.sampling_changes = (*self.sampling_changes, (len(self.token_ids), wanted))
            self.sampling = wanted
        return wanted

    def update(self, status: ReplyStatus, stats: GenerationStats) -> None:
        """Replace status and statistics."""
        with self._condition:
            self.status, self.stats = status, stats
            self._condition.notify_all()

    def append(
        self, text: str, token_ids: list[int], stats: GenerationStats, *, from_draft: bool = False
    ) -> None:
        """Add newly drawn ids, all of them drafts or none, and the text they complete (may be empty)."""
        with self._condition:
            self.token_ids.extend(token_ids)
            self.from_draft.extend([from_draft] * len(token_ids))
            if text:
                self._parts.append(text)
            self.status, self.stats = ReplyStatus.DECODE, stats
            self._condition.notify_all()

    def finish(self, reason: FinishReason, stats: GenerationStats, error: EngineError | None = None) -> None:
        """End the reply."""
        with self._condition:
            self.finish_reason, self.error, self.stats = reason, error, stats
            self.status = ReplyStatus.DONE
            self._condition.notify_all()


class EngineState(StrEnum):
    """What the engine thread is doing."""

    EMPTY = "empty"
    LOADING = "loading"
    READY = "ready"
    GENERATING = "generating"
    FAILED = "failed"
    """The last load failed; `EngineSnapshot.error` says why."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about the loaded model, for people and for `inspect`."""

    path: Path
    name: str
    """general.name, or the file's stem; untrusted text."""
    architecture: str
    n_layers: int
    hidden_size: int
    vocab_size: int
    n_parameters: int
    quantisation: str
    """The quant type that holds most bytes, such as Q4_K."""
    file_bytes: int
    training_context: int
    """Context the model was trained for, in tokens."""
    max_context: int
    """Context reserved now, in tokens."""
    kv_bytes: int
    has_template: bool
    """False for a base model: plain completion is offered instead of chat."""
    template_origin: str
    """Where the chat template comes from, or why there is none."""


class Tier(StrEnum):
    """Where a weight block is."""

    VRAM = "vram"
    """In the memory of a GPU."""
    RAM = "ram"
    NVME = "nvme"
    """In the file, read for every pass."""


class Executor(StrEnum):
    """Who computes a weight block in a decode step, and from where."""

    GPU = "gpu"
    """The GPU, from its own memory."""
    STREAM = "stream"
    """The GPU, after a copy to its memory in every pass."""
    CPU = "cpu"
    """The processor, where the block lies."""


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """One weight block, for the map."""

    name: str
    """For people, such as 'blk.3 attention'."""
    kind: str
    """attention, feed_forward, embedding or head."""
    layer: int | None
    n_bytes: int
    quantisation: str
    """The quant type that holds most of its bytes."""
    tier: Tier
    executor: Executor = Executor.CPU


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """A GPU that can compute."""

    number: int
    """As CUDA counts them: 1 is cuda:1."""
    name: str
    """As its maker calls it, such as NVIDIA H200."""
    compute_capability: str
    """Such as 9.0."""
    total_bytes: int
    free_bytes: int
    """When it was looked at."""
    driver: str
    """Version of the driver, such as 580.159.03."""


class TierEventKind(StrEnum):
    """What an event of the tiers is about."""

    MOVE = "move"
    WARNING = "warning"
    """Something did not go as asked, or memory is short."""


@dataclass(frozen=True, slots=True)
class TierEvent:
    """Something that moved or changed, with its reason."""

    at: float
    """Seconds since the epoch."""
    text: str
    kind: TierEventKind = TierEventKind.MOVE


@dataclass(frozen=True, slots=True)
class TierSnapshot:
    """Where the weights of the loaded model are and what moves; bytes per second, seconds."""

    blocks: tuple[BlockPlace, ...]
    """In the order in which a pass uses them."""
    ram_bytes: int
    """Memory of the blocks that stay."""
    ring_bytes: int
    """Memory of the staging ring."""
    budget_bytes: int
    """For weights and ring together."""
    pass_read_bytes: int
    """Read from disk for every pass."""
    read_bytes: int
    """Read from disk so far."""
    read_s: float
    """Time during which something was being read."""
    stall_s: float
    """Time during which computing waited for the disk."""
    disk_rate: float | None
    """Of direct reads, as probed; None when nothing was measured."""
    predicted_decode_tok_s: float | None
    """From an empty context; None when nothing was measured."""
    limited_by: str
    """What a decode step waits for, in words; empty when nothing was measured."""
    active: int | None
    """Index of the streamed block that is being computed."""
    in_flight: tuple[tuple[int, float], ...]
    """Blocks on their way into the ring: index and how much is there, 0 to 1."""
    events: tuple[TierEvent, ...]
    """The last ones, oldest first."""
    events_dropped: int
    """How many older ones are gone."""
    passes: int = 0
    """Over all blocks, so far: one for each token of a reply, one for each part of a prompt."""
    vram_bytes: int = 0
    """GPU memory of the blocks that are in it."""
    vram_used_bytes: int = 0
    """GPU memory that the whole model takes, cache and computing included."""
    vram_budget_bytes: int = 0
    """GPU memory for the whole model, cache and computing included; 0 without a GPU."""
    h2d_bytes: int = 0
    """Weights copied to the GPU so far."""
    h2d_rate: float | None = None
    """Bytes per second of copies to the GPU, as probed; None when nothing was measured."""
    pass_copy_bytes: int = 0
    """Copied to the GPU for every decode step."""
    copy_s: float = 0.0
    """Time during which blocks were being copied to the GPU."""
    copy_stall_s: float = 0.0
    """Time during which the GPU waited for copies."""
    pass_stalls: tuple[tuple[int, float], ...] = ()
    """Of the last pass: blocks that were waited for, by index, and for how long."""
    vram_ring_bytes: int = 0
    """GPU memory of the staging ring."""
    predicted_prefill_tok_s: float | None = None
    """Of a prompt of 512 tokens; None when nothing was measured."""
    settled: bool = True
    """Whether every block is where the plan wants it; False while a model loads or blocks move."""
    gpu: GpuFacts | None = None
    """None where the processor computes."""
    skipped: frozenset[int] = frozenset()
    """Blocks, by index, that passes leave out now."""


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The engine's state at one moment; compare `seq` to see whether anything changed."""

    seq: int = 0
    state: EngineState = EngineState.EMPTY
    model: ModelInfo | None = None
    load_stage: str = ""
    """What loading is doing, in words."""
    load_progress: float = 0.0
    """0 to 1."""
    backend: str = ""
    """Which backend computes, such as 'cpu avx512'."""
    backend_reason: str = ""
    """Why this one, in words."""
    threads: int = 0
    context_used: int = 0
    """Tokens in the KV cache."""
    queued: int = 0
    """Replies waiting."""
    tiers: TierSnapshot | None = None
    """Where the weights are; None when no model is loaded or NumPy computes."""
    notices: tuple[str, ...] = ()
    """Fallbacks and other things a person should know; never silent."""
    error: str = ""
    """Why the last load failed."""
    decode_tok_s: float = 0.0
    """Of the reply that runs, else of the last one; 0 before any."""
    ram_budget: Budget | None = None
    """In effect, as it was asked for; None for the default."""
    vram_budget: Budget | None = None
    """The same for the memory of a GPU."""
    cpu_s: float = 0.0
    """Seconds that processors have worked for this process so far, all threads together."""
    at: float = 0.0
    """`time.monotonic()` of this snapshot."""
    cores: int = 0
    """Cores that this process may use."""
    calibration: Calibration | None = None
    """What is known of leaving blocks of the loaded model out; None before it was measured."""
    draft_model: ModelInfo | None = None
    """The smaller model that drafts, where one is loaded."""
