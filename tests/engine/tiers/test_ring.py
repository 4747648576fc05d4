"""What the ring is told to read for passes: what they use and is not here, in the middle of one too."""

from __future__ import annotations

from collections.abc import Set
from types import SimpleNamespace

import pytest

from engine.skipping.skip_choice import NOTHING
from engine.tiers.page_locks import PageLocks
from engine.tiers.planner import Plan
from engine.tiers.ring import Ring
from engine.tiers.streamer import StreamStats
from tests.engine.tiers.shapes import TIED

EVERY_BLOCK = frozenset(block.index for block in TIED)
"""Eight of layers, then two parts of the head."""


def plan_that_reads(*streamed: int) -> Plan:
    return Plan(EVERY_BLOCK - set(streamed), streamed, 2, 1 << 20, 0, 0, None, "")


class Followed:
    """In place of a streamer: what it was told to read ahead, and from which block on."""

    def __init__(self, files: object, blocks: object, *, used: Set[int], **sizes: object) -> None:
        """Hold what it was begun with."""
        self.told: list[tuple[Set[int], int]] = [(used, 0)]
        self.stats = StreamStats()

    def follow(self, used: Set[int], start: int) -> None:
        self.told.append((used, start))

    def close(self) -> None:
        """Nothing runs."""


@pytest.fixture
def streamers(monkeypatch: pytest.MonkeyPatch) -> list[Followed]:
    """Those that rings make, in order."""
    made = list[Followed]()

    def make(*args: object, **options: object) -> Followed:
        made.append(Followed(*args, **options))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr("engine.tiers.ring.Streamer", make)
    return made


def ring(plan: Plan) -> Ring:
    return Ring(SimpleNamespace(), TIED, PageLocks(), plan)  # type: ignore[arg-type]


def test_what_passes_leave_out_is_not_read(streamers: list[Followed]) -> None:
    of_four = ring(plan_that_reads(1, 3, 5, 8))
    of_four.follow(frozenset({3, 4}))
    of_four.follow(frozenset({3, 4}))
    of_four.follow(NOTHING)
    assert streamers[0].told[1:] == [({1, 5, 8}, 0), ({1, 3, 5, 8}, 0)]


def test_a_pass_that_reads_nothing_leaves_the_ring_as_it_is(streamers: list[Followed]) -> None:
    of_two = ring(plan_that_reads(1, 3))
    of_two.follow(NOTHING)
    of_two.follow(frozenset({1, 3}))
    of_two.follow(NOTHING)
    assert len(streamers[0].told) == 2
    ring(plan_that_reads()).follow(NOTHING)
    assert len(streamers) == 1


def test_what_is_to_stay_is_read_until_it_has_come(streamers: list[Followed]) -> None:
    moving = ring(plan_that_reads(3))
    moving.lay_out(plan_that_reads(1, 3), frozenset({4, 6}))
    moving.follow(frozenset({1}))
    assert streamers[0].told[-1] == ({3, 4, 6}, 0)
    moving.came(6)  # by another way, between two passes
    moving.follow(frozenset({1}))
    assert streamers[0].told[-1] == ({3, 4}, 0)


def test_a_block_that_stays_once_it_was_read_is_not_read_ahead_for_the_next_pass(
    streamers: list[Followed],
) -> None:
    moving = ring(plan_that_reads(1, 3))
    moving.lay_out(plan_that_reads(1, 3), frozenset({4}))
    moving.follow(NOTHING)
    moving.stays(4)
    assert streamers[0].told[-1] == ({1, 3}, 5), "the pass is behind it"
    n_told = len(streamers[0].told)
    moving.follow(NOTHING)
    assert len(streamers[0].told) == n_told, "that is what the next one needs"


def test_another_plan_with_other_blocks_to_read_has_another_ring(streamers: list[Followed]) -> None:
    moving = ring(plan_that_reads(1, 3))
    moving.follow(NOTHING)
    moving.lay_out(plan_that_reads(1, 5))
    moving.follow(NOTHING)
    assert [made.told[0] for made in streamers] == [({1, 3}, 0), ({1, 5}, 0)]
