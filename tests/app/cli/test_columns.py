"""Figures in tables: as many digits as they mean, aligned."""

from __future__ import annotations

import pytest

from app.cli.columns import Column, change, heading_line, percent, row_line, short, spread


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (0.01234, "+1.23%"),
        (-0.004, "-0.40%"),
        (0.1234, "+12.3%"),
        (3.21, "+321%"),
        (0.0, "+0.00%"),
        (None, "-"),
        (float("inf"), "-"),
    ],
)
def test_a_change_has_a_sign_and_three_digits(share: float | None, shown: str) -> None:
    assert change(share) == shown


def test_what_was_not_measured_is_a_dash() -> None:
    assert (short(None), percent(None), spread(None, None, None)) == ("-", "-", "-")
    assert (short(1234.5), short(123.45), short(1.234)) == ("1234", "123.5", "1.23")


def test_rows_stand_under_their_headings() -> None:
    columns = (Column[int]("n", 4, str), Column[int]("square", 7, lambda n: str(n * n)))
    assert heading_line(columns) == "   n  square"
    assert row_line(columns, 12) == "  12     144"
