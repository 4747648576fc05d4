"""The measures on cases that can be computed another way."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from engine.cancel import CancelToken
from engine.errors import ContextError, KernelError, ReferenceFileError
from engine.evaluate import compare_with_reference, kl64, measure_perplexity, read_reference
from engine.model import Transformer

IDS = [int(i) for i in np.random.default_rng(3).integers(3, 320, 70)]


def logprobs(model: Transformer, ids: list[int]) -> np.ndarray:
    """Of the next token after each id, [T, V]."""
    hidden = model.hidden(ids, 0, model.backend.new_kv(len(ids)), CancelToken())
    logits = model.logits(hidden, CancelToken()).astype(np.float64)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def write_reference(path: Path, model: Transformer, **changes: object) -> Path:
    ours = logprobs(model, IDS)
    best = np.argsort(-ours, axis=1)[:, :64].astype(np.int32)
    arrays: dict[str, object] = {
        "token_ids": np.array(IDS, np.int32),
        "top1": best[:, 0],
        "top_ids": best,
        "top_logprobs": np.take_along_axis(ours, best, axis=1).astype(np.float32),
    }
    np.savez(path, **{**arrays, **changes})  # type: ignore[arg-type]
    return path


def perplexity(model: Transformer, ids: list[int], window: int, chunk: int = 8, bos_id: int | None = None):
    kv = model.backend.new_kv(window)
    return measure_perplexity(model, ids, kv, CancelToken(), window=window, chunk=chunk, bos_id=bos_id)


def test_a_text_of_one_window_is_scored_from_its_middle(tiny_model: Transformer) -> None:
    result = perplexity(tiny_model, IDS[:20], window=20)
    table = logprobs(tiny_model, IDS[:20])
    scored = [table[i - 1, IDS[i]] for i in range(10, 20)]
    assert result.tokens == 10
    assert result.perplexity == pytest.approx(np.exp(-np.mean(scored)), rel=1e-4)


@pytest.mark.parametrize("n_ids", [11, 20, 21, 29, 30, 31, 70])
@pytest.mark.parametrize("bos_id", [None, 1])
def test_every_token_after_the_first_half_window_is_scored_once(
    tiny_model: Transformer, n_ids: int, bos_id: int | None
) -> None:
    # The BOS takes one place of the first half window.
    first_scored = 10 if bos_id is None else 9
    assert perplexity(tiny_model, IDS[:n_ids], window=20, bos_id=bos_id).tokens == n_ids - first_scored


@pytest.mark.parametrize("chunk", [1, 3, 512])
def test_chunks_do_not_change_the_perplexity(tiny_model: Transformer, chunk: int) -> None:
    expected = perplexity(tiny_model, IDS, window=20).perplexity
    assert perplexity(tiny_model, IDS, window=20, chunk=chunk).perplexity == pytest.approx(expected, rel=1e-4)


def test_a_text_without_a_scored_token_is_refused_with_its_length(tiny_model: Transformer) -> None:
    with pytest.raises(ContextError, match="has 10 tokens"):
        perplexity(tiny_model, IDS[:10], window=20)


def test_a_model_is_at_no_distance_from_itself(tiny_model: Transformer, tmp_path: Path) -> None:
    reference = read_reference(write_reference(tmp_path / "r.npz", tiny_model))
    result = compare_with_reference(
        tiny_model, reference, tiny_model.backend.new_kv(70), CancelToken(), chunk=16
    )
    assert result.kl_max < 1e-6
    assert result.top1 == 1.0
    assert result.tokens == 70
    table = logprobs(tiny_model, IDS)
    nll = -np.mean([table[i - 1, IDS[i]] for i in range(1, 70)])
    assert result.perplexity == pytest.approx(np.exp(nll), rel=1e-4)


def test_kl64_is_that_of_the_merged_distributions() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(200)), rng.dirichlet(np.ones(200))
    best = np.argsort(-p)[:64].astype(np.int32)
    merged_p, merged_q = (np.append(x[best], 1 - x[best].sum()) for x in (p, q))
    expected = np.sum(merged_p * np.log(merged_p / merged_q))
    ours = kl64(best[None], np.log(p[best]).astype(np.float32)[None], np.log(q)[None])
    assert ours[0] == pytest.approx(expected, rel=1e-5)


def test_a_reference_of_another_vocabulary_is_refused(tiny_model: Transformer, tmp_path: Path) -> None:
    path = write_reference(tmp_path / "r.npz", tiny_model)
    with pytest.raises(ReferenceFileError, match="another model"):
        read_reference(path).check_vocabulary(100)
    # A larger vocabulary holds all its ids; the whole distributions tell it apart.
    read_reference(path).check_vocabulary(1000)
    write_reference(path, tiny_model, logprobs=np.zeros((2, 320), np.float32))
    with pytest.raises(ReferenceFileError, match="a vocabulary of 320 tokens and not of 1000"):
        read_reference(path).check_vocabulary(1000)
    read_reference(path).check_vocabulary(320)


@pytest.mark.parametrize("case", ["missing", "text", "empty", "folder", "no array", "lengths", "npy"])
def test_a_file_that_is_no_reference_is_refused_in_one_line(
    tiny_model: Transformer, tmp_path: Path, case: str
) -> None:
    path = tmp_path / "r.npz"
    if case == "text":
        path.write_text("not an archive")
    elif case == "empty":
        path.touch()
    elif case == "folder":
        path.mkdir()
    elif case == "no array":
        np.savez(path, token_ids=np.arange(3))
    elif case == "lengths":
        write_reference(path, tiny_model, top1=np.zeros(3, np.int32))
    elif case == "npy":
        with path.open("wb") as file:
            np.save(file, np.arange(3))
    with pytest.raises(ReferenceFileError) as caught:
        read_reference(path)
    assert "\n" not in str(caught.value)


ONE = (len(IDS), 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"top_ids": np.zeros(len(IDS), np.int32), "top_logprobs": np.zeros(len(IDS), np.float32)},
        {"top_ids": np.zeros((*ONE, 1), np.int32), "top_logprobs": np.zeros((*ONE, 1), np.float32)},
        {"top_ids": np.zeros((len(IDS), 0), np.int32), "top_logprobs": np.zeros((len(IDS), 0), np.float32)},
        {"token_ids": np.int32(3)},
        {"token_ids": np.array(IDS, np.float64)},
        {"token_ids": np.array(IDS, np.int64) + 2**32},
        {"top1": -np.ones(len(IDS), np.int32)},
        {"top_ids": np.zeros(ONE, np.int32), "top_logprobs": np.full(ONE, np.nan, np.float32)},
        {"top_ids": np.zeros(ONE, np.int32), "top_logprobs": np.full(ONE, 2, np.float32)},
        {"top_ids": np.zeros(ONE, np.int32), "top_logprobs": np.zeros(ONE, np.complex64)},
        {"top_ids": np.array([[print] * 1] * len(IDS)), "top_logprobs": np.zeros(ONE, np.float32)},
    ],
)
def test_arrays_that_make_no_sense_are_refused_in_one_line(
    tiny_model: Transformer, tmp_path: Path, changes: dict[str, object]
) -> None:
    with pytest.raises(ReferenceFileError) as caught:
        read_reference(write_reference(tmp_path / "r.npz", tiny_model, **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fault", ["compression", "encryption", "checksum", "header", "size"])
def test_an_archive_that_cannot_be_unpacked_is_refused(tmp_path: Path, fault: str) -> None:
    header = {
        "header": b"{'descr': " + b"[" * 60,
        "size": b"{'descr': '<i4', 'fortran_order': False, 'shape': (10000000000000,), }",
    }.get(fault, b"{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }")
    array = b"\x93NUMPY\x01\x00\x76\x00" + header.ljust(117) + b"\n" + bytes(4)
    path = tmp_path / "r.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("token_ids.npy", array)
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02")
    if fault == "compression":
        data[8] = data[entry + 10] = 99
    elif fault == "encryption":
        data[6] = data[entry + 8] = 1
    elif fault == "checksum":
        data[entry - 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ReferenceFileError, match="not a file of reference logits"):
        read_reference(path)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_model_that_computes_no_numbers_is_an_error_and_no_score(
    tiny_model: Transformer, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    head = tiny_model.backend.head

    def broken(x: np.ndarray, cancel: CancelToken) -> np.ndarray:
        logits = head(x, cancel)
        logits[-1, 7] = bad
        return logits

    monkeypatch.setattr(tiny_model.backend, "head", broken)
    with pytest.raises(KernelError, match="not numbers"):
        perplexity(tiny_model, IDS, window=20)
