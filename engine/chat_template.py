"""A conversation into the text a model was trained on, by the Jinja template that comes with the model.

Knows where templates come from and which run in this process; does not know tokens (`prompt` does). Jinja is
imported when the first template is rendered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import TemplateError
from engine.gguf import GGUFFile, open_gguf
from engine.gguf.cursor import printable
from engine.known_templates import FALLBACKS, KNOWN, checksum

if TYPE_CHECKING:
    from engine.template_worker import TemplateWorker

TIME_LIMIT_S = 2.0
"""For templates we do not know; known ones take milliseconds."""
_KEY = "tokenizer.chat_template"


class ChatTemplate:
    """One template, rendered by one thread at a time; compiled, and possibly found broken, at first use."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str, origin: str) -> None:
        """Hold `source`, which is untrusted; `origin` says in words where it comes from."""
        self.source = source
        self.origin = origin
        self._special = {"bos_token": bos_token, "eos_token": eos_token}
        self._known = checksum(source) in KNOWN
        self._worker: TemplateWorker | None = None

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        now: datetime | None = None,
    ) -> str:
        """Return the prompt text of `messages` (each with `role` and `content`).

        `add_generation_prompt`: end with the opening of the assistant's turn. `now`: what a template that
        asks for the date is told, by default the local time. As in Hugging Face's `apply_chat_template`,
        entries of a message that are None count as missing. Raises TemplateError when the template does not
        compile, fails, refuses the conversation, or runs or writes beyond all reason.
        """
        if not messages:
            raise TemplateError("the conversation is empty: give at least one message")
        variables: dict[str, object] = {
            "messages": [{k: v for k, v in message.items() if v is not None} for message in messages],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._special,
        }
        return self._render(variables, now or datetime.now())

    def _render(self, variables: Mapping[str, object], now: datetime) -> str:
        from engine.template_environment import RenderError, render

        try:
            if self._known:
                return render(self.source, variables, now)
            if self._worker is None:
                from engine.template_worker import TemplateWorker

                self._worker = TemplateWorker(TIME_LIMIT_S)
            return self._worker.render(self.source, variables, now)
        except RenderError as error:
            raise TemplateError(
                f"the chat template ({self.origin}) cannot be used here: {error}; "
                "change the messages, or continue plain text with `tiercel run --raw`"
            ) from error


def find_template(gguf: GGUFFile, *, bos_token: str, eos_token: str) -> tuple[ChatTemplate | None, str]:
    """Return the template for `gguf`, and in words where it comes from or why there is none.

    The file's own; else a fallback where we are sure of it; else none: a base model, for plain completion.
    `bos_token` and `eos_token` are the texts of those tokens, empty where the model has none.
    """
    name = printable(gguf.path.name)
    source = gguf.get_str(_KEY, "")
    architecture = gguf.get_str("general.architecture", "")
    if source:
        origin = f"{_KEY} of {name}"
    else:
        for fallback in FALLBACKS:
            if architecture in fallback.architectures and eos_token == fallback.eos_token:
                source = fallback.source
                origin = f"our own for {architecture} with {eos_token}, as {name} has none"
                break
        else:
            return None, f"{name} has no chat template: it is a base model, which continues plain text"
    return ChatTemplate(source, bos_token=bos_token, eos_token=eos_token, origin=origin), origin


def open_template(path: Path, *, bos_token: str | None = None, eos_token: str | None = None) -> ChatTemplate:
    """Return the template of the model at `path`; the two texts are the model's own unless given.

    Builds no tokenizer and reads no weights. Raises GGUFError, TokenizerError, or TemplateError when the
    model has no template.
    """
    from engine.tokenizer.vocabulary import read_vocabulary  # numpy

    with open_gguf(path) as gguf:
        if bos_token is None or eos_token is None:
            vocabulary = read_vocabulary(
                gguf, default_roles=gguf.get_str("tokenizer.ggml.model", "") == "llama"
            )
            texts = [
                "" if i is None else vocabulary.tokens[i] for i in (vocabulary.bos_id, vocabulary.eos_id)
            ]
            bos_token = texts[0] if bos_token is None else bos_token
            eos_token = texts[1] if eos_token is None else eos_token
        template, origin = find_template(gguf, bos_token=bos_token, eos_token=eos_token)
    if template is None:
        raise TemplateError(f"{origin}; try `tiercel run --raw`")
    return template
