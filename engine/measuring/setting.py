"""One way to compute a model otherwise, as typed: "skip=0.98", "kv=q8_0", "precision=float".

Knows the words; does not know what they do to a model (`scoring` measures it). Light: the command line reads
settings before anything is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.config import KVType, LoadOptions, Precision
from engine.skipping.skip_choice import SkipChoice, SkipRule, parse_skip


@dataclass(frozen=True, slots=True)
class Setting:
    """What is changed; None is left as it is."""

    text: str
    """As typed."""
    skip: SkipChoice | None = None
    kv_type: KVType | None = None
    precision: Precision | None = None

    def applied(self, options: LoadOptions) -> LoadOptions:
        """How a model is opened with it."""
        return replace(
            options,
            kv_type=self.kv_type or options.kv_type,
            precision=self.precision or options.precision,
        )


def parse_setting(text: str) -> Setting:
    """Read a setting; a number after skip= is a cosine, as in NTransformer. ValueError says what is right."""
    name, _, value = (part.strip() for part in text.partition("="))
    if name == "skip":
        rule = f"{SkipRule.COSINE}={value}" if _is_number(value) else value
        choice = parse_skip(rule)
        if choice is not None:
            return Setting(text, skip=choice)
    elif name == "kv" and value in list(KVType):
        return Setting(text, kv_type=KVType(value))
    elif name == "precision" and value in list(Precision):
        return Setting(text, precision=Precision(value))
    raise ValueError(
        f"{text!r} is nothing to compare with: give skip=0.98 (a cosine), skip=kl=0.05, skip=blk.3-5, "
        f"kv={' or kv='.join(KVType)}, or precision={' or precision='.join(Precision)}"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
