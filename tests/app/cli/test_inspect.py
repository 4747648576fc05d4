"""`tiercel inspect` shows what a file holds and lets nothing through that a terminal would obey."""

from __future__ import annotations

import argparse
import json
import struct
from pathlib import Path

import pytest

from app.cli import inspect
from engine import EngineError
from engine.gguf import ValueType
from kernels.quant_types import QuantType
from tests.engine.gguf.forge import array, forge, pair, tensor, text
from tests.tiny_gguf import write_tiny_model


def _run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    inspect.add_arguments(parser)
    return inspect.run(parser.parse_args(arguments))


def test_the_report_names_metadata_types_and_tensors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", quant_type=QuantType.Q4_K)
    assert _run(str(path)) == 0
    out = capsys.readouterr().out
    assert f"GGUF version 3, 1 file, {path.stat().st_size / 1e6:.1f} MB" in out
    for words in (
        "general.architecture llama",
        "tokenizer.ggml.tokens 320 x STRING: <|endoftext|>, <|im_start|>, <|im_end|>, Ā",
        "Q4_K 16 tensors",
        "blk.1.ffn_down.weight 256 x 512 Q4_K 73,728 bytes",
    ):
        assert words in " ".join(out.split())


def test_json_has_every_tensor_and_summarises_arrays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", split_max_tensors=6)
    assert _run(str(path), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["path"], len(report["files"]), report["version"]) == (str(path), 4, 3)
    assert report["metadata"]["llama.block_count"] == 2
    tokens = report["metadata"]["tokenizer.ggml.tokens"]
    assert (tokens["item_type"], tokens["length"], tokens["first"][1]) == ("STRING", 320, "<|im_start|>")
    last = report["tensors"][-1]
    assert (last["name"], last["shape"], last["type"]) == ("output.weight", [320, 256], "F32")
    assert (last["bytes"], last["file"]) == (320 * 256 * 4, 3)
    assert sum(tensor["bytes"] for tensor in report["tensors"]) == report["types"]["F32"]["bytes"]


def test_hostile_text_is_shown_but_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]52;c;eA==\x07\x9b2J\u202e\n\r".encode()
    pairs = [text(b"key" + evil, evil * 100), array(b"a", ValueType.STRING, 0, b"")]
    pairs.append(pair(b"nan", ValueType.FLOAT32, struct.pack("<f", float("nan"))))
    path = tmp_path / "evil.gguf"
    path.write_bytes(forge(pairs, [tensor(b"t" + evil, (1,), 200)]))
    for flags in ([], ["--json"]):
        assert _run(str(path), *flags) == 0
        out = capsys.readouterr().out
        assert out.replace("\n", "").isprintable()
        assert max(map(len, out.splitlines())) < 6_000
    assert json.loads(out)["metadata"]["key" + evil.decode()] == evil.decode() * 100


def test_types_that_we_do_not_run_are_still_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(forge([], [tensor(b"a", (256,), 23), tensor(b"b", (3,), 200)], bytes(160)))
    assert _run(str(path)) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "a 256 IQ4_XS 136 bytes" in out
    assert "b 3 type 200 unknown size" in out


def test_a_damaged_file_is_an_engine_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(EngineError, match=r"broken\.gguf: the version is cut off"):
        _run(str(path))
