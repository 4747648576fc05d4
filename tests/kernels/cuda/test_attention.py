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

    def put(self, which: str, x: Floats, start: int = 0) -> None:
        """Write x [KV, S, E] at position `start` onwards."""
        for kv_head, rows in enumerate(x):
            for position, row in enumerate(rows, start):
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
        """What is stored, [KV, S, E]; 8-bit values as the half floats that the kernels make of them."""
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


class Heads:
    """What a product gives for T tokens at `start`, and what it comes to before attention."""

    def __init__(
        self,
        head_dim: int,
        n_heads: int,
        n_kv_heads: int,
        n_tokens: int,
        start: int,
        *,
        rope_dim: int,
        neox: bool,
        with_norms: bool,
    ) -> None:
        angles = np.arange(start + n_tokens)[:, None] * 0.7 ** np.arange(rope_dim // 2)
        self.cosines, self.sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self.neox, self.query_scale, self.eps = neox, 1 / math.sqrt(head_dim), 1e-5
        self.qkv = floats(4, n_tokens, (n_heads + 2 * n_kv_heads) * head_dim) * 2
        self.weights = (floats(6, head_dim), floats(7, head_dim)) if with_norms else None
        heads = self.qkv.reshape(n_tokens, -1, head_dim)
        queries, keys, self.values = np.split(heads, [n_heads, n_heads + n_kv_heads], axis=1)
        if self.weights:
            queries, keys = (
                reference.rmsnorm(x, weight, self.eps)
                for x, weight in zip((queries, keys), self.weights, strict=True)
            )
        tables = self.cosines[start:], self.sines[start:]
        self.queries, self.keys = (reference.rope(x, *tables, neox=neox) for x in (queries, keys))

    def rotation(self, device: Device) -> Rotation:
        return Rotation(device.upload(self.cosines), device.upload(self.sines), self.neox)

    def head_norms(self, device: Device) -> HeadNorms | None:
        if self.weights is None:
            return None
        query_weight, key_weight = map(device.upload, self.weights)
        return HeadNorms(query_weight, key_weight, self.eps)


class Case:
    """T tokens at `start`, and a cache that holds the positions before them."""

    def __init__(
        self,
        kv_type: KVType,
        head_dim: int,
        group: int,
        n_kv_heads: int,
        n_tokens: int,
        start: int,
        window: int = 0,
        *,
        with_norms: bool = False,
    ) -> None:
        self.n_tokens, self.n_heads, self.start, self.window = n_tokens, group * n_kv_heads, start, window
        self.layout = KVLayout(kv_type, 1, n_kv_heads, head_dim, start + n_tokens)
        self.cache = Cache(self.layout)
        self.cache.put("keys", floats(1, n_kv_heads, start, head_dim))
        self.cache.put("values", floats(2, n_kv_heads, start, head_dim) + np.float32(0.5))
        self.heads = Heads(
            head_dim,
            self.n_heads,
            n_kv_heads,
            n_tokens,
            start,
            rope_dim=head_dim,
            neox=True,
            with_norms=with_norms,
        )

    def device_queries(self, device: Device) -> Array:
        """As `append` leaves them; the cache then holds all positions."""
        self.cache.put("keys", self.heads.keys.swapaxes(0, 1), self.start)
        self.cache.put("values", self.heads.values.swapaxes(0, 1), self.start)
        scale = self.heads.query_scale
        if self.layout.kv_type is KVType.F32:
            return device.upload(self.heads.queries * np.float32(scale))
        return device.upload((self.heads.queries * np.float32(scale * LOG2_E)).astype(np.float16))

    def assert_right(self, out: Floats) -> None:
        """Whether `out` [T, H * E] is attention to what the cache holds."""
        keys, values = (self.cache.get(which, self.start + self.n_tokens) for which in ("keys", "values"))
        place = (self.start, self.window, self.heads.query_scale)
        expected, scale = (
            reference.attention(self.heads.queries, keys, v, *place).reshape(self.n_tokens, -1)
            for v in (values, np.abs(values))
        )
        assert np.all(np.isfinite(out)), f"{np.count_nonzero(~np.isfinite(out))} values are not finite"
        operation = "attention" if self.layout.kv_type is KVType.F32 else "attention float16"
        assert within(operation, out, expected, scale), f"{np.max(np.abs(out - expected))} off"


class Step:
    """`attend_step` for a case, with the scratch that a model makes once."""

    def __init__(self, device: Device, case: Case) -> None:
        self.device, self.case = device, case
        self.kv = case.cache.upload(device)
        self.scratch = attention.step_scratch(device, case.layout, case.n_heads)
        width = case.n_heads * case.layout.head_dim
        self.rounded = norms.rounded(device, case.n_tokens, width)
        self.floats: Array = device.empty((case.n_tokens, width), np.float32)

    def run(self, *, rounded: bool = True, floats: bool = True) -> None:
        heads = self.case.heads
        attention.attend_step(
            self.device,
            self.device.upload(heads.qkv),
            self.kv,
            0,
            state_at(self.device, self.case.start),
            self.scratch,
            heads.rotation(self.device),
            heads.query_scale,
            norms=heads.head_norms(self.device),
            window=self.case.window,
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
    case = Case(kv_type, head_dim, group, n_kv_heads, n_tokens, start, window, with_norms=n_tokens == 1)
    step = Step(device, case)
    for _ in range(2):  # the counters are as they were
        step.run()
        case.cache.download(device, step.kv)
        out = device.download(step.floats)
        case.assert_right(out)
        for plane, expected in zip(step.rounded, reference.planes_of_15(out), strict=True):
            np.testing.assert_array_equal(device.download(plane), expected)
    assert_appended(case.cache, case.heads, start)
    assert not np.any(device.download(step.scratch.counters))


def test_an_output_is_rounded_without_being_kept_as_floats(device: Device) -> None:
    for head_dim in (64, 80):  # 80: a group of 32 lies in two KV heads
        case = Case(KVType.F16, head_dim, 1, 2, 2, 40)
        step = Step(device, case)
        step.run()
        expected = [device.download(plane) for plane in step.rounded]
        for plane, host in zip(step.rounded, expected, strict=True):
            device.copy_async(plane, pinned_like(device, np.zeros_like(host)))
        step.run(floats=False)
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
    step.run()
    case.cache.download(device, step.kv)
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
    q = case.device_queries(device)
    attention.attend_prompt(
        device,
        q,
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
    q = case.device_queries(device)
    attention.attend_float(
        device,
        q,
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
    n_heads, n_kv_heads = 3, 2
    heads = Heads(
        head_dim, n_heads, n_kv_heads, n_tokens, start, rope_dim=rope_dim, neox=neox, with_norms=with_norms
    )
    layout = KVLayout(kv_type, 1, n_kv_heads, head_dim, start + n_tokens)
    cache = Cache(layout)
    kv = cache.upload(device)
    row_scale = 2.0 ** np.arange(n_tokens).astype(np.float32)
    q = attention.queries(device, layout, n_tokens, n_heads)
    attention.append(
        device,
        device.upload(heads.qkv / row_scale[:, None]),
        q,
        kv,
        0,
        state_at(device, start),
        heads.rotation(device),
        heads.query_scale,
        row_scale=device.upload(row_scale),
        norms=heads.head_norms(device),
    )
    base_2 = 1 if kv_type is KVType.F32 else LOG2_E
    queries = device.download(q).astype(np.float32)
    assert_kept(kv_type, queries, heads.queries * np.float32(heads.query_scale * base_2), in_codes=False)
    cache.download(device, kv)
    assert_appended(cache, heads, start)


def assert_appended(cache: Cache, heads: Heads, start: int) -> None:
    """The keys and values of `heads` are where they belong, and nothing was touched beyond them."""
    n_positions = start + len(heads.keys)
    for which, expected in (("keys", heads.keys), ("values", heads.values)):
        stored = cache.get(which, n_positions)[:, start:].swapaxes(0, 1)
        assert_kept(cache.layout.kv_type, stored, expected, in_codes=True)
        filled = Cache(cache.layout)
        filled.put(which, np.zeros((cache.layout.n_kv_heads, n_positions, cache.layout.head_dim), np.float32))
        beyond = getattr(filled, which) == POISON
        assert np.all(getattr(cache, which)[beyond] == POISON), which


def assert_kept(kv_type: KVType, stored: Floats, expected: Floats, *, in_codes: bool) -> None:
    """Off by no more than half a step and what rotation rounds: a step is 2^-10, or max / 127 of 32 dims."""
    size = np.maximum(np.abs(expected), 1e-3)
    error = np.abs(stored - expected)
    if kv_type is KVType.F32:
        assert np.all(error <= 4e-6 * np.max(size))
    elif kv_type is KVType.Q8_0 and in_codes:
        tops = np.repeat(np.abs(groups_of_32(expected)).max(axis=-1), 32, axis=-1)[..., : expected.shape[-1]]
        assert np.all(error <= tops * (0.51 / 127 + 2**-10))
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
