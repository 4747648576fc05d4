"""In which order copies, steps and long passes come in the memory of long passes: no device is needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.events import Executor
from engine.tiers.blocks import Block
from engine.tiers.gpu_memory import SPARE
from engine.tiers.route import Run
from engine.tiers.spare import Spare
from engine.tiers.tier_clock import LONGEST_STEP
from kernels.errors import DeviceError
from tests.engine.tiers.shapes import TIED

A, B = [block for block in TIED if block.layer is not None][:2]
LONG = LONGEST_STEP + 1


class Sent:
    """A place behind a copy."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.events = ("copy",)

    def wait(self) -> None:
        self._world.done.append("host waits")


class World:
    """Whereabouts, device, memory and link in one: notes what is asked of them."""

    fails = False

    def __init__(self) -> None:
        self.done: list[str] = []
        self.spare: Block | None = A
        self.host = self
        self.in_ram = {A.index, B.index}

    @property
    def plan(self) -> Any:
        return SimpleNamespace(spare=None if self.spare is None else self.spare.index)

    def is_spare(self, block: Block) -> bool:
        return block is self.spare

    def resident(self, block: Block) -> tuple[()] | None:
        return () if block.index in self.in_ram else None

    def in_slot(self, slot: int, block: Block) -> Any:
        assert slot == SPARE
        return SimpleNamespace(places={"of": block})

    def send_block(self, pieces: object, native: object, places: dict[str, Block]) -> None:
        self.done.append(f"copy {'AB'[places['of'] is B]}")
        if self.fails:
            raise DeviceError("no way")


class Device:
    def __init__(self, world: World) -> None:
        self._world = world

    def record(self) -> str:
        return "main"

    def wait_for(self, event: str) -> None:
        self._world.done.append(f"main waits for {event}")


class Link:
    def __init__(self, world: World) -> None:
        self._world = world
        self.send_block = world.send_block

    def record(self) -> Sent:
        return Sent(self._world)

    def wait_for(self, event: str) -> None:
        self._world.done.append(f"link waits for {event}")


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def spare(world: Any) -> Spare[Any]:
    return Spare(world, Device(world), world, Link(world))  # type: ignore[arg-type]


STEP = [Run(Executor.GPU, (A, B))]
STREAMED = [Run(Executor.STREAM, (A,)), Run(Executor.STREAM, (B,))]


def done(world: World) -> list[str]:
    noted, world.done = world.done, []
    return noted


def test_a_copy_waits_for_the_long_pass_and_the_step_for_the_copy_once(
    spare: Spare[Any], world: World
) -> None:
    spare.begin_pass(LONG, STREAMED)
    assert done(world) == []
    spare.begin_pass(1, STEP)
    assert done(world) == ["link waits for main", "copy A"]
    spare.take(A)
    assert done(world) == ["main waits for copy"]
    for n_tokens in (1, LONGEST_STEP):
        spare.begin_pass(n_tokens, STEP)
        spare.take(A)
    assert done(world) == []
    spare.begin_pass(LONG, STREAMED)
    assert done(world) == []  # who used it has waited
    spare.begin_pass(1, STEP)
    assert done(world) == ["link waits for main", "copy A"]


def test_a_long_pass_waits_for_a_copy_that_nobody_used(spare: Spare[Any], world: World) -> None:
    spare.begin_pass(1, STEP)
    done(world)
    spare.begin_pass(LONG, STREAMED)
    assert done(world) == ["main waits for copy"]
    spare.begin_pass(LONG, STREAMED)
    assert done(world) == []


def test_a_pass_that_does_not_use_it_leaves_it_alone(spare: Spare[Any], world: World) -> None:
    spare.begin_pass(1, STEP)
    spare.take(A)
    done(world)
    spare.begin_pass(1, [Run(Executor.GPU, (B,))])
    spare.begin_pass(LONGEST_STEP, STREAMED)
    spare.begin_pass(1, STEP)
    spare.take(A)
    assert done(world) == []


def test_another_block_comes_behind_the_copy_of_the_one_before(spare: Spare[Any], world: World) -> None:
    spare.begin_pass(1, STEP)
    done(world)
    world.spare = B
    spare.begin_pass(1, STEP)
    assert done(world) == ["main waits for copy", "link waits for main", "copy B"]
    spare.take(B)
    assert done(world) == ["main waits for copy"]


def test_what_has_not_come_to_ram_is_copied_when_it_is_taken(spare: Spare[Any], world: World) -> None:
    world.in_ram.clear()
    spare.begin_pass(1, STEP)
    assert done(world) == []
    world.in_ram.add(A.index)
    spare.take(A)
    assert done(world) == ["link waits for main", "copy A", "main waits for copy"]


def test_memory_in_ram_goes_after_the_copy(spare: Spare[Any], world: World) -> None:
    spare.stop()
    assert done(world) == []
    spare.begin_pass(1, STEP)
    spare.take(A)
    done(world)
    spare.stop()
    assert done(world) == ["host waits"]
    spare.begin_pass(1, STEP)
    assert done(world) == ["link waits for main", "copy A"]
    spare.begin_pass(LONG, STREAMED)  # even if the copy was dropped
    done(world)
    spare.stop()
    assert done(world) == ["host waits"]


def test_a_copy_that_failed_does_not_pass_for_there_and_is_waited_for(
    spare: Spare[Any], world: World
) -> None:
    world.fails = True
    for begin in (lambda: spare.begin_pass(1, STEP), lambda: spare.take(A)):
        with pytest.raises(DeviceError):
            begin()
    done(world)
    spare.begin_pass(LONG, STREAMED)
    assert done(world) == ["main waits for copy"]  # a part of it may be on its way
    world.fails = False
    spare.begin_pass(1, STEP)
    spare.take(A)
    assert done(world) == ["link waits for main", "copy A", "main waits for copy"]
