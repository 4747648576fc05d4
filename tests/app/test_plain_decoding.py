"""/skip and /draft of the chat line by line: what they change, what they remember and what they say."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from app import locations
from app.model_settings import ModelSettings
from app.models.options import Chosen, decoding_options
from app.plain import PlainChat
from app.settings import load_settings
from engine import (
    Calibration,
    DecodingOptions,
    DraftKind,
    LoadOptions,
    SkipEffect,
    parse_skip,
)
from tests.fakes import FakeEngine, Script
from tests.tiny_gguf import write_tiny_model

SET = frozenset({3, 8})
CALIBRATION = Calibration(
    n_blocks=60,
    tokens=512,
    text="the text that comes with the program",
    perplexity=9.0,
    cosines=(0.9,) * 30,
    effects=(SkipEffect(SET, 0.02, 0.0123, 0.008, 0.016, 0.97),),
    grown=(SET,),
)


@pytest.fixture(autouse=True)
def english(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.setenv(name, "C.UTF-8")


class Chat:
    """A chat whose input is a script, and what came of it."""

    def __init__(
        self,
        model: Path,
        *lines: str,
        chosen: Chosen | None = None,
        engine: type[FakeEngine] = FakeEngine,
    ) -> None:
        self.engine = engine(Script(token_s=0.0, load_s=0.0, calibration=CALIBRATION, draft_model="Small"))
        out, err = io.StringIO(), io.StringIO()
        stdin = io.StringIO("".join(f"{line}\n" for line in lines))
        self.chat = PlainChat(self.engine, chosen=chosen, stdin=stdin, stdout=out, stderr=err)
        self.code = self.chat.run(model)
        self.err = err.getvalue()
        self.asked = [request.decoding for request in self.engine.requests]


@pytest.fixture
def model(home: Path) -> Path:
    return write_tiny_model(home / "m.gguf")


def test_replies_are_computed_as_asked_from_the_next_one_on(model: Path) -> None:
    chat = Chat(
        model, "one", "/skip kl=0.05", "two", "/draft ngram 4", "three", "/skip off", "/draft off", "four"
    )
    skip = parse_skip("kl=0.05")
    assert chat.asked == [
        DecodingOptions(),
        DecodingOptions(skip),
        DecodingOptions(skip, DraftKind.NGRAM, 4),
        DecodingOptions(),
    ]
    assert "left out: kl=0.05; replies are approximate" in chat.err
    assert "drafts by n-gram, 4 tokens at a time" in chat.err
    replies = [line for line in chat.err.splitlines() if line.endswith("]")]
    assert "approximate" not in replies[0] and "taken" not in replies[0]
    assert replies[1].endswith("; approximate, +1.2 % perplexity [+0.8, +1.6]]")
    assert "n-gram k=4 · 75% taken" in replies[2]


def test_it_is_remembered_for_the_model_and_stored_with_the_message(model: Path) -> None:
    Chat(model, "/skip blk.1", "/draft self")
    settings, problems = load_settings(locations.settings_file())
    meant = DecodingOptions(parse_skip("blk.1"), DraftKind.SELF)
    assert (decoding_options(settings, model), problems) == (meant, [])
    chat = Chat(model, "hello")
    assert chat.asked == [meant]
    (turn,) = (turn for turn in chat.chat.workspace.current.turns if turn.role == "assistant")
    assert turn.decoding == meant
    assert turn.stats.drafted_tokens > 0


def test_a_command_goes_before_the_command_line_which_goes_before_what_is_remembered(model: Path) -> None:
    Chat(model, "/skip kl=0.05")
    said = Chosen(decoding={"skip": None, "draft": DraftKind.NGRAM})
    chat = Chat(model, "one", "/draft off", "two", "/skip cos=0.98", "three", chosen=said)
    assert chat.asked == [
        DecodingOptions(draft=DraftKind.NGRAM),
        DecodingOptions(),
        DecodingOptions(parse_skip("cos=0.98")),
    ]


def test_alone_they_say_what_holds_and_what_is_known(model: Path) -> None:
    chat = Chat(model, "/skip", "/draft", "/skip kl=0.05", "hello", "/skip")
    assert "nothing is left out" in chat.err
    assert "nobody drafts" in chat.err
    assert chat.err.count("kl=0.02: 2 of 60 blocks, +1.2 % perplexity [+0.8, +1.6]") == 1


def test_a_smaller_model_is_loaded_beside_the_one_it_drafts_for(home: Path, model: Path) -> None:
    small = write_tiny_model(home / "small.gguf")
    chat = Chat(model, f"/draft {small} 3", "hello", "/draft ngram", "/draft model")
    assert chat.asked == [DecodingOptions(draft=DraftKind.MODEL, draft_k=3)]
    assert chat.engine.loaded == [model, model], "loaded again once, and no more while it is there"
    own = load_settings(locations.settings_file())[0].models[str(model)]
    assert own == ModelSettings(draft=DraftKind.MODEL, draft_model=small)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("/skip much", "'much' says nothing that can be skipped"),
        ("/draft model", "which one? /draft and the name of a smaller model"),
        ("/draft nowhere", "no model called 'nowhere'"),
        ("/draft ngram 24", "'24' is not a whole number from 1 to 23"),
        ("/draft ngram 0", "'0' is not a whole number from 1 to 23"),
    ],
)
def test_what_makes_no_sense_changes_nothing(model: Path, line: str, why: str) -> None:
    chat = Chat(model, line, "hello")
    assert why in chat.err
    assert chat.asked == [DecodingOptions()]


def test_without_a_model_there_is_nothing_to_change(home: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    lines = io.StringIO("/skip kl=0.05\n/draft ngram\n")
    PlainChat(FakeEngine(), stdin=lines, stdout=out, stderr=err).run()
    assert err.getvalue().count("no model is loaded\n") == 2


class Fastidious(FakeEngine):
    """Loads no model with a draft model."""

    def load(self, options: LoadOptions) -> None:
        error = "" if options.draft_model is None else "the draft model: it has another vocabulary"
        self.script = replace(self.script, load_error=error)
        super().load(options)


def test_a_smaller_model_that_does_not_fit_leaves_all_as_it_was(home: Path, model: Path) -> None:
    other = write_tiny_model(home / "other.gguf")
    chat = Chat(model, "/draft ngram", f"/draft {other}", "hello", engine=Fastidious)
    assert "loading failed: the draft model: it has another vocabulary" in chat.err
    assert "drafts by draft model" not in chat.err
    assert chat.asked == [DecodingOptions(draft=DraftKind.NGRAM)]
    own = load_settings(locations.settings_file())[0].models[str(model)]
    assert own == ModelSettings(draft=DraftKind.NGRAM)


def test_another_way_to_draft_loads_a_model_that_had_failed(home: Path, model: Path) -> None:
    other = write_tiny_model(home / "other.gguf")
    said = Chosen(decoding={"draft": DraftKind.MODEL}, draft_model=other)
    chat = Chat(model, "/draft off", "hello", engine=Fastidious, chosen=said)
    assert chat.err.count("loading failed") == 1
    assert chat.asked == [DecodingOptions()]
