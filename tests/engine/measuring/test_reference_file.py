"""Files of reference logits: which are taken, and that all others are refused in one line."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from engine.errors import ReferenceFileError
from engine.measuring.reference_file import read_reference
from engine.model import Transformer
from tests.engine.distributions import IDS, write_reference


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
