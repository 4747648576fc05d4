"""`tiercel bench --matrix`: the file, what it makes of it, and the files that come out."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from app.__main__ import main
from app.cli.matrix_file import read_matrix
from engine import CaseResult, DraftKind, InputFileError, SkipChoice, SkipRule, parse_budget
from kernels.quant_types import QuantType
from tests.tiny_gguf import write_tiny_model

HEAD = 'text = "book.txt"\nwindow = 64\nscored_tokens = 80\ndecode_tokens = 6\nrepetitions = 1\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("matrix")
    write_tiny_model(folder / "tiny.gguf", quant_type=QuantType.Q8_0, layers=4, context=1024)
    (folder / "book.txt").write_text("hello world, the end of the world is in the sea. " * 12)
    return folder


def written(folder: Path, matrix: str, head: str = HEAD) -> Path:
    path = folder / "m.toml"
    path.write_text(f"{head}[matrix]\n{matrix}\n")
    return path


def test_every_combination_is_a_case_and_what_has_no_effect_makes_none(folder: Path) -> None:
    matrix = read_matrix(
        written(
            folder,
            'model = "tiny.gguf"\nskip = ["off", "kl=0.05"]\ndraft = ["off", "ngram", "model"]\n'
            'draft_k = ["auto", 4]\ndraft_model = "tiny.gguf"\nram_budget = "2G"\nexit_layer = 2',
        )
    )
    assert len(matrix.cases) == 2 * (1 + 2 + 2)
    first, *_, last = matrix.cases
    assert dict(first.settings) == {"model": "tiny.gguf", "skip": "off", "draft": "off", "ram_budget": "2G"}
    assert first.case.options.path == folder / "tiny.gguf"
    assert first.case.options.ram_budget == parse_budget("2G")
    assert (first.case.options.draft_model, first.case.decoding.skip) == (None, None)
    assert last.case.options.draft_model == folder / "tiny.gguf"
    assert last.case.decoding.skip == SkipChoice(SkipRule.KL, 0.05)
    assert (last.case.decoding.draft, last.case.decoding.draft_k) == (DraftKind.MODEL, 4)
    assert last.settings["draft_k"] == "4"
    assert matrix.task.scored_tokens == 80
    assert matrix.task.prompt == (folder / "book.txt").read_text()[:1500]


def test_all_settings_are_read(folder: Path) -> None:
    (folder / "ask.txt").write_text("a prompt")
    settings = (
        'device = "cpu"\nthreads = 2\nprecision = "float"\nvram_budget = "50%"\nkv_type = "q8_0"\n'
        'gpu_layers = 3\nplace = "head=ram"\nexecutor = "hybrid"\nprefetch = 4\nexit_layer = 2\n'
        'draft = "exit"\nmodel = "tiny.gguf"'
    )
    head = HEAD + 'prompt_file = "ask.txt"\ntemperature = 1\nseed = 7\nreference = "tiny.gguf"\n'
    matrix = read_matrix(written(folder, settings, head))
    ((options, decoding),) = [(each.case.options, each.case.decoding) for each in matrix.cases]
    assert (options.device, options.threads, options.gpu_layers, options.prefetch) == ("cpu", 2, 3, 4)
    assert (str(options.place[0]), decoding.exit_layer) == ("head=ram", 2)
    task = matrix.task
    assert (task.prompt, task.temperature, task.seed, task.reference) == (
        *("a prompt", 1.0, 7),
        folder / "tiny.gguf",
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("text = ", "m.toml: it is no TOML: "),
        (HEAD, "it has no [matrix] with a model"),
        (HEAD + "matrix = 3", "it has no [matrix] with a model"),
        (HEAD + "[matrix]\nskip = 'off'", "it has no [matrix] with a model"),
        ("[matrix]\nmodel = 'tiny.gguf'", "there is no text to score"),
        ("words = 3\n" + HEAD + "[matrix]\nmodel = 'tiny.gguf'", "words is unknown: there are decode_tokens"),
        ("prompt = 'a'\nprompt_file = 'book.txt'\n" + HEAD + "[matrix]\nmodel = 'tiny.gguf'", "two prompts"),
        ("text = 'book.txt'\nseed = -1\n[matrix]\nmodel = 'tiny.gguf'", "seed: -1 is not a whole number"),
        ("text = 'book.txt'\nwindow = true\n[matrix]\nmodel = 'tiny.gguf'", "window: True is not a whole"),
        ("text = 'book.txt'\ntemperature = 'x'\n[matrix]\nmodel = 'tiny.gguf'", "'x' is no temperature"),
        ("text = 'nowhere.txt'\n[matrix]\nmodel = 'tiny.gguf'", "nowhere.txt: No such file"),
        (HEAD + "[matrix]\nmodel = 3", "matrix.model: 3 is no text"),
        (HEAD + "[matrix]\nmodel = 'nowhere.gguf'", "nowhere.gguf"),
        (HEAD + "[matrix]\nmodel = []", "matrix.model is empty"),
        (HEAD + "[matrix]\nmodel = 'tiny.gguf'\nheads = 3", "matrix.heads is no setting: there are device"),
        (HEAD + "[matrix]\nmodel = 'tiny.gguf'\nskip = 0.98", "matrix.skip: 0.98 is no text"),
        (HEAD + "[matrix]\nmodel = 'tiny.gguf'\nskip = 'lots'", "matrix.skip: 'lots' says nothing"),
        (HEAD + "[matrix]\nmodel = 'tiny.gguf'\ndraft = 'big'", "matrix.draft: 'big' must be off or ngram"),
        (HEAD + "[matrix]\nmodel = 'tiny.gguf'\ndraft = 'model'", "there is no matrix.draft_model"),
        (
            HEAD + "[matrix]\nmodel = 'tiny.gguf'\ndraft = 'ngram'\ndraft_k = 24",
            "matrix.draft_k is 24: it must lie between 1 and 23",
        ),
        (HEAD + "[matrix]\nmodel = 'tiny.gguf'\nram_budget = 'x'", "matrix.ram_budget: 'x' is no size"),
        (
            HEAD + "[matrix]\nmodel = 'tiny.gguf'\nkv_type = ['f16', 4]",
            "matrix.kv_type: 4 must be f16 or q8_0",
        ),
        (HEAD + "[matrix]\nmodel = 'tiny.gguf'\ndevice = 'gpu'", "matrix.device: "),
        (HEAD + "[matrix]\nmodel = 'tiny.gguf'\nprefetch = 1", "1 is not a whole number of at least 2"),
    ],
)
def test_a_bad_file_is_one_clear_line(
    folder: Path, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    path = folder / "m.toml"
    path.write_text(content)
    assert main(["bench", "--matrix", str(path)]) == 3
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_a_file_that_is_missing_is_one_line() -> None:
    with pytest.raises(InputFileError, match="No such file"):
        read_matrix(Path("nowhere.toml"))


def test_results_are_a_table_of_the_best_a_csv_and_a_json_file(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(
        folder, 'model = "tiny.gguf"\nskip = ["off", "blk.1-2", "blk.9"]\ndraft = ["off", "ngram"]'
    )
    assert main(["bench", "--matrix", str(path)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("no other case is both faster and nearer to the reference than these:\n")
    assert "skip=off" in shown.out
    assert shown.err.count("skip=blk.9") == 2
    with (tmp_path / "m.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    by_skip = {row["skip"]: row for row in rows}
    assert by_skip["blk.9"]["error"]
    assert by_skip["blk.9"]["decode_tok_s"] == ""
    assert float(by_skip["off"]["kl_mean"]) == 0 < float(by_skip["blk.1-2"]["kl_mean"])
    assert by_skip["off"].keys() >= {"model", "draft", "seed", "version", "commit", "pareto", "plan"}
    report = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    assert [cell["settings"]["skip"] for cell in report["cells"]] == [row["skip"] for row in rows]
    assert [index for index, row in enumerate(rows) if row["pareto"] == "1"] == sorted(report["pareto"])
    assert report["seed"] == 0
    assert {"text", "prompt"} & report.keys() == set()


def test_one_object_can_be_printed_and_the_files_named(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = written(folder, 'model = "tiny.gguf"')
    assert main(["bench", "--matrix", str(path), "--json", "-o", str(tmp_path / "out.v1")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out.v1.json").read_text(encoding="utf-8"))
    assert (tmp_path / "out.v1.csv").exists()
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    documented = set(re.findall(r"[a-z0-9_]+", capsys.readouterr().out))
    assert {field.name for field in fields(CaseResult)} <= documented


def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("app.cli.dispatch._drop_output", lambda: None)  # which ends all output
    monkeypatch.setattr("app.cli.bench_matrix._measure", lambda *given: pytest.fail("it was measured"))
    path = written(folder, 'model = "tiny.gguf"')
    (tmp_path / "out.csv").write_text("kept")
    (tmp_path / "out.json").mkdir()
    assert main(["bench", "--matrix", str(path), "-o", str(tmp_path / "out")]) == 1
    assert "out.json: Is a directory; check the place" in capsys.readouterr().err
    assert (tmp_path / "out.csv").read_text() == "kept"
    assert main(["bench", "--matrix", str(path), "-o", str(tmp_path / "nowhere" / "out")]) == 1
    assert "out.csv: No such file or directory; check the place" in capsys.readouterr().err


def test_a_matrix_of_which_nothing_can_be_measured_fails(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = written(folder, 'model = "tiny.gguf"\nram_budget = "1K"')
    assert main(["bench", "--matrix", str(path), "-o", str(tmp_path / "out")]) == 1
    shown = capsys.readouterr()
    assert shown.out == "nothing was measured\n"
    assert shown.err.count("\n") == 1
