"""`tiercel bench` and `tiercel perplexity`: the promised keys, and figures that agree with each other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from app.__main__ import main
from tests.tiny_gguf import write_tiny_model

REFERENCES = [("smollm2_path", "smollm2_135m_q4_1"), ("gemma3_path", "gemma3_270m_q4_k_m")]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("bench") / "tiny.gguf"))


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, float]:
    assert main([*arguments, "--json"]) == 0
    result: dict[str, float] = json.loads(capsys.readouterr().out)
    return result


def test_bench_has_the_promised_keys(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, "bench", "-m", tiny, "-p", "20", "-n", "4", "-r", "2", "-t", "1")
    assert result.keys() == {"prefill_tok_s", "decode_tok_s", "ttft_ms", "device", "threads"}
    assert result["threads"] == 1
    assert result["prefill_tok_s"] == pytest.approx(20 / result["ttft_ms"] * 1000)
    assert result["decode_tok_s"] > 0


def test_bench_for_people_leaves_out_what_was_not_measured(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "-m", tiny, "-p", "0", "-n", "4", "-r", "1"]) == 0
    shown = capsys.readouterr().out
    assert "decode" in shown
    assert "prefill" not in shown


def test_perplexity_of_a_text_does_not_depend_on_the_chunk(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("hello world, the end of the world is in the sea. " * 4)
    arguments = ("perplexity", "-m", tiny, "-f", str(text), "-c", "32")
    results = [run_json(capsys, *arguments, "--chunk", chunk) for chunk in ("512", "7", "1")]
    assert results[0].keys() == {"perplexity", "tokens"}
    for result in results[1:]:
        assert result == pytest.approx(results[0], rel=1e-6)


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
