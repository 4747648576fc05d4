"""How good a model's distributions are: perplexity over a text, and distance to reference logits.

Knows windows and the measures; does not know where ids come from. Ids are fed in chunks of the caller's
choosing: chunks of one go through the kernels that decode. Called by `tiercel perplexity` and the tests.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.cancel import CancelToken
from engine.errors import ContextError, ReferenceFileError
from engine.kv_cache import KVCache
from engine.model import Transformer

AnyArray = npt.NDArray[Any]
Float64Array = npt.NDArray[np.float64]

_ROWS_AT_ONCE = 32
"""Distributions in memory at a time: 67 MB of float64 with Gemma's vocabulary of 262,144."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp of the mean negative log probability of the scored tokens."""

    perplexity: float
    tokens: int
    """How many tokens were scored."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours against a reference, over all its positions."""

    perplexity: float
    """Of the reference's ids under our model; the first id is not scored."""
    tokens: int
    """How many positions were compared."""
    kl_mean: float
    """KL64 (see `kl64`) in nats."""
    kl_p99: float
    kl_max: float
    top1: float
    """Share of positions with the same most probable token."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What an independent implementation computed for a run of ids."""

    path: Path
    """Where it was read from."""
    token_ids: npt.NDArray[np.int32]
    """[T]"""
    top1: npt.NDArray[np.int32]
    """[T], the most probable next token."""
    top_ids: npt.NDArray[np.int32]
    """[T, 64], the most probable next tokens, best first."""
    top_logprobs: npt.NDArray[np.float32]
    """[T, 64], their natural log probabilities."""
    vocab_size: int | None
    """Of the model it belongs to, where the file tells."""

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ReferenceFileError when it belongs to a model whose vocabulary has another size."""
        largest = max(int(ids.max()) for ids in (self.token_ids, self.top1, self.top_ids))
        if largest >= vocab_size or self.vocab_size not in (None, vocab_size):
            theirs = f"{self.vocab_size} tokens" if self.vocab_size else f"at least {largest + 1} tokens"
            raise ReferenceFileError(
                f"{self.path}: it belongs to another model, with a vocabulary of {theirs} and not of "
                f"{vocab_size}; choose the model that it was made with"
            )


def measure_perplexity(
    model: Transformer,
    token_ids: Sequence[int],
    kv: KVCache,
    cancel: CancelToken,
    *,
    window: int,
    chunk: int,
    bos_id: int | None,
) -> Perplexity:
    """Score a text in overlapping windows, each token once, with at least half a window before it.

    A window is `window` ids long, its BOS (where `bos_id` is given) included. The first half window of the
    text is therefore not scored; a text no longer than that raises ContextError.
    """
    half = window // 2
    total, count = 0.0, 0
    for ids in _windows(token_ids, window, bos_id):
        for position, logprobs in _next_logprobs(model, ids, kv, cancel, chunk, first=half - 1):
            targets = ids[position + 1 : position + 1 + len(logprobs)]
            total -= float(logprobs[np.arange(len(targets)), targets].sum())
            count += len(targets)
    if not count:
        raise ContextError(
            f"the text has {len(token_ids)} tokens and a window of {window} scores those after the first "
            f"{half}: give a longer text or a smaller -c"
        )
    return Perplexity(float(np.exp(total / count)), count)


def compare_with_reference(
    model: Transformer, reference: Reference, kv: KVCache, cancel: CancelToken, *, chunk: int
) -> Comparison:
    """Feed the reference's ids and measure how far our distributions are from its own."""
    ids = reference.token_ids.tolist()
    divergences, same, nll = [], 0, 0.0
    for position, logprobs in _next_logprobs(model, ids, kv, cancel, chunk, first=0):
        rows = slice(position, position + len(logprobs))
        divergences.append(kl64(reference.top_ids[rows], reference.top_logprobs[rows], logprobs))
        same += int(np.sum(logprobs.argmax(axis=1) == reference.top1[rows]))
        targets = ids[position + 1 : position + 1 + len(logprobs)]
        nll -= float(logprobs[np.arange(len(targets)), targets].sum())
    kl = np.concatenate(divergences)
    return Comparison(
        perplexity=float(np.exp(nll / max(1, len(ids) - 1))),
        tokens=len(ids),
        kl_mean=float(kl.mean()),
        kl_p99=float(np.percentile(kl, 99)),
        kl_max=float(kl.max()),
        top1=same / len(ids),
    )


def kl64(
    top_ids: npt.NDArray[np.int32], top_logprobs: npt.NDArray[np.float32], logprobs: Float64Array
) -> Float64Array:
    """Kullback-Leibler divergence over the reference's 64 best tokens and one bucket for the rest.

    top_ids, top_logprobs [R, 64] from the reference, logprobs [R, V] ours -> [R] nats: sum of
    p (ln p - ln q), p the reference's, q ours.
    """
    log_p = top_logprobs.astype(np.float64)
    log_q = np.take_along_axis(logprobs, top_ids, axis=1)
    p_rest, q_rest = (_rest(log_x) for log_x in (log_p, log_q))
    top: Float64Array = np.sum(np.exp(log_p) * (log_p - log_q), axis=1)
    rest: Float64Array = p_rest * (np.log(p_rest) - np.log(q_rest))
    return top + rest


def _rest(log_x: Float64Array) -> Float64Array:
    """Probability of everything else; float32 references round sums of almost 1 to 1 or a little above."""
    rest: Float64Array = np.maximum(1.0 - np.exp(log_x).sum(axis=1), 1e-10)
    return rest


def read_reference(path: Path) -> Reference:
    """Read a NumPy archive with token_ids, top1, top_ids and top_logprobs.

    Where it has whole distributions too (logprobs, [P, V]), their width tells the vocabulary; other arrays
    are not looked at. Raises ReferenceFileError when it is not such an archive.
    """
    names = ("token_ids", "top1", "top_ids", "top_logprobs")
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):  # NumPy would take it for a pickle, and advise to trust it
                raise ValueError("it is no archive")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in names}
                vocab_size = archive["logprobs"].shape[-1] if "logprobs" in archive else None
    except FileNotFoundError:
        raise ReferenceFileError(f"{path}: no such file; give the path of a reference .npz") from None
    except Exception as error:  # noqa: BLE001  zipfile, zlib, ast and NumPy have many ways to refuse
        raise ReferenceFileError(
            f"{path}: not a file of reference logits ({error}); expected an .npz with {', '.join(names)}"
        ) from None
    if fault := _fault(**arrays):
        raise ReferenceFileError(f"{path}: {fault}; get another copy of it")
    return Reference(
        path,
        arrays["token_ids"].astype(np.int32),
        arrays["top1"].astype(np.int32),
        arrays["top_ids"].astype(np.int32),
        arrays["top_logprobs"].astype(np.float32),
        vocab_size,
    )


def _fault(token_ids: AnyArray, top1: AnyArray, top_ids: AnyArray, top_logprobs: AnyArray) -> str | None:
    """What is wrong with the arrays of a reference."""
    rows = token_ids.shape
    if len(rows) != 1 or top1.shape != rows or top_ids.ndim != 2 or top_ids.shape[:1] != rows:
        return "its arrays have different lengths"
    if top_logprobs.shape != top_ids.shape or not top_ids.size:
        return "its arrays have different lengths"
    for ids in (token_ids, top1, top_ids):
        if ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() > np.iinfo(np.int32).max:
            return "it holds numbers that are no token ids"
    # Sums of probabilities in float32 round to a little more than 1.
    if top_logprobs.dtype.kind != "f" or not np.all(top_logprobs < 1e-3):
        return "its top_logprobs are not logarithms of probabilities"
    return None


def _windows(token_ids: Sequence[int], window: int, bos_id: int | None) -> Iterator[list[int]]:
    """Windows that each score what the one before did not reach; the last one may be shorter."""
    bos = [] if bos_id is None else [bos_id]
    room = window - len(bos)
    for start in range(0, len(token_ids), window - window // 2):
        yield bos + list(token_ids[start : start + room])
        if start + room >= len(token_ids):
            return


def _next_logprobs(
    model: Transformer, ids: Sequence[int], kv: KVCache, cancel: CancelToken, chunk: int, first: int
) -> Iterator[tuple[int, Float64Array]]:
    """Feed ids in chunks; yield (position, natural log probabilities [R, V] there) from `first` on."""
    for start in range(0, len(ids), chunk):
        hidden = model.hidden(ids[start : start + chunk], start, kv, cancel)
        for row in range(max(0, first - start), len(hidden), _ROWS_AT_ONCE):
            logits = model.logits(hidden[row : row + _ROWS_AT_ONCE], cancel).astype(np.float64)
            logits -= logits.max(axis=1, keepdims=True)
            logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
            yield start + row, logits
