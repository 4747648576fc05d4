"""Where the weights of a model would go on this machine, from its header alone: what loading would plan.

Knows which planner is asked with which sizes and rates, on a GPU and without one; reserves nothing. Rates
that are missing are measured only where that is asked for. Called by `preview` and `reporting`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from engine.backends.gpus import CPU, choose_gpu, gpu_facts, open_gpu
from engine.cancel import CancelToken
from engine.config import DEFAULT_CHUNK, LoadOptions
from engine.errors import BudgetError, DeviceError
from engine.gguf import GGUFFile
from engine.machine import cores_beside_gpu, physical_cores
from engine.model_config import ModelConfig, read_model_config
from engine.requirements import (
    Room,
    choose_context,
    main_weight_type,
    room_for_gpu_host,
    room_for_weights,
)
from engine.tiers.blocks import Block, slot_bytes_for, weight_blocks
from engine.tiers.budget import DEFAULT
from engine.tiers.gpu_planner import plan_tiers
from engine.tiers.planner import Plan, plan
from engine.tiers.rates import Rates
from engine.tiers.tier_plan import GpuSizes, TierPlan
from engine.weights import ModelWeights

if TYPE_CHECKING:
    from kernels.cuda.devices import DeviceFacts


PlanWith: TypeAlias = Callable[[Sequence[Block], GpuSizes, int, int], TierPlan]
"""Blocks, what they take on a GPU, and bytes of its memory and of the computer's for weights -> a plan."""


class Memory(NamedTuple):
    """Bytes that a model may count on."""

    available: int
    """Of the computer's memory."""
    freed_vram: int = 0
    """Of the GPU's memory, taken now and free by the time of loading."""


class OnGpu(NamedTuple):
    """What would be on a GPU, and what was planned from."""

    facts: DeviceFacts
    sizes: GpuSizes
    budget: int
    """Bytes of its memory."""
    plan: TierPlan


@dataclass(frozen=True, slots=True)
class Forecast:
    """What loading would do."""

    options: LoadOptions
    """As asked for, threads as chosen."""
    config: ModelConfig
    blocks: tuple[Block, ...]
    max_context: int
    room: Room
    """Of the computer's memory."""
    ram_budget: int
    rates: Rates | None
    """What was planned by; None where something that matters was not measured."""
    gpu: OnGpu | None
    host: Plan
    """Blocks that are in no GPU's memory."""
    no_gpu: str
    """Why no GPU would compute; empty where one would."""
    notices: tuple[str, ...]
    """What a person should know."""

    @property
    def ram_bytes(self) -> int:
        """The computer's memory that the model would take, everything counted; 0 where a GPU holds it."""
        if self.gpu is None:
            return self.host.ram_bytes + self.room.kv + self.room.scratch
        n_cpu_layers = len(self.gpu.plan.cpu_attention)
        if not self.host.ram_bytes and not n_cpu_layers:
            return 0
        beside = self.gpu.sizes.host_bytes(self.gpu.plan.chunk, n_cpu_layers)
        return self.host.ram_bytes + self.room.scratch + beside

    @property
    def vram_bytes(self) -> int:
        """The GPU's memory that the model would take, everything counted; 0 where none would compute."""
        return 0 if self.gpu is None else self.gpu.plan.vram_bytes

    @property
    def kv_bytes(self) -> int:
        """Bytes of the cache, wherever its layers are."""
        if self.gpu is None:
            return self.room.kv
        sizes, n_cpu_layers = self.gpu.sizes, len(self.gpu.plan.cpu_attention)
        n_gpu_layers = self.config.n_layers - n_cpu_layers
        return sizes.kv_layer_bytes * n_gpu_layers + sizes.host_kv_layer_bytes * n_cpu_layers

    @property
    def chunk(self) -> int:
        """Prompt tokens per pass."""
        if self.gpu is not None:
            return self.gpu.plan.chunk
        return min(self.options.chunk or DEFAULT_CHUNK, self.max_context)


def forecast(
    gguf: GGUFFile, options: LoadOptions, memory: Memory, cancel: CancelToken, *, measure: bool
) -> Forecast:
    """What loading the model of this header with `options` would do.

    With `measure`, rates that `options.rates_file` lacks are measured as loading would. Raises what loading
    raises before it reserves anything, and CancelledError.
    """
    config = read_model_config(gguf)
    weights = ModelWeights(gguf, config)
    max_context, notices = choose_context(config, options)
    asked = _Asked(
        weights=weights,
        config=config,
        options=options,
        blocks=weight_blocks(gguf, config),
        max_context=max_context,
        notices=notices,
        memory=memory,
        rates=_RatesOf(gguf, cancel, measure),
    )
    if options.device == CPU:
        return _on_cpu(asked, "as asked for")
    try:
        return _on_gpu(asked)
    except (BudgetError, DeviceError) as error:
        if options.device is not None:
            raise
        return _on_cpu(asked, str(error))


class _RatesOf(NamedTuple):
    """Whose rates are wanted, and whether it may take seconds."""

    gguf: GGUFFile
    cancel: CancelToken
    measure: bool


class _Asked(NamedTuple):
    """A model that is to be placed."""

    weights: ModelWeights
    config: ModelConfig
    options: LoadOptions
    blocks: tuple[Block, ...]
    max_context: int
    notices: tuple[str, ...]
    memory: Memory
    rates: _RatesOf

    def with_threads(self, n_threads: int) -> _Asked:
        """On so many threads, unless a number was asked for."""
        return self._replace(options=replace(self.options, threads=self.options.threads or n_threads))


def _on_cpu(asked: _Asked, no_gpu: str) -> Forecast:
    """Over memory and disk. Raises BudgetError, ContextError."""
    asked = asked.with_threads(physical_cores())
    room = room_for_weights(
        asked.blocks, asked.config, asked.options, asked.max_context, asked.memory.available
    )
    streams = sum(map(slot_bytes_for, asked.blocks)) > room.weights
    rates, told = _rates(asked, streams, None)
    if wishes := asked.options.wishes_for_gpu:
        told += (f"no GPU would compute: {', '.join(wishes)} would change nothing",)
    return _forecast(asked, room, rates, told, plan(asked.blocks, room.weights, rates), no_gpu=no_gpu)


def _on_gpu(asked: _Asked) -> Forecast:
    """Over a GPU's memory too. Raises DeviceError, BudgetError."""
    asked = asked.with_threads(cores_beside_gpu())
    options, config = asked.options, asked.config
    facts = choose_gpu(options.device)
    from engine.backends.cuda_model import Wanted  # the launchers of kernels, of no use without a GPU
    from engine.backends.cuda_plan import gpu_sizes, granted_bytes, settings_for

    chunk = min(options.chunk or DEFAULT_CHUNK, asked.max_context)
    wanted = Wanted(asked.weights, config, options, asked.max_context, chunk)
    try:
        sizes = gpu_sizes(facts, wanted, settings_for(facts, options))
    except ValueError as error:  # of a launcher
        raise DeviceError(f"the GPU kernels do not take this model: {error}") from error
    budget = granted_bytes(options, facts.free_bytes + asked.memory.freed_vram)
    room = room_for_gpu_host(config, options, asked.max_context, asked.memory.available)
    placed = planner_for(options, None)(asked.blocks, sizes, budget, room.weights)
    if len(placed.vram) < len(asked.blocks):
        _check_processor()
    rates, told = _rates(asked, placed.host.read_bytes > 0, facts)
    if rates is not None:
        placed = planner_for(options, rates)(asked.blocks, sizes, budget, room.weights)
    gpu = OnGpu(facts, sizes, budget, placed)
    return _forecast(asked, room, rates, told, placed.host, gpu=gpu)


def _check_processor() -> None:
    """Refuse to share a model out without what computes the processor's part: DeviceError."""
    try:
        from kernels import cpu  # noqa: F401
    except ImportError as error:
        raise DeviceError(
            "the model does not fit the GPU, and the C kernels that would compute the rest are not installed "
            f"({error}); install a C compiler and then Tiercel again (make setup)"
        ) from error


def planner_for(options: LoadOptions, rates: Rates | None) -> PlanWith:
    """The planner of three tiers with everything that a person wishes."""

    def plan_with(blocks: Sequence[Block], sizes: GpuSizes, vram_budget: int, ram_room: int) -> TierPlan:
        return plan_tiers(
            blocks,
            sizes,
            vram_budget,
            ram_room,
            rates,
            executor=options.executor,
            gpu_layers=options.gpu_layers,
            rules=options.place,
            prefetch=options.prefetch,
            chunk=options.chunk and min(options.chunk, *sizes.fixed_bytes),
            link_limit=options.link_limit,
        )

    return plan_with


def _forecast(
    asked: _Asked,
    room: Room,
    rates: Rates | None,
    told: tuple[str, ...],
    host: Plan,
    *,
    gpu: OnGpu | None = None,
    no_gpu: str = "",
) -> Forecast:
    return Forecast(
        options=asked.options,
        config=asked.config,
        blocks=asked.blocks,
        max_context=asked.max_context,
        room=room,
        ram_budget=(asked.options.ram_budget or DEFAULT).resolve(asked.memory.available),
        rates=rates,
        gpu=gpu,
        host=host,
        no_gpu=no_gpu,
        notices=(*asked.notices, *room.notices, *told),
    )


def _rates(asked: _Asked, streams: bool, facts: DeviceFacts | None) -> tuple[Rates | None, tuple[str, ...]]:
    """What is known of this machine, and measured if need be; None where something that matters is not.

    Raises DeviceError, KernelError, StreamError, CancelledError where it is measured.
    """
    options, (gguf, cancel, measure) = asked.options, asked.rates
    if options.rates_file is None or options.threads is None:
        return None, ()
    try:
        from engine.tiers.probe import GpuToProbe, model_rates
    except ImportError:  # the C kernels were not built
        return None, ()
    types = {piece.quant_type for block in asked.blocks for piece in block.pieces}
    disk_of = gguf.part_paths[0] if streams else None
    gpu = None if facts is None else GpuToProbe(gpu_facts(facts), main_weight_type(asked.blocks), None)
    find = partial(model_rates, disk_of, types, options.threads, options.rates_file, cancel=cancel)
    try:
        rates, told = find(measure=False, gpu=gpu)
        if rates is not None or not measure:
            return rates, told
        if gpu is None:
            return find(measure=True)
        device, _ = open_gpu(options.device, options.cache_dir)
        with closing(device):
            return find(measure=True, gpu=gpu._replace(device=device))
    except (ImportError, OSError):  # the kernels again, or a file that was removed meanwhile
        return None, ()
