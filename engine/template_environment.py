"""Jinja as chat templates expect it: the environment that Hugging Face's `apply_chat_template` documents.

Sandboxed, so a template reaches no file and no attribute of Python's own; it can still loop for ever, which
is the business of `template_worker`. Knows no models. Source: huggingface.co/docs, "Chat templates".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_OUTPUT_CHARS = 16 * 2**20
"""A prompt of a million tokens is shorter."""
MAX_SOURCE_CHARS = 2**20
"""The largest templates that models ship have 30,000."""
_MAX_REASON_CHARS = 200


class RenderError(Exception):
    """The template failed; the text is untrusted but printable and short."""


class _Refusal(jinja2.TemplateError):
    """The template itself called `raise_exception`."""


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks what the model said; here only its text counts."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body, in a scope of its own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def render(source: str, variables: Mapping[str, object], now: datetime) -> str:
    """Render `source` with `variables`; `now` is what the template is told when it asks for the date.

    Raises RenderError when the template does not compile, fails, refuses, or writes too much.
    """
    if len(source) > MAX_SOURCE_CHARS:
        raise RenderError(f"it has {len(source)} characters, more than {MAX_SOURCE_CHARS}")
    try:
        pieces: list[str] = []
        written = 0
        for piece in _compiled(source).generate(**variables, strftime_now=now.strftime):
            pieces.append(piece)
            written += len(piece)
            if written > MAX_OUTPUT_CHARS:
                raise RenderError(f"it writes more than {MAX_OUTPUT_CHARS} characters")
        return "".join(pieces)
    except _Refusal as error:
        raise RenderError(f"it refuses this conversation: {_reason(error)}") from error
    except RenderError:
        raise
    except MemoryError as error:
        raise RenderError("it needs too much memory") from error
    except Exception as error:  # a template is a program: it can raise anything
        raise RenderError(f"{type(error).__name__}: {_reason(error)}") from error


@lru_cache(maxsize=4)
def _compiled(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment.from_string(source)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON for a model to read: Jinja's own filter would escape for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> NoReturn:
    raise _Refusal(str(message))


def _reason(error: Exception) -> str:
    text = " ".join(str(error)[:_MAX_REASON_CHARS].split())
    return "".join(character for character in text if character.isprintable())
