"""What the plain chat's /skip and /draft do: less work for a token, remembered for the model that is loaded.

Knows choices, settings and the bridge; how blocks are chosen and who drafts is the engine's business.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.decoding_words import draft_name, effect_words
from app.i18n import _
from app.models import resolve_model
from app.models.options import decoding_options, draft_model_of, keep_decoding
from app.sanitize import sanitize_line
from engine import MOST_DRAFTS, Calibration, DecodingOptions, DraftKind, EngineError, EngineState, parse_skip

if TYPE_CHECKING:
    from app.plain import PlainChat


class DecodingCommands:
    """How the loaded model computes replies, and what a person changes about it."""

    def __init__(self, chat: PlainChat) -> None:
        """Act on `chat`."""
        self._chat = chat

    def chosen(self) -> DecodingOptions:
        """What holds for the model that is wanted."""
        path = self._chat.bridge.wanted
        if path is None:
            return DecodingOptions()
        return decoding_options(self._chat.settings_file.values, path, self._chat.chosen)

    def skip(self, text: str) -> None:
        """Leave blocks out from the next reply on, or say which are."""
        path = self._wanted()
        if path is None:
            return
        options = self.chosen()
        if text:
            try:
                options = replace(options, skip=parse_skip(text))
            except ValueError as error:
                self._chat.say(str(error))
                return
            self._keep(path, options)
        if options.skip is None:
            self._chat.say(_("nothing is left out: replies are those of the whole model"))
        else:
            words = _("left out: {rule}; replies are approximate, and a rule's first use measures the model")
            self._chat.say(words.format(rule=options.skip))
        calibration = self._chat.bridge.snapshot.calibration
        if calibration is not None and not text:
            self._tell_table(calibration)

    def _tell_table(self, calibration: Calibration) -> None:
        for skipped in calibration.grown:
            effect = calibration.effect(skipped)
            if effect is not None:
                words = _("kl={kl:.3g}: {count} of {all} blocks, {effect}")
                self._chat.say(
                    words.format(
                        kl=effect.kl,
                        count=len(skipped),
                        all=calibration.n_blocks,
                        effect=effect_words(effect),
                    )
                )

    def draft(self, text: str) -> None:
        """Have somebody else draft from the next reply on, or say who does."""
        path = self._wanted()
        if path is None:
            return
        if text:
            try:
                options, model = self._parsed(path, text)
            except (ValueError, EngineError) as error:
                self._chat.say(sanitize_line(str(error)))
                return
            if not self._drafts_by(path, options, model):
                return
        options = self.chosen()
        if options.draft is DraftKind.OFF:
            self._chat.say(_("nobody drafts: one token at a time"))
        elif options.draft_k is None:
            words = _("drafts by {who}, as many tokens at a time as pay; replies stay the same")
            self._chat.say(words.format(who=draft_name(options.draft)))
        else:
            words = _("drafts by {who}, {n} tokens at a time; replies stay the same")
            self._chat.say(words.format(who=draft_name(options.draft), n=options.draft_k))

    def _parsed(self, path: Path, text: str) -> tuple[DecodingOptions, Path | None]:
        """Read a kind of draft or a model, and how many tokens at a time. Raises ValueError, EngineError."""
        name, _space, last = text.rpartition(" ")
        if not name or not last.isdecimal():
            name, last = text, ""
        number = int(last) if last and len(last) < 4 else None
        if last and (number is None or not 1 <= number <= MOST_DRAFTS):
            raise ValueError(_("{0!r} is not a whole number from 1 to {1}").format(last, MOST_DRAFTS))
        model = draft_model_of(self._chat.settings_file.values, path, self._chat.chosen)
        if name.lower() in set(DraftKind):
            kind = DraftKind(name.lower())
        else:
            kind, model = DraftKind.MODEL, resolve_model(name).absolute()
        if kind is DraftKind.MODEL and model is None:
            raise ValueError(_("which one? /draft and the name of a smaller model"))
        return replace(self.chosen(), draft=kind, draft_k=number), model

    def _drafts_by(self, path: Path, options: DecodingOptions, model: Path | None) -> bool:
        """Remember who drafts; False where the one that is to cannot be loaded, and all is as it was."""
        chat = self._chat
        models, chosen = chat.settings_file.values.models, chat.chosen
        self._keep(path, options, model)
        before, loaded = chat.bridge.snapshot, chat.bridge.snapshot.draft_model
        is_there = options.draft is not DraftKind.MODEL or (loaded is not None and loaded.path == model)
        if is_there and before.model is not None:
            return True
        chat.load(path)
        if before.model is not None and chat.bridge.snapshot.state is EngineState.FAILED:
            chat.settings_file.change(models=models)
            chat.chosen = chosen
            chat.load(path)
            return False
        return chat.bridge.snapshot.model is not None

    def _keep(self, path: Path, options: DecodingOptions, model: Path | None = None) -> None:
        """Remember `options` for the model; they go before what the command line said."""
        file, chosen = self._chat.settings_file, self._chat.chosen
        model = model or draft_model_of(file.values, path, chosen)
        file.change(models=keep_decoding(file.values, path, options, model))
        self._chat.chosen = chosen.without_decoding()

    def _wanted(self) -> Path | None:
        """The model that this is about, loaded or failed; where there is none, that is said."""
        if self._chat.bridge.wanted is None:
            self._chat.say(_("no model is loaded"))
        return self._chat.bridge.wanted
