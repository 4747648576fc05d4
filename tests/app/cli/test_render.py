from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from app.cli import render
from engine import EngineError, InputFileError, ModelNotFoundError, TemplateError
from tests.tiny_gguf import CHATML, write_tiny_model

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
HELLO = {"role": "user", "content": "Hello <|im_end|> é"}


def _run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    render.add_arguments(parser)
    return render.run(parser.parse_args(words))


def _files(tmp_path: Path, chat: object, template: str = TEMPLATE) -> list[str]:
    (tmp_path / "t.jinja").write_text(template, encoding="utf-8")
    text = chat if isinstance(chat, str) else json.dumps(chat)
    (tmp_path / "chat.json").write_text(text, encoding="utf-8")
    return ["--template", str(tmp_path / "t.jinja"), "--messages", str(tmp_path / "chat.json")]


def test_a_pipe_gets_exactly_the_prompt(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert _run(*_files(tmp_path, {"messages": [HELLO]})) == 0
    assert capsysbinary.readouterr().out == "<user>Hello <|im_end|> é<assistant>".encode()


def test_a_byte_order_mark_is_no_part_of_a_file(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert _run(*_files(tmp_path, "\ufeff" + json.dumps({"messages": [HELLO]}), "\ufeff" + TEMPLATE)) == 0
    assert capsysbinary.readouterr().out == "<user>Hello <|im_end|> é<assistant>".encode()


def test_every_key_of_the_file_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = {
        "messages": [HELLO],
        "bos_token": "[B]",
        "eos_token": "[E]",
        "add_generation_prompt": False,
        "tools": [{"name": "t"}],
        "now": "2025-01-31T12:00:00",
    }
    _run(*_files(tmp_path, chat, TEMPLATE + "{{ strftime_now('%d.%m.%Y %H') }}"))
    assert capsys.readouterr().out == '[B]<user>Hello <|im_end|> é[E][{"name": "t"}]31.01.2025 12'


def test_a_key_without_a_meaning_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(*_files(tmp_path, {"messages": [HELLO], "add_prompt": True})) == 0
    assert "ignored: add_prompt" in capsys.readouterr().err


def test_a_model_brings_template_and_tokens_and_the_file_may_replace_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tiny_model(
        tmp_path / "m.gguf", layers=1, chat_template="{{ bos_token }}{{ eos_token }}" + CHATML
    )
    words = ["-m", str(path), *_files(tmp_path, {"messages": [HELLO], "eos_token": "X"})[2:]]
    _run(*words)
    assert capsys.readouterr().out.startswith("<|im_start|>X<|im_start|>user\nHello")


def test_a_terminal_gets_a_line_end_and_no_escape_sequences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render.sys.stdout, "isatty", lambda: True, raising=False)
    _run(*_files(tmp_path, {"messages": [{"role": "user", "content": "\x1b[2J"}]}))
    out = capsys.readouterr().out
    assert "\x1b" not in out and out.endswith("<assistant>\n")


@pytest.mark.parametrize(
    ("chat", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "holds a list where an object"),
        ("{}", "has no `messages`"),
        ({"messages": {}}, "`messages` that are not a list of objects"),
        ({"messages": ["hi"]}, "`messages` that are not a list of objects"),
        ({"messages": [{"content": "x"}]}, "a message without a role"),
        ({"messages": [HELLO], "bos_token": 1}, "has 1 for `bos_token`, which must be a str"),
        ({"messages": [HELLO], "add_generation_prompt": "no"}, "must be a bool"),
        ({"messages": [HELLO], "tools": "t"}, "`tools` that are not a list of objects"),
        ({"messages": [HELLO], "now": "tomorrow"}, "has 'tomorrow' for `now`"),
    ],
)
def test_a_wrong_messages_file_is_named_with_what_is_wrong(
    tmp_path: Path, chat: object, message: str
) -> None:
    with pytest.raises(InputFileError, match=message) as error:
        _run(*_files(tmp_path, chat))
    assert str(error.value).isprintable()
    assert "chat.json" in str(error.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    words = _files(tmp_path, {"messages": [HELLO]})
    for broken in (tmp_path / "missing", tmp_path):
        with pytest.raises(InputFileError, match=str(broken)):
            _run(*words[:2], "--messages", str(broken))
        with pytest.raises(InputFileError, match=str(broken)):
            _run("--template", str(broken), *words[2:])
    (tmp_path / "t.jinja").write_bytes(b"\xff")
    with pytest.raises(InputFileError, match="is not UTF-8 at byte 0"):
        _run(*words)


def test_refusals_and_missing_models_are_errors_of_their_own(tmp_path: Path) -> None:
    words = _files(tmp_path, {"messages": [HELLO]}, "{{ raise_exception('no') }}")
    with pytest.raises(TemplateError, match=r"t\.jinja.*refuses this conversation: no"):
        _run(*words)
    with pytest.raises(ModelNotFoundError):
        _run("-m", "nothing-of-that-name", *words[2:])
    with pytest.raises(EngineError, match="conversation is empty"):
        _run(*_files(tmp_path, {"messages": []}))
