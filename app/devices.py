"""What computes, as people write it and read it: `cpu`, `cuda:1`, and the facts of a GPU.

Knows names only; what is there is the engine's business. Used by the command line, the settings and the
screens.
"""

from __future__ import annotations

import re
from typing import Final

from app.i18n import _
from app.sanitize import sanitize_line
from engine import GpuFacts

AUTO: Final = "auto"
"""The first GPU if it holds the model, else the processor."""

_DEVICE: Final = re.compile(r"auto|cpu|cuda(?::[0-9]{1,2})?")


def parse_device(text: str) -> str:
    """Return the name of a device, in its usual spelling. Raises ValueError saying what is accepted."""
    name = text.strip().lower()
    if not _DEVICE.fullmatch(name):
        raise ValueError(_("must be auto, cpu, cuda or cuda:N, N counting the GPUs from 0"))
    return name


def for_engine(name: str | None) -> str | None:
    """Return a device as `LoadOptions` takes it: None where the engine chooses."""
    return None if name == AUTO else name


def gpu_words(gpu: GpuFacts) -> str:
    """Return a GPU in one line: name, compute capability, memory, driver."""
    return _("{name}, compute capability {capability}, {memory:.1f} GB, driver {driver}").format(
        name=sanitize_line(gpu.name),
        capability=gpu.compute_capability,
        memory=gpu.total_bytes / 1e9,
        driver=sanitize_line(gpu.driver),
    )
