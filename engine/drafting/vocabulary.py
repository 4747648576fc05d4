"""Whether two models mean the same by an id, so that one can draft for the other.

Knows the vocabularies as their files state them; builds no tokenizer. Padding, which no text gives, is no
difference: converters fill up to sizes that suit their kernels, and later models of a family put new tokens
in its place.
"""

from __future__ import annotations

import re

from engine.errors import TokenizerError
from engine.gguf import GGUFFile
from engine.gguf.cursor import printable, shown
from engine.tokenizer.vocabulary import TokenKind, Vocabulary, read_vocabulary

_PADDING = re.compile(r"[\[<]\|?(?:pad|unused|dummy|reserved_special_token)[-_ ]?\d*\|?[\]>]", re.IGNORECASE)
"""As in [PAD151646], <unused3>, [UNUSED0]; files type some of them as NORMAL or CONTROL."""


def n_shared_ids(target: GGUFFile, draft: GGUFFile) -> int:
    """How many ids, from 0 on, mean the same in both models.

    Raises TokenizerError naming the first difference; GGUFError for a damaged vocabulary.
    """
    ours, theirs = (read_vocabulary(gguf, default_roles=False) for gguf in (target, draft))
    n_shared = min(len(ours.tokens), len(theirs.tokens))
    for token_id in range(n_shared):
        alike = ours.tokens[token_id] == theirs.tokens[token_id]
        if not (alike or _is_padding(ours, token_id) or _is_padding(theirs, token_id)):
            raise _differs(ours, theirs, token_id)
    longer = ours if len(ours.tokens) > n_shared else theirs
    for token_id in range(n_shared, len(longer.tokens)):
        if not _is_padding(longer, token_id):
            raise _differs(ours, theirs, token_id)
    return n_shared


def _is_padding(vocabulary: Vocabulary, token_id: int) -> bool:
    text = vocabulary.tokens[token_id]
    return not text or vocabulary.kinds[token_id] == TokenKind.UNUSED or bool(_PADDING.fullmatch(text))


def _differs(ours: Vocabulary, theirs: Vocabulary, token_id: int) -> TokenizerError:
    def named(vocabulary: Vocabulary) -> str:
        n_tokens = len(vocabulary.tokens)
        return shown(vocabulary.tokens[token_id]) if token_id < n_tokens else f"none of its {n_tokens} tokens"

    return TokenizerError(
        f"{printable(str(theirs.path))}: it has another vocabulary than {printable(ours.path.name)}: token "
        f"{token_id} is {named(theirs)} there and {named(ours)} here; choose a smaller model of the same "
        "family"
    )
