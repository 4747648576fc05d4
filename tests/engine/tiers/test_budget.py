"""Sizes as people type them, and when memory is asked back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tiers.budget import DEFAULT, Budget, MemoryWatch, parse_budget, watermark

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("8G", 8 * 10**9),
        ("8GB", 8 * 10**9),
        ("8 gb", 8 * 10**9),
        ("7.5GiB", 15 * GIB // 2),
        ("2Ti", 2 << 40),
        ("900M", 900 * 10**6),
        ("1.1M", 1_100_000),
        ("64KiB", 65536),
        ("123456789", 123456789),
        ("123456789B", 123456789),
        (" 8G ", 8 * 10**9),
    ],
)
def test_a_size_is_its_bytes_however_much_there_is(text: str, n_bytes: int) -> None:
    assert parse_budget(text) == Budget(n_bytes)
    assert parse_budget(text).resolve(1) == n_bytes


@pytest.mark.parametrize(("text", "n_bytes"), [("50%", 500), ("100 %", 1000), ("12.5%", 125)])
def test_a_share_is_of_what_is_available(text: str, n_bytes: int) -> None:
    assert parse_budget(text).resolve(1000) == n_bytes


@pytest.mark.parametrize(
    "text",
    ["", "G", "8X", "-8G", "0", "0%", "0.1B", "101%", "8iB", "8G8", "nan", "1e9", "8%G", "٨G", "8\nG", "½G"],
)
def test_what_is_no_size_is_told_what_is(text: str) -> None:
    with pytest.raises(ValueError, match="give bytes, a size such as 8G, 900MB or") as failed:
        parse_budget(text)
    assert repr(text) in str(failed.value)


@given(st.text())
def test_any_text_is_a_budget_or_a_value_error(text: str) -> None:
    try:
        assert parse_budget(text).resolve(10**12) >= 0
    except ValueError as error:
        assert repr(text) in str(error)


def test_by_default_three_tenths_are_left() -> None:
    assert DEFAULT.resolve(1000) == 700


class Machine:
    """Memory and a clock under control."""

    def __init__(self) -> None:
        self.now = 100.0
        self.available = 10 * GIB
        self.readings = 0

    def read(self) -> int:
        self.readings += 1
        return self.available

    def watch(self, total: int = 32 * GIB) -> MemoryWatch:
        return MemoryWatch(read=self.read, clock=lambda: self.now, total=total)


def test_memory_is_asked_back_only_below_the_watermark() -> None:
    machine = Machine()
    watch = machine.watch()
    assert watch.deficit() == 0
    machine.now += 1
    machine.available = GIB - 5000
    assert watch.deficit() == 5000
    machine.now += 1
    machine.available = GIB
    assert watch.deficit() == 0


def test_memory_is_read_at_most_once_per_second_and_a_deficit_told_once() -> None:
    machine = Machine()
    machine.available = 0
    watch = machine.watch()
    told = []
    for _ in range(41):
        told.append(watch.deficit())
        machine.now += 0.0625
    assert machine.readings == 3
    assert [deficit for deficit in told if deficit] == [GIB] * 3


def test_the_watermark_suits_small_and_large_machines() -> None:
    assert watermark(4 * 10**9) == 4 * 10**8
    assert watermark(1 << 40) == GIB
    assert MemoryWatch(read=lambda: 0).deficit() > 0
