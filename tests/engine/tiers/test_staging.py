"""Slots of the staging ring hold what they are said to hold, whatever fails: no device is needed."""

from __future__ import annotations

from typing import Any

import pytest

from engine.tiers.blocks import Block
from engine.tiers.staging import Staging
from kernels.errors import DeviceError
from tests.engine.tiers.shapes import TIED

A, B, C = [block for block in TIED if block.layer is not None][:3]


class Place:
    """Reached at once."""

    done = True

    @property
    def events(self) -> tuple[Place, ...]:
        return (self,)

    def wait(self) -> None:
        """Nothing."""

    def since(self, start: Place) -> float:
        return 0.001


class Matrices:
    """In a slot: the block that was copied there last."""

    def __init__(self, slot: int, block: Block) -> None:
        self.slot, self.block = slot, block
        self.places: dict[str, Any] = {}


class Way:
    """Device and link in one."""

    fails = False

    def record(self, *, timing: bool = False) -> Place:
        return Place()

    def wait_for(self, event: Place) -> None:
        """Nothing."""

    def send_block(self, *args: object) -> None:
        if self.fails:
            raise DeviceError("no way")


@pytest.fixture
def way() -> Way:
    return Way()


@pytest.fixture
def ring(way: Any) -> Staging[Any]:
    return Staging(way, way, 2, Matrices, lambda block: ())


def use(ring: Staging[Any], block: Block) -> Block:
    """A block as a pass uses it -> the one that its slot holds."""
    matrices = ring.take(block)
    ring.release(block)
    held: Block = matrices.block
    return held


def test_every_pass_finds_its_blocks(ring: Staging[Any]) -> None:
    for _ in range(3):
        ring.follow([A, B, C])
        for block in (A, B, C):
            assert use(ring, block) is block
            ring.fill()


def test_a_slot_whose_copy_failed_does_not_pass_for_filled(ring: Staging[Any], way: Way) -> None:
    ring.follow([A, B, C])
    assert use(ring, A) is A
    ring.fill()
    assert use(ring, B) is B
    way.fails = True
    with pytest.raises(DeviceError):
        ring.fill()  # of A, for the next pass, to where B was
    way.fails = False
    for _ in range(2):
        ring.follow([A, B, C])
        for block in (A, B, C):
            assert use(ring, block) is block
            ring.fill()
