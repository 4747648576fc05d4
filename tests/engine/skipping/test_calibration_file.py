"""What is kept of a calibration comes back as it was, and is thrown away when it can no longer be right."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.gguf import open_gguf
from engine.skipping.calibrated import Calibration, SkipEffect
from engine.skipping.calibration_file import CalibrationFile
from tests.tiny_gguf import write_tiny_model

ONE, TWO = frozenset({1}), frozenset({1, 2})
FOUND = Calibration(
    n_blocks=4,
    tokens=256,
    text="a conversation",
    perplexity=12.5,
    cosines=(0.5, 0.98),
    effects=(
        SkipEffect(ONE, 0.01, 0.02, -0.01, 0.05, 0.97),
        SkipEffect(TWO, 0.02, 0.03, 0.01, 0.06, 0.95),
    ),
    grown=(ONE, TWO),
)


def opened(model: Path, cache: Path | None) -> CalibrationFile:
    with open_gguf(model) as gguf:
        return CalibrationFile(gguf, 4, cache)


def kept_at(cache: Path) -> Path:
    (path,) = (cache / "calibrations").iterdir()
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "tiny.gguf")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_what_is_kept_comes_back(model: Path, cache: Path) -> None:
    assert opened(model, cache).load() == (None, ())
    assert opened(model, cache).keep(FOUND) == ()
    assert opened(model, cache).load() == (FOUND, ())
    assert len(list((cache / "calibrations").iterdir())) == 1


def test_a_partial_calibration_is_kept_too(model: Path, cache: Path) -> None:
    partial = Calibration(4, 300, "ours", 3.0, (), FOUND.effects, ())
    opened(model, cache).keep(partial)
    assert opened(model, cache).load() == (partial, ())


def test_without_a_folder_nothing_is_kept(model: Path) -> None:
    assert opened(model, None).keep(FOUND) == ()
    assert opened(model, None).load() == (None, ())


def test_each_model_has_its_own(model: Path, cache: Path, tmp_path: Path) -> None:
    opened(model, cache).keep(FOUND)
    other = write_tiny_model(tmp_path / "other.gguf")
    assert opened(other, cache).load() == (None, ())
    assert opened(model, cache).load() == (FOUND, ())


@pytest.mark.parametrize("change", ["time", "size", "header"])
def test_a_model_that_has_changed_is_calibrated_anew(
    model: Path, cache: Path, tmp_path: Path, change: str
) -> None:
    opened(model, cache).keep(FOUND)
    path, status = kept_at(cache), model.stat()
    if change == "time":
        os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    elif change == "size":
        with model.open("ab") as file:
            file.write(bytes(32))
        os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        content = model.read_bytes()
        model.write_bytes(content.replace(b"llama.rope.freq_base", b"llama.rope.freq_bass"))
        assert model.read_bytes() != content or pytest.skip("the key is not in the file")
        os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))
    found, notices = opened(model, cache).load()
    assert found is None
    assert len(notices) == 1 and "tiny.gguf has changed since it was calibrated" in notices[0]
    assert not path.exists()
    assert opened(model, cache).load() == (None, ())


def test_every_part_of_a_split_model_counts(tmp_path: Path, cache: Path) -> None:
    first = write_tiny_model(tmp_path / "tiny.gguf", split_max_tensors=8)
    opened(first, cache).keep(FOUND)
    assert opened(first, cache).load() == (FOUND, ())
    last = max(tmp_path.glob("tiny-*.gguf"))
    assert last != first
    os.utime(last, ns=(0, last.stat().st_mtime_ns + 1))
    assert opened(first, cache).load()[0] is None


def test_a_model_replaced_while_it_is_loaded_does_not_inherit(
    model: Path, cache: Path, tmp_path: Path
) -> None:
    loaded = opened(model, cache)
    os.replace(write_tiny_model(tmp_path / "new.gguf", seed=1), model)
    loaded.keep(FOUND)
    assert opened(model, cache).load()[0] is None


def test_a_folder_that_cannot_be_written_to_is_a_notice(model: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    (notice,) = opened(model, cache).keep(FOUND)
    assert "cannot be kept" in notice and "\n" not in notice


FAULTS = {
    "no JSON": b"{",
    "empty": b"{}",
    "list": b"[]",
    "not text": b"\xff\xfe",
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_file_is_thrown_away_with_a_notice(model: Path, cache: Path, fault: str) -> None:
    opened(model, cache).keep(FOUND)
    path = kept_at(cache)
    path.write_bytes(FAULTS[fault])
    found, (notice,) = opened(model, cache).load()
    assert found is None and "damaged" in notice
    assert not path.exists()


PLACES = [
    ("n_blocks",),
    ("tokens",),
    ("text",),
    ("perplexity",),
    ("cosines",),
    ("cosines", 0),
    ("effects",),
    ("effects", 0),
    ("effects", 0, "kl"),
    ("effects", 0, "top1"),
    ("effects", 1, "skipped"),
    ("effects", 1, "skipped", 0),
    ("grown",),
    ("grown", 0),
    ("grown", 1, 0),
]
NONSENSE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(place=st.sampled_from(PLACES), value=NONSENSE)
def test_no_content_of_the_file_is_trusted(
    model: Path, cache: Path, place: tuple[str | int, ...], value: object
) -> None:
    opened(model, cache).keep(FOUND)
    path = kept_at(cache)
    document = json.loads(path.read_text("utf-8"))
    holder = document["calibration"]
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    path.write_text(json.dumps(document), "utf-8")
    found, notices = opened(model, cache).load()
    if found is None:
        assert len(notices) == 1
        return
    for effect in found.effects:
        assert effect.skipped <= set(range(4)) and 0 <= effect.top1 <= 1
    assert all(found.effect(skipped) is not None for skipped in found.grown)
    assert len(found.cosines) in (0, 2)
