"""From a file to a model that can be asked: checks, memory, tokenizer, template, backend, cache.

Knows the order of the steps and tells where it is; does not know threads of the interface. Everything a reply
needs is allocated here, so that a model that has loaded does not run out of memory later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from engine.backends.base import AnyBackend
from engine.backends.select import open_backend
from engine.backends.to_open import ToOpen
from engine.backends.watcher import LoadWatcher
from engine.cancel import CancelToken
from engine.chat_template import find_template
from engine.config import LoadOptions
from engine.drafting.draft_model import DraftModel
from engine.drafting.loading_draft import load_draft
from engine.drafting.step_costs import StepCosts
from engine.errors import BudgetError, CancelledError, ContextError, GGUFError
from engine.events import ModelInfo, TierSnapshot
from engine.gguf import GGUFFile, open_gguf
from engine.machine import available_memory
from engine.model import Transformer
from engine.model_config import read_model_config
from engine.prompt import PromptEncoder
from engine.requirements import choose_context, describe_model, room_for_weights
from engine.session import Session
from engine.skipping.calibrated import Calibration
from engine.skipping.calibration_file import CalibrationFile
from engine.tiers.blocks import weight_blocks
from engine.tiers.budget import shown_bytes
from engine.tiers.placement import Placement
from engine.tiers.read_ahead import ReadAhead
from engine.tokenizer import Tokenizer, load_tokenizer
from engine.weights import ModelWeights

_CANCEL_POLL_S = 0.05
_AHEAD_OF_MEMORY = 4
"""The part of the memory that may hold what was read and not used yet: pages that the system can drop."""

OnProgress = Callable[[str, float], None]
"""Called with what loading is doing, in words, and how far it is, 0 to 1."""
OnTiers = Callable[[TierSnapshot], None]
"""Called when a weight block was read or moved, also while the model runs."""


@dataclass(slots=True)
class LoadedModel:
    """Everything that answering needs."""

    info: ModelInfo
    weights: ModelWeights
    model: Transformer
    tokenizer: Tokenizer
    encoder: PromptEncoder | None
    """None for a base model."""
    session: Session
    options: LoadOptions
    """As asked for; `budgeting` changes budgets and places."""
    lasting_notices: tuple[str, ...]
    """What a person should know for as long as the model is loaded."""
    budget_notices: tuple[str, ...]
    """What a person should know of the memory budget."""
    calibration_file: CalibrationFile
    """Where `calibration` is kept between loads."""
    read_ahead: ReadAhead
    """What the system may still be reading for it."""
    draft: DraftModel | None = None
    """A smaller model that can draft for it."""
    calibration: Calibration | None = None
    """What is known of leaving blocks out; None until it was measured, or read from a file."""
    costs: StepCosts = field(default_factory=StepCosts)
    """What passes and drafts have cost so far, and how often drafts were right."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Everything that a person should know now."""
        tiers = self.backend.tiers
        own = (*self.lasting_notices, *self.budget_notices, *(tiers.notices if tiers is not None else ()))
        of_draft = () if self.draft is None else self.draft.notices
        return own + tuple(f"draft model: {notice}" for notice in of_draft if notice not in own)

    def granted(self, options: LoadOptions) -> LoadOptions:
        """Options with budgets for everything -> with those for this model alone, without its draft model."""
        return options if self.draft is None else self.draft.leave(options)

    @property
    def chunk(self) -> int:
        """Prompt tokens of one pass."""
        return self.backend.chunk

    @property
    def backend(self) -> AnyBackend:
        """What computes it."""
        return self.model.backend

    def settle(self, cancel: CancelToken) -> None:
        """Wait until all weights are where they are to stay, as who measures does.

        Raises CancelledError, StreamError.
        """
        if self.backend.tiers is not None:
            self.backend.tiers.settle(cancel)

    def close(self) -> None:
        """Stop the threads of backends; weights and caches go with the last reference."""
        self._keep_disk_rate()
        with ExitStack() as opened:
            opened.callback(self.read_ahead.close)
            if self.draft is not None:
                opened.callback(self.draft.close)
            self.model.backend.close()

    def _keep_disk_rate(self) -> None:
        """Let the next load predict with what the disk has given this time."""
        tiers, rates_file = self.backend.tiers, self.options.rates_file
        rate = None if tiers is None else tiers.learnt_disk_rate
        if rate is None or rates_file is None:
            return
        from engine.tiers.probe import keep_disk_rate  # the C kernels are there: something was streamed

        with suppress(OSError):  # a probe's rate serves, too
            keep_disk_rate(self.weights.gguf.part_paths[0], self.backend.threads, rates_file, rate)


def load_model(
    options: LoadOptions,
    on_progress: OnProgress,
    cancel: CancelToken,
    on_tiers: OnTiers = lambda tiers: None,
) -> LoadedModel:
    """Open, check and allocate. Raises the engine's errors; CancelledError when told to stop."""
    on_progress("reading the header", 0.0)
    gguf = open_gguf(options.path)
    config = read_model_config(gguf)
    calibration_file = CalibrationFile(gguf, 2 * config.n_layers, options.cache_dir)
    calibration, calibration_notices = calibration_file.load()
    weights = ModelWeights(gguf, config)
    max_context, notices = choose_context(config, options)
    blocks = weight_blocks(gguf, config)
    pool = ThreadPoolExecutor(1, "tokenizer")
    building = pool.submit(load_tokenizer, gguf)
    pool.shutdown(wait=False)  # when loading is stopped it ends by itself, with nobody waiting
    draft, granted = None, options
    with _telling_of_memory(), ExitStack() as opened:  # what was opened is closed when a later step fails
        if options.draft_model is not None:
            told = LoadWatcher(_of_draft(on_progress), lambda tiers: None, cancel)
            draft = load_draft(options.draft_model, gguf, options, max_context, told)
            opened.callback(draft.close)
            granted = draft.leave(options)
            notices += _of_size(draft, gguf)
        read_ahead = ReadAhead(weights, blocks, available_memory() // _AHEAD_OF_MEMORY)
        opened.callback(read_ahead.close)
        try:
            backend, backend_notices, budget_notices = open_backend(
                ToOpen(weights, blocks, config, granted, max_context),
                lambda: room_for_weights(blocks, config, granted, max_context, available_memory()),
                LoadWatcher(
                    on_progress, on_tiers, cancel, read_ahead.only, read_ahead.taken, read_ahead.close
                ),
            )
        except BudgetError as error:
            raise _beside(draft, error) from None
        opened.callback(backend.close)
        on_progress("building the tokenizer", 0.9)
        tokenizer = _await(building, cancel, backend.tiers)
        if tokenizer.vocab_size != config.vocab_size:
            raise GGUFError(
                f"{gguf.path}: {tokenizer.vocab_size} tokens beside {config.vocab_size} rows of "
                "token_embd.weight; get another copy of the model"
            )
        texts = ["" if i is None else tokenizer.token_text(i) for i in (tokenizer.bos_id, tokenizer.eos_id)]
        template, origin = find_template(gguf, bos_token=texts[0], eos_token=texts[1])
        kv = backend.new_kv(max_context)
        opened.pop_all()
    return LoadedModel(
        info=describe_model(gguf, config, max_context, kv.n_bytes, template is not None, origin),
        weights=weights,
        model=Transformer(config, backend),
        tokenizer=tokenizer,
        encoder=None if template is None else PromptEncoder(tokenizer, template),
        session=Session(kv),
        options=options,
        lasting_notices=notices + backend_notices + calibration_notices,
        budget_notices=budget_notices,
        calibration_file=calibration_file,
        read_ahead=read_ahead,
        calibration=calibration,
        draft=draft,
    )


def _of_draft(on_progress: OnProgress) -> OnProgress:
    """Tell of the draft model's loading that it is not yet the model's own."""
    return lambda stage, progress: on_progress(f"draft model: {stage}", progress)


def _beside(draft: DraftModel | None, error: BudgetError) -> BudgetError:
    """Tell of a GPU's memory that it is not there for one model alone; the budget of RAM's names both."""
    if draft is None or not draft.vram_bytes:
        return error
    return BudgetError(
        f"{error}; its draft model takes {shown_bytes(draft.vram_bytes)} of the GPU's beside it"
    )


def _of_size(draft: DraftModel, gguf: GGUFFile) -> tuple[str, ...]:
    """A notice where drafts cost more than what they may save."""
    if draft.info.file_bytes <= gguf.n_bytes:
        return ()
    return (
        f"the draft model is larger ({shown_bytes(draft.info.file_bytes)}) than the model that it drafts for "
        f"({shown_bytes(gguf.n_bytes)}): its drafts will slow it down",
    )


@contextmanager
def _telling_of_memory() -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise ContextError(
            "memory ran out while the model was made ready: close other programs, or use a smaller context "
            "(-c), fewer threads (-t) or a smaller memory budget (--ram-budget)"
        ) from None


def _await(building: Future[Tokenizer], cancel: CancelToken, tiers: Placement | None) -> Tokenizer:
    """Wait for the tokenizer. Raises CancelledError when told to stop, and what building it raises.

    Neither our loops nor the library that builds some kinds can be stopped: their thread goes on to its end,
    and nobody waits for it. Weights on their way to `tiers` are taken in meanwhile.
    """
    while not building.done():
        if cancel.cancelled:
            raise CancelledError("loading was stopped")
        if tiers is None or not tiers.pump(_CANCEL_POLL_S):
            futures.wait([building], _CANCEL_POLL_S)
    return building.result()
