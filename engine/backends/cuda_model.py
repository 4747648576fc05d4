"""Everything that one model has on a GPU: weights, cache, and the memory of passes and draws.

Nothing is reserved later. Built on a `Sketch`, it tells what that takes (`cuda_plan`) and which kernels will
be launched: neither can differ from the real thing. Knows the parts; does not know what they compute.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.backends.cuda_attention import Attention
from engine.backends.cuda_drawing import Drawing
from engine.backends.cuda_prompt import Prompt
from engine.backends.cuda_step import Step
from engine.backends.cuda_weights import allocate_weights
from engine.cancel import CancelToken
from engine.config import LoadOptions, SamplingParams
from engine.logits import DrawRequest, Penalties
from engine.model_config import ModelConfig
from engine.weights import ModelWeights
from kernels.cuda.device import Device, Kernel
from kernels.cuda.launch_settings import LaunchSettings
from kernels.cuda.matrices import repack
from kernels.cuda.sampling import MOST_IDS, STATE_SIZE, begin_step, continue_step
from kernels.cuda.sketch import DeviceKind, Sketch
from kernels.quant_types import row_bytes


class Wanted(NamedTuple):
    """A model as it is to be loaded."""

    weights: ModelWeights
    config: ModelConfig
    options: LoadOptions
    """Precision, type of the cache, and chunk count here."""
    max_context: int


class DeviceModel:
    """One model on one device; its matrices are undefined until `VramWeights` has filled them."""

    def __init__(self, device: Device, wanted: Wanted, settings: LaunchSettings) -> None:
        """Reserve memory; `kv` is to be filled.

        Raises DeviceMemoryError, and ValueError for shapes that no kernel takes.
        """
        weights, config, options, max_context = wanted
        precision, chunk = options.precision, options.chunk
        self.n_layers = config.n_layers
        self.weights = allocate_weights(device, weights, config)
        self.state = device.zeros(STATE_SIZE, np.int32)
        self.attention = Attention(device, config, precision, options.kv_type, self.state, chunk)
        self.kv = self.attention.new_kv(max_context)
        self.step = Step(device, self.weights, config, precision, self.attention, self.state, settings)
        self.prompt: Prompt | None = None
        """None where no pass has more tokens than a step takes."""
        if chunk > MOST_IDS:
            self.prompt = Prompt(device, self.weights, config, precision, self.attention, chunk)
        self.drawing = Drawing(device, config.vocab_size, self.state)


def kernels_of(device: DeviceKind, wanted: Wanted, settings: LaunchSettings) -> tuple[Kernel, ...]:
    """All that will ever be launched for the model on a device of this kind.

    Raises ValueError for shapes that no kernel takes.
    """
    sketch = Sketch(device)
    model = DeviceModel(sketch, wanted, settings)
    for place in model.weights.places.values():
        matrix = place.matrix
        one_row = sketch.empty(row_bytes(matrix.quant_type, matrix.n_columns), np.uint8)
        repack(sketch, one_row, matrix, 0, 1)
    begin_step(sketch, model.state, 0, [0])
    continue_step(sketch, model.state, 0)
    for n_tokens in range(1, MOST_IDS + 1):
        model.step.run(n_tokens, model.kv)
    if model.prompt is not None:
        model.prompt.run(np.zeros(wanted.options.chunk, np.int32), model.kv, CancelToken())
    penalised = Penalties(np.zeros(1, np.int32), np.ones(1, np.int32))
    for params in (SamplingParams(temperature=0), SamplingParams(temperature=1, top_k=1)):
        model.drawing.begin(model.step.logits[0], DrawRequest(params, penalised, 0.0))
    return sketch.kernels
