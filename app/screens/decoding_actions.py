"""How replies are computed, as a person chooses it: what is left out, and who drafts; live where one grows.

A part of the chat screen, in a file of its own. Knows settings, the bridge and words; what is chosen is kept
for the model, and shown as chosen once the engine has taken note.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from app.decoding_words import draft_name, draft_words, final_decoding, gain_words, quality_words, skip_words
from app.i18n import _
from app.keymap import by_id, shown_key
from app.live_reply import LiveReply, in_our_words
from app.models.options import Chosen, decoding_options, draft_model_of, keep_decoding, load_options
from app.request import ORDINARY
from app.sanitize import sanitize_line
from app.screens.conversation_actions import ConversationActions
from app.skip_rows import chosen_set
from app.widgets.switches import Switch
from engine import DEFAULT_KL, DecodingOptions, DraftKind, GenerationStats, LoadOptions, SkipChoice, SkipRule


class DecodingActions(ConversationActions):
    """The switches for skipping and drafting; `ChatScreen` has the rest."""

    chosen: Chosen
    """What the command line said, which holds for every model until something else is chosen."""
    _skip_before: SkipChoice = SkipChoice(SkipRule.KL, DEFAULT_KL)
    """What the switch turns on again."""
    _draft_before = DraftKind.NGRAM

    def change_settings(self, **changes: object) -> None:
        """Remember settings, now and in their file."""
        raise NotImplementedError

    def load(self, options: LoadOptions) -> None:
        """Load a model instead of the present one."""
        raise NotImplementedError

    @property
    def decoding(self) -> DecodingOptions:
        """How the next reply is computed."""
        path = self.bridge.wanted
        return decoding_options(self.settings, path, self.chosen) if path is not None else ORDINARY

    @property
    def draft_model(self) -> Path | None:
        """The model that may draft for the present one, loaded or not."""
        path = self.bridge.wanted
        return draft_model_of(self.settings, path, self.chosen) if path is not None else None

    def choose_decoding(self, decoding: DecodingOptions, told: str) -> None:
        """Compute in this way from the next token on, and with this model from now on; say so."""
        path = self.bridge.wanted
        if path is None:
            self.hint(_("no model is loaded"))
            return
        if decoding.draft is DraftKind.MODEL and self.draft_model is None:
            self.hint(_("no draft model is chosen: F3, then ^O, names one for this model"))
            return
        models = keep_decoding(self.settings, path, decoding, self.draft_model)
        self.chosen = self.chosen.without_decoding()
        self.change_settings(models=models)
        self.hint(told)
        if decoding.draft is DraftKind.MODEL and self.bridge.snapshot.draft_model is None:
            self.load(load_options(self.settings, path, self.chosen))
        else:
            self.steer()

    def steer(self) -> None:
        """Have the reply that grows, if any, drawn and computed as chosen now."""
        self.bridge.steer(self.workspace.current, self.sampling, self.decoding)
        self.show_engine()

    def tell_refusal(self, live: LiveReply) -> None:
        """Say why what was chosen last cannot be done with this model, and take it back."""
        path = self.bridge.wanted
        if path is not None:
            models = keep_decoding(self.settings, path, live.decoding, self.draft_model)
            self.change_settings(models=models)
        self.hint(sanitize_line(in_our_words(live.refused)))
        live.refused = ""

    def action_toggle_skip(self) -> None:
        """Leave blocks out of every pass, by the rule that was chosen last, or use all again."""
        decoding = self.decoding
        if decoding.skip is None:
            self.choose_skip(self._skip_before)
        else:
            self.choose_skip(None)

    def choose_skip(self, skip: SkipChoice | None) -> None:
        """Leave out what `skip` means; None uses all blocks."""
        self._skip_before = skip or self.decoding.skip or self._skip_before
        told = _("all blocks are used: the text is exact")
        if skip is not None:
            told = _("blocks are left out ({rule}): faster, approximate; /skip shows what it does").format(
                rule=skip
            )
        self.choose_decoding(replace(self.decoding, skip=skip), told)

    def action_toggle_draft(self) -> None:
        """Draft by the way that was chosen last, or no more."""
        decoding = self.decoding
        if decoding.draft is DraftKind.OFF:
            self.choose_draft(self._draft_before, decoding.draft_k)
        else:
            self.choose_draft(DraftKind.OFF, decoding.draft_k)

    def choose_draft(self, kind: DraftKind, k: int | None) -> None:
        """Draft in this way, `k` ids at a time; None leaves it to measured costs."""
        if kind is not DraftKind.OFF:
            self._draft_before = kind
            told = _("drafts: {kind}; each is verified and changes no text; /draft has others").format(
                kind=draft_name(kind)
            )
        else:
            if self.decoding.draft is not DraftKind.OFF:
                self._draft_before = self.decoding.draft
            told = _("no drafts: one token at a time")
        self.choose_decoding(replace(self.decoding, draft=kind, draft_k=k), told)

    def switches(self) -> list[Switch]:
        """Return the switches, each as the engine has it, or as it was asked for and waits."""
        live, decoding = self.bridge.live(self.workspace.current), self.decoding
        stats = self._newest_stats(live)
        skip_waits = draft_waits = False
        if live is not None and live.reply is not None and live.pending_decoding:
            now = live.reply.decoding
            skip_waits = now.skip != live.decoding.skip
            draft_waits = (now.draft, now.draft_k) != (live.decoding.draft, live.decoding.draft_k)
        skips, drafts = decoding.skip is not None, decoding.draft is not DraftKind.OFF
        return [
            Switch(
                _("layer skip"),
                shown_key(by_id("switch.skip")),
                skips,
                skip_waits,
                self._skip_note(decoding, stats),
                skip_words(decoding, stats),
            ),
            Switch(
                _("drafts"),
                shown_key(by_id("switch.draft")),
                drafts,
                draft_waits,
                " · ".join([*([] if skips else [_("exact")]), *gain_words(stats)]) if drafts else "",
                draft_words(decoding, stats),
            ),
            Switch(
                _("greedy"),
                shown_key(by_id("switch.greedy")),
                self.greedy,
                live is not None and live.pending,
                _("most probable token") if self.greedy else "",
            ),
        ]

    def _skip_note(self, decoding: DecodingOptions, stats: GenerationStats) -> str:
        """Say what leaving out does to the text, or that nothing is left out by the rule that was chosen."""
        if decoding.skip is None:
            return ""
        if chosen_set(self.bridge.snapshot.calibration, decoding.skip) == frozenset():
            return _("leaves nothing out: exact")
        return quality_words(stats) if stats.skipped_blocks else ""

    @property
    def gain(self) -> list[str]:
        """What drafts brought last in this conversation, in words."""
        replies = reversed(self.workspace.current.turns)
        return next((words for turn in replies if (words := gain_words(turn.stats))), [])

    def _newest_stats(self, live: LiveReply | None) -> GenerationStats:
        """What is known of the reply that grows, or of the last one where it was computed as chosen now."""
        if live is not None:
            return live.turn.stats
        replies = (turn for turn in reversed(self.workspace.current.turns) if turn.role == "assistant")
        last = next(replies, None)
        return last.stats if last is not None and final_decoding(last) == self.decoding else GenerationStats()
