"""How fast this machine reads memory, multiplies and reads its disks, and the file in which that is kept.

Knows figures and JSON; does not measure (`probe` does) and does not plan. Nothing is lost with the file: what
is missing or damaged in it is measured again.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kernels.quant_types import QuantType

_NEWS = 0.05


@dataclass(frozen=True, slots=True)
class LinkRates:
    """What a GPU and the way to it give; bytes per second, all above 0."""

    vram: float
    """Bytes of weights that products of a decode step get through, launches included."""
    h2d: float
    """Copies of page-locked memory to the GPU, with nothing else running."""
    h2d_beside_cpu: float
    """The same while the processor multiplies."""
    cpu_beside_h2d: float
    """Share of its own rate, above 0 to 1, that the processor keeps while copies run."""
    matrix_flops: float
    """Multiplications and additions per second of products of 512 tokens, weights expanded first."""
    crossing_s: float
    """Seconds that it takes to hand one token's hidden states to the processor and back."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What the planner goes by; bytes per second, all above 0."""

    dram: float
    """Memory read by all threads."""
    gemv: Mapping[QuantType, float]
    """Product with one column, bytes of weights, by all threads."""
    disk: float | None
    """Direct reads of the model's disk; None where none was measured because nothing is read."""
    cpu_flops: float | None = None
    """Multiplications and additions per second of products of many tokens by all threads."""
    link: LinkRates | None = None
    """None without a GPU."""

    def product(self, quant_type: QuantType) -> float:
        """Bytes per second of a product; a type that was not measured counts as memory."""
        return self.gemv.get(quant_type, self.dram)


class GpuMeasured(NamedTuple):
    """What was measured with one GPU, for models whose weights are mostly of one type."""

    link: LinkRates
    cpu_flops: float
    """As in `Rates`."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What has been measured so far on one machine; bytes per second."""

    dram: float | None = None
    gemv: Mapping[QuantType, float] = field(default_factory=dict)
    disks: Mapping[int, float] = field(default_factory=dict)
    """By the device's number (st_dev)."""
    gpus: Mapping[str, GpuMeasured] = field(default_factory=dict)
    """By GPU, driver and quant type, in words."""


def differ(one: float, other: float) -> bool:
    """Whether two rates, or two times, are so far apart that it is news."""
    return abs(one / other - 1) >= _NEWS


def load_rates(path: Path, fingerprint: str) -> Measured:
    """What the file holds about the machine of this fingerprint; nothing where it is damaged or absent."""
    try:
        entry = _read(path)[fingerprint]
        return Measured(
            dram=None if entry["dram"] is None else _rate(entry["dram"]),
            gemv={QuantType[name]: _rate(rate) for name, rate in entry["gemv"].items()},
            disks={int(device): _rate(rate) for device, rate in entry["disks"].items()},
            gpus={gpu: _gpu(rates) for gpu, rates in entry.get("gpus", {}).items()},
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        return Measured()


def save_rates(path: Path, fingerprint: str, measured: Measured) -> None:
    """Put them into the file, whole or not at all, beside those of other machines. Raises OSError."""
    document = _read(path)
    document[fingerprint] = {
        "dram": measured.dram,
        "gemv": {quant_type.name: rate for quant_type, rate in measured.gemv.items()},
        "disks": {str(device): rate for device, rate in measured.disks.items()},
        "gpus": {
            gpu: {**asdict(rates.link), "cpu_flops": rates.cpu_flops} for gpu, rates in measured.gpus.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, because only there a rename replaces at once.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _read(path: Path) -> dict[str, Any]:
    """The file's entries by fingerprint, unchecked."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _gpu(rates: Mapping[str, Any]) -> GpuMeasured:
    link = LinkRates(**{name: _rate(rates[name]) for name in LinkRates.__slots__})
    if link.cpu_beside_h2d > 1:
        raise ValueError(f"{link.cpu_beside_h2d!r} is no share")
    return GpuMeasured(link, _rate(rates["cpu_flops"]))


def _rate(value: Any) -> float:
    rate = float(value)
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"{value!r} is no rate")
    return rate
