"""The researcher's bench: every case of a matrix measured for speed and for what it costs in quality.

Models are loaded once for all cases that open them alike. Nothing is timed that was not verified: the
products with a model's own matrices against the oracle, and replies with drafts against one without. Speed is
that of replies as people get them, drafts and skipped blocks included. Knows cases; does not know where they
come from or where the figures go. Called by `tiercel bench --matrix`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

from engine.answer import answer
from engine.config import DecodingOptions, DraftKind, KVType, LoadOptions, Precision, Request, SamplingParams
from engine.errors import CancelledError, EngineError, KernelError
from engine.events import FinishReason, Reply, TierSnapshot
from engine.gguf import open_gguf
from engine.loading import LoadedModel
from engine.machine import processor_name
from engine.measuring.benchmark_gpu import gpu_backend, gpu_failures_told
from engine.measuring.evaluate import Window
from engine.measuring.matrix_case import Case, CaseResult, MatrixTask
from engine.measuring.product_check import check_products
from engine.measuring.quality import Change, Distributions
from engine.measuring.scoring import LEAST_CONTEXT, ScoredText, Scorer
from engine.skipping.skip_choice import SkipChoice
from engine.tiers.budget import shown_bytes
from engine.tokenizer import load_tokenizer

_GREEDY = SamplingParams(temperature=0)
_AGREEING = 48
"""Ids of the replies that drafts are verified by, at most."""
_NEAR = 0.2
"""Logits that a GPU's passes over one id and over several may differ by: both round activations, in other
orders. Two ids that are nearer than that may change places."""


class _Kept(NamedTuple):
    """What all are compared with."""

    windows: list[Window]
    whole: Distributions


def measure_matrix(
    cases: Sequence[Case], task: MatrixTask, scorer: Scorer
) -> Iterator[tuple[Case, CaseResult]]:
    """Measure the cases, those that open a model alike one after another.

    What cannot be had (a budget that is too small, a product that is wrong) is told in `CaseResult.error`,
    and the others go on. Raises CancelledError.
    """
    references: dict[Path, _Kept] = {}
    for options in dict.fromkeys(case.options for case in cases):
        waiting = [case for case in cases if case.options == options]
        try:
            for result in _measure_alike(options, tuple(waiting), task, scorer, references):
                yield waiting.pop(0), result
        except CancelledError:
            raise
        except EngineError as error:
            yield from ((case, CaseResult(error=str(error))) for case in waiting)


def _measure_alike(
    options: LoadOptions,
    cases: Sequence[Case],
    task: MatrixTask,
    scorer: Scorer,
    references: dict[Path, _Kept],
) -> Iterator[CaseResult]:
    """Measure cases that open a model alike, and the reference where it is not known yet."""
    reference = replace(
        options,
        path=task.reference or options.path,
        draft_model=None,
        kv_type=KVType.F16,
        precision=Precision.FAST,
    )
    is_reference = replace(options, draft_model=None) == reference
    if reference.path not in references and not is_reference:
        with gpu_failures_told(), closing(_open(reference, task, scorer)) as loaded:
            references[reference.path] = _keep(loaded, task, scorer)
    with gpu_failures_told(), closing(_open(options, task, scorer)) as loaded:
        loaded.settle(scorer.cancel)
        check_products(loaded)
        if reference.path not in references:
            references[reference.path] = _keep(loaded, task, scorer)
        bench = _LoadedBench(loaded, task, scorer, references[reference.path])
        for case in cases:
            yield bench.measure(case)


def _open(options: LoadOptions, task: MatrixTask, scorer: Scorer) -> LoadedModel:
    """Load a model with room for a window, for calibration, and for a reply to the prompt."""
    with open_gguf(options.path) as gguf:
        n_prompt = len(load_tokenizer(gguf).encode(task.prompt)) + 1  # and BOS
    context = max(LEAST_CONTEXT, n_prompt + task.decode_tokens)
    return scorer.open(replace(options, context=context))


def _keep(loaded: LoadedModel, task: MatrixTask, scorer: Scorer) -> _Kept:
    windows = _windows(loaded, task, scorer)
    return _Kept(windows, scorer.keep(loaded, windows))


def _windows(loaded: LoadedModel, task: MatrixTask, scorer: Scorer) -> list[Window]:
    """Those that score the task's number of tokens, or all of its text."""
    windows, left = [], task.scored_tokens
    for window in scorer.cut(loaded.tokenizer, ScoredText(task.text_name, task.text)):
        if left > 0:
            windows.append(window._replace(ids=window.ids[: window.first + 1 + left]))
            left -= window.n_scored
    return windows


class _LoadedBench:
    """One loaded model and what is known of it so far."""

    def __init__(self, loaded: LoadedModel, task: MatrixTask, scorer: Scorer, kept: _Kept) -> None:
        """Measure `loaded` beside what is `kept`; EngineError when their ids mean different things."""
        self._loaded, self._task, self._scorer, self._kept = loaded, task, scorer, kept
        self._gpu = gpu_backend(loaded.backend)
        self._changes: dict[SkipChoice | None, Change] = {}
        self._plain: dict[SkipChoice | None, list[int]] = {}
        """Greedy replies without drafts."""
        self._n_prompt = 0
        is_same = _windows(loaded, task, scorer) == kept.windows
        if not is_same or int(kept.whole.top_ids.max()) >= loaded.info.vocab_size:
            raise EngineError(
                f"{loaded.info.path}: its vocabulary is not that of the reference: choose a reference of the "
                "same family, or none"
            )

    def measure(self, case: Case) -> CaseResult:
        """Quality, then verification, then speed; what fails is told in the result."""
        result = CaseResult(
            quantisation=self._loaded.info.quantisation,
            device=f"{self._gpu.device.name if self._gpu else processor_name()}, {self._loaded.backend.name}",
        )
        try:
            result = self._with_quality(result, case)
            return self._with_speed(replace(result, agreeing_tokens=self._verify(case)), case)
        except CancelledError:
            raise
        except EngineError as error:
            return replace(result, error=str(error))

    def _with_quality(self, result: CaseResult, case: Case) -> CaseResult:
        choice = case.decoding.skip
        if choice not in self._changes:
            skip = self._scorer.skip_set(self._loaded, choice)
            what = "the whole model" if choice is None else f"skip={choice}"
            self._changes[choice] = self._scorer.compare(self._loaded, *self._kept, skip, what)
        change = asdict(self._changes[choice])
        return replace(result, scored_tokens=change.pop("tokens"), **change)

    def _verify(self, case: Case) -> int | None:
        """How many ids of a greedy reply agree with one without drafts; None where there are no drafts.

        Raises KernelError when they differ by more than rounding; on the CPU they may not differ at all.
        """
        choice = case.decoding.skip
        if choice not in self._plain:
            reply = self._reply(DecodingOptions(skip=choice), _GREEDY, _AGREEING)
            self._plain[choice], self._n_prompt = reply.token_ids, reply.stats.prompt_tokens
        if case.decoding.draft is DraftKind.OFF:
            return None
        plain, drafted = self._plain[choice], self._reply(case.decoding, _GREEDY, _AGREEING).token_ids
        if plain == drafted:
            return len(plain)
        pairs = enumerate(zip(plain, drafted, strict=False))
        agreeing = next((i for i, (one, other) in pairs if one != other), min(len(plain), len(drafted)))
        if self._gpu is None or not self._is_near(choice, agreeing, drafted[agreeing:]):
            raise KernelError(
                f"a reply with drafts ({case.decoding.draft}) differs from one without, at its token "
                f"{agreeing}: nothing was timed; please report it with the output of `tiercel --version`"
            )
        return agreeing

    def _is_near(self, choice: SkipChoice | None, n_same: int, others: Sequence[int]) -> bool:
        """Whether `others`, the rest of a reply whose first ids agree, begins as well but for rounding.

        The session holds that reply.
        """
        loaded, cancel = self._loaded, self._scorer.cancel
        last = self._n_prompt + n_same - 1
        hidden = loaded.model.hidden(
            [loaded.session.ids[last]],
            last,
            loaded.session.kv,
            cancel,
            self._scorer.skip_set(loaded, choice),
        )
        logits = loaded.model.logits(hidden, cancel)[0]
        candidates = list(others[:1]) or list(loaded.tokenizer.stop_ids)
        return float(logits.max() - logits[candidates].max()) < _NEAR

    def _with_speed(self, result: CaseResult, case: Case) -> CaseResult:
        """Rates of replies with the case's decoding, which has been warmed up."""
        task = self._task
        sampling = SamplingParams(temperature=task.temperature, seed=task.seed)
        all_stats = [
            self._reply(case.decoding, sampling, task.decode_tokens).stats for _ in range(task.repetitions)
        ]
        last = all_stats[-1]
        rates = [stats.decode_tok_s for stats in all_stats if stats.decode_tok_s]
        n_drafted, n_accepted, n_ids, n_read, n_copied = (
            sum(getattr(stats, name) for stats in all_stats)
            for name in (
                *("drafted_tokens", "accepted_tokens", "completion_tokens"),
                *("nvme_read_bytes", "h2d_bytes"),
            )
        )
        tiers = self._loaded.backend.tiers
        shown = None if tiers is None else tiers.snapshot()
        return replace(
            result,
            plan=_plan_words(shown),
            predicted_decode_tok_s=None if shown is None else shown.predicted_decode_tok_s,
            vram_bytes=None if shown is None else shown.vram_used_bytes,
            ram_bytes=None if shown is None else shown.ram_bytes,
            skipped_blocks=last.skipped_blocks,
            prompt_tokens=last.prompt_tokens,
            completion_tokens=last.completion_tokens,
            prefill_tok_s=median(stats.prefill_tok_s for stats in all_stats),
            decode_tok_s=median(rates) if rates else None,
            decode_tok_s_min=min(rates, default=None),
            decode_tok_s_max=max(rates, default=None),
            nvme_read_bytes=n_read // max(1, n_ids),
            h2d_bytes=n_copied // max(1, n_ids),
            drafted_tokens=n_drafted,
            accepted_tokens=n_accepted,
            acceptance_rate=n_accepted / n_drafted if n_drafted else None,
        )

    def _reply(self, decoding: DecodingOptions, sampling: SamplingParams, n_ids: int) -> Reply:
        """A reply to the prompt, computed from an empty context. Raises CancelledError."""
        self._loaded.session.cut(0)
        request = Request(prompt=self._task.prompt, sampling=sampling, decoding=decoding, max_tokens=n_ids)
        reply = Reply(request)
        reply.cancel_token = self._scorer.cancel
        answer(self._loaded, reply, perf_counter(), lambda: None)
        if reply.finish_reason is FinishReason.CANCELLED:
            raise CancelledError("the bench was stopped")
        return reply


def _plan_words(tiers: TierSnapshot | None) -> str:
    """How many blocks are where, and who computes them in a decode step."""
    if tiers is None:
        return "mapped from the file"
    counts = Counter((block.tier, block.executor) for block in tiers.blocks)
    sizes = Counter[tuple[str, str]]()
    for block in tiers.blocks:
        sizes[block.tier, block.executor] += block.n_bytes
    return "; ".join(
        f"{tier}: {n} blocks, {shown_bytes(sizes[tier, executor])}, computed by {executor}"
        for (tier, executor), n in counts.items()
    )
