"""Everything that one model has on a GPU: weights, cache, staging ring, and the memory of passes and draws.

Built on a `Sketch`, it tells what that takes (`cuda_plan`) and which kernels will be launched: neither can
differ from the real thing. Only blocks, head and embedding come and go later. Knows the parts; does not know
what they compute, nor who decides what is on the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from engine.backends.cuda_attention import Attention
from engine.backends.cuda_drawing import Drawing
from engine.backends.cuda_prompt import Prompt
from engine.backends.cuda_step import Step
from engine.backends.cuda_weights import (
    BlockMatrices,
    allocate_block,
    allocate_embedding,
    allocate_head,
    allocate_weights,
    block_bytes,
    block_in,
)
from engine.cancel import CancelToken
from engine.config import LoadOptions, SamplingParams
from engine.logits import DrawRequest, Penalties
from engine.model_config import ModelConfig
from engine.tiers.gpu_memory import SPARE
from engine.tiers.link import BUFFER_BYTES, N_LANES
from engine.weights import ModelWeights
from kernels.cuda.crossing import from_host, to_host
from kernels.cuda.device import Array, Device, Kernel
from kernels.cuda.launch_settings import LaunchSettings
from kernels.cuda.matrices import repack
from kernels.cuda.pace import PacedLane
from kernels.cuda.sampling import MOST_IDS, STATE_SIZE, begin_step, continue_step
from kernels.cuda.sketch import DeviceKind, Sketch
from kernels.quant_types import row_bytes

LANDING = -1
"""Number of the slot for blocks from disk."""


class Wanted(NamedTuple):
    """A model as it is to be loaded."""

    weights: ModelWeights
    config: ModelConfig
    options: LoadOptions
    """Precision, type of the cache and limit of the link count here."""
    max_context: int
    chunk: int
    """Prompt tokens per pass, where all of the model is on the GPU."""


class DeviceLayout(NamedTuple):
    """What of a model is to be on a GPU; blocks by number (`cuda_weights`)."""

    vram: frozenset[int]
    """Blocks that stay there from the beginning."""
    head: bool
    embedding: bool
    """Whether the GPU looks ids up; for one matrix with the head, the same as `head`."""
    kv_layers: tuple[int, ...]
    """Layers whose attention the GPU computes, in order."""
    slots: int
    """Of the staging ring."""
    slot_bytes: int
    landing: bool
    """Whether there is one slot more, for blocks that come from disk."""
    chunk: int
    """Prompt tokens per pass."""
    staging_bytes: int
    """Of the buffer of each lane, which weights pass through; 0 for none."""


def whole_layout(config: ModelConfig, chunk: int) -> DeviceLayout:
    """All of a model."""
    return DeviceLayout(
        vram=frozenset(range(2 * config.n_layers)),
        head=True,
        embedding=True,
        kv_layers=tuple(range(config.n_layers)),
        slots=0,
        slot_bytes=0,
        landing=False,
        chunk=chunk,
        staging_bytes=BUFFER_BYTES,
    )


class DeviceModel:
    """One model on one device; its matrices are undefined until somebody fills them."""

    def __init__(
        self, device: Device, wanted: Wanted, settings: LaunchSettings, layout: DeviceLayout
    ) -> None:
        """Reserve memory; `kv` is to be filled.

        Raises DeviceMemoryError, and ValueError for shapes that no kernel takes.
        """
        source, config, options, max_context, _ = wanted
        precision, chunk = options.precision, layout.chunk
        self._device, self._source, self._config = device, source, config
        self.n_layers = config.n_layers
        self.layout = layout
        self.weights = allocate_weights(
            device, source, config, layout.vram, head=layout.head, embedding=layout.embedding
        )
        """What is on the GPU now."""
        self.slots: list[Array] = []
        """Of the staging ring."""
        self.landing: Array | None = None
        """The slot for blocks from disk."""
        n_buffers = N_LANES if layout.staging_bytes else 0
        self.buffers = [device.empty(layout.staging_bytes, np.uint8) for _ in range(n_buffers)]
        """One for each lane."""
        self._in_slots: dict[tuple[int, int], BlockMatrices] = {}
        """By slot and number."""
        self.state = device.zeros(STATE_SIZE, np.int32)
        self.attention = Attention(device, config, precision, options.kv_type, self.state, layout.kv_layers)
        self.kv = self.attention.new_kv(max_context)
        self.step = Step(
            device, source, self.weights, config, precision, self.attention, self.state, settings
        )
        self.prompt: Prompt | None = None
        """None where no pass has more tokens than a step takes."""
        if chunk > MOST_IDS:
            self.prompt = Prompt(device, source, self.weights, config, precision, self.attention, chunk)
        self.drawing = Drawing(device, config.vocab_size, self.state)
        self.make_ring(layout.slots, layout.slot_bytes, layout.landing)

    def make_ring(self, slots: int, slot_bytes: int, landing: bool) -> None:
        """Have at least so many slots of at least this size, and one for blocks from disk if wanted.

        What is there and large enough stays. Nothing may be on its way to or from slots that are too small:
        what was in them is lost. Raises DeviceMemoryError.
        """
        if self.slots and self.slots[0].nbytes < slot_bytes:
            self._forget_slots(range(len(self.slots)))
            self.slots = []
        while len(self.slots) < slots:
            self.slots.append(self._device.empty(slot_bytes, np.uint8))
        if self.landing is not None and self.landing.nbytes < slot_bytes:
            self._forget_slots([LANDING])
            self.landing = None
        if landing and self.landing is None:
            self.landing = self._device.empty(slot_bytes, np.uint8)

    @property
    def slot_bytes(self) -> int:
        """Of a slot that any layer block fits."""
        return max(block_bytes(self._source, number) for number in range(2 * self.n_layers))

    def in_slot(self, slot: int, number: int) -> BlockMatrices:
        """A block's matrices in one of the slots, `LANDING`, or `SPARE`: always the same object, so that
        graphs serve again."""
        key = slot, number
        if key not in self._in_slots:
            self._in_slots[key] = block_in(self._memory_of(slot), self._source, number)
        return self._in_slots[key]

    @property
    def spare_bytes(self) -> int:
        """Of the memory that long passes compute in, which is free between them."""
        return 0 if self.prompt is None else self.prompt.memory.nbytes

    def _memory_of(self, slot: int) -> Array:
        if slot == SPARE:
            assert self.prompt is not None, "there are long passes where a plan has a spare block"
            return self.prompt.memory
        memory = self.landing if slot == LANDING else self.slots[slot]
        assert memory is not None, "there is a slot for blocks from disk where a plan reads any"
        return memory

    def _forget_slots(self, slots: Iterable[int]) -> None:
        for key in [key for key in self._in_slots if key[0] in slots]:
            self.step.forget(self._in_slots.pop(key))

    def add_block(self, number: int) -> BlockMatrices:
        """Reserve memory for a block that is to stay. Raises DeviceMemoryError."""
        block = self.weights.blocks[number] = allocate_block(self._device, self._source, number)
        return block

    def drop_block(self, number: int) -> None:
        """Give the memory of a block back; nothing that is put on the GPU from now on may use it."""
        self.step.forget(self.weights.blocks.pop(number))

    def add_head(self) -> None:
        """Reserve memory for the head, and for the embedding where it is the same matrix.

        Raises DeviceMemoryError.
        """
        self.weights.head = allocate_head(self._device, self._source, self._config)
        if self._config.tied_head:
            self.weights.embedding = self.weights.head

    def drop_head(self) -> None:
        """Give it back."""
        self.step.forget_passes()
        if self._config.tied_head:
            self.weights.embedding = None
        self.weights.head = None

    def add_embedding(self) -> None:
        """Reserve memory for an embedding that is a matrix of its own. Raises DeviceMemoryError."""
        self.weights.embedding = allocate_embedding(self._device, self._source)

    def drop_embedding(self) -> None:
        """Give it back."""
        self.step.forget_passes()
        self.weights.embedding = None


def kernels_of(device: DeviceKind, wanted: Wanted, settings: LaunchSettings) -> tuple[Kernel, ...]:
    """All that will ever be launched for the model on a device of this kind, whatever is on the GPU.

    Raises ValueError for shapes that no kernel takes.
    """
    sketch = Sketch(device)
    model = DeviceModel(sketch, wanted, settings, whole_layout(wanted.config, wanted.chunk))
    for place in model.weights.places.values():
        matrix = place.matrix
        one_row = sketch.empty(row_bytes(matrix.quant_type, matrix.n_columns), np.uint8)
        repack(sketch, one_row, matrix, 0, 1)
    if wanted.options.link_limit is not None:
        PacedLane(sketch, wanted.options.link_limit).copy_async(model.state, np.empty(0, np.uint8))
    begin_step(sketch, model.state, 0, [0])
    continue_step(sketch, model.state, 0)
    for n_tokens in range(1, MOST_IDS + 1):
        model.step.run(n_tokens, model.kv)
    from_host(sketch, np.uint64(0), model.step.x)
    to_host(sketch, model.step.x, np.uint64(0))
    if model.prompt is not None:
        model.prompt.run(np.zeros(wanted.chunk, np.int32), model.kv, CancelToken())
    penalised = Penalties(np.zeros(1, np.int32), np.ones(1, np.int32))
    for params in (SamplingParams(temperature=0), SamplingParams(temperature=1, top_k=1)):
        model.drawing.begin(model.step.logits[0], DrawRequest(params, penalised, 0.0))
    return sketch.kernels
