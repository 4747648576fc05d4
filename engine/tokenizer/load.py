"""Builds the tokenizer of a GGUF file; weights are not needed, so that a vocabulary-only file is enough.

Knows which kinds of vocabulary we run. Called by the engine and the command line.
"""

from __future__ import annotations

from engine.errors import UnsupportedModelError
from engine.gguf import GGUFFile
from engine.gguf.cursor import printable, shown
from engine.tokenizer.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from engine.tokenizer.tokenizer import Tokenizer
from engine.tokenizer.vocabulary import read_vocabulary

_MODEL_KEY = "tokenizer.ggml.model"
_PRE_KEY = "tokenizer.ggml.pre"


def load_tokenizer(gguf: GGUFFile) -> Tokenizer:
    """Build the tokenizer that `gguf` describes; it does not need the file afterwards.

    Raises UnsupportedModelError for a kind of vocabulary that we do not run, TokenizerError or GGUFError for
    a damaged one.
    """
    kind = gguf.get_str(_MODEL_KEY)
    if kind == "gpt2":
        return _byte_level_bpe(gguf)
    if kind == "llama":
        return _sentencepiece(gguf)
    raise _unsupported(gguf, _MODEL_KEY, kind)


# Each kind has a library of its own, some 10 MB; only the one that is needed gets imported.


def _byte_level_bpe(gguf: GGUFFile) -> Tokenizer:
    from engine.tokenizer.bpe import ByteLevelBPE

    pre = _pre_tokenizer(gguf)
    vocabulary = read_vocabulary(gguf, default_roles=False)
    add_bos = gguf.get_bool("tokenizer.ggml.add_bos_token", pre.add_bos)
    return Tokenizer(vocabulary, ByteLevelBPE(gguf, vocabulary, pre), add_bos=add_bos)


def _sentencepiece(gguf: GGUFFile) -> Tokenizer:
    from engine.tokenizer.spm import SentencePiece

    vocabulary = read_vocabulary(gguf, default_roles=True)
    add_bos = gguf.get_bool("tokenizer.ggml.add_bos_token", True)
    return Tokenizer(vocabulary, SentencePiece(gguf, vocabulary), add_bos=add_bos)


def _pre_tokenizer(gguf: GGUFFile) -> PreTokenizer:
    name = gguf.get_str(_PRE_KEY, "default")
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        raise _unsupported(gguf, _PRE_KEY, name)
    return pre


def _unsupported(gguf: GGUFFile, key: str, value: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{printable(str(gguf.path))}: {key} is {shown(value)}, which is not supported; choose another model"
    )
