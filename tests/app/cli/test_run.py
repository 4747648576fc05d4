"""`tiercel run`: what goes where, how prompts are put together, and that JSON has the promised keys."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from app.__main__ import main
from app.cli.progress import ProgressBar
from app.cli.run import _await
from engine import (
    DecodingOptions,
    DraftKind,
    Engine,
    GenerationStats,
    Reply,
    ReplyStatus,
    Request,
    parse_skip,
)
from kernels.cuda.devices import NoDevice
from tests.app.tiers.models import REASON, gpu_tiers
from tests.fakes import FakeEngine, Script
from tests.tiny_gguf import CHATML, write_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("run") / "tiny.gguf"
    return str(write_tiny_model(path, chat_template=CHATML))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["run", *arguments, "--temperature", "0", "-n", "6", "--json"]) == 0
    result: dict[str, object] = json.loads(capsys.readouterr().out)
    return result


def test_text_goes_to_standard_output_and_one_line_of_counts_to_standard_error(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, b"")
    assert main(["run", "-m", tiny, "-p", "hello", "--temperature", "0", "-n", "6"]) == 0
    shown = capsys.readouterr()
    assert shown.out == run_json(capsys, "-m", tiny, "-p", "hello")["text"] + "\n"  # type: ignore[operator]
    assert shown.err.count("\n") == 1
    for words in ("prompt tokens", "0 cached", "6 tokens", "tok/s", "first token after"):
        assert words in shown.err


def test_a_gpu_that_has_computed_is_named_on_standard_error(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, b"")
    script = Script(replies=("Hi.",), tiers=gpu_tiers(), backend="cuda sm_86", reason=REASON)
    monkeypatch.setattr("app.cli.run.Engine", lambda: FakeEngine(script))
    assert main(["run", "-m", tiny, "-p", "hello", "--device", "cuda"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "Hi.\n"
    assert shown.err.splitlines()[0] == f"tiercel: cuda sm_86: {REASON}"


def test_a_device_that_is_not_there_is_one_line(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, b"")
    found = NoDevice("no NVIDIA driver is installed", has_driver=False)
    monkeypatch.setattr("engine.backends.gpus.devices", lambda: found)
    assert main(["run", "-m", tiny, "-p", "hello", "--device", "cuda"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        "tiercel: no GPU can be used: no NVIDIA driver is installed; install NVIDIA's driver, 525 or newer, "
        "or let the CPU compute (--device cpu)\n"
    )


def test_json_has_the_promised_keys(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, b"")
    result = run_json(capsys, "-m", tiny, "-p", "hello", "--seed", "7")
    assert result.keys() == {
        "text",
        "finish_reason",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "ttft_ms",
        "prefill_tok_s",
        "decode_tok_s",
        "predicted_prefill_tok_s",
        "predicted_decode_tok_s",
        "nvme_read_bytes",
        "h2d_bytes",
        "stall_ms",
        "drafted_tokens",
        "accepted_tokens",
        "acceptance_rate",
        "drafts_at_once",
        "expected_speed_up",
        "from_draft",
        "skipped_blocks",
        "perplexity_change",
        "seed",
    }
    assert (result["finish_reason"], result["completion_tokens"], result["seed"]) == ("length", 6, 7)


def test_piped_text_is_the_prompt_or_follows_it(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, b"hello world\n")
    piped = run_json(capsys, "-m", tiny)
    pipe(monkeypatch, b"")
    given = run_json(capsys, "-m", tiny, "-p", "hello world")
    assert (piped["text"], piped["prompt_tokens"]) == (given["text"], given["prompt_tokens"])
    pipe(monkeypatch, b"world")
    both = run_json(capsys, "-m", tiny, "-p", "hello")
    pipe(monkeypatch, b"")
    joined = run_json(capsys, "-m", tiny, "-p", "hello\n\nworld")
    assert (both["text"], both["prompt_tokens"]) == (joined["text"], joined["prompt_tokens"])


def test_a_raw_prompt_has_no_template_and_a_system_message_adds_a_turn(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, b"")
    raw = run_json(capsys, "-m", tiny, "--raw", "-p", "hello")
    plain = run_json(capsys, "-m", tiny, "-p", "hello")
    system = run_json(capsys, "-m", tiny, "-p", "hello", "--system", "hello")
    assert raw["prompt_tokens"] == 1
    assert raw["prompt_tokens"] < plain["prompt_tokens"] < system["prompt_tokens"]  # type: ignore[operator]


def test_piped_text_that_is_not_utf_8_is_refused(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, b"abc\xff")
    assert main(["run", "-m", tiny]) == 3
    assert "not UTF-8 at byte 3" in capsys.readouterr().err


def test_a_base_model_without_raw_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, b"")
    path = write_tiny_model(tmp_path / "base.gguf", architecture="gemma3")
    assert main(["run", "-m", str(path), "-p", "x"]) == 1
    assert "--raw" in capsys.readouterr().err


def test_line_ends_and_marks_of_other_systems_are_no_part_of_a_piped_prompt(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, b"hello world")
    plain = run_json(capsys, "-m", tiny)
    pipe(monkeypatch, b"\xef\xbb\xbfhello world\r\n")
    assert run_json(capsys, "-m", tiny)["prompt_tokens"] == plain["prompt_tokens"]


def test_a_benchmark_is_greedy_and_ends_with_a_table(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, b"")
    engines: list[FakeEngine] = []
    monkeypatch.setattr("app.cli.run.Engine", lambda: engines.append(FakeEngine()) or engines[-1])
    assert main(["run", "-m", tiny, "-p", "hello", "--benchmark"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "Hello from the script.\n"
    assert [line.split()[0] for line in shown.err.splitlines()] == [
        "prompt",
        "reply",
        "first",
        "total",
        "seed",
    ]
    assert main(["run", "-m", tiny, "-p", "hello", "--benchmark", "--temperature", "0.5"]) == 0
    temperatures = [request.sampling.temperature for each in engines for request in each.requests]
    assert temperatures == [0.0, 0.5]


def test_how_tokens_are_computed_reaches_the_engine(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, b"")
    engines: list[FakeEngine] = []
    monkeypatch.setattr("app.cli.run.Engine", lambda: engines.append(FakeEngine()) or engines[-1])
    assert main(["run", "-m", tiny, "-p", "hello", "--draft=ngram", "--draft-k=3", "--skip=blk.1"]) == 0
    (request,) = engines[0].requests
    assert request.decoding == DecodingOptions(parse_skip("blk.1"), DraftKind.NGRAM, 3)
    assert "drafts taken (75%)" in capsys.readouterr().err


def test_measuring_what_can_be_left_out_is_shown() -> None:
    stream = Terminal()
    reply = Reply(Request())
    reply.update(ReplyStatus.CALIBRATE, GenerationStats(calibrated_share=0.25))
    engine = Engine()
    bar = ProgressBar(stream)
    _await(engine, reply, 0, bar)
    engine.close()
    assert "measuring what leaving blocks out does, once: 25%, 1 s left" in stream.getvalue()


def test_a_long_prompt_shows_how_far_it_is_read() -> None:
    stream = Terminal()
    reply = Reply(Request())
    reply.update(
        ReplyStatus.PREFILL, GenerationStats(prompt_tokens=50, cached_tokens=10, prefilled_tokens=10)
    )
    engine = Engine()
    _await(engine, reply, 0, ProgressBar(stream))
    engine.close()
    assert "reading the prompt 25%" in stream.getvalue()
