"""The list of the model picker: what is here, what could be fetched, and which of it the filter lets through.

Knows which rows there are and keeps the highlight where it was; how a row reads is in `model_rows`. Opens no
file: who looks into one tells the list what it found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from textual.content import Content
from textual.widgets.option_list import Option, OptionDoesNotExist

from app import locations
from app.fetch import STARTER
from app.i18n import _
from app.model_settings import ModelSettings
from app.models import FoundModel
from app.models.catalog import Starter
from app.models.hub_file import HubFile, parse_hub_file
from app.models.suggestions import Suggestion, suitable
from app.screens.model_rows import (
    details,
    hub_row,
    model_row,
    starter_details,
    starter_row,
    suggestion_details,
    suggestion_row,
)
from app.widgets.meters import size
from app.widgets.option_list import SteadyOptionList
from engine import ModelNotFoundError, ModelPreview

_LEAST_WIDTH: Final = 24

Item = FoundModel | Suggestion | Starter | HubFile
"""What can be chosen: a model that is here, or one to fetch."""


class _Row(Option):
    """Something to choose, and what it stands for."""

    def __init__(self, prompt: Content, item: Item) -> None:
        super().__init__(prompt, id=_id(item))
        self.item = item


class ModelList(SteadyOptionList, can_focus=False):
    """Rows of two lines. Keys reach it through the filter, which always has the focus."""

    def __init__(self, loaded: Path | None) -> None:
        """Begin empty; the row of `loaded` is marked, and highlighted at first."""
        super().__init__(id="models-list", markup=False)
        self.found: list[FoundModel] | None = None
        """What is here; None until somebody has looked."""
        self.previews: dict[Path, ModelPreview] = {}
        """What is known of files that were looked into."""
        self._loaded = loaded
        self._suggestions: Sequence[Suggestion] = ()
        self._budget = 0
        self._text = ""
        self._highlight = _id_of(loaded) if loaded is not None else ""
        """The row to highlight as soon as it is there."""

    @property
    def item(self) -> Item | None:
        """What is highlighted."""
        option = self.highlighted_option
        return option.item if isinstance(option, _Row) else None

    # -- what there is

    def fill(self, found: list[FoundModel], suggestions: Sequence[Suggestion], budget: int) -> None:
        """List what was found, and of the suggestions what suits `budget` bytes of memory."""
        self.found, self._suggestions, self._budget = found, suggestions, budget
        self._refill()

    def filter(self, text: str) -> None:
        """List what has all words of `text`, or the file of the Hub that it names."""
        self._text = text.strip()
        if self.found is not None:
            self._refill()

    def highlight_file(self, path: Path) -> None:
        """Highlight the row of this file, once it is listed."""
        self._highlight = _id_of(path)

    def learn(self, model: FoundModel, preview: ModelPreview) -> None:
        """Take up what a file was found to hold; no row moves."""
        self.previews[model.path] = preview
        with suppress(OptionDoesNotExist):  # filtered out
            self.replace_option_prompt(_id(model), self._row(model))

    def details(self, own: ModelSettings | None) -> Content:
        """Return all that is known of what is highlighted; `own` is what was chosen for that model alone."""
        item = self.item
        if isinstance(item, FoundModel):
            return details(item, self.previews.get(item.path), own)
        if isinstance(item, Suggestion):
            return suggestion_details(item, self._budget)
        return starter_details(item) if isinstance(item, Starter) else Content("")

    def _refill(self) -> None:
        """List it; what was highlighted stays so if it is still there."""
        text, present = self._text, self.item
        options = _hub_options(text) if _is_address(text) else self._listed(text.casefold().split())
        ids = [option.id for option in options]
        self.set_options(options)
        for wanted in (self._highlight, "" if present is None else _id(present)):
            if wanted in ids:
                self.highlighted = ids.index(wanted)
                self._highlight = ""
                return
        self.highlighted = next((i for i, option in enumerate(options) if isinstance(option, _Row)), None)

    def _listed(self, words: list[str]) -> list[Option]:
        models = [model for model in self.found or () if _matches(words, self._searched(model))]
        missing = [item for item in self._offered(words) if not self._have(item)]
        options: list[Option] = [_Row(self._row(model), model) for model in models]
        if missing:
            if models:
                options.append(Option("", disabled=True))
            heading = _("To fetch, for {size} of memory")
            options.append(_line(heading.format(size=size(self._budget))))
            options += [_Row(self._row(item), item) for item in missing]
        elif not models:
            options.append(_line(_("nothing has these words")))
        return options

    def _offered(self, words: list[str]) -> list[Suggestion | Starter]:
        """What suits this machine, or of everything that is suggested what the filter asks for."""
        if not words:
            return [STARTER, *suitable(self._suggestions, self._budget)]
        offered: list[Suggestion | Starter] = []
        if _matches(words, f"{STARTER.name} {STARTER.summary}"):
            offered.append(STARTER)
        offered += [s for s in self._suggestions if _matches(words, f"{s.source} {s.license} {s.note}")]
        return offered

    def _have(self, item: Suggestion | Starter) -> bool:
        """Whether what could be fetched is here already."""
        folder = locations.models_dir()
        if isinstance(item, Starter):
            target = folder / f"{item.name}.gguf"
        else:
            target = item.source.target(folder, item.source.file)
        return any(model.path == target for model in self.found or ())

    def _searched(self, model: FoundModel) -> str:
        preview = self.previews.get(model.path)
        facts = f"{preview.architecture} {preview.quantisation} {preview.license}" if preview else ""
        return f"{model.name} {model.origin.value} {facts}"

    # -- how it is written

    def on_resize(self) -> None:
        """Write every row for the new width."""
        for option in self.options:
            if isinstance(option, _Row) and option.id is not None:
                self.replace_option_prompt(option.id, self._row(option.item))

    def _row(self, item: Item) -> Content:
        width = max(self.scrollable_content_region.width - 2, _LEAST_WIDTH)
        if isinstance(item, FoundModel):
            names = Counter(model.name for model in self.found or ())
            preview, loaded = self.previews.get(item.path), item.path == self._loaded
            return model_row(item, preview, width, loaded=loaded, alike=names[item.name] > 1)
        if isinstance(item, Suggestion):
            return suggestion_row(item, self._budget, width)
        return starter_row(item, width) if isinstance(item, Starter) else hub_row(item)


def _hub_options(text: str) -> list[Option]:
    try:
        source = parse_hub_file(text)
    except ModelNotFoundError:
        return [_line(_("go on: hf:owner/repository/file.gguf, with @revision if need be"))]
    return [_Row(hub_row(source), source)]


def _line(text: str) -> Option:
    """A line that is no choice."""
    return Option(Content.styled(text, "$muted"), disabled=True)


def _id(item: Item) -> str:
    """Name the row of `item`; the same after each look."""
    if isinstance(item, FoundModel):
        return _id_of(item.path)
    if isinstance(item, Suggestion):
        return f"fetch {item.source}"
    return f"fetch {item.name if isinstance(item, Starter) else item}"


def _id_of(path: Path) -> str:
    return f"file {path}"


def _is_address(text: str) -> bool:
    return text.startswith(("hf:", "https:", "http:"))


def _matches(words: list[str], text: str) -> bool:
    folded = text.casefold()
    return all(word in folded for word in words)
