"""Attention and what prepares it against the oracle, over caches whose other positions hold NaNs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernels import reference
from kernels.cuda import attention, norms
from kernels.cuda.attention import HeadNorms, KVLayout, KVMemory, KVType, Rotation
from kernels.cuda.device import Array, Device
from kernels.tolerances import within

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

POISON = 0xFF
"""A byte of NaNs, as half floats and as floats."""
LOG2_E = math.log2(math.e)


def floats(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- the layout of attention.cuh once more: where each element of a tile of 16 positions lies


def key_places(head_dim: int, *, interleaved: bool) -> Places:
    """[16, E]: the index of each element; `interleaved`: positions g and g + 8 of a lane lie together."""
    places = np.empty((16, head_dim), np.int64)
    next_place = 0
    for first in range(0, head_dim, 32):
        run = min(32, head_dim - first) // 4  # dims of a lane
        lanes, halves = ("lane", "half") if interleaved else ("half", "lane")
        sizes = {"lane": 32, "half": 2}
        for outer in range(sizes[lanes]):
            for inner in range(sizes[halves]):
                lane, half = (outer, inner) if interleaved else (inner, outer)
                dims = first + lane % 4 * run + np.arange(run)
                places[lane // 4 + 8 * half, dims] = next_place + np.arange(run)
                next_place += run
    return places


def value_places(head_dim: int, *, pairs_of_slices: bool) -> Places:
    """[16, E]; `pairs_of_slices`: two slices of 16 dims of a lane lie together."""
    places = np.empty((16, head_dim), np.int64)
    step = 32 if pairs_of_slices else 16
    next_place = 0
    for first in range(0, head_dim, step):
        for lane in range(32):
            for dim in range(first + lane // 4, min(first + step, head_dim), 16):
                for p, d in ((0, 0), (0, 8), (8, 0), (8, 8)):
                    places[2 * (lane % 4) + p + np.arange(2), dim + d] = next_place + np.arange(2)
                    next_place += 2
    return places


def step_places(n_groups: int, *, values: bool) -> Places:
    """[16, groups]: which of a tile's steps a position's is."""
    g, t = np.arange(16) % 8, np.arange(16) % 8 // 2
    within = t * 4 + np.arange(16) // 8 * 2 + np.arange(16) % 2 if values else g * 2 + np.arange(16) // 8
    places: Places = within[:, None] + 16 * np.arange(n_groups)
    return places


def groups_of_32(x: Floats) -> Floats:
    """[..., E] -> [..., groups, 32], padded with zeros."""
    padded = np.zeros((*x.shape[:-1], -(-x.shape[-1] // 32) * 32), np.float32)
    padded[..., : x.shape[-1]] = x
    return padded.reshape(*x.shape[:-1], -1, 32)


class Cache:
    """The cache of one layer on the host."""

    def __init__(self, layout: KVLayout) -> None:
        self.layout = layout
        self.keys = np.full(layout.layer_bytes, POISON, np.uint8)
        self.values = self.keys.copy()
        codes = layout.kv_type is KVType.Q8_0
        if layout.kv_type is KVType.F32:
            plain = np.arange(16 * layout.head_dim).reshape(16, -1)
            self._places = {"keys": plain, "values": plain}
        else:
            self._places = {
                "keys": key_places(layout.head_dim, interleaved=codes),
                "values": value_places(layout.head_dim, pairs_of_slices=codes),
            }

    def put(self, which: str, x: Floats) -> None:
        """Write x [KV, S, E] at position 0 onwards."""
        for kv_head, rows in enumerate(x):
            for position, row in enumerate(rows):
                tile = self._tile(which, kv_head, position)
                if self.layout.kv_type is not KVType.Q8_0:
                    tile.view(self._dtype)[self._places[which][position % 16]] = row
                    continue
                grouped = groups_of_32(row)
                steps = (np.abs(grouped).max(axis=-1) * np.float32(1 / 127)).astype(np.float16)
                codes = np.rint(grouped / np.maximum(steps.astype(np.float32), 1e-9)[:, None]).astype(np.int8)
                tile.view(np.int8)[self._places[which][position % 16]] = codes.ravel()[: len(row)]
                tile[16 * len(row) :].view(np.float16)[self._steps(which)[position % 16]] = steps

    def get(self, which: str, n_positions: int) -> Floats:
        """What is stored, [KV, S, E], with the rounding of 8-bit values to half floats that the kernels do."""
        n_heads, head_dim = self.layout.n_kv_heads, self.layout.head_dim
        out = np.empty((n_heads, n_positions, head_dim), np.float32)
        for kv_head in range(n_heads):
            for position in range(n_positions):
                tile = self._tile(which, kv_head, position)
                row = self._places[which][position % 16]
                if self.layout.kv_type is KVType.Q8_0:
                    steps = tile[16 * head_dim :].view(np.float16)[self._steps(which)[position % 16]]
                    by_dim = np.repeat(steps.astype(np.float32), 32)[:head_dim]
                    out[kv_head, position] = (by_dim * tile.view(np.int8)[row]).astype(np.float16)
                else:
                    out[kv_head, position] = tile.view(self._dtype)[row]
        return out

    def upload(self, device: Device) -> KVMemory:
        return KVMemory(self.layout, *(device.upload(x[None]) for x in (self.keys, self.values)))

    def download(self, device: Device, kv: KVMemory) -> None:
        self.keys, self.values = device.download(kv.keys)[0], device.download(kv.values)[0]

    @property
    def _dtype(self) -> Any:
        return np.float16 if self.layout.kv_type is KVType.F16 else np.float32

    def _steps(self, which: str) -> Places:
        return step_places(-(-self.layout.head_dim // 32), values=which == "values")

    def _tile(self, which: str, kv_head: int, position: int) -> Bytes:
        at = kv_head * self.layout.head_bytes + position // 16 * self.layout.tile_bytes
        whole: Bytes = getattr(self, which)
        return whole[at : at + self.layout.tile_bytes]


def state_at(device: Device, start: int) -> Array:
    return device.upload(np.array([start] + [-1] * 15, np.int32))


class Case:
    """Queries of T tokens at `start`, and a cache that holds the positions up to the last of them."""

    def __init__(
        self,
        kv_type: KVType,
        head_dim: int,
        group: int,
        n_kv_heads: int,
        n_tokens: int,
        start: int,
        window: int = 0,
    ) -> None:
        self.n_tokens, self.n_heads, self.start, self.window = n_tokens, group * n_kv_heads, start, window
        n_positions = start + n_tokens
        self.layout = KVLayout(kv_type, 1, n_kv_heads, head_dim, n_positions)
        self.cache = Cache(self.layout)
        self.cache.put("keys", floats(1, n_kv_heads, n_positions, head_dim))
        self.cache.put("values", floats(2, n_kv_heads, n_positions, head_dim) + np.float32(0.5))
        self.scale = 1 / math.sqrt(head_dim)
        self.queries = floats(3, n_tokens, self.n_heads, head_dim) * 2

    def device_queries(self, device: Device) -> Array:
        if self.layout.kv_type is KVType.F32:
            return device.upload((self.queries * self.scale).astype(np.float32))
        return device.upload((self.queries * (self.scale * LOG2_E)).astype(np.float16))

    def assert_right(self, out: Floats) -> None:
        n_positions = self.start + self.n_tokens
        keys, values = (self.cache.get(which, n_positions) for which in ("keys", "values"))
        place = (self.start, self.window, self.scale)
        expected, scale = (
            reference.attention(self.queries, keys, v, *place) for v in (values, np.abs(values))
        )
        operation = "attention" if self.layout.kv_type is KVType.F32 else "attention float16"
        rows = self.queries.shape[0], -1
        assert np.all(np.isfinite(out)), f"{np.count_nonzero(~np.isfinite(out))} values are not finite"
        worst = np.max(np.abs(out - expected.reshape(rows)))
        assert within(operation, out, expected.reshape(rows), scale.reshape(rows)), f"{worst} off"


class Step:
    """`attend_step` for a case, with the scratch that a model makes once."""

    def __init__(self, device: Device, case: Case) -> None:
        self.device, self.case = device, case
        self.kv = case.cache.upload(device)
        self.scratch = attention.step_scratch(device, case.layout, case.n_heads)
        self.width = case.n_heads * case.layout.head_dim
        self.rounded = norms.rounded(device, case.n_tokens, self.width)
        self.floats: Array = device.empty((case.n_tokens, self.width), np.float32)

    def run(self, case: Case, *, rounded: bool = True, floats: bool = True) -> None:
        attention.attend_step(
            self.device,
            case.device_queries(self.device),
            self.kv,
            0,
            state_at(self.device, case.start),
            self.scratch,
            window=case.window,
            rounded=self.rounded if rounded else None,
            floats=self.floats if floats else None,
        )


FAST = [KVType.F16, KVType.Q8_0]


@pytest.mark.parametrize("kv_type", FAST)
@pytest.mark.parametrize(
    ("head_dim", "group", "n_kv_heads", "n_tokens", "start", "window"),
    [
        (128, 4, 2, 1, 700, 0),
        (128, 4, 1, 1, 0, 0),
        (128, 4, 1, 8, 511, 0),
        (64, 1, 3, 1, 31, 0),
        (64, 3, 2, 8, 700, 100),
        (80, 1, 3, 2, 31, 0),
        (80, 8, 1, 1, 511, 31),
        (96, 9, 1, 2, 1, 0),
        (96, 3, 1, 1, 511, 512),
        (256, 4, 1, 1, 700, 0),
        (256, 3, 1, 8, 31, 16),
    ],
)
def test_a_step_attends_to_the_whole_cache(
    device: Device,
    kv_type: KVType,
    head_dim: int,
    group: int,
    n_kv_heads: int,
    n_tokens: int,
    start: int,
    window: int,
) -> None:
    case = Case(kv_type, head_dim, group, n_kv_heads, n_tokens, start, window)
    step = Step(device, case)
    for _ in range(2):  # the counters are as they were
        step.run(case)
        out = device.download(step.floats)
        case.assert_right(out)
        for plane, expected in zip(step.rounded, reference.planes_of_15(out), strict=True):
            np.testing.assert_array_equal(device.download(plane), expected)
    assert not np.any(device.download(step.scratch.counters))


def test_an_output_is_rounded_without_being_kept_as_floats(device: Device) -> None:
    for head_dim in (64, 80):  # 80: a group of 32 lies in two KV heads
        case = Case(KVType.F16, head_dim, 1, 2, 2, 40)
        step = Step(device, case)
        step.run(case)
        expected = [device.download(plane) for plane in step.rounded]
        for plane, host in zip(step.rounded, expected, strict=True):
            device.copy_async(plane, pinned_like(device, np.zeros_like(host)))
        step.run(case, floats=False)
        for plane, host in zip(step.rounded, expected, strict=True):
            np.testing.assert_array_equal(device.download(plane), host)


def pinned_like(device: Device, host: npt.NDArray[Any]) -> npt.NDArray[Any]:
    pinned = device.pinned(host.nbytes).view(host.dtype).reshape(host.shape)
    pinned[...] = host
    return pinned


def test_more_shares_than_a_block_has_warps_are_merged(device: Device) -> None:
    """One KV head: the split over the context goes as far as this device allows."""
    case = Case(KVType.F16, 64, 2, 1, 1, 1500)
    step = Step(device, case)
    assert step.scratch.partials.shape[0] > 4 * 8, "one share"
    step.run(case)
    case.assert_right(device.download(step.floats))


@pytest.mark.parametrize("kv_type", FAST)
@pytest.mark.parametrize(
    ("head_dim", "group", "n_kv_heads", "n_tokens", "start", "window"),
    [
        (128, 4, 2, 130, 0, 0),
        (64, 3, 1, 33, 511, 0),
        (64, 1, 2, 130, 31, 50),
        (80, 1, 2, 33, 1, 0),
        (96, 8, 1, 9, 70, 64),
        (256, 4, 1, 33, 31, 0),
        (256, 9, 1, 9, 100, 30),
    ],
)
def test_a_prompt_attends_to_the_cache_and_to_itself(
    device: Device,
    kv_type: KVType,
    head_dim: int,
    group: int,
    n_kv_heads: int,
    n_tokens: int,
    start: int,
    window: int,
) -> None:
    case = Case(kv_type, head_dim, group, n_kv_heads, n_tokens, start, window)
    halves = device.empty((n_tokens, case.n_heads * head_dim), np.float16)
    out = device.empty(halves.shape, np.float32)
    attention.attend_prompt(
        device,
        case.device_queries(device),
        case.cache.upload(device),
        0,
        state_at(device, start),
        window=window,
        halves=halves,
        floats=out,
    )
    host = device.download(out)
    case.assert_right(host)
    np.testing.assert_array_equal(device.download(halves), host.astype(np.float16))


@pytest.mark.parametrize(
    ("head_dim", "group", "n_tokens", "start", "window"),
    [(64, 3, 2, 200, 0), (80, 1, 1, 0, 0), (256, 4, 9, 31, 7), (128, 4, 33, 130, 140)],
)
def test_float_precision_is_exact(
    device: Device, head_dim: int, group: int, n_tokens: int, start: int, window: int
) -> None:
    case = Case(KVType.F32, head_dim, group, 2, n_tokens, start, window)
    out = device.empty((n_tokens, case.n_heads * head_dim), np.float32)
    attention.attend_float(
        device,
        case.device_queries(device),
        case.cache.upload(device),
        0,
        state_at(device, start),
        out,
        window=window,
    )
    case.assert_right(device.download(out))


@pytest.mark.parametrize("kv_type", list(KVType))
@pytest.mark.parametrize(
    ("head_dim", "rope_dim", "neox", "with_norms", "n_tokens", "start"),
    [
        (128, 128, True, True, 3, 14),
        (80, 20, False, False, 18, 1),
        (64, 64, False, True, 1, 31),
        (256, 64, True, False, 2, 0),
    ],
)
def test_keys_and_values_are_put_where_they_belong(
    device: Device,
    kv_type: KVType,
    head_dim: int,
    rope_dim: int,
    neox: bool,
    with_norms: bool,
    n_tokens: int,
    start: int,
) -> None:
    n_heads, n_kv_heads, n_positions, query_scale, eps = 3, 2, start + n_tokens, 0.25, 1e-5
    layout = KVLayout(kv_type, 1, n_kv_heads, head_dim, n_positions + 1)
    before = Cache(layout)
    kv = before.upload(device)
    angles = np.arange(n_positions)[:, None] * 0.7 ** np.arange(rope_dim // 2)
    cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    qkv, row_scale = floats(4, n_tokens, (n_heads + 2 * n_kv_heads) * head_dim), floats(5, n_tokens)
    weights = floats(6, head_dim), floats(7, head_dim)
    q = attention.queries(device, layout, n_tokens, n_heads)
    attention.append(
        device,
        device.upload(qkv),
        q,
        kv,
        0,
        state_at(device, start),
        Rotation(device.upload(cosines), device.upload(sines), neox),
        query_scale,
        row_scale=device.upload(row_scale),
        norms=HeadNorms(*map(device.upload, weights), eps) if with_norms else None,
    )

    heads = (qkv * row_scale[:, None]).reshape(n_tokens, -1, head_dim)
    parts = [heads[:, :n_heads], heads[:, n_heads : n_heads + n_kv_heads]]
    if with_norms:
        parts = [reference.rmsnorm(part, weight, eps) for part, weight in zip(parts, weights, strict=True)]
    at = slice(start, n_positions)
    queries, keys = (reference.rope(part, cosines[at], sines[at], neox=neox) for part in parts)
    values = heads[:, n_heads + n_kv_heads :]

    after = Cache(layout)
    after.download(device, kv)
    base_2 = 1 if kv_type is KVType.F32 else LOG2_E
    assert_rounded(
        kv_type,
        device.download(q).astype(np.float32),
        queries * np.float32(query_scale * base_2),
        coded=False,
    )
    for which, expected in (("keys", keys), ("values", values)):
        stored = after.get(which, n_positions)[:, at].swapaxes(0, 1)
        assert_rounded(kv_type, stored, expected, coded=True)
        # Nothing else was touched: written over with poison, the cache is what it was.
        written = getattr(after, which) != POISON
        untouched = Cache(layout)
        untouched.put(which, np.zeros((n_kv_heads, n_positions, head_dim), np.float32))
        earlier = Cache(layout)
        earlier.put(which, np.zeros((n_kv_heads, start, head_dim), np.float32))
        may_be_written = getattr(untouched, which) != getattr(earlier, which)
        assert not np.any(written & ~may_be_written), which


def assert_rounded(kv_type: KVType, stored: Floats, expected: Floats, *, coded: bool) -> None:
    """Off by no more than the rounding of the cache: half a step, where a step is 2^-10 or max / 127 of 32 dims."""
    size = np.maximum(np.abs(expected), 1e-3)
    error = np.abs(stored - expected)
    if kv_type is KVType.F32:
        assert np.all(error <= 4e-6 * np.max(size))
    elif kv_type is KVType.Q8_0 and coded:
        tops = np.repeat(np.abs(groups_of_32(expected)).max(axis=-1), 32, axis=-1)[..., : expected.shape[-1]]
        assert np.all(error <= tops / 127 * 0.51 + tops * 2**-10)
    else:
        assert np.all(error <= size * 2**-10)


def test_a_cache_knows_its_size_before_it_is_allocated(device: Device) -> None:
    layout = KVLayout(KVType.F16, 3, 2, 64, 100)
    kv = attention.kv_memory(device, layout)
    assert kv.keys.nbytes + kv.values.nbytes == layout.n_bytes == 3 * 2 * 2 * 128 * 64 * 2
    assert not np.any(device.download(kv.keys))
    assert KVLayout(KVType.Q8_0, 1, 1, 80, 64).n_bytes == 2 * 64 * (80 + 3 * 2)
    with pytest.raises(ValueError, match="multiple of 16"):
        KVLayout(KVType.F16, 1, 1, 72, 64)
