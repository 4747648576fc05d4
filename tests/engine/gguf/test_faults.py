"""Every fault of a file is one line that names file, key and value."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from engine.errors import GGUFError
from engine.gguf import ValueType, open_gguf
from tests.engine.gguf.forge import array, forge, pair, string, strings, tensor, text, u32
from tests.tiny_gguf import write_tiny_model

HUGE = 2**64 - 1


def _refusal(path: Path) -> str:
    """Open `path`, expect one printable line that begins with its name, and return the rest."""
    with pytest.raises(GGUFError) as caught:
        open_gguf(path)
    message = str(caught.value)
    assert message.isprintable()
    assert "; " in message, "no next step"
    return message


def _u64(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


CASES: dict[str, tuple[bytes, str]] = {
    "not a GGUF": (b"PK\3\4" + bytes(60), r"is not a GGUF file (it begins with b'PK\x03\x04')"),
    "shorter than the magic": (b"GG", "is not a GGUF file (it begins with b'GG')"),
    "magic only": (b"GGUF", "the version is cut off at byte 4"),
    "ggjt": (b"tjgg" + bytes(60), "holds the old format 'ggjt'"),
    "version 1": (forge(version=1), "has GGUF version 1"),
    "version 0": (forge(version=0), "has GGUF version 0"),
    "version 4": (forge(version=4), "has GGUF version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is stored big-endian"),
    "big-endian magic": (b"FUGG" + struct.pack(">IQQ", 3, 0, 0), "is stored big-endian"),
    "tensor count": (forge(n_tensors=HUGE), f"the number of tensors is {HUGE}, but only 16 bytes follow"),
    "key count": (forge(n_keys=HUGE), f"the number of keys is {HUGE}, but only"),
    "one key too many": (
        forge([u32(b"a", 1)], n_keys=2, alignment=1),
        "the number of keys is 2, but only 17",
    ),
    "key limit": (forge([u32(b"a", 1)] * 65_537), "the number of keys is 65537: at most 65536 are read"),
    "key length": (forge([_u64(HUGE) + bytes(32)]), f"length of key 0 is {HUGE}, but only"),
    "key too long": (forge([u32(b"k" * 65_536, 1)]), "length of key 0 is 65536: at most 65535 are read"),
    "key twice": (forge([u32(b"a", 1), u32(b"a", 1)]), "key 'a' is there twice"),
    "key not UTF-8": (forge([u32(b"a\xff", 1)]), r"key 0 is not UTF-8 at its byte 1 (b'\xff')"),
    "key with controls": (
        forge([u32("a\x1b[31m\u202e\n".encode(), 1)] * 2),
        r"key 'a\x1b[31m\u202e\n' is there twice",
    ),
    "value type": (forge([pair(b"a", 13, bytes(8))]), "type of key 'a' is 13, which GGUF does not have"),
    "value cut off": (forge([pair(b"a", ValueType.UINT64, b"\0")], alignment=1), "key 'a' is cut off"),
    "string length": (
        forge([pair(b"a", ValueType.STRING, _u64(HUGE))]),
        f"length of key 'a' is {HUGE}, but only",
    ),
    "string not UTF-8": (forge([text(b"a", b"ok\xc3(")]), r"key 'a' is not UTF-8 at its byte 2 (b'\xc3(')"),
    "text budget": (
        forge([text(b"a", bytes(9 * 2**20)), text(b"b", bytes(9 * 2**20))]),
        "key 'b' brings the text in the header above 16777216 bytes",
    ),
    "array item type": (forge([array(b"a", 99, 1, bytes(8))]), "item type of key 'a' is 99, which GGUF does"),
    "nested array": (forge([array(b"a", ValueType.ARRAY, 1, bytes(64))]), "key 'a' is an array of arrays"),
    "number array length": (
        forge([array(b"a", ValueType.FLOAT64, 2**61, b"")]),
        f"length of key 'a' is {2**61}, but only",
    ),
    "string array length": (
        forge([array(b"a", ValueType.STRING, HUGE, bytes(64))]),
        f"length of key 'a' is {HUGE}, but only",
    ),
    "array limit": (
        forge([array(b"a", ValueType.UINT8, 2**24 + 1, bytes(2**24 + 1))]),
        "length of key 'a' is 16777217: at most 16777216 are read",
    ),
    "string in an array": (
        forge([array(b"a", ValueType.STRING, 2, string(b"x") + _u64(HUGE))]),
        "item 1 of key 'a' lies outside the file",
    ),
    "string in the middle of an array": (
        forge([array(b"a", ValueType.STRING, 3, _u64(0, 2**40, 0))]),
        "item 2 of key 'a' lies outside the file",
    ),
    "alignment 0": (
        forge([u32(b"general.alignment", 0)]),
        "key 'general.alignment' is 0: it must be a power",
    ),
    "alignment 48": (forge([u32(b"general.alignment", 48)]), "key 'general.alignment' is 48: it must be"),
    "alignment text": (
        forge([text(b"general.alignment", b"x")]),
        "key 'general.alignment' is 'x': it must be",
    ),
    "no dims": (forge([], [tensor(b"t", ())] * 2), "n_dims of tensor 't' is 0: it must lie between 1 and 4"),
    "5 dims": (forge([], [tensor(b"t", (1,) * 5)]), "n_dims of tensor 't' is 5: it must lie between 1 and 4"),
    "zero dim": (forge([], [tensor(b"t", (4, 0))], bytes(64)), "dim 1 of tensor 't' is 0"),
    "overflowing dims": (
        forge([], [tensor(b"t", (2**62, 2))], bytes(64)),
        "dims [4611686018427387904, 2] of tensor 't' overflow",
    ),
    "part of a block": (
        forge([], [tensor(b"t", (48,), 2)], bytes(64)),
        "dim 0 of tensor 't' is 48, which is not whole blocks of 32",
    ),
    "misaligned": (
        forge([], [tensor(b"t", (1,), 0, 4)], bytes(64)),
        "offset of tensor 't' is 4, which is not a multiple of 32",
    ),
    "data cut off": (
        forge([], [tensor(b"t", (9,))], bytes(32)),
        "tensor 't' ends at byte 100, the file at 96",
    ),
    "offset outside": (
        forge([], [tensor(b"t", (9,), 0, 2**64 - 32)], bytes(64)),
        f"tensor 't' ends at byte {2**64 + 68}, the file at 128",
    ),
    "overlap": (
        forge([], [tensor(b"b", (8,), 0, 32), tensor(b"a", (9,))], bytes(64)),
        "tensors 'a' and 'b' overlap at byte 128",
    ),
    "tensor twice": (
        forge([], [tensor(b"t", (8,)), tensor(b"t", (8,), 0, 32)], bytes(64)),
        "tensor 't' is there twice",
    ),
    "tensor name": (forge([], [tensor(b"\xfe" * 40, (8,))]), "name of tensor 0 is not UTF-8 at its byte 0"),
    "index cut off": (
        forge([], [tensor(b"t", (8,)), string(b"a" * 20)], alignment=1),
        "n_dims of tensor 'aaaaaaaaaaaaaaaaaaaa' is cut off",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content, expected = CASES[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert _refusal(path).startswith(f"{path}: {expected}")


def test_long_names_are_cut_in_messages(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(forge([u32(b"k" * 60_000, 1)] * 2))
    assert len(_refusal(path)) < 250 + len(str(path))


def test_an_array_item_that_is_not_utf8_is_named_when_it_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(forge([strings(b"tokens", [b"a", b"\x80"])]))
    with pytest.raises(GGUFError, match=r"item 1 of 'tokens' is not UTF-8 at its byte 0 \(b'\\x80'\); "):
        open_gguf(path).get_array("tokens").to_strings()


def test_what_is_not_a_readable_file_is_refused(tmp_path: Path) -> None:
    empty, pipe = tmp_path / "empty.gguf", tmp_path / "pipe"
    empty.touch()
    os.mkfifo(pipe)
    for path, expected in (
        (tmp_path / "missing.gguf", "no such file"),
        (tmp_path, "is a directory"),
        (empty, "is empty (0 bytes)"),
        (pipe, "is not a regular file"),
        (tmp_path / ("x" * 300), "cannot be opened (File name too long)"),
        (empty / "below", "cannot be opened (Not a directory)"),
        (tmp_path / "nul\0", "cannot be opened (embedded null byte)"),
    ):
        assert f": {expected}; " in _refusal(path)


def test_control_characters_in_the_files_name_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[2Jb\n.gguf"
    path.write_bytes(b"nothing")
    assert r"a\x1b[2Jb\n.gguf: is not a GGUF file" in _refusal(path)


def test_permission_denied_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(forge())

    def refuse(*_: object) -> None:  # chmod would not stop root, who runs some of our tests
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert ": permission denied; " in _refusal(path)


def _parts(folder: Path) -> list[Path]:
    write_tiny_model(folder / "m.gguf", layers=1, hidden_size=64, ffn_size=64, split_max_tensors=4)
    return sorted(folder.glob("m-*.gguf"))


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    parts = _parts(tmp_path)
    parts[1].unlink()
    assert f"{parts[1]}: part 2 of 3 is missing; " in _refusal(parts[0])


def test_a_later_part_alone_is_refused(tmp_path: Path) -> None:
    parts = _parts(tmp_path)
    assert f"{parts[1]}: is part 2 of 3; name the first part" in _refusal(parts[1])


def test_a_part_of_another_place_is_refused(tmp_path: Path) -> None:
    parts = _parts(tmp_path)
    parts[2].write_bytes(parts[1].read_bytes())
    assert f"{parts[2]}: key 'split.no' is 1, not 2; " in _refusal(parts[0])


def test_a_part_that_is_a_whole_model_is_refused(tmp_path: Path) -> None:
    parts = _parts(tmp_path)
    parts[1].write_bytes(forge())
    assert f"{parts[1]}: key 'split.no' is 0, not 1; " in _refusal(parts[0])


def test_a_renamed_first_part_is_refused(tmp_path: Path) -> None:
    renamed = _parts(tmp_path)[0].rename(tmp_path / "model.gguf")
    assert "is the first of 3 parts by its key 'split.count', but its name does not say so" in _refusal(
        renamed
    )


def _split_pairs(number: int, total: int) -> list[bytes]:
    return [u32(b"split.no", number), u32(b"split.count", 2), u32(b"split.tensors.count", total)]


@pytest.mark.parametrize(
    ("second_name", "total", "expected"),
    [
        (b"t", 2, "00002-of-00002.gguf: tensor 't' is in an earlier part too; "),
        (b"u", 3, "00001-of-00002.gguf: key 'split.tensors.count' is 3, the parts hold 2; "),
    ],
)
def test_parts_that_do_not_add_up_are_refused(
    tmp_path: Path, second_name: bytes, total: int, expected: str
) -> None:
    first, second = (tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    first.write_bytes(forge(_split_pairs(0, total), [tensor(b"t", (8,))], bytes(32)))
    second.write_bytes(forge(_split_pairs(1, total), [tensor(second_name, (8,))], bytes(32)))
    assert expected in _refusal(first)


def test_a_split_count_of_the_wrong_type_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00002.gguf"
    path.write_bytes(forge([text(b"split.count", b"two")]))
    assert "key 'split.count' is 'two': an integer was expected; " in _refusal(path)
