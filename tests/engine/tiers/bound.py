"""What no plan can beat on one machine: from bytes, arithmetic and rates of links alone, not from a plan."""

from __future__ import annotations

from typing import NamedTuple


class Links(NamedTuple):
    """Bytes per second as measured; the two with `beside` while both run."""

    vram: float
    h2d: float
    h2d_beside_cpu: float
    cpu: float
    cpu_beside_h2d: float
    """The processor's own bytes per second, not a share."""
    disk: float = float("inf")


def decode_bound(vram_bytes: float, host_bytes: float, disk_bytes: float, links: Links) -> float:
    """Least seconds of a decode step; of the `host_bytes` outside VRAM, `disk_bytes` are read from disk.

    One token goes through one layer after another, so that GPU and processor take turns, and only copies run
    beside them. Copies either go on all the time, or beside the GPU alone where they cost the processor more
    than they bring, or bring everything.
    """
    in_vram = vram_bytes / links.vram

    def shared(copied_beside: float, cpu: float) -> float:
        # t_gpu = in_vram + copied / vram; copied = h2d * t_gpu + copied_beside * t_cpu
        # host = copied + cpu * t_cpu
        keep = 1 - links.h2d / links.vram
        if keep <= 0:  # copies are faster than VRAM: all of it is copied
            return float("inf")
        copied_at_once = links.h2d * in_vram / keep
        copied_per_s = copied_beside / keep
        t_cpu = max(0.0, (host_bytes - copied_at_once) / (cpu + copied_per_s))
        copied = min(host_bytes, copied_at_once + copied_per_s * t_cpu)
        return in_vram + copied / links.vram + t_cpu

    streamed = max(in_vram + host_bytes / links.vram, host_bytes / links.h2d)
    computed = in_vram + host_bytes / links.cpu
    both = shared(links.h2d_beside_cpu, links.cpu_beside_h2d)
    return max(min(streamed, computed, both, shared(0.0, links.cpu)), disk_bytes / links.disk)


def prefill_bound(
    streamed_bytes: float, disk_bytes: float, flops: float, links: Links, matrix_flops: float
) -> float:
    """Least seconds of a pass in which the GPU computes everything."""
    return max(streamed_bytes / links.h2d, disk_bytes / links.disk, flops / matrix_flops)
