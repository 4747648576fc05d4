"""What predictions go by: the probe's rate, until enough was read to know better."""

from __future__ import annotations

import pytest

from engine.tiers.disk_pace import DiskPace
from engine.tiers.streamer import StreamStats

GB = 10**9


def read(n_bytes: float, seconds: float) -> StreamStats:
    return StreamStats(read_bytes=int(n_bytes), read_s=seconds)


def test_little_that_was_read_says_nothing() -> None:
    pace = DiskPace(2.0 * GB)
    assert not pace.note(StreamStats())
    assert not pace.note(read(0.5 * GB, 5.0))
    assert pace.rate == 2.0 * GB


def test_what_was_read_since_the_last_look_says_how_fast_the_disk_is() -> None:
    pace = DiskPace(2.0 * GB)
    assert pace.note(read(4 * GB, 4.0))
    assert pace.rate == pytest.approx(1.0 * GB)
    assert pace.note(read(8 * GB, 6.0))
    assert pace.rate == pytest.approx(2.0 * GB), "the four later gigabytes took two seconds"


def test_what_was_too_little_counts_at_the_next_look() -> None:
    pace = DiskPace(None)
    assert not pace.note(read(0.6 * GB, 1.0))
    assert pace.note(read(1.2 * GB, 2.0))
    assert pace.rate == pytest.approx(0.6 * GB)


def test_a_rate_that_is_about_the_same_is_no_news() -> None:
    pace = DiskPace(2.0 * GB)
    assert not pace.note(read(2 * GB, 1.02))
    assert pace.rate == 2.0 * GB


def test_reads_without_a_time_are_no_rate() -> None:
    pace = DiskPace(2.0 * GB)
    assert not pace.note(read(4 * GB, 0.0))
    assert pace.rate == 2.0 * GB
