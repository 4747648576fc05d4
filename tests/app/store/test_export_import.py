"""Conversations leave and come back: every format is read again, and hostile files bring nothing in."""

from __future__ import annotations

import io
import json
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.conversation import Attachment, Conversation, TurnStatus
from app.store import importers
from app.store.export import FORMATS, export_beside_others, export_file, format_of
from app.store.importers import read_conversations
from app.store.rows import tree_of
from app.store.trees import ImportFault
from engine import DecodingOptions, GenerationStats, SkipEffect, parse_skip
from tests.app.store.trees import conversations, facts

ONCE = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


def read(folder: Path, content: object, name: str = "f.json") -> list[Conversation]:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return read_conversations(path)


def lines(conversation: Conversation) -> list[tuple[str, str]]:
    return [(turn.role, turn.text) for turn in conversation.turns]


def chat() -> Conversation:
    conversation = Conversation("Streaming")
    message = conversation.add("user", "How?")
    message.attachments = (Attachment("file", "@notes.txt", "```\nnotes\n```"),)
    reply = conversation.add("assistant", "So.")
    conversation.cut(reply)
    conversation.add("assistant", "Or so: <b>bold</b> & \x1b[2J").model = "SmolLM2"
    return conversation


def test_files_for_people_say_that_a_reply_is_approximate(tmp_path: Path) -> None:
    conversation = chat()
    exact, approximate = tmp_path / "exact", tmp_path / "approximate"
    effect = SkipEffect(frozenset({3, 5}), 0.04, 0.021, -0.004, 0.027, 0.93)
    for folder in (exact, approximate):
        folder.mkdir()
        for kind in ("md", "html"):
            export_file([conversation], folder / kind, kind)
        reply = conversation.turns[-1]
        reply.decoding = DecodingOptions(skip=parse_skip("kl=0.05"))
        reply.stats = GenerationStats(skipped_blocks=2, skip_effect=effect)
    words = " · approximate, +2.1 % perplexity [-0.4, +2.7]"
    assert all("approximate" not in path.read_text("utf-8") for path in exact.iterdir())
    assert words + "\n" in (approximate / "md").read_text("utf-8")
    assert words + "</small>" in (approximate / "html").read_text("utf-8")


# -- our own format


@given(written=st.lists(conversations(), min_size=1, max_size=3))
@ONCE
def test_json_lines_come_back_as_they_were(tmp_path: Path, written: list[Conversation]) -> None:
    path = tmp_path / "any.jsonl"
    export_file(written, path, "jsonl")
    assert [facts(conversation) for conversation in read_conversations(path)] == [*map(facts, written)]


def test_a_reply_that_grew_while_it_was_exported_comes_back_as_stopped(tmp_path: Path) -> None:
    conversation = Conversation("x")
    conversation.add("assistant", "half", TurnStatus.STREAMING)
    export_file([conversation], tmp_path / "x.jsonl", "jsonl")
    (turn,) = read_conversations(tmp_path / "x.jsonl")[0].turns
    assert (turn.status, turn.text) == (TurnStatus.CANCELLED, "half")


def test_an_export_replaces_its_file_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    export_file([chat()], path, "md")
    before = path.read_text("utf-8")

    def fail() -> Any:
        yield chat()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        export_file(fail(), path, "md")
    assert path.read_text("utf-8") == before
    assert [file.name for file in tmp_path.iterdir()] == ["x.md"]


def test_a_file_named_after_a_conversation_replaces_no_other(tmp_path: Path) -> None:
    conversation = chat()
    conversation.title = "../../etc/Pass wd\x1b — 如何"
    paths = [export_beside_others(conversation, tmp_path) for _ in range(2)]
    assert [path.name for path in paths] == ["etc-pass-wd-如何.md", "etc-pass-wd-如何-2.md"]
    assert all(path.parent == tmp_path for path in paths)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.md", "md"), ("a.JSONL", "jsonl"), ("a.json", "sharegpt"), ("a.html", "html"), ("a", "md")],
)
def test_the_file_s_name_says_the_format(name: str, kind: str) -> None:
    assert format_of(Path(name)) == kind


# -- for people


def test_markdown_holds_the_line_shown_its_files_and_how_many_versions_there_are() -> None:
    text = "".join(FORMATS["md"]([chat(), Conversation("Second")]))
    assert text.startswith("# Streaming\n")
    assert "How?" in text and "2 of 2" in text and "SmolLM2" in text and "So." not in text
    assert "````\n```\nnotes\n```\n````" in text, "a fence longer than those inside"
    assert "\n---\n\n# Second" in text


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onload", "onclick"}

    def handle_data(self, data: str) -> None:
        self.text += data


@given(written=conversations())
@ONCE
def test_a_page_has_no_tags_but_ours_and_needs_nothing_else(written: Conversation) -> None:
    evil = "</pre></article><script>alert(1)</script><img src=x onerror=y>&lt;"
    written.title = written.persona = written.system = evil
    for turn in written.turns:
        turn.text = turn.note = turn.model = evil
        turn.attachments = (Attachment("file", evil, evil),)
    page = _Page()
    page.feed("".join(FORMATS["html"]([written])))
    assert not set(page.tags) & {"script", "img", "link", "iframe", "a"}
    assert page.text.count(evil) >= 2 + 4 * len(written.turns)


def test_a_page_shows_control_characters_instead_of_sending_them() -> None:
    page = "".join(FORMATS["html"]([chat()]))
    assert "\x1b" not in page and "\u241b[2J" in page and "&lt;b&gt;bold&lt;/b&gt; &amp;" in page
    assert "prefers-color-scheme" in page or "color-scheme: light dark" in page


# -- ShareGPT


def test_sharegpt_comes_back_with_files_in_the_message(tmp_path: Path) -> None:
    conversation = chat()
    conversation.system = "Be brief."
    export_file([conversation, chat()], tmp_path / "x.json", "sharegpt")
    first, second = read_conversations(tmp_path / "x.json")
    assert lines(first) == [(turn.role, turn.told) for turn in conversation.turns]
    assert (first.title, first.system, first.updated_at) == (
        "Streaming",
        "Be brief.",
        conversation.updated_at,
    )
    assert second.system is None
    assert json.loads("".join(FORMATS["sharegpt"]([]))) == []


def test_sharegpt_as_others_write_it(tmp_path: Path) -> None:
    talk = {
        "id": "x_0",
        "conversations": [
            {"from": "system", "value": "S"},
            {"from": "human", "value": "Hello\nyou"},
            {"from": "function_call", "value": "{}"},
            {"from": "gpt", "value": "Hi"},
        ],
    }
    other = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    one, two = read(tmp_path, "\n".join([json.dumps(talk), "", json.dumps(other)]), "f.jsonl")
    assert (one.system, one.title, lines(one)) == (
        "S",
        "Hello",
        [("user", "Hello\nyou"), ("assistant", "Hi")],
    )
    assert lines(two) == [("user", "a"), ("assistant", "b")]
    assert lines(read(tmp_path, talk)[0]) == lines(one)


# -- ChatGPT


def _node(parent: str | None, role: str = "", text: str = "", **facts: Any) -> dict[str, Any]:
    message = None
    if role:
        content = facts.pop("content", {"content_type": "text", "parts": [text]})
        message = {"author": {"role": role}, "content": content, "create_time": 1700000000.5, **facts}
    return {"message": message, "parent": parent, "children": []}


CHATGPT = {
    "title": "Weights",
    "create_time": 1700000000.0,
    "update_time": 1700000100.25,
    "current_node": "g",
    "mapping": {
        "a": _node(None),
        "b": _node("a", "system", "hidden", metadata={"is_visually_hidden_from_conversation": True}),
        "c": _node("b", "user", "Question"),
        "d": _node("c", "assistant", "First", metadata={"model_slug": "gpt-4"}),
        "e": _node("c", "assistant", content={"content_type": "code", "text": "run()"}, recipient="python"),
        "f": _node("e", "tool", "output"),
        "g": _node("f", "assistant", "Second", metadata={"model_slug": "gpt-4o"}, create_time=1700000009),
        "h": _node("d", "user", content={"content_type": "multimodal_text", "parts": [{"asset": 1}, "look"]}),
    },
}


def test_chatgpt_s_tree_comes_with_its_branches(tmp_path: Path) -> None:
    (conversation,) = read(tmp_path, [CHATGPT, {**CHATGPT, "mapping": {"a": _node(None)}}])
    assert (conversation.title, conversation.updated_at) == ("Weights", 1700000100250)
    assert lines(conversation) == [("user", "Question"), ("assistant", "Second")]
    reply = conversation.turns[1]
    assert (reply.model, reply.created_at) == ("gpt-4o", 1700000009000)
    assert [turn.text for turn in conversation.siblings(reply)] == ["First", "Second"]
    assert sorted(turn.text for turn in tree_of(conversation)) == ["First", "Question", "Second", "look"]
    assert all(abs(turn.id - 1700000000 * 10**9) < 10**11 for turn in conversation.turns), (
        "ids follow the time"
    )


def test_chatgpt_s_archive_is_read_as_it_is_sent(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("chat.html", "<html>")
        archive.writestr("conversations.json", json.dumps([CHATGPT]))
    assert len(read(tmp_path, buffer.getvalue(), "export.zip")) == 1


# -- llama.cpp


def _web(key: str | int, parent: str | int | None, role: str, content: str, **facts: Any) -> dict[str, Any]:
    own = {"id": key, "convId": "c", "type": "text", "role": role, "content": content, "parent": parent}
    return {**own, "timestamp": 1700000000000, "children": [], **facts}


LLAMA = {
    "conv": {"id": "c", "name": "Llama", "lastModified": 1700000100000, "currNode": "3"},
    "messages": [
        _web("r", None, "system", "", type="root"),
        _web("s", "r", "system", "Be kind.", type="system"),
        _web(
            "1",
            "s",
            "user",
            "Look",
            extra=[
                {"type": "TEXT", "name": "a.txt", "content": "A"},
                {"type": "IMAGE", "name": "i", "base64Url": "x"},
            ],
        ),
        _web("2", "1", "assistant", "one", model="M"),
        _web("3", "1", "assistant", "two", timestamp=1700000000001),
    ],
}


@pytest.mark.parametrize("several", [True, False])
def test_llama_cpp_s_tree_comes_with_its_branches_and_files(tmp_path: Path, several: bool) -> None:
    (conversation,) = read(tmp_path, [LLAMA] if several else LLAMA)
    assert (conversation.title, conversation.system) == ("Llama", "Be kind.")
    assert lines(conversation) == [("user", "Look"), ("assistant", "two")]
    assert conversation.turns[0].attachments == (Attachment("file", "@a.txt", "A"),)
    assert [turn.model for turn in conversation.siblings(conversation.turns[1])] == ["M", ""]


def test_llama_cpp_s_first_version_wrote_numbers(tmp_path: Path) -> None:
    messages = [_web(7, -1, "user", "a", timestamp=7), _web(8, 7, "assistant", "b", timestamp=8)]
    (conversation,) = read(tmp_path, {"conv": {"id": "c", "name": "", "currNode": 8}, "messages": messages})
    assert (conversation.title, lines(conversation)) == ("a", [("user", "a"), ("assistant", "b")])


# -- hostile files

OURS = "".join(FORMATS["jsonl"]([chat()])).splitlines()


def _changed(line: int, **changes: object) -> str:
    changed = [*OURS]
    changed[line] = json.dumps({**json.loads(OURS[line]), **changes})
    return "\n".join(changed)


def _mapping(**nodes: object) -> list[dict[str, Any]]:
    return [{**CHATGPT, "mapping": {**CHATGPT["mapping"], **nodes}}]  # type: ignore[dict-item]


HOSTILE: dict[str, tuple[object, str]] = {
    "nothing": ("", "is not JSON"),
    "not JSON": ("hello", "is not JSON"),
    "cut off": ('[{"mapping": {', "is not JSON"),
    "not text": (b"\xff\xfe{}", "is not UTF-8 at byte 0"),
    "a number": ("7", "neither an object nor a list"),
    "an empty list": ("[]", "holds no conversation"),
    "a list of numbers": ("[1]", "conversation 1: is not an object"),
    "another program's": ([{"x": 1}], "no conversation of a format that is known"),
    "no number": ('[{"conv": NaN}]', "NaN is no number"),
    "nested": ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    "a long number": ('{"conv": ' + "9" * 5000 + "}", "is not JSON"),
    "half a character": ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "half a character"),
    "half a name": ('{"\\udfff": 1, "messages": []}', "half a character"),
    "a mapping of numbers": (
        [{"mapping": {"a": 1}}],
        "conversation 1, `mapping`: has a `a` that is not an object",
    ),
    "a mapping that is a list": ([{"mapping": []}], "`mapping` that is not an object"),
    "no author": (_mapping(x={"message": {"content": {}}, "parent": "a"}), "has no `author`"),
    "a time that is none": ([{**CHATGPT, "create_time": 1e300}], "`create_time` that is no time"),
    "a time that is endless": ('[{"create_time": 1e999, "mapping": {}}]', "that is no time"),
    "a time that is true": ([{**CHATGPT, "create_time": True}], "that is no time"),
    "a circle": (_mapping(a=_node("h")), "comes before itself"),
    "itself before it": (_mapping(z=_node("z", "user", "x")), "has a circle: message z"),
    "a parent that is missing": (_mapping(z=_node("nowhere")), "after 'nowhere', which is not there"),
    "an unknown speaker": ({"messages": [{"role": "nobody", "content": ""}]}, "said by 'nobody'"),
    "nobody": ({"messages": [{"content": ""}]}, "`messages` 1: has no `role`"),
    "messages of numbers": ({"messages": [1]}, "`messages` 1: is not an object"),
    "a web message twice": ({**LLAMA, "messages": LLAMA["messages"] * 2}, "two messages with the id 'r'"),  # type: ignore[operator]
    "a web id that is a list": (
        {**LLAMA, "messages": [_web([], None, "user", "a")]},
        "neither text nor a number",
    ),  # type: ignore[arg-type]
    "line that is not JSON": (OURS[0] + "\n{\n", "line 2: is not JSON"),
    "line of another type": (_changed(1, type="magic"), "line 2: is of type 'magic'"),
    "a later version": (_changed(0, version=2), "is of version 2"),
    "no title": (_changed(0, title=None), "line 1: has no `title`"),
    "message of another conversation": (_changed(1, conversation_id=5), "belongs to no conversation"),
    "message twice": (_changed(2, id=json.loads(OURS[1])["id"]), "line 3: has the id"),
    "parent not there": (_changed(1, parent_id=5), "follows message 5, which is not there"),
    "lines in a circle": (_changed(1, parent_id=json.loads(OURS[2])["id"]), "comes before itself"),
    "end not there": (_changed(0, head_id=5), "ends at message 5, which is not there"),
    "an id too large": (_changed(1, id=1 << 63), "`id` that is out of range"),
    "an id that is true": (_changed(1, id=True), "`id` that is not a whole number"),
    "a time too late": (_changed(1, created_at=1 << 62), "`created_at` that is no time"),
    "no such role": (_changed(1, role="root"), "nobody has the role 'root'"),
    "no such status": (_changed(1, status="magic"), "'magic' is not a valid TurnStatus"),
    "statistics of words": (_changed(2, stats={"prompt_tokens": "many"}), "prompt_tokens is 'many'"),
    "sampling out of range": (_changed(2, sampling={"temperature": -1}), "temperature is -1"),
    "sampling of words": (_changed(2, sampling={"temperature": "hot"}), "makes no sense"),
    "a draft by nobody": (_changed(2, decoding={"draft": "magic"}), "'magic' is not a valid DraftKind"),
    "too many drafts": (_changed(2, decoding={"draft_k": 99}), "draft_k is 99"),
    "half a draft": (_changed(2, decoding={"draft_k": 1.5}), "draft_k is '1.5'"),
    "nothing to skip": (_changed(2, decoding={"skip": "magic"}), "says nothing that can be skipped"),
    "a number to skip": (_changed(2, decoding={"skip": 3}), "skip is '3'"),
    "an effect of words": (_changed(2, stats={"skip_effect": "none"}), "skip_effect is 'none'"),
    "an effect of no blocks": (_changed(2, stats={"skip_effect": {"skipped": [-1]}}), "leaves out [-1]"),
    "half an effect": (_changed(2, stats={"skip_effect": {"skipped": [1]}}), "kl of skip_effect is 'None'"),
    "an effect beyond numbers": (
        _changed(2, stats={"skip_effect": {"skipped": [], "kl": 10**400}}),
        "kl of skip_effect is '1000",
    ),
    "no attachments": (_changed(1, attachments=None), "has no `attachments`"),
    "an attachment of numbers": (_changed(1, attachments=[{"kind": 1}]), "`kind` that is not text"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line_with_its_place(tmp_path: Path, name: str) -> None:
    content, why = HOSTILE[name]
    with pytest.raises(ImportFault) as caught:
        read(tmp_path, content, "evil\x1b.json")
    message = str(caught.value)
    assert why in message
    assert "evil" in message and message.isprintable() and len(message) < 400 + len(str(tmp_path))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportFault, match="No such file"):
        read_conversations(tmp_path / "missing.json")
    with pytest.raises(ImportFault, match="is not a file"):
        read_conversations(tmp_path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(10 * 10**9)
    with pytest.raises(ImportFault, match=r"10\.0 GB"):
        read_conversations(path)


def test_an_archive_that_claims_too_much_or_is_damaged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", b"[" + b" " * 100_000 + b"]")
    whole = buffer.getvalue()
    damaged = bytearray(whole)
    damaged[60:90] = b"\xff" * 30
    with pytest.raises(ImportFault, match="damaged archive"):
        read(tmp_path, bytes(damaged))
    monkeypatch.setattr(importers, "MAX_BYTES", 50_000)
    with pytest.raises(ImportFault, match="claims"):
        read(tmp_path, whole)
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("else.txt", "x")
    with pytest.raises(ImportFault, match=r"no conversations\.json"):
        read(tmp_path, other.getvalue())


KEYS = """mapping message author role content parts parent conv messages id currNode conversations from value
create_time timestamp extra name title format type conversation_id text version"""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS.split()), inner, max_size=5)
    ),
    max_leaves=25,
)


@given(content=JSON)
@settings(ONCE, max_examples=300)
def test_whatever_the_file_holds_only_import_faults_come_of_it(tmp_path: Path, content: object) -> None:
    try:
        found = read(tmp_path, content)
    except ImportFault as fault:
        assert str(fault).isprintable()
    else:
        assert all(conversation.turns or conversation.title for conversation in found)
