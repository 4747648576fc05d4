"""`tiercel perplexity`: the promised keys, tables of a width, and what makes no sense."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.__main__ import main
from kernels.quant_types import QuantType
from tests.tiny_gguf import write_tiny_model

REFERENCES = [("smollm2_path", "smollm2_135m_q4_1"), ("gemma3_path", "gemma3_270m_q4_k_m")]
KEYS = {"perplexity", "perplexity_low", "perplexity_high", "tokens"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("perplexity") / "tiny.gguf"
    return str(write_tiny_model(path, quant_type=QuantType.Q8_0, layers=4))


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    paths[0].write_text("hello world, the end of the world is in the sea. " * 4)
    paths[1].write_text("another text, and in it other words of the world. " * 3)
    return list(map(str, paths))


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_perplexity_of_a_text_does_not_depend_on_the_chunk(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("hello world, the end of the world is in the sea. " * 4)
    arguments = ("perplexity", "-m", tiny, "-f", str(text), "-c", "32")
    results = [run_json(capsys, *arguments, "--chunk", chunk) for chunk in ("512", "7", "1")]
    assert results[0].keys() == {
        *("perplexity", "perplexity_low", "perplexity_high", "tokens", "files", "settings")
    }
    for result in results[1:]:
        assert result["perplexity"] == pytest.approx(results[0]["perplexity"], rel=1e-6)


def test_a_reference_gives_its_distance(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    best = np.array([rng.permutation(320)[:64] for _ in range(20)], np.int32)
    reference = tmp_path / "r.npz"
    np.savez(
        reference,
        token_ids=rng.integers(3, 320, 20).astype(np.int32),
        top1=best[:, 0],
        top_ids=best,
        top_logprobs=np.full((20, 64), np.log(1 / 65), np.float32),
    )
    result = run_json(capsys, "perplexity", "-m", tiny, "--reference", str(reference))
    assert result.keys() == {"perplexity", "tokens", "kl_mean", "kl_p99", "kl_max", "top1"}
    assert result["tokens"] == 20
    assert 0 < result["kl_mean"] <= result["kl_p99"] <= result["kl_max"]


@pytest.mark.model
@pytest.mark.parametrize("precision", ["float", "fast"])
@pytest.mark.parametrize(("fixture", "reference"), REFERENCES)
def test_real_models_meet_the_marks(
    request: pytest.FixtureRequest,
    shared_data: Path,
    capsys: pytest.CaptureFixture[str],
    fixture: str,
    reference: str,
    precision: str,
) -> None:
    result = run_json(
        capsys,
        "perplexity",
        "-m",
        str(request.getfixturevalue(fixture)),
        "--reference",
        str(shared_data / "golden" / f"{reference}.licence_en.npz"),
        "--precision",
        precision,
    )
    assert result["kl_mean"] <= (0.0001 if precision == "float" else 0.0034)
    assert result["top1"] >= 0.955


def test_several_texts_are_scored_alone_and_together(
    tiny: str, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_json(capsys, "perplexity", "-m", tiny, "-f", *texts, "-c", "32")
    assert [each["file"] for each in result["files"]] == texts
    assert result["files"][0].keys() == {"file"} | KEYS
    assert result["tokens"] == sum(each["tokens"] for each in result["files"])
    again = run_json(capsys, "perplexity", "-m", tiny, "-f", texts[0], "-f", texts[1], "-c", "32")
    assert again == result


def test_a_smaller_stride_gives_tokens_more_context(
    tiny: str, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    n_tokens = [
        run_json(capsys, "perplexity", "-m", tiny, "-f", texts[0], "-c", "32", "--stride", stride)["tokens"]
        for stride in ("16", "4")
    ]
    # The first of a text that have not as much are not scored.
    assert n_tokens[0] - n_tokens[1] == 12


def test_settings_are_compared_with_the_whole_model(
    tiny: str, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["perplexity", "-m", tiny, "-f", *texts, "-c", "32", "--compare", "skip=blk.1"]
    result = run_json(capsys, *arguments, "--compare", "precision=float")
    skipping, floats = result["settings"]
    assert (skipping["setting"], skipping["skipped"]) == ("skip=blk.1", [2, 3])
    assert (floats["setting"], floats["skipped"]) == ("precision=float", [])
    assert skipping["kl_mean"] > floats["kl_mean"] > 0
    assert skipping["tokens"] == result["tokens"]
    expected = result["perplexity"] * (1 + skipping["perplexity_change"])
    assert skipping["perplexity"] == pytest.approx(expected)
    with pytest.raises(SystemExit):
        main(["perplexity", "--help"])
    documented = set(re.findall(r"[a-z0-9_]+", capsys.readouterr().out))
    assert skipping.keys() | result.keys() <= documented


def test_the_tables_are_aligned_and_have_80_columns(
    tiny: str, texts: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(texts[0]).parent)
    arguments = ["perplexity", "-m", tiny, "-f", "a.txt", "b.txt", "-c", "32", "--compare", "skip=blk.1"]
    assert main(arguments) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert [line.split()[0] for line in first.splitlines()] == ["file", "a.txt", "b.txt", "together"]
    assert [line.split()[0] for line in second.splitlines()] == ["setting", "skip=blk.1"]
    for table in (first, second):
        assert len({len(line) for line in table.splitlines()}) == 1
        assert max(map(len, table.splitlines())) <= 80


def test_a_few_tokens_have_no_interval_and_the_output_is_still_json(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "short.txt"
    text.write_text("sea and sea")
    for length in range(2, 20):  # one of them scores a single token
        if main(["perplexity", "-m", tiny, "-f", str(text), "-c", str(2 * length), "--json"]) == 0:
            result = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
            if result["tokens"] == 1:
                assert result["perplexity_high"] is None
                return
    pytest.fail("no window scores a single token")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-f", "{text}", "-c", "1"], "a window of 1 token scores nothing"),
        (["-f", "{text}", "-c", "8", "--stride", "8"], "leaves gaps between windows of 8"),
        (["-f", "{text}", "--compare", "skip=lots"], "'lots' says nothing that can be skipped"),
        (["-f", "{text}", "--compare", "heads=3"], "'heads=3' is nothing to compare with: give skip=0.98"),
        (["--reference", "r.npz", "--stride", "3"], "--reference has its own tokens: leave out --stride"),
        (["--reference", "r.npz", "--compare", "kv=f16", "-c", "9"], "leave out --compare, -c"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    tiny: str, texts: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["perplexity", "-m", tiny, *(part.format(text=texts[0]) for part in arguments)]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1


def test_a_setting_of_a_gpu_is_refused_where_none_computes(
    tiny: str, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["perplexity", "-m", tiny, "-f", texts[0], "-c", "32", "--compare", "kv=q8_0"]) == 1
    assert "kv=q8_0 is about the cache of a GPU" in capsys.readouterr().err
