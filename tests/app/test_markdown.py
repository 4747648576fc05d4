"""Splitting a growing Markdown text: nothing lost, nothing rendered otherwise than the whole."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it.token import Token

from app.markdown import Splitter, make_parser, redefines, weight

BLOCKS = [
    "A paragraph with **bold**, `code` and a line\nbreak.\n",
    "# Heading\n",
    "Setext\n===\n",
    "- one\n- two\n  - nested\n\n  still two\n",
    "1. first\n2. second\n\n3. third after a blank\n",
    "* * *\n",
    "---\n",
    "```python\ndef f():\n\n    return 1\n\nunindented\n# no heading\n```\n",
    "~~~\n```\nnot closed by backticks\n~~~\n",
    "````md\n```\ninner\n```\n````\n",
    "- item with code\n  ```\n  a\n\n  b\n  ```\n- next\n",
    "1. Step:\n```sh\nls\n```\n2. Next\n",
    "  ```\nindented fence\n\nwith blank\n```\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n| 中文 | 👩‍👩‍👧 |\n",
    "> quote\n> more\n\n> another\n",
    "    indented code\n\n    more of it\n",
    "<div>\n\nhtml is text\n\n</div>\n",
    "**Bold** starts the line\n",
    "1990 was a year\n",
    "+1 from me\n",
    "-\n",
    "\\# not a heading\n",
    "```\nnever closed\n\ntext\n",
    "![image](x.png) [link](http://example.org)\n",
    "\n",
    "\t\n",
]


def signature(tokens: list[Token]) -> list[Any]:
    return [
        (t.type, t.tag, t.level, t.info, t.content, t.hidden, t.attrs, signature(t.children or []))
        for t in tokens
    ]


def rendered(*parts: str) -> list[Any]:
    parse = make_parser().parse
    return list(chain.from_iterable(signature(parse(part)) for part in parts))


def stream(pieces: list[str]) -> list[str]:
    splitter = Splitter()
    closed = [part for piece in pieces if (part := splitter.push(piece))]
    return [*closed, splitter.flush()]


def cut(text: str, places: list[int]) -> list[str]:
    borders = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(borders)]


documents = st.lists(
    st.tuples(st.sampled_from(BLOCKS), st.sampled_from(["", "\n", "\n\n"])), min_size=1, max_size=8
).map(lambda parts: "".join(block + gap for block, gap in parts))


@settings(max_examples=200, deadline=None)
@given(documents, st.lists(st.integers(0, 10_000), max_size=40))
def test_closed_blocks_parse_apart_as_they_do_together_for_any_split(text: str, places: list[int]) -> None:
    parts = stream(cut(text, places))
    assert "".join(parts) == text
    assert rendered(*parts) == rendered(text)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab1 \n`~#->*+|[]().\t", max_size=80), st.lists(st.integers(0, 100), max_size=20))
def test_any_text_survives_any_split(text: str, places: list[int]) -> None:
    parts = stream(cut(text, places))
    assert "".join(parts) == text
    if not redefines(text):
        assert rendered(*parts) == rendered(text)


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ("para\n\nN", "para\n\n"),
        ("- a\n\n1", ""),
        ("- a\n\n- ", ""),
        ("- a\n\nAnd", "- a\n\n"),
        ("```\ncode\n\nmore\n", ""),
        ("```\ncode\n```\n", "```\ncode\n```\n"),
        ("# Title\n", "# Title\n"),
        ("Look:\n```py\n", "Look:\n"),
    ],
)
def test_a_block_closes_as_soon_as_nothing_can_change_it(text: str, closed: str) -> None:
    assert "".join(stream(list(text))[:-1]) == closed


def test_the_tail_hides_the_markers_of_an_open_fence() -> None:
    splitter = Splitter()
    splitter.push("```python\nx = 1\n``")
    assert splitter.in_code
    assert splitter.tail == "x = 1"


def test_a_line_break_of_the_model_is_kept() -> None:
    (inline,) = (t for t in make_parser().parse("a\nb") if t.type == "inline")
    assert [child.type for child in inline.children or []] == ["text", "hardbreak", "text"]


@pytest.mark.parametrize(
    ("text", "widgets"),
    [
        ("one\n\ntwo\n", 3),
        ("```\n" + "code\n" * 500 + "```\n", 1),
        ("| a | b |\n" * 10, 10),
        ("| " + " | ".join("x" * 40) + " |\n", 20),
        ("```\n| a | b | c | d | e |\n~~~\n", 1),
    ],
)
def test_the_weight_of_a_text_is_about_the_widgets_it_takes(text: str, widgets: int) -> None:
    assert weight(text) == widgets
