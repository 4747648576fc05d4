"""What a caller may choose, as frozen dataclasses: loading, sampling and one request.

Knows names, ranges and defaults; does not know files, models or threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine.skipping.skip_choice import SkipChoice
from engine.tiers.budget import Budget
from engine.tiers.wishes import PlaceRule

DEFAULT_CHUNK = 512
"""Prompt tokens of one prefill step, where neither a person nor the planner has chosen."""


class Precision(StrEnum):
    """How activations and the KV cache are held while the model runs."""

    FAST = "fast"
    """Activations rounded for the quantised products, to 8 bits (on a GPU 15); KV in float16."""
    FLOAT = "float"
    """float32 activations and float32 KV throughout; slower, used to prove the model code."""


class KVType(StrEnum):
    """How a GPU holds keys and values in the fast precision."""

    F16 = "f16"
    Q8_0 = "q8_0"
    """8 bits and a scale for each 32: about half of float16, and a little less exact."""


class ExecutorChoice(StrEnum):
    """Who computes, in a decode step, the blocks that a GPU's memory does not hold."""

    AUTO = "auto"
    """Whatever the measured rates make fastest."""
    STREAM = "stream"
    """The GPU: every block is copied to it in every pass, as in NTransformer."""
    CPU = "cpu"
    """The processor."""
    HYBRID = "hybrid"
    """Both at once, shared out by the measured rates."""


class DraftKind(StrEnum):
    """Who proposes ids that the model then verifies, several in one pass."""

    OFF = "off"
    NGRAM = "ngram"
    """What followed the same ids earlier in prompt or reply."""
    MODEL = "model"
    """A smaller model with the same vocabulary."""
    SELF = "self"
    """The model itself without blocks that calibration found to matter least."""
    RESIDENT = "resident"
    """The model itself without the blocks that would have to be fetched for each pass."""
    EXIT = "exit"
    """The model's first layers and its head: an experiment."""


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """How the ids of a reply are computed: what is left out, and what is proposed for verification.

    Drafts change no reply; leaving blocks out does. Raises ValueError where a number is out of range.
    """

    skip: SkipChoice | None = None
    """Blocks left out of every pass; lossy."""
    draft: DraftKind = DraftKind.OFF
    draft_k: int | None = None
    """Ids proposed at a time; None lets measured costs and acceptance choose, none at all where it does not
    pay."""
    exit_layer: int | None = None
    """Of EXIT: how many layers draft; None takes half of them."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.draft_k is not None and not 1 <= self.draft_k <= MOST_DRAFTS:
            raise ValueError(f"draft_k is {self.draft_k}: it must lie between 1 and {MOST_DRAFTS}")
        if self.exit_layer is not None and self.exit_layer < 1:
            raise ValueError(f"exit_layer is {self.exit_layer}: it must be at least 1")


MOST_DRAFTS = 23
"""With the id before them, columns that a matrix product of one pass takes at full efficiency."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is opened."""

    path: Path
    """The GGUF file."""
    context: int | None = None
    """KV cache length in tokens; None takes the smaller of the model's own and 8,192."""
    threads: int | None = None
    """Threads of the CPU kernels; None takes the physical cores this process may use,
    and beside a GPU leaves one in eight free."""
    precision: Precision = Precision.FAST
    """Arithmetic of activations and KV."""
    chunk: int | None = None
    """Prompt tokens per prefill step; None takes `DEFAULT_CHUNK`, or what the planner finds where blocks are
    streamed to a GPU."""
    ram_budget: Budget | None = None
    """Memory for the whole model; None takes `engine.tiers.budget.DEFAULT`."""
    rates_file: Path | None = None
    """Where measured rates are kept between loads; None measures nothing, and nothing is predicted."""
    device: str | None = None
    """What computes: "cpu", "cuda", "cuda:1"; None is the first GPU that can be used, else the CPU."""
    vram_budget: Budget | None = None
    """GPU memory for the whole model; None takes `cuda_plan.DEFAULT` of what is free."""
    kv_type: KVType = KVType.F16
    """On a GPU, in the fast precision."""
    cache_dir: Path | None = None
    """Where compiled CUDA kernels are kept between loads; None compiles them each time."""
    gpu_layers: int | None = None
    """With a GPU: so many layers, the first ones, are in its memory and no others; None lets the plan choose
    them."""
    place: tuple[PlaceRule, ...] = ()
    """With a GPU: blocks that have a tier of the user's choosing; later rules win."""
    executor: ExecutorChoice = ExecutorChoice.AUTO
    """With a GPU: who computes, in a decode step, what its memory does not hold."""
    prefetch: int | None = None
    """Slots of the staging ring in a GPU's memory, 2 or more; None lets the plan choose."""
    link_limit: float | None = None
    """Bytes per second that copies to a GPU are slowed down to, to imitate another machine; None is full
    speed."""
    draft_model: Path | None = None
    """A smaller model with the same vocabulary, to draft for this one; None is none."""

    @property
    def wishes_for_gpu(self) -> tuple[str, ...]:
        """What was chosen, as it is typed or in words, and changes nothing where no GPU computes."""
        given = {
            "--vram-budget": self.vram_budget is not None,
            "--kv-type": self.kv_type is not KVType.F16,
            "--gpu-layers": self.gpu_layers is not None,
            "--place": bool(self.place),
            "a choice of executor": self.executor is not ExecutorChoice.AUTO,
            "--prefetch": self.prefetch is not None,
            "--link-limit": self.link_limit is not None,
        }
        return tuple(name for name, is_given in given.items() if is_given)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. Raises ValueError naming the field when a value is out of range.

    Order of the chain: penalties, top-k, typical, top-p, min-p, temperature, draw.
    """

    temperature: float = 0.7
    """0 is greedy; the seed is then ignored."""
    top_k: int = 40
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: float = 0.95
    """Keep the smallest set with at least this probability; 1 keeps all."""
    min_p: float = 0.05
    """Drop tokens below this share of the best one's probability; 0 keeps all."""
    typical_p: float = 1.0
    """Locally typical sampling mass; 1 keeps all."""
    repeat_penalty: float = 1.0
    """Divides (or multiplies, if negative) the logits of ids in the window; 1 is off."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every id in the window."""
    frequency_penalty: float = 0.0
    """Subtracted once per occurrence in the window."""
    penalty_window: int = 64
    """How many of the last ids the penalties look at; 0 is off."""
    seed: int | None = None
    """Seed of the PCG64 generator; None draws a fresh one, which the statistics report."""

    def __post_init__(self) -> None:
        """Check every range."""
        for name, low, high in (
            ("temperature", 0.0, 100.0),
            ("top_k", 0, 1 << 30),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("typical_p", 0.0, 1.0),
            ("repeat_penalty", 0.01, 100.0),
            ("presence_penalty", -100.0, 100.0),
            ("frequency_penalty", -100.0, 100.0),
            ("penalty_window", 0, 1 << 30),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}: it must lie between {low} and {high}")
        for name in ("top_k", "penalty_window", "seed"):
            value = getattr(self, name)
            if not isinstance(value, int) and value is not None:
                raise ValueError(f"{name} is {value}: it must be a whole number")


class Overflow(StrEnum):
    """What happens to a conversation that is longer than the context."""

    DROP_OLDEST = "drop_oldest"
    """Its oldest whole turns are left out, never the system prompt; `GenerationStats` counts them."""
    STOP = "stop"
    """The reply ends with ContextError."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    """system, user or assistant."""
    content: str
    """Plain text, exactly as typed or generated."""


@dataclass(frozen=True, slots=True)
class Request:
    """One thing to answer: a conversation, or a raw prompt to continue."""

    messages: tuple[Message, ...] = ()
    """The conversation, oldest first; rendered through the model's chat template."""
    prompt: str | None = None
    """Raw text to continue instead of a conversation; no template is applied."""
    sampling: SamplingParams = SamplingParams()
    """How to draw tokens."""
    decoding: DecodingOptions = DecodingOptions()
    """How their logits are computed."""
    max_tokens: int | None = None
    """Upper bound of reply tokens; None stops at the end of the context."""
    stop: tuple[str, ...] = ()
    """Strings that end the reply; they are not part of it."""
    overflow: Overflow = Overflow.STOP
    """What to do when `messages` do not fit the context."""
