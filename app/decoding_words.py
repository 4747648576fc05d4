"""Layer skip and drafts in words: what is left out, what that does to the text, what drafts have brought.

Knows options, counts and measured effects; no widget and no terminal. The screen and the command line use the
same words; the command line never chooses a language, so that it speaks English.
"""

from __future__ import annotations

from contextlib import suppress

from app.conversation import Turn
from app.i18n import _
from app.request import ORDINARY
from app.store.decoding_json import decoding_of
from engine import DecodingOptions, DraftKind, GenerationStats, SkipEffect


def draft_name(kind: DraftKind) -> str:
    """Return who proposes ids, in one or two words."""
    return {
        DraftKind.OFF: _("off"),
        DraftKind.NGRAM: _("n-gram"),
        DraftKind.MODEL: _("draft model"),
        DraftKind.SELF: _("self"),
        DraftKind.RESIDENT: _("resident"),
        DraftKind.EXIT: _("early exit"),
    }[kind]


def per_cent(change: float) -> str:
    """Return a change such as +2.1."""
    return f"{100 * change:+.1f}"


def effect_words(effect: SkipEffect) -> str:
    """Return what a set of blocks that is left out does, with its 95 % interval."""
    return _("{change} % perplexity [{low}, {high}]").format(
        change=per_cent(effect.perplexity_change),
        low=per_cent(effect.perplexity_low),
        high=per_cent(effect.perplexity_high),
    )


def quality_words(stats: GenerationStats) -> str:
    """Say whether the ids are those of the whole model, or by how much what is left out changes them."""
    if not stats.skipped_blocks:
        return _("exact")
    if stats.skip_effect is None:
        return _("approximate")
    return _("approximate, {effect}").format(effect=effect_words(stats.skip_effect))


def skip_words(options: DecodingOptions, stats: GenerationStats) -> str:
    """Return by which rule blocks are left out, and how many are now; empty where that is off."""
    if options.skip is None:
        return ""
    if not stats.skipped_blocks:
        return str(options.skip)
    return _("{rule} · {count} blocks").format(rule=options.skip, count=stats.skipped_blocks)


def draft_words(options: DecodingOptions, stats: GenerationStats) -> str:
    """Return who proposes ids and how many at a time; empty where that is off."""
    if options.draft is DraftKind.OFF:
        return ""
    if options.draft_k is None and stats.expected_speed_up:
        return _("{kind}, not tried: {factor}x plain expected").format(
            kind=draft_name(options.draft), factor=f"{stats.expected_speed_up:.2f}"
        )
    if options.draft_k is None and stats.drafted_tokens and not stats.drafts_at_once:
        return _("{kind}, which does not pay now").format(kind=draft_name(options.draft))
    at_once = options.draft_k or stats.drafts_at_once
    return f"{draft_name(options.draft)} k={at_once}" if at_once else draft_name(options.draft)


def gain_words(stats: GenerationStats) -> list[str]:
    """Return what drafts have brought: how many were taken, and the speed against plain steps."""
    words = []
    if stats.drafted_tokens:
        words.append(_("{share} taken").format(share=f"{stats.acceptance_rate:.0%}"))
    # A plain reply is as fast as itself, give or take what two measurements differ by.
    if stats.speed_up and (stats.drafted_tokens or stats.skipped_blocks):
        words.append(_("{factor}x plain").format(factor=f"{stats.speed_up:.2f}"))
    return words


def decoding_line(decoding: DecodingOptions) -> str:
    """Return what was chosen, such as `skip kl=0.05, drafts: n-gram k=4`."""
    parts = []
    if decoding.skip is not None:
        parts.append(_("skip {rule}").format(rule=decoding.skip))
    if decoding.draft is not DraftKind.OFF:
        kind = draft_name(decoding.draft)
        parts.append(
            _("drafts: {kind}").format(kind=f"{kind} k={decoding.draft_k}" if decoding.draft_k else kind)
        )
    return ", ".join(parts) or _("all blocks, no drafts")


def changes_of(turn: Turn) -> list[tuple[int, DecodingOptions]]:
    """Return from which token on a reply was computed in another way; imported nonsense is left out."""
    stored = turn.made_by.get("decoding_changes")
    pairs = stored if isinstance(stored, list) else []
    changes = []
    for pair in pairs:
        with suppress(TypeError, ValueError, KeyError, AttributeError):
            at, facts = pair
            changes.append((int(at), decoding_of(facts)))
    return changes


def final_decoding(turn: Turn) -> DecodingOptions:
    """Return how a reply was computed in the end."""
    changes = changes_of(turn)
    return changes[-1][1] if changes else turn.decoding or ORDINARY


def turn_quality(turn: Turn) -> str:
    """Say whether a reply's text is that of the whole model; empty where nothing was ever different."""
    unusual = any(way.skip is not None or way.draft is not DraftKind.OFF for way in _ways_of(turn))
    return turn_approximation(turn) or (_("exact") if unusual else "")


def turn_approximation(turn: Turn) -> str:
    """Say in how far a reply's text is not that of the whole model; empty where it is."""
    ways = _ways_of(turn)
    if all(way.skip is None for way in ways):
        return ""
    if turn.stats.skipped_blocks:
        return quality_words(turn.stats)
    return _("approximate in part") if len(ways) > 1 else ""


def _ways_of(turn: Turn) -> list[DecodingOptions]:
    return [turn.decoding or ORDINARY, *(decoding for _at, decoding in changes_of(turn))]


def way_words(turn: Turn) -> list[str]:
    """Return what was not as usual in how a reply was computed, in a few words each."""
    decoding, stats = turn.decoding or ORDINARY, turn.stats
    words = []
    if decoding.skip is not None:
        count = stats.skipped_blocks
        words.append(_("skip {rule}").format(rule=count or decoding.skip))
    if decoding.draft is not DraftKind.OFF:
        words.append(draft_name(decoding.draft))
    return words
