"""Templates render as Hugging Face renders them, and hostile ones harm nobody.

The expected strings are made by tests/make_template_fixtures.py.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from engine import ChatTemplate, GGUFError, TemplateError, open_gguf, open_template
from engine import chat_template as module
from engine.chat_template import find_template
from engine.known_templates import FALLBACKS, KNOWN, checksum
from tests.tiny_gguf import CHATML, write_tiny_model

FIXTURE: dict[str, Any] = json.loads(
    (Path(__file__).parent / "fixtures" / "chat_templates.json").read_text(encoding="utf-8")
)
CASES = [(name, title) for name in FIXTURE["templates"] for title in FIXTURE["conversations"]]
HELLO = [{"role": "user", "content": "Hello"}]
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def _template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", origin="test")


def _shipped(shared_data: Path, name: str, comment: str = "") -> ChatTemplate:
    source = (shared_data / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    facts = FIXTURE["templates"][name]
    return ChatTemplate(
        source + comment, bos_token=facts["bos_token"], eos_token=facts["eos_token"], origin=name
    )


def _render(template: ChatTemplate, chat: Mapping[str, Any]) -> str | None:
    arguments = dict(chat)
    messages = arguments.pop("messages")
    try:
        return template.render(messages, now=datetime.fromisoformat(FIXTURE["now"]), **arguments)
    except TemplateError:
        return None


@pytest.mark.parametrize(("name", "title"), CASES)
def test_a_shipped_template_renders_as_hugging_face_does(shared_data: Path, name: str, title: str) -> None:
    expected = FIXTURE["templates"][name]["expected"][title]
    assert _render(_shipped(shared_data, name), FIXTURE["conversations"][title]) == expected


@pytest.mark.parametrize("name", FIXTURE["templates"])
def test_shipped_templates_are_known_and_the_worker_renders_the_same(shared_data: Path, name: str) -> None:
    assert checksum(_shipped(shared_data, name).source) in KNOWN
    template = _shipped(shared_data, name, comment="{# not known #}")
    assert checksum(template.source) not in KNOWN
    for title, chat in FIXTURE["conversations"].items():
        assert _render(template, chat) == FIXTURE["templates"][name]["expected"][title]


@pytest.mark.model
def test_the_starter_model_brings_a_known_template(smollm2_path: Path) -> None:
    template = open_template(smollm2_path)
    assert checksum(template.source) in KNOWN
    assert template.render(HELLO).endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.model
def test_a_base_model_has_no_template_and_says_so(gemma3_path: Path) -> None:
    with pytest.raises(TemplateError, match="has no chat template: it is a base model"):
        open_template(gemma3_path)


def test_a_template_that_loops_is_stopped_and_the_next_render_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIME_LIMIT_S", 0.3)
    template = _template("{% if messages[0].content == 'loop' %}" + LOOP + "{% endif %}done")
    started = time.monotonic()
    with pytest.raises(TemplateError, match=r"runs longer than 0\.3 s"):
        template.render([{"role": "user", "content": "loop"}])
    assert time.monotonic() - started < 20
    assert template.render(HELLO) == "done"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% foo %}", "unknown tag 'foo'"),
        ("{{ messages[0].nothing.more }}", "UndefinedError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% include '/etc/passwd' %}", "TypeError|TemplateNotFound"),
        ("{{ 'a' * 9999999999 }}", "too much memory"),
        ("{{ range(999999999) | list }}", "OverflowError"),
        ("{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}", "writes more than"),
        pytest.param("x" * (2**20 + 1), "characters, more than", id="long source"),
        ("{{ raise_exception('no \x1b[31m\nthanks') }}", "refuses this conversation: no"),
        pytest.param("{% if %}" * 999, "TemplateSyntaxError", id="many blocks"),
        pytest.param("{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}", "RecursionError|status", id="deep"),
    ],
)
def test_a_broken_or_hostile_template_is_one_clear_line(source: str, reason: str) -> None:
    with pytest.raises(TemplateError, match=reason) as error:
        _template(source).render(HELLO)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 500


def test_a_worker_that_dies_is_started_again() -> None:
    template = _template("{{ messages[0].content }}!")
    assert template.render(HELLO) == "Hello!"
    worker = template._worker
    assert worker is not None and worker._process is not None
    os.kill(worker._process.pid, signal.SIGKILL)
    worker._process.wait()
    assert template.render(HELLO) == "Hello!"


def test_a_worker_that_cannot_be_started_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/python")
    with pytest.raises(TemplateError, match="cannot be started"):
        ChatTemplate("x", bos_token="", eos_token="", origin="t").render([{"role": "user", "content": "x"}])


def test_the_worker_leaves_with_its_template() -> None:
    template = _template("{{ messages[0].content }}?")
    template.render(HELLO)
    worker = template._worker
    assert worker is not None and worker._process is not None
    process = worker._process
    del template, worker
    gc.collect()
    assert process.poll() == 0


def test_what_is_not_text_survives_the_way_to_the_worker() -> None:
    source = "{% set m = messages[0] %}{{ m.n + 1 }} {{ m.flag }} {{ m.content }} {{ m.none is defined }}"
    message = {"role": "user", "content": "\ud800 é \U0010f000", "n": 1, "flag": True, "none": None}
    assert _template(source).render([message]) == "2 True \ud800 é \U0010f000 False"


def test_an_empty_conversation_is_refused() -> None:
    with pytest.raises(TemplateError, match="conversation is empty"):
        _template("x").render([])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hello"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("  {% if true %}\n  x\n  {% endif %}\ny\n", "  x\ny"),
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ {'b': 1, 'a': [1]} | tojson(indent=1, sort_keys=True) }}", '{\n "a": [\n  1\n ],\n "b": 1\n}'),
        ("{{ strftime_now('%d %b %Y') }}", "03 Feb 2025"),
        ("{{ tools is none }} {{ documents is none }} {{ enable_thinking is defined }}", "True True False"),
    ],
)
def test_templates_find_what_they_expect_from_hugging_face(source: str, expected: str) -> None:
    assert _template(source).render(HELLO, now=datetime.fromisoformat(FIXTURE["now"])) == expected


def test_without_a_fixed_time_the_clock_is_asked() -> None:
    assert _template("{{ strftime_now('%Y') }}").render(HELLO) == str(datetime.now().year)


def test_the_files_own_template_is_taken_first(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", layers=1, chat_template=CHATML)
    with open_gguf(path) as gguf:
        template, origin = find_template(gguf, bos_token="", eos_token="<|im_end|>")
    assert template is not None and template.source == CHATML
    assert origin == "tokenizer.chat_template of tiny.gguf" == template.origin


@pytest.mark.parametrize("fallback", FALLBACKS, ids=lambda fallback: str(fallback.eos_token))
def test_a_fallback_needs_both_architecture_and_end_token(tmp_path: Path, fallback: Any) -> None:
    for architecture in (*sorted(fallback.architectures), "bert"):
        writer = GGUFWriter(tmp_path / "m.gguf", architecture)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        with open_gguf(tmp_path / "m.gguf") as gguf:
            template, origin = find_template(gguf, bos_token="", eos_token=fallback.eos_token)
            base, reason = find_template(gguf, bos_token="", eos_token="<|endoftext|>")
        assert base is None and "base model" in reason
        if architecture == "bert":
            assert template is None
        else:
            assert template is not None and template.source == fallback.source and "our own" in origin


@pytest.mark.parametrize(
    ("eos_token", "expected"),
    [
        (
            "<|im_end|>",
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
            "<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "<|eot_id|>",
            "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            "<end_of_turn>",
            "<s><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
            "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n",
        ),
    ],
)
def test_fallbacks_write_the_turns_of_their_family(eos_token: str, expected: str) -> None:
    source = next(fallback.source for fallback in FALLBACKS if fallback.eos_token == eos_token)
    roles = {"system": "S", "user": "U", "assistant": "A"}
    messages = [{"role": role, "content": text} for role, text in roles.items()]
    assert _template(source).render([*messages, {"role": "user", "content": "V"}]) == expected


def test_a_template_of_another_type_is_named(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint32("tokenizer.chat_template", 7)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with open_gguf(tmp_path / "m.gguf") as gguf, pytest.raises(GGUFError, match=r"tokenizer\.chat_template"):
        find_template(gguf, bos_token="", eos_token="")
