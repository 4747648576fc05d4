"""Lanes beside the main stream: what is waited for is there, and on the emulator what is not is missed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from kernels.cuda import matrices, pace, products
from kernels.cuda.crossing import from_host, to_host
from kernels.cuda.device import Array, Device, Event, Kernel
from kernels.cuda.pace import PacedLane
from kernels.cuda.page_locks import PAGE
from kernels.cuda.sketch import Sketch
from kernels.quant_types import QuantType
from kernels.reference_quants import dequantize
from tests.kernels.cuda import emulated_device
from tests.kernels.cuda.emulated_device import EmulatedDevice, EmulationError
from tests.kernels.cuda.test_matrices import native

N = 1000

emulated = pytest.mark.skipif(
    bool(emulated_device.compiler_missing()), reason=emulated_device.compiler_missing()
)


def pinned(device: Device, values: Any) -> Any:
    """Page-locked memory with these values."""
    host = device.pinned(values.nbytes).view(values.dtype).reshape(values.shape)
    host[...] = values
    return host


def pages(n: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Whole pages of ordinary memory."""
    memory = np.zeros((n + 1) * PAGE, np.uint8)
    first = -memory.ctypes.data % PAGE
    return memory[first : first + n * PAGE]


def copy(device: Device, to: Array, from_: Array) -> None:
    """By a kernel, on the main stream."""
    device.launch(Kernel.of("copy.cu", "copy"), 2, 64, to, from_, np.uint64(to.nbytes // 16))


def test_the_main_stream_sees_what_a_lane_brought(device: Device) -> None:
    values = np.arange(N, dtype=np.float32)
    lane, to, out = device.lane(), device.zeros(N, np.float32), device.zeros(N, np.float32)
    lane.wait_for(device.record())
    lane.copy_async(to, pinned(device, values))
    device.wait_for(lane.record())
    copy(device, out, to)
    np.testing.assert_array_equal(device.download(out), values)


def test_a_thread_that_has_entered_fills_a_lane(device: Device) -> None:
    values = np.arange(N, dtype=np.float32)
    host = pinned(device, values)
    lane, to, out = device.lane(), device.zeros(N, np.float32), device.zeros(N, np.float32)
    zeroed = device.record()

    def fill() -> Event:
        lane.wait_for(zeroed)
        lane.copy_async(to, host)
        return lane.record(timing=True)

    with ThreadPoolExecutor(1, initializer=device.enter) as pool:
        device.wait_for(pool.submit(fill).result())
    copy(device, out, to)
    np.testing.assert_array_equal(device.download(out), values)


def test_a_slot_is_filled_again_and_again(device: Device) -> None:
    """Two lanes and one slot: each copy waits for the use before it, each use for its copy."""
    lanes, slot = [device.lane(), device.lane()], device.zeros((1, 32), np.float32)
    given = pinned(device, np.arange(640, dtype=np.float32).reshape(20, 32))
    results = device.pinned(given.nbytes).view(np.float32).reshape(20, 32)
    used = device.record()
    for i in range(20):
        lane = lanes[i % 2]
        lane.wait_for(used)
        lane.copy_async(slot, given[i : i + 1])
        device.wait_for(lane.record())
        to_host(device, slot, device.host_address(results[i]))
        used = device.record()
    used.wait()
    np.testing.assert_array_equal(results, given)


def test_a_lane_lays_out_a_matrix_in_a_slot(device: Device) -> None:
    data = native(QuantType.Q4_K, 8, 256)
    n_bytes = matrices.vram_bytes(QuantType.Q4_K, 8, 256)
    slot, buffer, lane = device.zeros(2 * n_bytes, np.uint8), device.zeros(data.size, np.uint8), device.lane()
    matrix = matrices.matrix_in(slot[n_bytes:], QuantType.Q4_K, 8, 256)
    lane.wait_for(device.record())
    lane.copy_async(buffer, pinned(device, data.reshape(-1)))
    matrices.repack(lane, buffer, matrix, 0, 8)
    device.wait_for(lane.record())
    x = np.random.default_rng(0).standard_normal((1, 256), np.float32)
    out = device.zeros((1, 8), np.float32)
    products.multiply(device, matrix, device.upload(x), out)
    expected = x @ dequantize(data.reshape(-1), QuantType.Q4_K).reshape(8, 256).T
    np.testing.assert_allclose(device.download(out), expected, rtol=1e-4, atol=1e-4)


def test_asking_an_event_ends(device: Device) -> None:
    lane, to = device.lane(), device.zeros(N, np.float32)
    lane.wait_for(device.record())
    lane.copy_async(to, pinned(device, np.ones(N, np.float32)))
    lane.copy_async(to, pinned(device, np.full(N, 2, np.float32)))
    event = lane.record()
    for _ in range(1_000_000):
        if event.done:
            break
    assert event.done
    assert (device.download(to) == 2).all()


def test_events_of_a_lane_keep_the_time(device: Device) -> None:
    lane, to = device.lane(), device.zeros(N, np.float32)
    start = lane.record(timing=True)
    lane.copy_async(to, pinned(device, np.ones(N, np.float32)))
    assert lane.record(timing=True).since(start) >= 0


def test_memory_is_locked_copied_from_and_unlocked(device: Device) -> None:
    memory = pages(3)
    memory[:] = np.arange(memory.size) % 251
    lane, to = device.lane(), device.zeros(memory.size, np.uint8)
    lane.wait_for(device.record())
    assert device.lock(memory)
    with pytest.raises(ValueError, match="already"):
        device.lock(memory)
    for host in (memory, memory[PAGE + 5 : 2 * PAGE]):
        lane.copy_async(to[: host.size], host)
        lane.record().wait()
        np.testing.assert_array_equal(device.download(to[: host.size]), host)
    device.copy_async(to, memory)
    device.synchronize()
    device.unlock(memory)
    assert device.lock(memory[:PAGE])
    device.unlock(memory[:PAGE])


@pytest.mark.parametrize("cut", [(0, 0), (100, 100), (PAGE - 1, PAGE - 1)])
def test_copies_run_over_the_edges_of_locked_memory(device: Device, cut: tuple[int, int]) -> None:
    """Only whole pages are locked; in the middle a part is locked by itself."""
    whole = pages(6)
    whole[:] = np.arange(whole.size) % 241
    memory, middle = whole[cut[0] : whole.size - cut[1]], whole[2 * PAGE : 3 * PAGE]
    assert device.lock(middle)
    assert device.lock(whole[3 * PAGE : whole.size - cut[1]])
    lane, to = device.lane(), device.zeros(memory.size, np.uint8)
    lane.wait_for(device.record())
    lane.copy_async(to, memory)
    lane.record().wait()
    np.testing.assert_array_equal(device.download(to), memory)
    device.unlock(middle)
    device.unlock(whole[3 * PAGE : whole.size - cut[1]])


def test_less_than_a_page_is_left_as_it_is(device: Device) -> None:
    few = pages(2)[1 : PAGE - 1]
    assert device.lock(few) and device.lock(few)
    device.unlock(few)


def test_a_lane_copies_from_ordinary_memory_too(device: Device) -> None:
    values = np.arange(100_000, dtype=np.float32)
    lane, to = device.lane(), device.zeros(values.size, np.float32)
    lane.wait_for(device.record())
    lane.copy_async(to, values)
    lane.record().wait()
    np.testing.assert_array_equal(device.download(to), values)


# ---- crossing


@pytest.mark.parametrize("shape", [(1, 32), (1, 8192), (3, 96), (65, 576)])
def test_hidden_states_cross_and_come_back(device: Device, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape).astype(np.float32)
    host = device.pinned(x.nbytes + 32).view(np.float32)
    host[:] = -1
    row = host[4 : 4 + x.size]
    to_host(device, device.upload(x), device.host_address(row))
    device.record().wait()
    np.testing.assert_array_equal(row.reshape(shape), x)
    assert (host[:4] == -1).all() and (host[4 + x.size :] == -1).all()
    row *= 2
    back = device.zeros((shape[0] + 1, shape[1]), np.float32)
    from_host(device, device.host_address(row), back[:-1])
    np.testing.assert_array_equal(device.download(back), np.vstack([2 * x, np.zeros((1, shape[1]))]))


def test_a_graph_crosses_with_what_the_host_wrote_last(device: Device) -> None:
    x = device.zeros((1, 64), np.float32)
    come, go = (device.pinned(256).view(np.float32) for _ in range(2))
    addresses = device.host_address(come), device.host_address(go)

    def run() -> None:
        from_host(device, addresses[0], x)
        to_host(device, x, addresses[1])

    come[:] = 0
    run()
    device.synchronize()
    graph = device.capture(run)
    for i in range(5):
        come[:] = np.arange(64) * (i + 1)
        graph.launch()
        device.record().wait()
        np.testing.assert_array_equal(go, come)


def test_what_does_not_cross_is_refused() -> None:
    sketch = Sketch(EmulatedDevice)
    good = np.uint64(64)
    for x, address in (
        (sketch.empty((1, 33), np.float32), good),
        (sketch.empty((1, 64), np.float16), good),
        (sketch.empty((2, 64), np.float32)[:, :32], good),
        (sketch.empty((1, 64), np.float32), np.uint64(8)),
    ):
        with pytest.raises(ValueError, match="does not cross"):
            to_host(sketch, x, address)


# ---- pace


def test_a_paced_lane_takes_the_time_of_a_slower_link(device: Device) -> None:
    """Copies without a pause take as long as their bytes at the rate, whatever a single one takes."""
    host, to = pinned(device, np.arange(64, dtype=np.float32)), device.zeros(64, np.float32)
    device.synchronize()
    lane = PacedLane(device, 256 / 2e-3)
    start = lane.record(timing=True)
    for _ in range(10):
        lane.copy_async(to, host)
    end = lane.record(timing=True)
    assert end.since(start) > 0.019
    device.wait_for(end)
    np.testing.assert_array_equal(device.download(to), host)


def test_a_link_that_was_idle_does_not_catch_up(device: Device) -> None:
    """The time of a copy counts from where it begins."""
    busy_until = device.zeros(1, np.uint64)
    device.launch(pace._OCCUPY, 1, 32, busy_until, np.uint64(1_000_000_000))
    first = int(device.download(busy_until)[0])
    device.launch(pace._OCCUPY, 1, 32, busy_until, np.uint64(1000))
    assert int(device.download(busy_until)[0]) == first + 1000
    for until in (first - 5_000_000_000, 0):
        busy_until = device.upload(np.array([until], np.uint64))
        device.launch(pace._OCCUPY, 1, 32, busy_until, np.uint64(1000))
        assert int(device.download(busy_until)[0]) > first - 1_000_000_000
    device.launch(pace._HOLD, 1, 32, busy_until)
    device.synchronize()


# ---- the sketch


def test_a_sketch_notes_kernels_of_lanes_and_grants_everything() -> None:
    sketch = Sketch(EmulatedDevice)
    lane, host = PacedLane(sketch, 1e9), np.zeros(16, np.uint8)
    lane.wait_for(sketch.record())
    lane.copy_async(sketch.empty(16, np.uint8), host)
    event = lane.record()
    sketch.wait_for(event)
    assert event.done and sketch.lock(host)
    sketch.unlock(host)
    assert [launch.kernel.name for launch in sketch.launches] == ["occupy", "hold"]


# ---- what is forgotten shows on the emulator


def brought(device: EmulatedDevice) -> tuple[Array, Event]:
    """A copy of ones by a lane over zeros, and the place behind it."""
    to, lane = device.zeros(N, np.float32), device.lane()
    lane.wait_for(device.record())
    lane.copy_async(to, pinned(device, np.ones(N, np.float32)))
    return to, lane.record()


@emulated
def test_a_copy_that_nobody_waits_for_has_not_arrived() -> None:
    device = EmulatedDevice()
    to, event = brought(device)
    assert (device.download(to) == 0).all()
    event.wait()
    assert (device.download(to) == 1).all()


@emulated
def test_a_thread_that_has_not_entered_is_refused() -> None:
    device = EmulatedDevice()
    lane = device.lane()
    with ThreadPoolExecutor(1) as pool, pytest.raises(EmulationError, match="entered"):
        pool.submit(lane.record).result()


@emulated
def test_a_source_that_is_overwritten_too_early_shows() -> None:
    device = EmulatedDevice()
    host, to, lane = pinned(device, np.ones(N, np.float32)), device.zeros(N, np.float32), device.lane()
    lane.copy_async(to, host)
    host[:] = 5
    lane.record().wait()
    assert (device.download(to) == 5).all()


@emulated
def test_a_slot_that_is_filled_while_it_is_read_shows_where_the_main_stream_is_late() -> None:
    for waits in (True, False):
        device = EmulatedDevice(late="main")
        slot, out = device.upload(np.full(N, 3, np.float32)), device.zeros(N, np.float32)
        copy(device, out, slot)
        lane = device.lane()
        if waits:
            lane.wait_for(device.record())
        lane.copy_async(slot, pinned(device, np.full(N, 4, np.float32)))
        assert (device.download(out) == (3 if waits else 4)).all()


@emulated
def test_the_host_does_not_see_results_before_it_waits_where_the_main_stream_is_late() -> None:
    device = EmulatedDevice(late="main")
    host = device.pinned(128).view(np.float32)
    host[:] = 0
    to_host(device, device.upload(np.ones((1, 32), np.float32)), device.host_address(host))
    assert (host == 0).all()
    device.record().wait()
    assert (host == 1).all()


@emulated
def test_memory_that_is_dropped_before_it_is_used_is_freed_afterwards() -> None:
    device = EmulatedDevice(late="main")
    before = device.used_bytes
    out = device.zeros(N, np.float32)
    for value in range(3):
        copy_by_graph(device, out, value)
    assert (device.download(out) == 2).all()
    del out
    assert device.used_bytes == before


def copy_by_graph(device: EmulatedDevice, out: Array, value: int) -> None:
    """From memory to which nothing refers afterwards."""
    given = device.upload(np.full(N, value, np.float32))
    device.capture(lambda: copy(device, out, given)).launch()


@emulated
def test_a_lane_that_waits_for_another_has_it_go_first() -> None:
    device = EmulatedDevice()
    first, second, to = device.lane(), device.lane(), device.zeros(N, np.float32)
    first.copy_async(to, pinned(device, np.ones(N, np.float32)))
    second.wait_for(first.record())
    second.copy_async(to, pinned(device, np.full(N, 2, np.float32)))
    second.record().wait()
    first.record().wait()
    assert (device.download(to) == 2).all()


@emulated
def test_locking_is_refused_beyond_a_limit_and_counted() -> None:
    device = EmulatedDevice(lockable_bytes=2 * PAGE)
    memory = pages(3)
    assert device.lock(memory[:PAGE])
    assert not device.lock(memory[PAGE:])
    assert device.locked_bytes == PAGE
    lane, to = device.lane(), device.zeros(PAGE, np.uint8)
    lane.copy_async(to, memory[:PAGE])
    assert device.unlocked_copies == 0
    lane.copy_async(to, memory[PAGE : 2 * PAGE])
    assert device.unlocked_copies == 1
    with pytest.raises(EmulationError, match="not pinned"):
        device.copy_async(to, memory[PAGE : 2 * PAGE])
    with pytest.raises(EmulationError, match="still to copy"):
        device.unlock(memory[:PAGE])
    lane.record().wait()
    device.unlock(memory[:PAGE])
    with pytest.raises(EmulationError, match="not locked"):
        device.unlock(memory[:PAGE])


@emulated
def test_a_graph_waits_for_no_lane() -> None:
    device = EmulatedDevice()
    _, event = brought(device)
    with pytest.raises(EmulationError, match="while a graph is captured"):
        device.capture(lambda: device.wait_for(event))
