"""No bytes whatever raise anything but EngineError, or take memory that they do not pay for."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import EngineError, GGUFError
from engine.gguf import LazyArray, ValueType, open_gguf
from tests.engine.gguf.forge import array, forge, pair, strings, tensor, text, u32
from tests.tiny_gguf import write_tiny_vocabulary

MAX_PEAK_BYTES = 2 * 2**20
"""For files of less than 16 KiB."""

SMALL = forge(
    [
        text(b"general.architecture", b"llama"),
        u32(b"general.alignment", 32),
        pair(b"f", ValueType.FLOAT64, struct.pack("<d", 0.5)),
        pair(b"b", ValueType.BOOL, b"\1"),
        strings(b"tokens", [b"a", "é".encode(), b""]),
        array(b"scores", ValueType.FLOAT32, 3, struct.pack("<3f", 1, 2, 3)),
        array(b"flags", ValueType.BOOL, 2, b"\1\0"),
    ],
    [tensor(b"a", (4, 2)), tensor(b"q", (32, 1), 8, 32), tensor(b"odd", (256,), 23, 96)],
    bytes(96 + 136),
)

Open = Callable[[bytes], None]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file as llama.cpp's tools write it, 9 KiB."""
    return write_tiny_vocabulary(tmp_path_factory.mktemp("fuzz") / "vocabulary.gguf").read_bytes()


@pytest.fixture(scope="module")
def use_everything(tmp_path_factory: pytest.TempPathFactory) -> Open:
    """Opens some bytes as a file, decodes all there is, and bounds the memory that it took."""
    folder = tmp_path_factory.mktemp("fuzz")
    serial = iter(range(1 << 30))

    def use(content: bytes) -> None:
        # A new file each time: shortening one that is still mapped would kill the process.
        path = folder / f"{next(serial)}.gguf"
        path.write_bytes(content)
        tracemalloc.start()
        try:
            _decode_all(path)
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            path.unlink()
        assert peak < MAX_PEAK_BYTES

    return use


def _decode_all(path: Path) -> None:
    with open_gguf(path) as gguf_file:
        for name, info in gguf_file.tensors.items():
            assert gguf_file.tensor_bytes(name).size == info.n_bytes
            assert info.type_name
        for value in gguf_file.metadata.values():
            if isinstance(value, LazyArray):
                assert len(value.to_list()) == len(value)


def test_every_truncation_is_refused(use_everything: Open) -> None:
    use_everything(SMALL)
    for length in range(len(SMALL)):
        with pytest.raises(GGUFError):
            use_everything(SMALL[:length])


def test_every_byte_may_have_every_odd_value(use_everything: Open) -> None:
    for position in range(len(SMALL) - 96 - 136):
        for value in (0, 1, 0x7F, 0x80, 0xFF, SMALL[position] ^ 1):
            content = bytearray(SMALL)
            content[position] = value
            _may_refuse(use_everything, bytes(content))


@pytest.mark.parametrize("number", [0, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1])
def test_huge_numbers_anywhere_cost_no_memory(use_everything: Open, number: int) -> None:
    for position in range(4, len(SMALL) - 96 - 136 - 8):
        _may_refuse(use_everything, SMALL[:position] + struct.pack("<Q", number) + SMALL[position + 8 :])


def _may_refuse(use_everything: Open, content: bytes) -> None:
    try:
        use_everything(content)
    except EngineError as error:
        assert str(error).isprintable()


@given(
    patches=st.lists(st.tuples(st.integers(0, 9_000), st.binary(min_size=1, max_size=9)), max_size=6),
    length=st.none() | st.integers(0, 10_000),
)
@settings(max_examples=300, deadline=None)
def test_patched_and_truncated_vocabularies(
    use_everything: Open, vocabulary: bytes, patches: list[tuple[int, bytes]], length: int | None
) -> None:
    content = bytearray(vocabulary)
    for position, patch in patches:
        content[position : position + len(patch)] = patch
    _may_refuse(use_everything, bytes(content[:length]))


@given(
    counts=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
    | st.tuples(st.just(2), st.just(2)),
    body=st.lists(
        st.binary(max_size=40)
        | st.integers(0, 14).map(lambda number: struct.pack("<I", number))
        | st.integers(0, 40).map(lambda number: struct.pack("<Q", number))
        | st.sampled_from([u32(b"k", 1), tensor(b"t", (1,)), strings(b"s", [b"a"])]),
        max_size=12,
    ),
)
@settings(max_examples=300, deadline=None)
def test_random_bodies(use_everything: Open, counts: tuple[int, int], body: list[bytes]) -> None:
    content = b"GGUF" + struct.pack("<IQQ", 3, *counts) + b"".join(body)
    _may_refuse(use_everything, content)


@pytest.mark.parametrize("item_type", [ValueType.STRING, ValueType.UINT8])
def test_a_file_of_a_gibibyte_of_zeros_costs_no_memory(tmp_path: Path, item_type: ValueType) -> None:
    path = tmp_path / "sparse.gguf"
    path.write_bytes(forge([array(b"a", item_type, 2**26, b"")]))
    with path.open("r+b") as file:
        file.truncate(2**30)
    tracemalloc.start()
    with pytest.raises(GGUFError, match="length of key 'a' is 67108864: at most"):
        open_gguf(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MAX_PEAK_BYTES


def test_opening_a_large_vocabulary_decodes_nothing(tmp_path: Path) -> None:
    tokens = [b"token %d" % index for index in range(100_000)]
    path = tmp_path / "large.gguf"
    path.write_bytes(forge([strings(b"tokens", tokens)]))
    tracemalloc.start()
    gguf_file = open_gguf(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    assert gguf_file.get_array("tokens").first(1) == ["token 0"]
