"""How text is cut before BPE merges: regular expressions by the name under `tokenizer.ggml.pre`.

These are facts about models, taken from the tokenizer files of their makers; the names are llama.cpp's. Each
expression of a list is applied in turn to the pieces that the ones before it left, in the syntax of Oniguruma
(which the `tokenizers` library uses). Knows no merges and no tokens. Called by `load`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The part of a byte-level BPE that its vocabulary does not show."""

    patterns: tuple[str, ...]
    """Applied in order; matches and what lies between them are cut apart."""
    ignore_merges: bool = False
    """A piece that is a token is taken whole, even where the merges would not reach it."""
    add_bos: bool = False
    """BOS comes before a text where the file does not say."""


_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE = f"(?i:{_CONTRACTIONS})"
_BLANKS = r"\s+(?!\S)|\s+"
_LINES_AND_BLANKS = rf"\s*[\r\n]+|{_BLANKS}"
_1_DIGIT, _3_DIGITS, _ALL_DIGITS = r"\p{N}", r"\p{N}{1,3}", r"\p{N}+"
_3_ASCII_DIGITS = "[0-9][0-9][0-9]"

_GPT2 = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_BLANKS}"


def _gpt4(digits: str) -> str:
    """Words with the character before them, numbers by `digits`, signs with the line ends after them."""
    return (
        rf"{_ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES_AND_BLANKS}"
    )


def _gpt4o(digits: str, ending: str = "") -> str:
    """As `_gpt4`, but words are also cut where lower case turns to upper, and keep their `ending`."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{before}{upper}*{lower}+{ending}|{before}{upper}+{lower}*{ending}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES_AND_BLANKS}"
    )


_SEED_CODER = (
    rf"{_ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES_AND_BLANKS}"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_DEEPSEEK_3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES_AND_BLANKS}"
)
_HAN_OR_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HAN_OR_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
_DEEPSEEK_SIGNS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"

_FAMILIES = {
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2": PreTokenizer(
        (_gpt4(_3_DIGITS),), ignore_merges=True, add_bos=True
    ),
    "smaug-bpe dbrx chatglm-bpe": PreTokenizer((_gpt4(_3_DIGITS),)),
    "glm4 glm5": PreTokenizer((_gpt4(_3_DIGITS),), ignore_merges=True),
    "minicpm5": PreTokenizer((_3_DIGITS, _gpt4(_ALL_DIGITS)), ignore_merges=True),
    "qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2": PreTokenizer(
        (_gpt4(_1_DIGIT),)
    ),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "tekken": PreTokenizer((_gpt4o(_1_DIGIT),), ignore_merges=True, add_bos=True),
    "gpt-4o llama4 kanana2": PreTokenizer((_gpt4o(_3_DIGITS, f"{_ANY_CASE}?"),)),
    "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat mellum a.x-4.0": PreTokenizer(
        (_GPT2,)
    ),
    "starcoder smollm refact command-r codeshell exaone minerva-7b mellum2": PreTokenizer((_1_DIGIT, _GPT2)),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, _3_ASCII_DIGITS)),
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, _ALL_DIGITS, _3_ASCII_DIGITS)),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            rf"\s?[{_DEEPSEEK_SIGNS}]+",
            r"\s+$",
            _HAN_OR_HANGUL,
            _ALL_DIGITS,
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_OR_HANGUL, _1_DIGIT)),
    "deepseek-v3 hunyuan-dense joyai-llm": PreTokenizer((_3_DIGITS, _HAN_OR_KANA, _DEEPSEEK_3)),
    "bloom poro-chat gpt3-finnish": PreTokenizer((_BLOOM,)),
    "viking": PreTokenizer((_BLOOM, _1_DIGIT)),
}

PRE_TOKENIZERS = {name: pre for names, pre in _FAMILIES.items() for name in names.split()}
"""By the value of `tokenizer.ggml.pre`."""
