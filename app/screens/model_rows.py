"""A model of the picker as text: two lines in the list, and all there is to know beside it.

Knows previews and suggestions; opens nothing. What comes from files is cleaned here.
"""

from __future__ import annotations

from textual.content import Content

from app.i18n import _
from app.model_settings import ModelSettings
from app.models import FoundModel
from app.models.catalog import Starter
from app.models.hub_file import HubFile
from app.models.suggestions import Suggestion
from app.sanitize import sanitize_line
from app.tiers.words import limited_words
from app.widgets.meters import parameters, size
from engine import Budget, ModelPreview

_BRIEF = 50
"""Cells of a row that have no room for many words."""
_MARKS = {True: ("● ", "$success"), False: ("  ", "")}


def model_row(
    model: FoundModel, preview: ModelPreview | None, width: int, *, loaded: bool, alike: bool
) -> Content:
    """Return the two lines of a model that is here, each `width` cells; None until it was looked into.

    `alike`: there is another one of that name, so the folder is shown.
    """
    facts = _facts(model, preview)
    if alike:
        facts = f"{_folder(model)} · {facts}"
    style = "$muted"
    if preview is not None and preview.problem:
        facts, style = sanitize_line(preview.problem), "$error"
    # The end of a name says most: the folders before it come after it, as far as there is room.
    folders, _slash, last = sanitize_line(model.name).rpartition("/")
    name = Content.assemble(_MARKS[loaded], (last, "bold"), (f"  {folders}" if folders else "", "$muted"))
    return _two_lines(name, verdict(preview, brief=width < _BRIEF), Content.styled(facts, style), width)


def suggestion_row(suggestion: Suggestion, budget: int, width: int) -> Content:
    """Return the two lines of a model that could be fetched, for a machine with so much memory for it."""
    if suggestion.fits(budget):
        judgement = Content.styled("✓ " + _("would fit"), "$success")
    else:
        judgement = Content.styled("≋ " + _("would run from disk"), "$tier-nvme")
    parts = [sanitize_line(suggestion.license)]
    parts += [_("terms to accept")] if suggestion.gated else []
    parts.append(sanitize_line(suggestion.note))
    facts = f"{parameters(suggestion.parameters):>5}  {size(suggestion.size):>7}  {' · '.join(parts)}"
    name = Content.assemble(("↓ ", "$primary"), (suggestion.name, "bold"))
    return _two_lines(name, judgement, Content.styled(facts, "$muted"), width)


def starter_row(starter: Starter, width: int) -> Content:
    """Return the two lines of a starter model, which runs everywhere."""
    name = Content.assemble(("↓ ", "$primary"), (starter.name, "bold"))
    facts = Content.styled(f"{'':5}  {size(starter.size):>7}  {starter.summary}", "$muted")
    return _two_lines(name, Content.styled("✓ " + _("would fit"), "$success"), facts, width)


def hub_row(source: HubFile) -> Content:
    """Return the two lines of a file that was named."""
    name = Content.assemble(("↓ ", "$primary"), (sanitize_line(str(source)), "bold"))
    return Content("\n").join([name, Content.styled("  " + _("Enter fetches it"), "$muted")])


def starter_details(starter: Starter) -> Content:
    """Return what is known of a starter model."""
    summary = Content.styled(starter.summary, "$muted")
    return Content("\n").join(
        [Content.styled(starter.name, "bold"), summary, Content(""), _fact(_("size"), size(starter.size))]
    )


def verdict(preview: ModelPreview | None, *, brief: bool = False) -> Content:
    """Return in a few words whether the model runs here and how fast; `brief`: in one or two."""
    if preview is None:
        return Content.styled("…", "$muted")
    if preview.problem:
        return Content.styled("✗" if brief else "✗ " + _("cannot be loaded"), "$error")
    words, style = _where(preview)
    return Content.styled(words if brief else words + _speed(preview), style)


def _where(preview: ModelPreview) -> tuple[str, str]:
    """Where its weights would be, in a few words, and the colour of the slowest place."""
    mixed = preview.vram_bytes and preview.ram_bytes
    if preview.pass_read_bytes:
        words = _("streams {size} a token").format(size=size(preview.pass_read_bytes))
        return "≋ " + (_("GPU + CPU, {words}").format(words=words) if mixed else words), "$tier-nvme"
    if mixed:
        return "✓ " + _("GPU + CPU"), "$success"
    return "✓ " + (_("fits the GPU") if preview.vram_bytes else _("fits")), "$success"


def _speed(preview: ModelPreview) -> str:
    speed = preview.predicted_decode_tok_s
    return f" · ~{_figure(speed)} tok/s" if speed else ""


def _figure(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}" if speed >= 1 else f"{speed:.2f}"


def _facts(model: FoundModel, preview: ModelPreview | None) -> str:
    """Parameters, quantisation, size, context, template, licence and origin, the first ones in columns."""
    if preview is None or not preview.architecture:
        return f"{'':5}  {'':7}{size(model.size):>7}  {model.origin.value}"
    parts = [_("chat") if preview.has_template else _("base")]
    parts += [sanitize_line(preview.license)[:24]] if preview.license else []
    parts.append(model.origin.value)
    return (
        f"{parameters(preview.n_parameters):>5}  {sanitize_line(preview.quantisation)[:7]:<7}"
        f"{size(model.size):>7}  {_context(preview.training_context):>4}  {' · '.join(parts)}"
    )


def _context(tokens: int) -> str:
    """As people call it: 8k, 128k."""
    if tokens < 1024:
        return str(tokens) if tokens else "?"
    return f"{round(tokens / 1024)}k" if tokens % 1000 else f"{tokens // 1000}k"


def _folder(model: FoundModel) -> str:
    return sanitize_line(str(model.path.parent))


def _two_lines(name: Content, right: Content, below: Content, width: int) -> Content:
    """Name at the left and judgement at the right of the first line, facts in the second, all cut to fit."""
    room = max(width - right.cell_length - 2, 8)
    name = name.truncate(room, ellipsis=True)
    first = name.pad_right(max(width - name.cell_length - right.cell_length, 1)) + right
    second = Content("  ") + below
    return Content("\n").join([first.truncate(width, ellipsis=True), second.truncate(width, ellipsis=True)])


def details(model: FoundModel, preview: ModelPreview | None, own: ModelSettings | None) -> Content:
    """Return all that is known of a model that is here, one fact a line."""
    lines: list[Content] = [Content.styled(sanitize_line(model.name), "bold")]
    if preview is not None and preview.architecture and not model.name.endswith(preview.name):
        lines.append(Content.styled(sanitize_line(preview.name), "$muted"))
    lines.append(Content(""))
    if preview is not None and preview.architecture:
        lines += _header_facts(preview)
    lines.append(_fact(_("size"), size(model.size)))
    if preview is None:
        lines.append(Content.styled(_("looking into the file…"), "$muted"))
    elif preview.problem:
        lines += [Content(""), Content.styled("✗ " + sanitize_line(preview.problem), "$error")]
    else:
        lines += _plan_facts(preview)
    if own is not None and own != ModelSettings():
        lines += [Content(""), _chosen(own)]
    lines += [Content(""), Content.styled(sanitize_line(str(model.path)), "$muted")]
    return Content("\n").join(lines)


def plan_in_words(preview: ModelPreview) -> Content:
    """Return what loading would give, in a line or two."""
    judgement = verdict(preview)
    if preview.problem:
        return judgement + Content(": " + sanitize_line(preview.problem))
    if preview.vram_bytes and preview.ram_bytes:
        words = _("context {n:,}, video memory {vram}, memory {ram}; {cache} for the context")
    elif preview.vram_bytes:
        words = _("context {n:,}, video memory {vram}, of it {cache} for the context")
    else:
        words = _("context {n:,}, memory {ram}, of it {cache} for the context")
    return judgement + Content(
        "\n"
        + words.format(
            n=preview.max_context,
            vram=size(preview.vram_bytes),
            ram=size(preview.ram_bytes),
            cache=size(preview.kv_bytes),
        )
    )


def _header_facts(preview: ModelPreview) -> list[Content]:
    template = _("yes") if preview.has_template else _("none, plain text only")
    kind = sanitize_line(preview.architecture)
    if preview.n_layers:
        kind += ", " + _("{n} layers").format(n=preview.n_layers)
    context = _("{n:,} tokens").format(n=preview.training_context) if preview.training_context else "?"
    return [
        _fact(_("kind"), kind),
        _fact(_("weights"), f"{parameters(preview.n_parameters)}, {sanitize_line(preview.quantisation)}"),
        _fact(_("trained for"), context),
        _fact(_("template"), template),
        _fact(_("licence"), sanitize_line(preview.license) or _("not told")),
    ]


def _plan_facts(preview: ModelPreview) -> list[Content]:
    """What the planner says for this machine."""
    cache = _(", cache {cache}").format(cache=size(preview.kv_bytes))
    if preview.pass_read_bytes:
        read = _("{size} for every token").format(size=size(preview.pass_read_bytes))
    else:
        read = _("nothing")
    facts = [Content(""), _fact(_("context"), _("{n:,} tokens").format(n=preview.max_context))]
    if preview.vram_bytes:
        facts.append(_fact(_("VRAM"), size(preview.vram_bytes) + cache))
    if preview.ram_bytes:
        facts.append(_fact(_("memory"), size(preview.ram_bytes) + ("" if preview.vram_bytes else cache)))
    facts.append(_fact(_("from disk"), read))
    if preview.device:
        facts.append(_fact(_("computed by"), sanitize_line(preview.device)))
    if preview.predicted_decode_tok_s:
        facts.append(_fact(_("speed"), f"~{_figure(preview.predicted_decode_tok_s)} tok/s"))
        facts.append(_fact(_("waits for"), limited_words(preview.limited_by)))
    elif preview.ram_bytes:
        facts.append(_fact(_("speed"), _("measured when it is loaded")))
    return facts


def _chosen(own: ModelSettings) -> Content:
    """What the person chose for this model alone."""
    parts = []
    if own.context is not None:
        parts.append(_("context {n:,}").format(n=own.context))
    if own.ram_budget is not None:
        parts.append(_("memory {budget}").format(budget=shown_budget(own.ram_budget)))
    if own.device is not None:
        parts.append(own.device)
    if own.vram_budget is not None:
        parts.append(_("video memory {budget}").format(budget=shown_budget(own.vram_budget)))
    if own.kv_type is not None:
        parts.append(_("keys and values {kind}").format(kind=own.kv_type))
    if own.greedy is not None:
        parts.append(_("greedy") if own.greedy else _("not greedy"))
    return _fact(_("your choice"), ", ".join(parts))


def shown_budget(budget: Budget | None) -> str:
    """Return a budget as a person would write it, empty for none."""
    if budget is None:
        return ""
    return str(budget) if budget.percent else size(budget.n_bytes)


def suggestion_details(suggestion: Suggestion, budget: int) -> Content:
    """Return all that is known of a model that could be fetched."""
    lines = [
        Content.styled(suggestion.name, "bold"),
        Content.styled(sanitize_line(suggestion.note), "$muted"),
        Content(""),
        _fact(_("weights"), parameters(suggestion.parameters)),
        _fact(_("size"), _("about {size}").format(size=size(suggestion.size))),
        _fact(_("licence"), sanitize_line(suggestion.license)),
        _fact(_("terms"), _("to accept at the Hub first") if suggestion.gated else _("nothing to accept")),
        _fact(_("memory"), _("{size} for models now").format(size=size(budget))),
        Content(""),
        Content.styled(sanitize_line(str(suggestion.source)), "$muted"),
    ]
    return Content("\n").join(lines)


def _fact(label: str, value: str) -> Content:
    shown = Content(label).truncate(12, ellipsis=True)
    return shown.pad_right(max(12 - shown.cell_length, 0)).stylize("$muted") + Content(value)
