"""The report of the tiers for the command line: plain lines, or one object for JSON.

Knows the order of what is told; does not know the terminal or the engine. Called by `app.cli.tiers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from app.sanitize import sanitize_line
from app.tiers.history import sparkline
from app.tiers.layout import GUTTER, MapLine, map_lines, worst
from app.tiers.report import Link, TierReport
from app.tiers.words import (
    bar_parts,
    clock,
    duration,
    gpu_line,
    legend,
    limit_words,
    link_words,
    moving_words,
    now_words,
    plan_words,
    prompt_words,
    row_legend,
    settling_words,
    short_name,
    skipped_words,
    speed_words,
    tier_name,
    tier_numbers,
    waiting_words,
    why_no_map,
)
from engine import Tier

_BAR = 24
_CURVE = 30
_WAITS = 3


def as_lines(report: TierReport, width: int) -> list[str]:
    """Return the map with its bars, numbers and events as plain lines of at most `width` columns."""
    return [line[:width].rstrip() for line in _lines(report, width)]


def _lines(report: TierReport, width: int) -> Iterator[str]:
    if report.model is not None:
        yield f"{sanitize_line(report.model.name)}  {report.model.quantisation}  {report.backend}"
    if device := gpu_line(report):
        yield device
    if missing := why_no_map(report):
        yield missing
        return
    for total in report.tiers:
        bar = "".join(bar_parts(total, min(_BAR, max(4, width - 40))))
        yield f"{total.letter} {tier_name(total.tier):<5}{bar} {tier_numbers(total)}"
    yield ""
    for line in map_lines(report.blocks, width, 2):
        yield line_text(report, line)
    yield f"{legend(report)}  {row_legend()}"
    yield ""
    link, compute = report.link, report.compute
    if report.reads:
        yield from _link_lines("NVMe->RAM", report, link, width)
    if report.copies is not None:
        yield from _link_lines("RAM->VRAM", report, report.copies, width)
    busy = f"{compute.busy:.1f} of {compute.cores} cores"
    yield f"CPU       {_curve(compute.history, compute.cores, width)} {busy}"
    curve = _curve(report.tok_s_history, max(report.tok_s_history, default=0.0), width)
    yield f"speed     {curve} {now_words(report)}"
    yield speed_words(report)
    told = (
        prompt_words(report),
        plan_words(report),
        skipped_words(report),
        settling_words(settled=report.settled, progress=report.load_progress),
    )
    yield from filter(None, told)
    yield waiting_words(report)
    if waits := _longest_waits(report):
        yield waits
    yield f"limit: {limit_words(report)}"
    yield ""
    if report.events_dropped:
        yield f"{report.events_dropped} earlier events are gone"
    for event in report.events:
        yield f"{clock(event)} {sanitize_line(event.text)}"


def _link_lines(name: str, report: TierReport, link: Link, width: int) -> Iterator[str]:
    yield f"{name} {_curve(link.history, link.ceiling, width)} {link_words(link)}"
    if moving := moving_words(report, link):
        yield f"          {moving}"


def _longest_waits(report: TierReport) -> str:
    """The blocks that the last pass waited for longest."""
    longest = sorted(report.waits.items(), key=lambda wait: (-wait[1], wait[0]))[:_WAITS]
    told = ", ".join(f"{short_name(report.blocks[index])} {duration(seconds)}" for index, seconds in longest)
    return f"waited longest for {told}" if told else ""


def _curve(values: tuple[float, ...], top: float | None, width: int) -> str:
    return sparkline(values, top or 0.0, _CURVE if width >= 80 else 10)


def line_text(report: TierReport, line: MapLine) -> str:
    """Return one line of the map without colour."""
    cells = "".join(
        (worst([report.cells[i] for i in group]).glyph if group else " ").ljust(line.cell_width)
        for group in line.groups
    )
    return line.label.rjust(GUTTER - 1)[: GUTTER - 1] + " " + (line.ruler or cells)


def as_json(report: TierReport) -> dict[str, object]:
    """Return the whole report as one object; rates are bytes per second, times milliseconds."""
    compute = report.compute
    links = [_link_json("nvme", "ram", "nvme_read_bytes", report.link)]
    if report.copies is not None:
        links.append(_link_json("ram", "vram", "h2d_bytes", report.copies))
    return {
        "state": report.state,
        "model": None if report.model is None else report.model.name,
        "backend": report.backend,
        "backend_reason": report.reason,
        "gpu": None if report.gpu is None else asdict(report.gpu),
        "reason": why_no_map(report),
        "tiers": [
            {
                "tier": total.tier,
                "blocks": total.blocks,
                "letters": dict(total.kinds),
                "bytes": total.n_bytes,
                "used_bytes": total.used,
                "ring_bytes": total.ring,
                "total_bytes": total.total,
                "device_bytes": total.whole if total.tier is Tier.VRAM else None,
            }
            for total in report.tiers
        ],
        "blocks": [
            {
                "name": block.name,
                "kind": block.kind,
                "layer": block.layer,
                "bytes": block.n_bytes,
                "quantisation": block.quantisation,
                "tier": block.tier,
                "executor": block.executor,
                "activity": cell.activity.name.lower(),
                "skipped": index in report.skipped,
                "wait_ms": round(report.waits.get(index, 0.0) * 1000, 3),
            }
            for index, (block, cell) in enumerate(zip(report.blocks, report.cells, strict=True))
        ],
        "links": links,
        "compute": {"busy_cores": round(compute.busy, 3), "cores": compute.cores, "block": compute.active},
        "passes": report.passes,
        "pass_bytes": report.pass_bytes,
        "skipped_blocks": len(report.skipped),
        "skipped_bytes": report.skipped_bytes,
        "pass_read_bytes": report.pass_read_bytes,
        "pass_copy_bytes": report.pass_copy_bytes,
        "hit_rate": report.hit_rate and round(report.hit_rate, 4),
        "stall_ms_per_pass": _ms(report.stall_s),
        "copy_stall_ms_per_pass": _ms(report.copy_stall_s),
        "stall_share": report.stall_share and round(report.stall_share, 4),
        "now_tok_s": round(report.now_tok_s, 3),
        "decode_tok_s": round(report.tok_s, 3),
        "predicted_decode_tok_s": report.predicted_tok_s and round(report.predicted_tok_s, 3),
        "predicted_prefill_tok_s": report.predicted_prefill_tok_s
        and round(report.predicted_prefill_tok_s, 3),
        "limited_by": report.limited_by,
        "limit": report.limit,
        "settled": report.settled,
        "load_progress": round(report.load_progress, 4),
        "events": [{"at": event.at, "kind": event.kind, "text": event.text} for event in report.events],
        "events_dropped": report.events_dropped,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _link_json(start: str, end: str, counter: str, link: Link) -> dict[str, object]:
    return {
        "from": start,
        "to": end,
        "bytes_per_s": round(link.rate),
        "probed_bytes_per_s": link.probed and round(link.probed),
        "ceiling_bytes_per_s": link.ceiling and round(link.ceiling),
        "busy": round(link.busy, 4),
        counter: link.read_bytes,
        "moving": [{"block": m.index, "share": round(m.share, 4)} for m in link.moving],
    }
