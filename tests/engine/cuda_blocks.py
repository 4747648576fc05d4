"""Models on a device without a backend: memory as a layout says, and weights put there as tests want them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.backends.cuda_model import DeviceLayout, DeviceModel, Wanted, whole_layout
from engine.backends.cuda_weights import BlockMatrices
from engine.config import LoadOptions
from engine.gguf import open_gguf
from engine.model_config import read_model_config
from engine.tiers.placement import Place
from engine.weights import ModelWeights
from kernels.cuda import launch_settings
from kernels.cuda.device import Device
from kernels.cuda.matrices import repack

CHUNK = 16


def wanted_of(path: Path, *, max_context: int = 64, chunk: int = CHUNK, **options: Any) -> Wanted:
    """The model of a file, as it would be loaded."""
    gguf = open_gguf(path)
    config = read_model_config(gguf)
    loading = LoadOptions(path, **options)
    return Wanted(ModelWeights(gguf, config), config, loading, max_context, chunk)


class Built:
    """A model on a device, with weights in all that a layout says is there."""

    def __init__(self, device: Device, wanted: Wanted, **changes: Any) -> None:
        """With `changes` of the layout of the whole model; nothing comes over a link, so without buffers."""
        self.device, self.wanted, self.config = device, wanted, wanted.config
        whole = whole_layout(wanted.config, wanted.chunk)
        layout: DeviceLayout = whole._replace(**{"staging_bytes": 0, **changes})
        self.model = DeviceModel(device, wanted, launch_settings.load(device), layout)
        self.model.kv.fill(device)
        self.put(self.model.weights.places)

    def put(self, places: Mapping[str, Place]) -> None:
        """Write the weights of tensors to their places."""
        for name, place in places.items():
            data, shape, _ = self.wanted.weights[name]
            repack(self.device, self.device.upload(data), place.matrix, place.first_row, shape[0])
        self.device.fence()

    def in_slot(self, slot: int, number: int) -> BlockMatrices:
        """A block in a slot, just written there."""
        block = self.model.in_slot(slot, number)
        self.put(block.places)
        return block
