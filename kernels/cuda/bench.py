"""How fast a GPU's products are, and plain reads, copies and uploads beside them: verified first, then timed.

Knows synthetic matrices of real shapes; does not know models, reports or cancelling. Every time is one of the
GPU's own clock around the launches of a graph that goes from one copy of a matrix to the next: more of them
than the GPU's cache holds, as a model's layers are. At the end are the short measurements that a plan rests
on, which verify nothing. Called by the engine's benchmarks and its probe, and by search.py.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np

from kernels import reference
from kernels.cuda import crossing, matrices, norms, products
from kernels.cuda.device import Array, Device, Event, Graph, Kernel
from kernels.cuda.launch_settings import LaunchSettings
from kernels.cuda.matrices import DeviceMatrix
from kernels.cuda.norms import Rounded
from kernels.errors import DeviceMemoryError
from kernels.quant_types import QuantType, row_bytes
from kernels.reference_quants import Bytes, Floats, dequantize
from kernels.synthetic import PATTERN_ROWS, synthetic_matrix
from kernels.tolerances import within

COLUMNS = (1, 2, 4, 8)
"""One step of decoding, and steps of a few tokens at once."""
SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
"""Rows and their length: attention's input and output, gate and up, down of a model of 8 billion weights."""

_ROTATED_BYTES = 640 << 20
"""Of the copies of a matrix that take turns: several times any GPU's last cache."""
_SHORTEST = 4e-3
"""Seconds of one reading, so that the clock's steps and the launch of the graph do not show."""
_PASSES = 5
_READ_BYTES = 1 << 30
_LEAST_READ_BYTES = 1 << 27
_UPLOAD_BYTES = 1 << 28
_BLOCK = 512
_BLOCKS_OF_PROCESSOR = 4
_REPACKED_ROWS = 16 * PATTERN_ROWS
"""Rows of a synthetic matrix that are uploaded; it repeats them."""
_LOOKED_AT = 33
"""Rows at the start, in the middle and at the end of a result that are compared."""
_COPY_BYTES = 32 << 20
"""Of one copy of a lane: the link's full rate."""
_LANES = 2
_AHEAD = 2
"""Copies of each lane that are under way or wait at least."""
_STEP_BYTES = 300_000_000
"""Weights of the products that are launched as a decode step launches them."""
_LONGEST_S = 0.1
"""That the host is taken to be busy beside copies, before it was so once."""
_EXPANDED = (8192, 8192)
_PROMPT_TOKENS = 512
_CROSSING_COLUMNS = 8192
_CROSSINGS = 50


class ProductTimes(NamedTuple):
    """A product of one shape with some columns, timed a number of times."""

    quant_type: QuantType
    columns: int
    """Of activations: tokens computed together."""
    rows: int
    row_length: int
    weight_bytes: int
    """Of the matrix in video memory."""
    seconds: list[float]
    """Of each repetition."""


def read_bandwidth(device: Device) -> float:
    """Bytes per second of plain reads of video memory: the best of several passes."""
    data = _as_much_as_possible(device, _READ_BYTES)
    out = device.zeros(1, np.uint32)
    kernel, grid = Kernel.of("read.cu", "read"), _BLOCKS_OF_PROCESSOR * device.n_processors
    pieces = np.uint64(data.nbytes // 16)
    graph = device.capture(lambda: device.launch(kernel, grid, _BLOCK, data, pieces, out))
    return data.nbytes / min(launch_seconds(device, graph, 1) for _ in range(_PASSES))


def copy_bandwidth(device: Device) -> float:
    """Bytes read and written per second by copies within video memory: the best of several passes."""
    data = _as_much_as_possible(device, _READ_BYTES)
    kernel, grid = Kernel.of("copy.cu", "copy"), _BLOCKS_OF_PROCESSOR * device.n_processors
    pieces = data.nbytes // 32
    from_, to = data[: pieces * 16], data[pieces * 16 :]
    graph = device.capture(lambda: device.launch(kernel, grid, _BLOCK, to, from_, np.uint64(pieces)))
    return 2 * pieces * 16 / min(launch_seconds(device, graph, 1) for _ in range(_PASSES))


def h2d_bandwidth(device: Device) -> float:
    """Bytes per second of copies from page-locked memory of the host: the best of several passes."""
    data = _as_much_as_possible(device, _UPLOAD_BYTES)
    host = device.pinned(data.nbytes)
    # Written, as pages that never were may all be one page of zeros.
    host[:] = 1
    seconds = []
    for _ in range(_PASSES):
        start = device.record(timing=True)
        device.copy_async(data, host)
        seconds.append(device.record(timing=True).since(start))
    return data.nbytes / min(seconds)


def time_products(
    device: Device,
    quant_type: QuantType,
    *,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    columns: Sequence[int] = COLUMNS,
    repetitions: int,
    before_each: Callable[[], None] = lambda: None,
    settings: LaunchSettings | None = None,
) -> list[ProductTimes]:
    """Check the very graphs that are timed afterwards, by turns in random order: an entry for each shape and
    number of columns.

    Shapes are rows and their length; those that are not whole blocks of the type are left out. What
    `before_each` raises before a product ends the measurement. Raises ArithmeticError when a product differs
    from its oracle: nothing of that shape was timed then.
    """
    times = []
    for n_rows, row_length in shapes:
        if row_length % 32 or not _whole_blocks(quant_type, row_length):
            continue
        turning = Rotation(device, quant_type, n_rows, row_length)
        timed = []
        for n_columns in columns:
            before_each()
            graph = turning.product(n_columns, settings)
            n_bytes = turning.matrices[0].data.nbytes
            timed.append((graph, ProductTimes(quant_type, n_columns, n_rows, row_length, n_bytes, [])))
        order = random.Random(0)
        for _ in range(repetitions):
            for graph, entry in order.sample(timed, len(timed)):
                before_each()
                entry.seconds.append(launch_seconds(device, graph, len(turning.matrices)))
        times += [entry for _, entry in timed]
    return times


class Rotation:
    """Copies of one synthetic matrix, as many as no cache holds, and products that go through them."""

    def __init__(
        self,
        device: Device,
        quant_type: QuantType,
        n_rows: int,
        row_length: int,
        *,
        gated: bool = False,
    ) -> None:
        """Make them; `gated` is of gate and up rows. Raises DeviceMemoryError."""
        self._device = device
        self._gated = gated
        self._native = synthetic_matrix(quant_type, min(n_rows, _REPACKED_ROWS), row_length)
        one = matrices.vram_bytes(quant_type, n_rows, row_length)
        native = device.upload(self._native)
        self.matrices = [
            _matrix(device, quant_type, n_rows, row_length, native)
            for _ in range(max(2, -(-_ROTATED_BYTES // one)))
        ]
        """All with the same contents."""
        device.fence()
        device.synchronize()
        self._inputs: dict[int, tuple[Rounded | Array, Floats, Floats]] = {}
        """By columns: x, what the product should give, and what its error may be proportional to."""
        self._outputs: list[Array] = []
        """Where the graphs write."""

    def product(self, n_columns: int, settings: LaunchSettings | None = None) -> Graph:
        """A graph with one product for each copy; it ran once, and its last result was right.

        It may be launched as long as this object is there. Raises ArithmeticError when it was wrong.
        """
        device, last = self._device, self.matrices[-1]
        x, expected, scale = self._input(n_columns)
        n_outputs = last.n_rows // 2 if self._gated else last.n_rows
        out = device.zeros((n_columns, n_outputs), np.float32)
        self._outputs.append(out)

        def all_products() -> None:
            for matrix in self.matrices:
                self._launch(device, matrix, x, out, settings)

        # Once outside: nothing may be compiled or loaded while a graph is captured.
        all_products()
        graph = device.capture(all_products)
        graph.launch()
        if not within("matmul", device.download(out)[:, _looked_at(n_outputs)], expected, scale):
            raise ArithmeticError(
                f"the {last.quant_type.name} product of {last.n_rows} rows of {last.n_columns} with "
                f"{n_columns} columns differs from its oracle"
            )
        return graph

    def launch_once(self, device: Device, n_columns: int, settings: LaunchSettings | None = None) -> None:
        """One product without looking at it, on this device or a sketch of it."""
        n_outputs = self.matrices[0].n_rows // 2 if self._gated else self.matrices[0].n_rows
        out = device.empty((n_columns, n_outputs), np.float32)
        self._launch(device, self.matrices[0], self._input(n_columns)[0], out, settings)

    def _launch(
        self,
        device: Device,
        matrix: DeviceMatrix,
        x: Rounded | Array,
        out: Array,
        settings: LaunchSettings | None,
    ) -> None:
        if self._gated:
            products.multiply_gated(device, matrix, x, out, "silu", settings=settings)
        else:
            products.multiply(device, matrix, x, out, settings=settings)

    def _input(self, n_columns: int) -> tuple[Rounded | Array, Floats, Floats]:
        if n_columns not in self._inputs:
            self._inputs[n_columns] = self._made_input(n_columns)
        return self._inputs[n_columns]

    def _made_input(self, n_columns: int) -> tuple[Rounded | Array, Floats, Floats]:
        matrix = self.matrices[-1]
        x = np.random.default_rng(1).standard_normal((n_columns, matrix.n_columns), np.float32)
        rounded: Rounded | Array = self._device.upload(x)
        seen = x
        if matrix.is_quantised:
            rounded = Rounded(*(self._device.upload(plane) for plane in reference.planes_of_15(x)))
            seen = reference.round_activations_15(x)
        if not self._gated:
            return rounded, *self._sums(seen, _looked_at(matrix.n_rows))
        half = matrix.n_rows // 2
        gate, of_gate = self._sums(seen, _looked_at(half))
        up, of_up = self._sums(seen, [half + row for row in _looked_at(half)])
        # The slope of silu stays below 1.2, and silu below |gate|.
        scale = 1.2 * of_gate * np.abs(up) + np.abs(gate) * of_up + np.abs(gate * up)
        return rounded, reference.swiglu(gate, up), scale

    def _sums(self, seen: Floats, looked_at: list[int]) -> tuple[Floats, Floats]:
        """Rows `looked_at` times x, and the sums of absolute products."""
        quant_type = self.matrices[0].quant_type
        rows = self._native.reshape(-1, row_bytes(quant_type, seen.shape[1]))
        # The matrix repeats the rows that were uploaded.
        part: Bytes = rows[[row % len(rows) for row in looked_at]].reshape(-1)
        weights = np.abs(dequantize(part, quant_type).reshape(len(looked_at), -1))
        return reference.matmul(seen, part, quant_type), np.abs(seen) @ weights.T


def launch_seconds(device: Device, graph: Graph, n_launches: int) -> float:
    """Seconds of one of a graph's launches, by the GPU's clock, from as many runs as that takes."""
    graph.launch()
    n_runs = 1
    while True:
        start = device.record(timing=True)
        for _ in range(n_runs):
            graph.launch()
        seconds = device.record(timing=True).since(start)
        if seconds >= _SHORTEST or n_runs >= 1 << 12:
            return seconds / (n_runs * n_launches)
        n_runs = max(2 * n_runs, min(1 << 12, int(1.2 * n_runs * _SHORTEST / max(seconds, 1e-6)) + 1))


def _matrix(
    device: Device, quant_type: QuantType, n_rows: int, row_length: int, native: Array
) -> DeviceMatrix:
    """A matrix that repeats the rows of `native`."""
    matrix = matrices.allocate(device, quant_type, n_rows, row_length)
    one = row_bytes(quant_type, row_length)
    step = native.nbytes // one
    for first in range(0, n_rows, step):
        n_here = min(step, n_rows - first)
        matrices.repack(device, native[: n_here * one], matrix, first, n_here)
    return matrix


def _as_much_as_possible(device: Device, n_bytes: int) -> Array:
    """Zeroed memory of so many bytes or, where there is no room, less. Raises DeviceMemoryError."""
    while True:
        try:
            return device.zeros(n_bytes, np.uint8)
        except DeviceMemoryError:
            if n_bytes // 2 < _LEAST_READ_BYTES:
                raise
            n_bytes //= 2


def _looked_at(n_rows: int) -> list[int]:
    starts = (0, n_rows // 2, max(0, n_rows - _LOOKED_AT))
    rows: Iterable[int] = (row for start in starts for row in range(start, min(start + _LOOKED_AT, n_rows)))
    return sorted(set(rows))


def _whole_blocks(quant_type: QuantType, row_length: int) -> bool:
    try:
        row_bytes(quant_type, row_length)
    except ValueError:
        return False
    return True


# ---- what a plan rests on


class CopiesBeside(NamedTuple):
    """Copies to the GPU while the host computes."""

    rate: float
    """Bytes per second of the copies."""
    calls: int
    """Of what the host did meanwhile."""
    seconds: float
    """That all calls took together."""


def copy_rate(device: Device, n_bytes: int, seconds: float) -> float:
    """Bytes per second that two lanes copy from `n_bytes` of page-locked memory, in about so many seconds."""
    copies = _Copies(device, n_bytes)
    copies.warm_up()
    copies.begin()
    while not copies.n_done or perf_counter() - copies.began < seconds:
        copies.put(_AHEAD * _LANES - copies.n_pending)
        copies.wait_for_one()
    copies.drain()
    return copies.rate


def copy_rate_beside(
    device: Device, n_bytes: int, seconds: float, beside: Callable[[], None]
) -> CopiesBeside:
    """The same while this thread calls `beside` again and again, at least once; the link is never idle."""
    copies = _Copies(device, n_bytes)
    alone = copies.warm_up()
    n_calls, longest, in_calls = 0, 0.0, 0.0
    copies.begin()
    while not n_calls or perf_counter() - copies.began < seconds:
        # So many that none is missing even if the next call takes twice as long as any before.
        ahead = 2 * (longest or _LONGEST_S) * alone
        copies.put(_AHEAD * _LANES + int(ahead / copies.bytes_of_copy) - copies.n_pending)
        started = perf_counter()
        beside()
        took = perf_counter() - started
        longest, in_calls = max(longest, took), in_calls + took
        n_calls += 1
        copies.look()
    if not copies.n_done:
        copies.wait_for_one()
    result = CopiesBeside(copies.rate, n_calls, in_calls)
    copies.drain()
    return result


class _Copies:
    """Copies of page-locked memory by turns on some lanes, counted as they are done."""

    def __init__(self, device: Device, n_bytes: int) -> None:
        """Nothing is copied yet. Raises DeviceMemoryError."""
        self.bytes_of_copy = min(_COPY_BYTES, n_bytes)
        self._host = device.pinned(n_bytes)
        # Written, as pages that never were may all be one page of zeros.
        self._host[:] = 1
        self._lanes = [(device.lane(), device.empty(self.bytes_of_copy, np.uint8)) for _ in range(_LANES)]
        self._n_put = 0
        self._pending: deque[Event] = deque()
        self.n_done = 0
        """Since `begin`."""
        self.began = self._seen = perf_counter()

    @property
    def n_pending(self) -> int:
        """Copies that were put on a lane and not seen done."""
        return len(self._pending)

    @property
    def rate(self) -> float:
        """Bytes per second from `begin` to the last copy that was seen done."""
        return self.n_done * self.bytes_of_copy / max(self._seen - self.began, 1e-9)

    def warm_up(self) -> float:
        """Copy a little, twice -> bytes per second of the second time; nothing is pending then."""
        for _ in range(2):
            self.begin()
            self.put(_AHEAD * _LANES)
            self.drain()
        return self.rate

    def begin(self) -> None:
        """Count from here."""
        self.n_done, self.began = 0, perf_counter()
        self._seen = self.began

    def put(self, n: int) -> None:
        """Put `n` copies on the lanes, from one part of the memory after the other."""
        for _ in range(n):
            lane, to = self._lanes[self._n_put % _LANES]
            first = self._n_put % (self._host.size // self.bytes_of_copy) * self.bytes_of_copy
            lane.copy_async(to, self._host[first : first + self.bytes_of_copy])
            self._pending.append(lane.record())
            self._n_put += 1

    def look(self) -> None:
        """See which are done; does not wait."""
        while self._pending and self._pending[0].done:
            self._saw_one()

    def wait_for_one(self) -> None:
        """See the next one done."""
        self._pending[0].wait()
        self._saw_one()

    def drain(self) -> None:
        """See all of them done."""
        while self._pending:
            self.wait_for_one()

    def _saw_one(self) -> None:
        self._pending.popleft()
        self.n_done += 1
        self._seen = perf_counter()


def product_rate(device: Device, quant_type: QuantType) -> float:
    """Bytes of weights per second of a decode step: products with one column, input rounded before each.

    Launched as one graph, over layers of a model of 8 billion weights. Raises DeviceMemoryError.
    """
    natives = [
        device.upload(synthetic_matrix(quant_type, min(n_rows, _REPACKED_ROWS), row_length))
        for n_rows, row_length in SHAPES
    ]
    made: list[DeviceMatrix] = []
    while sum(matrix.data.nbytes for matrix in made) < _STEP_BYTES:
        made += [
            _matrix(device, quant_type, *shape, native) for shape, native in zip(SHAPES, natives, strict=True)
        ]
    device.fence()
    widest = max(max(shape) for shape in SHAPES)
    x, out = device.zeros((1, widest), np.float32), device.zeros((1, widest), np.float32)
    rounded = {matrix.n_columns: norms.rounded(device, 1, matrix.n_columns) for matrix in made}

    def step() -> None:
        for matrix in made:
            row: Rounded | Array = x[:, : matrix.n_columns]
            if matrix.is_quantised:
                norms.round_rows(device, x[:, : matrix.n_columns], rounded=rounded[matrix.n_columns])
                row = rounded[matrix.n_columns]
            products.multiply(device, matrix, row, out[:, : matrix.n_rows])

    # Once outside: nothing may be compiled or loaded while a graph is captured.
    step()
    graph = device.capture(step)
    n_bytes = sum(matrix.data.nbytes for matrix in made)
    return n_bytes / min(launch_seconds(device, graph, 1) for _ in range(_PASSES))


def expand_flops(device: Device) -> float:
    """Multiplications and additions per second of a product of a prompt: Q4_K expanded to halves, 512 tokens.

    Two for each weight and token. Raises DeviceMemoryError.
    """
    n_rows, n_columns = _EXPANDED
    native = device.upload(synthetic_matrix(QuantType.Q4_K, min(n_rows, _REPACKED_ROWS), n_columns))
    matrix = _matrix(device, QuantType.Q4_K, n_rows, n_columns, native)
    device.fence()
    numbers = np.random.default_rng(0).standard_normal((_PROMPT_TOKENS, n_columns), np.float32)
    x = device.upload(numbers.astype(np.float16))
    halves = device.empty((n_rows, n_columns), np.float16)
    out = device.empty((_PROMPT_TOKENS, n_rows), np.float32)

    def multiply() -> None:
        matrices.dequantize(device, matrix, 0, n_rows, halves)
        device.matmul_half(x, halves, out, accumulate=False)

    multiply()
    graph = device.capture(multiply)
    seconds = min(launch_seconds(device, graph, 1) for _ in range(_PASSES))
    return 2 * n_rows * n_columns * _PROMPT_TOKENS / seconds


def crossing_seconds(device: Device) -> float:
    """Seconds to hand a row of 8,192 floats to the host and back, by the host's clock: a median.

    What a change of processor costs: a graph that brings the row from the host and takes it there, and the
    host's wait for it.
    """
    x = device.zeros((1, _CROSSING_COLUMNS), np.float32)
    row = device.pinned(x.nbytes)
    address = device.host_address(row)

    def there_and_back() -> None:
        crossing.from_host(device, address, x)
        crossing.to_host(device, x, address)

    there_and_back()
    device.synchronize()
    graph = device.capture(there_and_back)
    seconds = []
    for _ in range(_CROSSINGS):
        started = perf_counter()
        graph.launch()
        device.record().wait()
        seconds.append(perf_counter() - started)
    return median(seconds)
