"""The figures of `tiercel perplexity` for texts as lines for people, 80 columns wide where names are short.

Knows which figures stand side by side; does not measure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from app.cli.columns import Column, change, heading_line, percent, row_line
from app.sanitize import sanitize_line

if TYPE_CHECKING:  # numpy
    from engine import Perplexity, Scores, Setting, SettingScore


class _OfText(NamedTuple):
    name: str
    score: Perplexity


class _OfSetting(NamedTuple):
    name: str
    score: SettingScore


def score_lines(scores: Scores, files: Sequence[Path], settings: Sequence[Setting]) -> Iterator[str]:
    """Perplexities, of each file and together where there are several; then what settings change."""
    texts = [_OfText(sanitize_line(str(path)), score) for path, score in zip(files, scores.each, strict=True)]
    if len(texts) > 1:
        texts.append(_OfText("together", scores.together))
    name_width = max(len(text.name) for text in texts)
    text_columns = (
        Column[_OfText]("file".ljust(name_width), name_width, lambda text: text.name.ljust(name_width)),
        *_TEXT_COLUMNS,
    )
    yield heading_line(text_columns)
    yield from (row_line(text_columns, text) for text in texts)
    if not settings:
        return
    rows = [
        _OfSetting(sanitize_line(setting.text), score)
        for setting, score in zip(settings, scores.settings, strict=True)
    ]
    setting_width = max(len("setting"), *(len(row.name) for row in rows))
    columns = (
        Column[_OfSetting](
            "setting".ljust(setting_width), setting_width, lambda row: row.name.ljust(setting_width)
        ),
        *_SETTING_COLUMNS,
    )
    yield ""
    yield heading_line(columns)
    yield from (row_line(columns, row) for row in rows)


def _changes(low: float, high: float) -> str:
    return f"{change(low)}..{change(high)}"


_TEXT_COLUMNS: tuple[Column[_OfText], ...] = (
    Column("tokens", 7, lambda text: str(text.score.tokens)),
    Column("perplexity", 10, lambda text: f"{text.score.perplexity:.4f}"),
    Column(
        "95 % interval",
        17,
        lambda text: f"{text.score.perplexity_low:.3f}..{text.score.perplexity_high:.3f}",
    ),
)
_SETTING_COLUMNS: tuple[Column[_OfSetting], ...] = (
    Column("left out", 8, lambda row: str(len(row.score.skipped))),
    Column("perplexity", 10, lambda row: f"{row.score.change.perplexity:.4f}"),
    Column("change", 7, lambda row: change(row.score.change.perplexity_change)),
    Column(
        "95 % interval",
        17,
        lambda row: _changes(row.score.change.perplexity_low, row.score.change.perplexity_high),
    ),
    Column("KL", 8, lambda row: f"{row.score.change.kl_mean:.5f}"),
    Column("top-1", 6, lambda row: percent(row.score.change.top1, 1)),
)
"""left out counts layer blocks; KL is in nats."""
