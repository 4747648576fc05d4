from __future__ import annotations

import io

from app.cli.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_drawn_where_nobody_watches() -> None:
    stream = io.StringIO()
    bar = ProgressBar(stream)
    bar.update("x", 1, 2)
    bar.close()
    assert stream.getvalue() == ""


def test_a_terminal_sees_a_bar_that_fits_and_is_cleared_in_the_end() -> None:
    stream = Terminal()
    bar = ProgressBar(stream)
    bar.update("model: downloading", 50_000_000, 100_000_000)
    line = stream.getvalue()
    assert "50.0 of 100.0 MB" in line and "############............" in line
    assert len(line) <= 80 + len("\r\x1b[K")
    bar.close()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_redrawing_is_limited_but_a_new_label_is_shown_at_once() -> None:
    stream = Terminal()
    bar = ProgressBar(stream)
    for done in range(1000):
        bar.update("a", done, 1000)
    bar.update("b", 1000, 1000)
    assert stream.getvalue().count("\r") <= 3


def test_a_bar_that_was_cleared_leaves_the_line_to_others() -> None:
    stream = Terminal()
    bar = ProgressBar(stream)
    bar.update("a", 1, 2)
    bar.close()
    written = stream.getvalue()
    bar.close()
    assert stream.getvalue() == written
    bar.update("a", 1, 2)
    assert stream.getvalue() != written


def test_what_takes_minutes_says_when_it_will_end() -> None:
    stream = Terminal()
    bar = ProgressBar(stream)
    bar.share("measuring", 0.0)
    bar.close()
    assert "measuring: 0%\r" in stream.getvalue(), "too early to tell"
    bar.share("measuring", 0.5)
    assert stream.getvalue().endswith("measuring: 50%, 1 s left")


def test_what_takes_minutes_is_told_once_where_nobody_watches() -> None:
    stream = io.StringIO()
    bar = ProgressBar(stream)
    for done in (0.0, 0.5, 1.0):
        bar.share("measuring", done)
    bar.close()
    assert stream.getvalue() == "tiercel: measuring\n"
