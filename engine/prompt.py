"""From a conversation to prompt ids, so that structure comes from the template and never from typed text.

A person (or a model) can write `<|im_end|>` in a message; spelled out in the prompt it must stay plain text.
Every control token holds one of a few *guard* characters, nearly always `<` or `[`. In all texts of the
messages these are replaced by private-use characters, one for one, before the template runs: a *marked* text.
Whatever the template then does to its pieces, a control token found in its output is the template's own.
Tags that the template itself looks for, such as `</think>`, are left alone. Knows nothing of models.

    encoder = PromptEncoder(tokenizer, template)
    marked = encoder.render(messages)
    encoder.unmark(marked), encoder.encode(marked)

Marked and plain text have equal lengths. A marked text says more than a plain one: compare marked texts to
find out whether the beginning of a prompt is known, and encode only `marked[known:]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from engine.chat_template import ChatTemplate
from engine.tokenizer import Tokenizer
from engine.tokenizer.special_tokens import SpecialTokens

_FIRST_MARK = 0x10F000
"""In the last private-use plane, where no font in use has glyphs. A typed mark becomes U+FFFD."""
_TAG = re.compile(r"</?[A-Za-z][\w-]*>")
_UNMARKED_KEYS = frozenset({"role"})


class PromptEncoder:
    """Renders and encodes the conversations of one model."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        """Find the guards of `tokenizer`'s control tokens and the tags that `template` looks for."""
        self._tokenizer = tokenizer
        self._template = template
        self._control = SpecialTokens(tokenizer.control_tokens)
        guards, words = _guards(tokenizer.control_tokens)
        firsts = dict.fromkeys([*guards, *(word[0] for word in words)])
        marks = {character: chr(_FIRST_MARK + index) for index, character in enumerate(firsts)}
        tags = set(_TAG.findall(template.source)) - tokenizer.control_tokens.keys()
        self._replacements = {
            **{guard: marks[guard] for guard in guards},
            **{word: marks[word[0]] + word[1:] for word in words},
            **{mark: "\ufffd" for mark in marks.values()},
            **{tag: tag for tag in tags},
        }
        # Longest first: tags are tried before the guards that they begin with.
        texts = sorted(self._replacements, key=len, reverse=True)
        self._marking = re.compile("|".join(map(re.escape, texts)) or "(?!)")
        self._unmarking = str.maketrans({mark: character for character, mark in marks.items()})

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        now: datetime | None = None,
    ) -> str:
        """Return the marked prompt; arguments and TemplateError as for `ChatTemplate.render`."""
        return self._template.render(
            [self._marked_message(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            tools=None if tools is None else [self._marked_message(tool) for tool in tools],
            now=now,
        )

    def encode(self, marked: str, *, starts_text: bool = True) -> list[int]:
        """Return the ids of a marked text, with BOS where the model expects one and the template has none.

        `starts_text`: False for the end of a prompt whose beginning is known already.
        """
        ids: list[int] = []
        position = 0
        for start, end, token_id in self._control.find(marked):
            ids += self._encode_plain(marked[position:start], starts_text and position == 0)
            ids.append(token_id)
            position = end
        ids += self._encode_plain(marked[position:], starts_text and position == 0)
        bos_id = self._tokenizer.bos_id
        if starts_text and self._tokenizer.add_bos and bos_id is not None and ids[:1] != [bos_id]:
            ids.insert(0, bos_id)
        return ids

    def mark(self, text: str) -> str:
        """Return `text` as it will stand in a marked prompt when it is the content of a message."""
        return self._marking.sub(lambda match: self._replacements[match[0]], text)

    def unmark(self, marked: str) -> str:
        """Return the plain text of a marked one."""
        return marked.translate(self._unmarking)

    def _encode_plain(self, marked: str, starts_text: bool) -> list[int]:
        return self._tokenizer.encode(self.unmark(marked), starts_text=starts_text) if marked else []

    def _marked_message(self, message: Mapping[str, object]) -> dict[str, object]:
        return {
            self.mark(key): value if key in _UNMARKED_KEYS else self._marked(value)
            for key, value in message.items()
        }

    def _marked(self, value: object) -> object:
        if isinstance(value, str):
            return self.mark(value)
        if isinstance(value, Mapping):
            return {self._marked(key): self._marked(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._marked(item) for item in value]
        return value


def _guards(tokens: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return characters of which every token holds one, and the tokens that are mere words.

    Words have no character that could be marked wherever it stands without harm to what templates look for;
    these tokens are marked where they stand whole, at their first character.
    """
    guards: list[str] = []
    words: list[str] = []
    for token in tokens:
        special = next((c for c in token if not (c.isalnum() or c in "_-")), None)
        if special is None:
            words.append(token)
        elif not any(guard in token for guard in guards):
            guards.append(special)
    return guards, words
