"""A model over several tiers, loaded once in one configuration and measured, for measure_tiers.py.

Knows how to load, ask and time through the engine's door, and the probes for the links. Writes every figure
to the file of results as soon as it is there. Does not know bounds, marks or tables (tier_table.py). Prompts
are text without sense, none like another, so that nothing is found in the cache; drawing is greedy.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import string
import subprocess
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from ctypes import CDLL, c_size_t, c_void_p
from dataclasses import asdict, dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from app import locations
from engine import (
    CancelToken,
    Engine,
    EngineState,
    ExecutorChoice,
    GenerationStats,
    LoadOptions,
    Reply,
    Request,
    SamplingParams,
    TierSnapshot,
    open_gguf,
    parse_budget,
)
from engine.machine import cores_beside_gpu
from engine.model_config import read_model_config
from engine.requirements import main_weight_type
from engine.tiers.blocks import weight_blocks
from engine.tiers.direct_io import DirectFiles
from engine.tiers.probe import GpuToProbe, probe_disk, probe_link, probe_memory

GREEDY = SamplingParams(temperature=0)
POLL_S = 0.01
"""Shorter than a step of what is measured here, long enough to cost nothing."""
SETTLING_S = 60.0
"""How long a model may take to be where the plan wants it; measured as it is then."""
STEPS_S = 5.0
"""Of one series of decode steps."""
LEAST_STEPS = 5
"""Of one series, however long they take."""
_REQUEST_BYTES = 16 << 20
"""Of one direct read."""
CANCEL = CancelToken()
"""For functions that can be stopped; nothing stops them here but the end of the process."""


class Failed(Exception):
    """A configuration that cannot be measured, in one line."""


class Configuration(NamedTuple):
    """How a model is loaded, and what is measured then."""

    words: str
    measure: Callable[[Subject], None]
    vram: str | None = None
    """Budget, as typed."""
    ram: str | None = None
    threads: int | None = None
    """None takes all cores."""
    link_limit: float | None = None
    """Bytes per second."""
    executor: ExecutorChoice = ExecutorChoice.AUTO
    context: int = 1024
    """Tokens that the cache has room for."""
    limit_s: float = 90.0
    """When its process is stopped."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in one configuration, and where its figures go."""

    model: Path
    device: str
    configuration: Configuration
    results: Path
    key: str

    def put(self, **figures: object) -> None:
        """Keep figures, whole or not at all, beside those that are there."""
        put(self.results, self.key, **figures)

    @property
    def options(self) -> LoadOptions:
        """As the engine takes them."""
        chosen = self.configuration
        return LoadOptions(
            self.model,
            device=self.device,
            context=chosen.context,
            threads=chosen.threads,
            ram_budget=parse_budget(chosen.ram) if chosen.ram else None,
            vram_budget=parse_budget(chosen.vram) if chosen.vram else None,
            executor=chosen.executor,
            link_limit=chosen.link_limit,
            rates_file=locations.rates_file(),
            cache_dir=locations.cache_dir(),
        )


def put(results: Path, key: str, **figures: object) -> None:
    """Keep figures of the entry `key`, whole or not at all, beside what is there."""
    entries = read_results(results)
    entries.setdefault(key, {}).update(figures)
    temporary = results.with_name(results.name + ".new")
    temporary.write_text(json.dumps(entries, indent=1), encoding="utf-8")
    os.replace(temporary, results)


def read_results(results: Path) -> dict[str, dict[str, Any]]:
    """Entries by model and configuration; none where there is no such file."""
    if not results.exists():
        return {}
    entries: dict[str, dict[str, Any]] = json.loads(results.read_text(encoding="utf-8"))
    return entries


# -- what configurations measure


def speed(subject: Subject) -> None:
    """Decode steps."""
    with _settled(subject) as engine:
        _measure_steps(subject, engine)


def speed_and_prompts(subject: Subject) -> None:
    """Decode steps, and prompts of 512 tokens, and of 4,096 where there is room."""
    with _settled(subject) as engine:
        _measure_steps(subject, engine)
        for n_tokens, times in ((512, 3), (4096, 2)):
            if n_tokens >= subject.configuration.context:
                break
            _prompt(engine, n_tokens, seed=n_tokens)
            runs = [_prompt(engine, n_tokens, seed=n_tokens + n) for n in range(1, times + 1)]
            middle = sorted(runs, key=lambda run: run["seconds"])[len(runs) // 2]
            slowest = max(run["seconds"] for run in runs)
            subject.put(**{f"prefill_{n_tokens}": {**middle, "slowest_s": slowest, "runs": times}})


def speed_from_disk(subject: Subject) -> None:
    """Decode steps by turns with direct reads of the file."""
    rates = [probe_disk(subject.model, CANCEL)]
    with _settled(subject) as engine:
        _measure_steps(subject, engine, n_series=1)
        rates.append(probe_disk(subject.model, CANCEL))
    subject.put(disk_rates=rates)


def moves(subject: Subject) -> None:
    """The budget halved and given back in the middle of a reply: pauses, and ids that are not as before."""
    n_steps = 96
    with _settled(subject) as engine:
        prompt = _text(engine, 32, seed=1)
        undisturbed = engine.ask(Request(prompt=prompt, sampling=GREEDY, max_tokens=n_steps))
        _follow(undisturbed)
        usual = parse_budget(subject.configuration.vram or "100%")
        half = parse_budget(str(usual.resolve(0) // 2))
        changes = iter(((n_steps // 8, half), (n_steps // 2, usual)))
        due, budget = next(changes)
        reply = engine.ask(Request(prompt=prompt, sampling=GREEDY, max_tokens=n_steps))
        marks: list[tuple[float, int, int, bool]] = []

        def on_poll(stats: GenerationStats) -> None:
            nonlocal due, budget
            tiers = _tiers(engine)
            mark = (stats.completion_tokens, tiers.vram_bytes, tiers.settled)
            if not marks or mark != marks[-1][1:]:
                marks.append((stats.decode_s, *mark))
            if stats.completion_tokens >= due:
                engine.set_vram_budget(budget)
                due, budget = next(changes, (n_steps + 1, usual))

        steps = _follow(reply, on_poll=on_poll)
        pairs = zip(undisturbed.token_ids, reply.token_ids, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        subject.put(
            moves={
                "tokens": len(reply.token_ids),
                "equal_from_the_beginning": same,
                "longest_pause_s": max(_seconds(steps)),
                "seconds_tokens_vram_settled": marks,
                "events": [event.text for event in _tiers(engine).events],
            }
        )


def crowd(subject: Subject) -> None:
    """Another process takes all video memory in the middle of a conversation."""
    with _settled(subject) as engine:
        prompt = _text(engine, 32, seed=2)
        before = _follow(engine.ask(Request(prompt=prompt, sampling=GREEDY, max_tokens=16)))
        other = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("measure_tiers.py")), "take", subject.device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert other.stdin is not None, "see above"
        assert other.stdout is not None, "see above"
        try:
            taken = other.stdout.readline().strip()
            if not taken:
                raise Failed("the other process could not take video memory: its error is above")
            beside = _follow(engine.ask(Request(prompt=prompt, sampling=GREEDY, max_tokens=24)))
        finally:
            other.stdin.close()
            other.wait(30)
        after = _follow(engine.ask(Request(prompt=prompt, sampling=GREEDY, max_tokens=24)))
        subject.put(
            crowd={
                "taken": taken,
                "tok_s": [_rate(steps) for steps in (before, beside, after)],
                "events": [event.text for event in _tiers(engine).events],
                "notices": list(engine.snapshot.notices),
            }
        )


def cold(subject: Subject) -> None:
    """From nothing in the page cache to the plan's speed, a reply being asked for at once.

    Beside it, before and after, the whole file by direct reads: a disk that is shared gives for a second what
    it does not give for twenty.
    """
    rate = _direct_rate(subject.model)
    cached = _drop_from_page_cache(subject.model)
    subject.put(disk_rates=[rate], cached_bytes=cached)
    engine = Engine()
    with closing(engine):
        started = time.perf_counter()
        engine.load(subject.options)
        replies = [engine.ask(Request(prompt="Once upon a time", sampling=GREEDY, max_tokens=4000))]
        arrivals: list[float] = []
        samples: list[dict[str, float | bool]] = []
        settled_s: float | None = None
        while (now := time.perf_counter() - started) < subject.configuration.limit_s - 15:
            if engine.snapshot.state is EngineState.FAILED:
                raise Failed(engine.snapshot.error)
            if replies[-1].done:  # noise has its ends, too
                _check(replies[-1])
                replies.append(engine.ask(Request(prompt="And", sampling=GREEDY, max_tokens=4000)))
            n_tokens = sum(reply.stats.completion_tokens for reply in replies)
            arrivals += [now] * (n_tokens - len(arrivals))
            tiers = engine.snapshot.tiers
            if settled_s is None and arrivals and tiers is not None and tiers.settled:
                settled_s = now
            if not samples or now - samples[-1]["at"] >= 0.5:
                samples.append({"at": now, "tokens": n_tokens, **_progress(tiers)})
                subject.put(cold=_story(arrivals, settled_s, samples))
            if settled_s is not None and now > settled_s + STEPS_S:
                break
            time.sleep(POLL_S)
        subject.put(cold=_story(arrivals, settled_s, samples), placed=_placed(engine))
    subject.put(disk_rates=[rate, _direct_rate(subject.model)])


def links(subject: Subject) -> None:
    """What this machine gives now: memory, products, disk, the way to the GPU alone and beside the CPU."""
    threads = subject.configuration.threads or cores_beside_gpu()
    with closing(open_gguf(subject.model)) as gguf:
        blocks = weight_blocks(gguf, read_model_config(gguf))
    types = {piece.quant_type for block in blocks for piece in block.pieces}
    dram, gemv = probe_memory(threads, types, CANCEL)
    subject.put(
        threads=threads,
        dram=dram,
        gemv={quant_type.name: rate for quant_type, rate in gemv.items()},
        disk=probe_disk(subject.model, CANCEL),
    )
    if subject.device == "cpu":
        return
    from engine.backends.gpus import open_gpu
    from engine.measuring.benchmark_gpu import gpu_ceilings

    gpu, facts = open_gpu(subject.device, locations.cache_dir())
    with closing(gpu):
        subject.put(gpu=facts.name, driver=facts.driver, vram_read=gpu_ceilings(gpu).read)
        # Kept where loading finds them, so that the plans rest on the rates of this run.
        probed = GpuToProbe(facts, main_weight_type(blocks), gpu)
        found, notices = probe_link(probed, threads, locations.rates_file(), CANCEL)
    if found is None:
        raise Failed("; ".join(notices))
    subject.put(**asdict(found.link), cpu_flops=found.cpu_flops)


CONFIGURATIONS = {
    "links": Configuration("rates with the cores that are used beside a GPU", links),
    "links-4": Configuration("rates with 4 threads", links, threads=4),
    "auto": Configuration("24 GB of VRAM, the planner chooses", speed_and_prompts, "24G"),
    "long": Configuration(
        "the same with room for 4,608 tokens", speed_and_prompts, "24G", context=4608, limit_s=120
    ),
    "stream": Configuration("24 GB of VRAM, all else streamed", speed, "24G", executor=ExecutorChoice.STREAM),
    "cpu": Configuration(
        "24 GB of VRAM, the CPU computes all else", speed, "24G", executor=ExecutorChoice.CPU
    ),
    "ram16": Configuration("24 GB of VRAM, 16 of RAM", speed_from_disk, "24G", "16G", limit_s=180),
    "desktop-6.5": Configuration("24 GB, 4 threads, 6.5 GB/s link", speed, "24G", None, 4, 6.5e9),
    "desktop-25": Configuration("24 GB, 4 threads, 25 GB/s link", speed, "24G", None, 4, 25e9),
    "ram34": Configuration(
        "24 GB, 34 of RAM, 4 threads, 25 GB/s link", speed_from_disk, "24G", "34G", 4, 25e9, limit_s=180
    ),
    "vram6": Configuration("6 GB of VRAM", speed, "6G"),
    "vram8": Configuration("8 GB of VRAM", speed, "8G"),
    "vram12": Configuration("12 GB of VRAM", speed, "12G"),
    "moves": Configuration("24 GB of VRAM, cut to 12 and back in a reply", moves, "24G", limit_s=120),
    "crowd": Configuration("another process takes the rest of VRAM", crowd, "24G"),
    "cold": Configuration("24 GB of VRAM, nothing in the page cache", cold, "24G", limit_s=180),
}
"""By name, in the order in which they are best run."""


# -- loading and asking


@contextmanager
def _settled(subject: Subject) -> Iterator[Engine]:
    """The engine with the model where the plan wants it; says how long that took and where everything is."""
    engine = Engine()
    with closing(engine):
        started = time.perf_counter()
        engine.load(subject.options)
        while engine.snapshot.state is not EngineState.READY:
            if engine.snapshot.state is EngineState.FAILED:
                raise Failed(engine.snapshot.error)
            time.sleep(POLL_S)
        ready_s = time.perf_counter() - started
        while not (settled := _tiers(engine).settled) and time.perf_counter() - started < SETTLING_S:
            time.sleep(POLL_S)
        settled_s = time.perf_counter() - started
        subject.put(load={"ready_s": ready_s, "settled_s": settled_s, "settled": settled})
        subject.put(placed=_placed(engine))
        yield engine


def _measure_steps(subject: Subject, engine: Engine, n_series: int = 2) -> None:
    """Decode steps in so many series, kept after each; a warm-up as long as one lets the plan follow them."""
    _follow(engine.ask(Request(prompt=_text(engine, 32, seed=0), sampling=GREEDY, max_tokens=1000)), STEPS_S)
    series: list[list[GenerationStats]] = []
    for seed in range(1, 12):
        prompt = _text(engine, 32, seed=seed)
        steps = _follow(engine.ask(Request(prompt=prompt, sampling=GREEDY, max_tokens=1000)), STEPS_S)
        if len(steps) < LEAST_STEPS:  # noise that ended at once says nothing
            continue
        series.append(steps)
        seconds = [each for run in series for each in _seconds(run)]
        subject.put(
            decode={
                "tok_s": median(map(_rate, series)),
                "tok_s_of_series": [_rate(run) for run in series],
                "median_step_s": median(seconds),
                "slowest_step_s": max(seconds),
                "steps": sum(run[-1].completion_tokens - 1 for run in series),
                "nvme_bytes_per_step": _per_step(steps, "nvme_read_bytes"),
                "h2d_bytes_per_step": _per_step(steps, "h2d_bytes"),
                "stall_s_per_step": _per_step(steps, "stall_s"),
            },
            predicted_decode_tok_s=_tiers(engine).predicted_decode_tok_s,
            predicted_prefill_tok_s=_tiers(engine).predicted_prefill_tok_s,
            limited_by=_tiers(engine).limited_by,
            copied_blocks=sum(block.executor == "stream" for block in _tiers(engine).blocks),
            events=[event.text for event in _tiers(engine).events],
        )
        if len(series) == n_series:
            return
    if not series:
        raise Failed("the model ended every reply at once: nothing was timed")


def _prompt(engine: Engine, n_tokens: int, seed: int) -> dict[str, float]:
    """Time a prompt of so many tokens, from an empty context to the first id."""
    reply = engine.ask(Request(prompt=_text(engine, n_tokens, seed), sampling=GREEDY, max_tokens=1))
    _follow(reply)
    stats = reply.stats
    return {
        "tok_s": stats.prefill_tok_s,
        "seconds": stats.prefill_s,
        "tokens": stats.prefilled_tokens,
        "cached_tokens": stats.cached_tokens,
        "h2d_bytes": stats.h2d_bytes,
        "nvme_bytes": stats.nvme_read_bytes,
    }


def _follow(
    reply: Reply,
    seconds: float | None = None,
    on_poll: Callable[[GenerationStats], None] = lambda stats: None,
) -> list[GenerationStats]:
    """Wait for a reply -> its statistics after each id; it is stopped after `seconds` and LEAST_STEPS."""
    marks: list[GenerationStats] = []
    while True:
        done = reply.done  # looked at first: what comes after it is not missed
        stats = reply.stats
        if stats.completion_tokens > (marks[-1].completion_tokens if marks else 0):
            marks.append(stats)
        on_poll(stats)
        if done:
            _check(reply)
            return marks
        if seconds is not None and stats.decode_s > seconds and stats.completion_tokens > LEAST_STEPS:
            reply.cancel()
        time.sleep(POLL_S)


def _check(reply: Reply) -> None:
    if reply.error is not None:
        raise Failed(str(reply.error))


def _seconds(steps: list[GenerationStats]) -> list[float]:
    """Seconds of single steps, by the engine's clock; several that ran between two looks share theirs."""
    return [
        (after.decode_s - before.decode_s) / (after.completion_tokens - before.completion_tokens)
        for before, after in pairwise(steps)
    ]


def _rate(steps: list[GenerationStats]) -> float:
    """Steps per second."""
    n_steps = steps[-1].completion_tokens - steps[0].completion_tokens
    return n_steps / (steps[-1].decode_s - steps[0].decode_s) if n_steps else 0.0


def _per_step(steps: list[GenerationStats], field: str) -> float:
    grown: float = getattr(steps[-1], field) - getattr(steps[0], field)
    return grown / (steps[-1].completion_tokens - steps[0].completion_tokens)


def _text(engine: Engine, n_tokens: int, seed: int) -> str:
    """Text that is a prompt of so many tokens, the one that begins every text counted."""
    source = random.Random(seed)
    words = ["".join(source.choices(string.ascii_lowercase, k=source.randint(2, 9))) for _ in range(n_tokens)]

    def count(text: str) -> int:
        return engine.count_tokens(text) or 0

    n_words = bisect_right(range(n_tokens + 1), n_tokens - 1, key=lambda n: count(" ".join(words[:n]))) - 1
    text = " ".join(words[:n_words])
    return text + " a" * (n_tokens - 1 - count(text))


# -- what is where


def _tiers(engine: Engine) -> TierSnapshot:
    tiers = engine.snapshot.tiers
    if tiers is None:
        raise Failed("the weights are in no tiers: NumPy computes (install the C kernels: make setup)")
    return tiers


def _placed(engine: Engine) -> dict[str, object]:
    """Bytes by tier and executor, and what else the plan says."""
    tiers, model = _tiers(engine), engine.snapshot.model
    n_bytes: Counter[str] = Counter()
    in_pass: Counter[str] = Counter()
    for block in tiers.blocks:
        n_bytes[f"{block.tier} {block.executor}"] += block.n_bytes
        if block.kind != "embedding":  # a step needs single rows of it
            # The spare block is in RAM, and found in the GPU's memory all the same.
            in_pass["vram" if block.executor == "gpu" else block.tier] += block.n_bytes
    layers = [block for block in tiers.blocks if block.kind in ("attention", "feed_forward")]
    with_embedding = any(block.kind == "embedding" for block in tiers.blocks)
    return {
        "backend": engine.snapshot.backend,
        "threads": engine.snapshot.threads,
        "context": 0 if model is None else model.max_context,
        "bytes": n_bytes,
        "pass_bytes": in_pass,
        "layer_bytes_outside_vram": sum(block.n_bytes for block in layers if block.tier != "vram"),
        "layer_weights": 0
        if model is None
        else model.n_parameters - model.vocab_size * model.hidden_size * (2 if with_embedding else 1),
        "vram_used_bytes": tiers.vram_used_bytes,
        "vram_budget_bytes": tiers.vram_budget_bytes,
        "vram_ring_bytes": tiers.vram_ring_bytes,
        "ram_bytes": tiers.ram_bytes,
        "ram_budget_bytes": tiers.budget_bytes,
        "pass_read_bytes": tiers.pass_read_bytes,
        "pass_copy_bytes": tiers.pass_copy_bytes,
        "predicted_decode_tok_s": tiers.predicted_decode_tok_s,
        "limited_by": tiers.limited_by,
        "notices": list(engine.snapshot.notices),
    }


def _progress(tiers: TierSnapshot | None) -> dict[str, float | bool]:
    """How far loading is."""
    if tiers is None:
        return {}
    return {
        "vram_bytes": tiers.vram_bytes,
        "ram_bytes": tiers.ram_bytes,
        "read_bytes": tiers.read_bytes,
        "settled": tiers.settled,
    }


def _story(
    arrivals: list[float], settled_s: float | None, samples: list[dict[str, float | bool]]
) -> dict[str, object]:
    """A cold start so far."""
    return {
        "first_token_s": arrivals[0] if arrivals else None,
        "second_token_s": arrivals[1] if len(arrivals) > 1 else None,
        "settled_s": settled_s,
        "tok_s_settled": _tok_s_after(arrivals, settled_s),
        "samples": samples,
    }


def _tok_s_after(arrivals: list[float], start: float | None) -> float | None:
    """Tokens per second from `start` on."""
    later = [at for at in arrivals if start is not None and at >= start]
    return (len(later) - 1) / (later[-1] - later[0]) if len(later) > 2 else None


# -- the file


def _direct_rate(model: Path) -> float:
    """Bytes per second of reading all of a file directly, in its order, several reads in flight."""
    with closing(open_gguf(model)) as gguf:
        paths = gguf.part_paths
    files, in_flight = DirectFiles(paths), 8
    requests = [
        (part, at) for part, path in enumerate(paths) for at in range(0, path.stat().st_size, _REQUEST_BYTES)
    ]

    def read(requests: list[tuple[int, int]]) -> int:
        with mmap.mmap(-1, _REQUEST_BYTES) as memory, memoryview(memory) as buffer:
            return sum(files.read(part, at, buffer) for part, at in requests)

    with closing(files), ThreadPoolExecutor(in_flight) as pool:
        started = time.perf_counter()
        n_bytes = sum(pool.map(read, [requests[i::in_flight] for i in range(in_flight)]))
        return n_bytes / (time.perf_counter() - started)


def _drop_from_page_cache(model: Path) -> int:
    """Let the system forget the file -> bytes of it that are in memory all the same."""
    with closing(open_gguf(model)) as gguf:
        paths = gguf.part_paths
    cached = 0
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())  # what has not been written cannot be forgotten
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            cached += _cached_bytes(file.fileno(), path.stat().st_size)
    return cached


def _cached_bytes(descriptor: int, size: int) -> int:
    """Bytes of a file that are in the page cache (mincore(2))."""
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        done = CDLL(None).mincore(c_void_p(view.ctypes.data), c_size_t(size), c_void_p(pages.ctypes.data))
        del view  # a mapping that is looked at cannot be closed
    return -1 if done else int((pages & 1).sum()) * mmap.PAGESIZE


def take_all_memory(device: str) -> None:
    """Be another process: take video memory until none is left, say how much, and end with the input."""
    from engine.backends.gpus import open_gpu
    from kernels.errors import DeviceMemoryError

    gpu, _ = open_gpu(device, None)
    held, n_bytes = [], 1 << 30
    with closing(gpu):
        while n_bytes >= 1 << 22:
            try:
                held.append(gpu.empty(n_bytes, np.uint8))
            except DeviceMemoryError:
                n_bytes //= 4
        print(f"{sum(array.nbytes for array in held) / 1e9:.2f} GB", flush=True)
        sys.stdin.read()
