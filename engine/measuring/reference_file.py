"""Files of reference logits: what an independent implementation computed for a run of ids.

Knows the arrays of such a file and what can be wrong with them; does not know models. `evaluate` compares.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import ReferenceFileError

AnyArray = npt.NDArray[Any]


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
