"""From a GPU to a backend: a plan that fits or is refused with figures, kernels, memory, weights under way.

Knows the order of the steps; which device it is, and what happens when it will not do, is the business of
`select`. Everything that a reply needs is reserved and compiled here. The weights come afterwards, while the
model already answers (`GpuTiers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Protocol

from engine import errors
from engine.backends.cuda import CudaBackend, OwnedDevice
from engine.backends.cuda_memory import ModelMemory
from engine.backends.cuda_mixed import MixedPasses, TieredKV
from engine.backends.cuda_model import DeviceModel, Wanted, kernels_of
from engine.backends.cuda_plan import (
    gpu_sizes,
    granted_bytes,
    layout_of,
    plan_model,
    ran_out,
    settings_for,
)
from engine.backends.cuda_weights import BlockMatrices
from engine.backends.to_open import ToOpen
from engine.backends.watcher import LoadWatcher
from engine.config import DEFAULT_CHUNK
from engine.events import GpuFacts, TierEventKind
from engine.forecast import planner_for
from engine.kv_cache import kv_bytes
from engine.machine import available_memory, cores_beside_gpu
from engine.requirements import Room, room_for_gpu_host
from engine.tiers.blocks import Block, BlockKind
from engine.tiers.budget import MemoryWatch, shown_bytes
from engine.tiers.direct_io import DirectFiles
from engine.tiers.gpu_planner import plan_tiers
from engine.tiers.gpu_tiers import GpuTiers
from engine.tiers.link import Link
from engine.tiers.live_rates import LiveRates
from engine.tiers.loader import Loader, n_readers, n_slots, slot_bytes
from engine.tiers.other_executors import Anew, OtherExecutors
from engine.tiers.rates import Rates
from engine.tiers.step_pace import StepTimes
from engine.tiers.store import TieredWeights
from engine.tiers.tier_plan import Budgets, GpuSizes, TierPlan
from engine.tiers.wishes import PlaceRule
from kernels.cuda.device import Kernel
from kernels.cuda.sampling import MOST_IDS
from kernels.errors import DeviceError, DeviceMemoryError

_COMPILED = 0.8
"""Progress when the kernels are there."""


class GpuDevice(OwnedDevice, Protocol):
    """What opening needs of a device beside launching."""

    @property
    def used_bytes(self) -> int:
        """Device memory that was allocated and is still referred to."""
        ...

    def memory(self) -> tuple[int, int]:
        """Bytes that are free and that there are."""
        ...

    def prepare(
        self, kernels: Iterable[Kernel], on_progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Compile and load."""
        ...


def open_cuda(
    device: GpuDevice, gpu: GpuFacts, model: ToOpen, rates: Rates | None, watcher: LoadWatcher
) -> tuple[CudaBackend, Room]:
    """The model on `device`, which is closed with the backend, or when this fails; and its memory in RAM.

    `rates` are this machine's as far as known. Raises BudgetError with figures when the model does not fit,
    DeviceError when the GPU will not do, StreamError, CancelledError.
    """
    try:
        return _open(device, gpu, model, rates, watcher)
    except BaseException as error:
        with suppress(DeviceError):
            device.close()
        if isinstance(error, ValueError):  # of a launcher, before anything is reserved
            raise errors.DeviceError(f"the GPU kernels do not take this model: {error}") from error
        if isinstance(error, DeviceError):
            raise errors.DeviceError(f"{gpu.name} cannot be used: {error}") from error
        raise


def _open(
    device: GpuDevice, gpu: GpuFacts, model: ToOpen, rates: Rates | None, watcher: LoadWatcher
) -> tuple[CudaBackend, Room]:
    weights, blocks, config, options, max_context = model
    watcher.on_progress("looking at the GPU", 0.0)
    settings = settings_for(device, options)
    chunk = min(options.chunk or DEFAULT_CHUNK, max_context)
    wanted = Wanted(weights, config, options, max_context, chunk)
    planner = _Planner(model, gpu_sizes(device, wanted, settings), rates)
    free = device.memory()[0]
    budgets, plan, room = planner.first(granted_bytes(options, free))
    layout = layout_of(plan, blocks, config)
    wanted = wanted._replace(chunk=plan.chunk)
    exact = plan_model(device, wanted, settings, free, layout)

    def compiled(done: int, total: int) -> None:
        watcher.check()
        watcher.on_progress("compiling CUDA kernels", _COMPILED * done / total)

    device.prepare(kernels_of(device, wanted, settings), compiled)
    watcher.check()
    watcher.on_plan(plan.vram | plan.host.resident)
    watcher.on_progress("preparing the backend", _COMPILED)
    try:
        on_device = DeviceModel(device, wanted, settings, layout)
        on_device.kv.fill(device)
    except DeviceMemoryError as error:
        raise ran_out(device, exact, error) from None
    with ExitStack() as opened:
        files = DirectFiles(weights.gguf.part_paths)
        opened.callback(files.close)
        host = TieredWeights(
            files,
            blocks,
            max(0, budgets.ram - planner.host_bytes(plan)),
            rates,
            watch=MemoryWatch(),
            on_change=lambda _: None,  # it is shown with the rest
            apart=plan.vram,
            chosen=plan.host,
            locker=device,
        )
        opened.callback(host.close)
        loader = _loader(device, files, blocks)
        opened.callback(loader.close)
        tiers = GpuTiers(
            device,
            gpu,
            ModelMemory(on_device),
            Link(device, on_device.buffers, options.link_limit),
            host,
            loader,
            plan,
            budgets,
            h2d_rate=options.link_limit or (rates.link.h2d if rates and rates.link else None),
            host_beside=planner.host_bytes(plan),
            rules=options.place,
            replan=planner,
            vram_use=lambda: (device.memory()[0], device.used_bytes),
            on_change=watcher.on_tiers,
        )
        mixed = _shared_passes(device, on_device, tiers, model)
        planner.must_be_whole = mixed is None
        on_device.step.graphs.on_refused = partial(
            host.note,
            "another program has left no GPU memory for a graph: kernels are launched one by one, which is "
            "slower",
            TierEventKind.WARNING,
        )
        if tiers.where.wants_whole:
            on_device.step.prepare(on_device.kv)
        if on_device.prompt is not None:
            on_device.prompt.warm_up()
        device.synchronize()
        watcher.check()
        tiers.begin(host.retarget(plan.vram, chosen=plan.host))
        opened.pop_all()
    kv = TieredKV(on_device.kv, None, 0) if mixed is None else mixed.with_host(on_device.kv, max_context)
    backend = CudaBackend(
        device,
        on_device,
        tiers,
        mixed,
        kv,
        threads=options.threads or cores_beside_gpu(),
        reason=_reason(gpu, plan, blocks),
    )
    return backend, room


class _Planner:
    """Plans for one model on one GPU, first for what there is and then for other budgets."""

    def __init__(self, model: ToOpen, sizes: GpuSizes, rates: Rates | None) -> None:
        self._model, self._sizes, self._probed = model, sizes, rates
        self._executors: OtherExecutors | None = None
        """None where nothing is predicted."""
        if rates is not None and rates.link is not None:
            live = LiveRates(rates, rates.link, model.options.link_limit)
            self._executors = OtherExecutors(model.blocks, live, model.options.executor)
        self._loaded: TierPlan | None = None
        self.must_be_whole = False
        """Whether nobody could compute what is not on the GPU."""

    def first(self, vram: int) -> tuple[Budgets, TierPlan, Room]:
        """The plan that is loaded, and the memory for it. Raises BudgetError."""
        _, _, config, options, max_context = self._model
        room = room_for_gpu_host(config, options, max_context, available_memory())
        budgets = Budgets(vram, room.weights)
        self._loaded = planner_for(options, self._probed)(self._model.blocks, self._sizes, *budgets)
        return budgets, self._loaded, room

    def __call__(self, budgets: Budgets, rules: Sequence[PlaceRule], idle: frozenset[int]) -> TierPlan:
        """The plan for other budgets or rules, or where passes leave blocks out.

        Cache and buffers of the loaded model stay as they are.

        Raises BudgetError.
        """
        loaded = self._loaded
        assert loaded is not None, "nothing was loaded"
        options, blocks = self._model.options, self._model.blocks
        keep = {b.index for b in blocks if b.kind is BlockKind.HEAD and b.index in loaded.vram}
        chosen = plan_tiers(
            blocks,
            self._sizes,
            *budgets,
            self._probed if self._executors is None else self._executors.rates,
            executor=options.executor,
            gpu_layers=options.gpu_layers,
            rules=rules,
            prefetch=options.prefetch,
            link_limit=options.link_limit,
            keep=frozenset(keep),
            like=loaded,
            idle=idle,
        )
        if self.must_be_whole and len(chosen.vram) < len(blocks):
            raise errors.BudgetError(
                "the model would not fit the GPU's memory any more, and the C kernels that would compute the "
                "rest are not installed: give more (--vram-budget), or install a C compiler and then Tiercel "
                "again (make setup)"
            )
        if self._executors is not None:
            self._executors.begin()
        return chosen

    def at_pace(
        self, plan: TierPlan, disk_rate: float | None, took: StepTimes | None, idle: frozenset[int]
    ) -> Anew | None:
        """See `Replan`."""
        if self._executors is None:
            return None
        return self._executors.follow(plan, disk_rate, took, idle)

    def host_bytes(self, plan: TierPlan) -> int:
        """Of the memory for weights in RAM, what is not for weights."""
        return self._sizes.host_bytes(plan.chunk, len(plan.cpu_attention))


def _loader(device: GpuDevice, files: DirectFiles, blocks: Sequence[Block]) -> Loader:
    """Readers, and the page-locked slots through which they hand on what goes to the GPU."""
    slots, one = n_slots(), slot_bytes(blocks)
    memory = device.pinned(slots * one)
    return Loader(files, [memory[i * one : (i + 1) * one] for i in range(slots)], n_readers())


def _shared_passes(
    device: GpuDevice, on_device: DeviceModel, tiers: GpuTiers[BlockMatrices], model: ToOpen
) -> MixedPasses | None:
    """What computes while blocks are outside the GPU; None without the C kernels.

    Raises DeviceError where the plan needs them.
    """
    weights, _, config, options, _ = model
    try:
        from engine.backends.host_blocks import HostBlocks
    except ImportError as error:
        if tiers.where.wants_whole:
            return None
        raise errors.DeviceError(
            "the model does not fit the GPU, and the C kernels that would compute the rest are not installed "
            f"({error}); install a C compiler and then Tiercel again (make setup)"
        ) from error
    plan = tiers.where.plan
    processor = HostBlocks(
        weights,
        config,
        options.precision,
        threads=options.threads or cores_beside_gpu(),
        max_tokens=plan.chunk if plan.cpu_attention else max(MOST_IDS, plan.crossover),
    )
    one = kv_bytes(config, 1, options.precision) // config.n_layers
    return MixedPasses(device, on_device, tiers, processor, config.hidden_size, one)


def _reason(gpu: GpuFacts, plan: TierPlan, blocks: Sequence[Block]) -> str:
    outside = sum(block.n_bytes for block in blocks if block.index not in plan.vram)
    fits = "the model fits its memory"
    if outside:
        fits = f"it holds all but {shown_bytes(outside)} of the model, which the processor helps with"
    return (
        f"{gpu.name}, {gpu.total_bytes / 1e9:.0f} GB, driver {gpu.driver}, compute capability "
        f"{gpu.compute_capability}: {fits}"
    )
