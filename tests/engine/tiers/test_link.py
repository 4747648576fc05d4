"""Copies in two lanes of one link take what the link takes: no time counts twice, however pieces fall."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, pairwise

import pytest

from engine.tiers.link import Sent
from kernels.cuda.device import Event


@dataclass(frozen=True)
class At:
    """An event, by when it is reached."""

    seconds: float
    done: bool = True

    def wait(self) -> None:
        """Nothing."""

    def since(self, start: Event) -> float:
        assert isinstance(start, At)
        return self.seconds - start.seconds


class TwoLanes:
    """Two lanes that take turns with pieces; the link carries one at a time."""

    def __init__(self) -> None:
        self._free_at = 0.0
        self._lanes = [0.0, 0.0]
        self._turns = cycle((0, 1))

    def wait_until(self, seconds: float) -> None:
        self._lanes = [max(lane, seconds) for lane in self._lanes]

    def send(self, n_pieces: int) -> None:
        """Of a second each."""
        for _ in range(n_pieces):
            turn = next(self._turns)
            self._free_at = self._lanes[turn] = max(self._free_at, self._lanes[turn]) + 1

    def record(self) -> Sent:
        return Sent(tuple(map(At, self._lanes)))


@pytest.mark.parametrize("n_pieces", [1, 2, 3, 4, 5])
def test_blocks_right_behind_each_other_share_no_time(n_pieces: int) -> None:
    lanes, places = TwoLanes(), []
    for _ in range(6):
        places.append(lanes.record())
        lanes.send(n_pieces)
    places.append(lanes.record())
    assert [end.since(start) for start, end in pairwise(places)] == [n_pieces] * 6


@pytest.mark.parametrize("n_pieces", [1, 2, 3])
def test_waiting_for_a_slot_is_no_copying(n_pieces: int) -> None:
    lanes = TwoLanes()
    for slot_free_at in (10.0, 20.0, 30.0):
        lanes.wait_until(slot_free_at)
        start = lanes.record()
        lanes.send(n_pieces)
        assert lanes.record().since(start) == n_pieces
