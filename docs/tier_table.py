"""The tables and marks of docs/measure_tiers.py, from its results alone: nothing is measured here.

A bound is a function of bytes, arithmetic and rates measured in the same run (tests/engine/tiers/bound.py);
the planner's own prediction stands beside it and is held to 15 %. What was not measured leaves its
cell empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import mean
from typing import Any, NamedTuple

from tests.engine.tiers.bound import Links, decode_bound, prefill_bound

Entry = Mapping[str, Any]

PREDICTED_WITHIN = 0.15
_OF_THE_70B = (38e9, 46e9)
"""Bytes of a file to which marks in tokens per second apply: 70B Q4_K_M."""


class Mark(NamedTuple):
    """Something that must hold."""

    what: str
    figure: str
    wanted: str
    holds: bool

    def __str__(self) -> str:
        """A row."""
        return f"| {self.what} | {self.figure} | {self.wanted} | {'yes' if self.holds else '**no**'} |"


def table(entries: Mapping[str, Entry]) -> list[str]:
    """Lines of Markdown: the links, a row for each configuration, the marks, and what went wrong."""
    links = {entry["name"]: entry for entry in entries.values() if entry["name"].startswith("links")}
    measured = [entry for entry in entries.values() if not entry["name"].startswith("links")]
    return [
        *_links(links),
        "",
        "| model | configuration | tok/s | bound | share | predicted at load, then "
        "| VRAM, RAM, disk GB | waits for | 512 tokens, tok/s | bound | predicted "
        "| 4,096 tokens, tok/s | bound |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
        *(_row(entry, links) for entry in measured if "placed" in entry),
        "",
        "| what | measured | wanted | holds |",
        "|---|---|---|---|",
        *(str(mark) for entry in measured for mark in marks(entry, links)),
        "",
        *(f"{key}: {entry['error']}" for key, entry in entries.items() if entry.get("error")),
        *(line for entry in measured for line in _told(entry)),
        *_notices(measured),
    ]


def marks(entry: Entry, links: Mapping[str, Entry]) -> Iterator[Mark]:
    """What must hold of a configuration, as far as it was measured."""
    of = f"{entry['model']} {entry['name']}"
    name = entry["name"]
    if "decode" in entry:
        yield from _decode_marks(of, entry, bound_of(entry, links))
    for n_tokens, least in ((512, 1000), (4096, 2500)):
        if run := entry.get(f"prefill_{n_tokens}"):
            yield from _prefill_marks(f"{of}, {n_tokens} tokens", entry, run, least, links)
    if name in ("vram6", "vram8", "vram12"):
        yield Mark(of, "runs" if entry["done"] else "does not", "runs", bool(entry["done"]))
    if moves := entry.get("moves"):
        pause = moves["longest_pause_s"]
        yield Mark(f"{of}, longest pause", f"{pause:.2f} s", "at most 2 s", pause <= 2)
    if crowd := entry.get("crowd"):
        rates = ", ".join(f"{rate:.2f}" for rate in crowd["tok_s"])
        yield Mark(
            f"{of} ({crowd['taken']}), tok/s before, beside, after",
            rates,
            "it answers",
            min(crowd["tok_s"]) > 0,
        )
    if cold := entry.get("cold"):
        yield from _cold_marks(of, entry, cold)


def bound_of(entry: Entry, links: Mapping[str, Entry]) -> float | None:
    """The least seconds of a decode step; None where no links were measured for it."""
    rates = _rates(entry, links)
    if rates is None or "placed" not in entry:
        return None
    n_bytes = entry["placed"]["pass_bytes"]
    on_disk = n_bytes.get("nvme", 0)
    return decode_bound(n_bytes.get("vram", 0), n_bytes.get("ram", 0) + on_disk, on_disk, rates)


def prompt_bound_of(entry: Entry, run: Mapping[str, float], links: Mapping[str, Entry]) -> float | None:
    """The least seconds of a prompt; None where no links were measured for it."""
    rates, measured = _rates(entry, links), _measured_for(entry, links)
    if rates is None or measured is None:
        return None
    outside = entry["placed"]["layer_bytes_outside_vram"]
    # What was copied says in how many parts the prompt ran: each copies all once.
    parts = max(1, round(run["h2d_bytes"] / outside)) if outside else 1
    flops = 2 * entry["placed"]["layer_weights"] * run["tokens"]
    return prefill_bound(parts * outside, run["nvme_bytes"], flops, rates, measured["matrix_flops"])


def _decode_marks(of: str, entry: Entry, bound_s: float | None) -> Iterator[Mark]:
    name, tok_s = entry["name"], entry["decode"]["tok_s"]
    least = {"auto": 6.0, "desktop-6.5": 2.0, "desktop-25": 2.2}.get(name)
    if least is not None and _OF_THE_70B[0] < entry["file_bytes"] < _OF_THE_70B[1]:
        yield Mark(of, f"{tok_s:.2f} tok/s", f"at least {least:.1f}", tok_s >= least)
    share = {"auto": 0.8, "desktop-6.5": 0.9, "desktop-25": 0.9, "ram34": 0.9}.get(name)
    if share is not None and bound_s is not None:
        reached = tok_s * bound_s
        yield Mark(f"{of}, of the bound", f"{reached:.0%}", f"at least {share:.0%}", reached >= share)
    if name == "ram16" and entry["placed"]["pass_read_bytes"] and entry.get("disk_rates"):
        longer = mean(entry["disk_rates"]) / entry["placed"]["pass_read_bytes"] / tok_s
        yield Mark(f"{of}, step / reading", f"{longer:.2f}", "at most 1.11", longer <= 1.11)
    yield from _predicted(f"{of}, at load", entry["placed"]["predicted_decode_tok_s"], tok_s)
    yield from _predicted(f"{of}, after the first steps", entry.get("predicted_decode_tok_s"), tok_s)


def _prefill_marks(
    of: str, entry: Entry, run: Mapping[str, float], least: float, links: Mapping[str, Entry]
) -> Iterator[Mark]:
    if _OF_THE_70B[0] < entry["file_bytes"] < _OF_THE_70B[1]:
        yield Mark(of, f"{run['tok_s']:,.0f} tok/s", f"at least {least:,.0f}", run["tok_s"] >= least)
    if least > 1000:
        return
    bound_s = prompt_bound_of(entry, run, links)
    if bound_s is not None:
        longer = run["seconds"] / bound_s
        yield Mark(f"{of}, time / bound", f"{longer:.2f}", "at most 1.25", longer <= 1.25)
    yield from _predicted(of, entry.get("predicted_prefill_tok_s"), run["tok_s"])


def _cold_marks(of: str, entry: Entry, cold: Mapping[str, Any]) -> Iterator[Mark]:
    first, second, settled = cold["first_token_s"], cold["second_token_s"], cold["settled_s"]
    most = 1.2 * entry["file_bytes"] / mean(entry["disk_rates"]) + 3
    cached = (
        f", {entry['cached_bytes'] / 1e9:.1f} GB still in the page cache" if entry["cached_bytes"] else ""
    )
    if first is None:
        yield Mark(f"{of}, first token{cached}", "none", f"at most {most:.1f} s", False)
        return
    yield Mark(f"{of}, first token{cached}", f"{first:.1f} s", f"at most {most:.1f} s", first <= most)
    if second is not None:
        at = "never" if settled is None else f"{settled:.1f} s"
        yield Mark(
            f"{of}, second token",
            f"{second:.1f} s",
            f"before loading has settled: {at}",
            settled is not None and second < settled,
        )
    if cold["tok_s_settled"] is not None:
        planned = entry["placed"]["predicted_decode_tok_s"]
        yield from _predicted(f"{of}, settled", planned, cold["tok_s_settled"])


def _predicted(of: str, predicted: float | None, tok_s: float) -> Iterator[Mark]:
    if predicted:
        yield Mark(
            f"{of}, predicted / measured",
            f"{predicted / tok_s:.2f}",
            f"{1 - PREDICTED_WITHIN:.2f} to {1 + PREDICTED_WITHIN:.2f}",
            abs(predicted / tok_s - 1) <= PREDICTED_WITHIN,
        )


def _measured_for(entry: Entry, links: Mapping[str, Entry]) -> Entry | None:
    """What was measured with as many threads; None where the way to the GPU was not."""
    measured = links.get("links-4" if entry["threads"] == 4 else "links")
    return measured if measured is not None and "h2d" in measured else None


def _rates(entry: Entry, links: Mapping[str, Entry]) -> Links | None:
    """The same for the bound: plain reads, and the imitated link where there is one."""
    measured = _measured_for(entry, links)
    if measured is None:
        return None
    limit = entry["link_limit"] or float("inf")
    return Links(
        vram=measured["vram_read"],
        h2d=min(limit, measured["h2d"]),
        h2d_beside_cpu=min(limit, measured["h2d_beside_cpu"]),
        cpu=measured["dram"],
        cpu_beside_h2d=measured["dram"] * measured["cpu_beside_h2d"],
        disk=mean(entry["disk_rates"]) if entry.get("disk_rates") else measured["disk"],
    )


def _links(links: Mapping[str, Entry]) -> list[str]:
    def gb(entry: Entry, field: str, factor: float = 1.0) -> str:
        return f"{entry[field] * factor / 1e9:,.1f}" if field in entry else ""

    return [
        "| threads | memory, GB/s | products, GB/s | to the GPU | beside the CPU | the CPU beside copies "
        "| disk | VRAM, products | VRAM, reads | TFLOP/s | crossing, us |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {entry['threads']} | {gb(entry, 'dram')} | "
            + ", ".join(f"{kind} {rate / 1e9:.1f}" for kind, rate in entry["gemv"].items())
            + f" | {gb(entry, 'h2d')} | {gb(entry, 'h2d_beside_cpu')} | "
            + (f"{entry['cpu_beside_h2d']:.0%}" if "cpu_beside_h2d" in entry else "")
            + f" | {gb(entry, 'disk')} | {gb(entry, 'vram')} | {gb(entry, 'vram_read')} | "
            + f"{gb(entry, 'matrix_flops', 1e-3)} | "
            + (f"{entry['crossing_s'] * 1e6:.0f} |" if "crossing_s" in entry else " |")
            for entry in links.values()
            if "disk" in entry
        ),
    ]


def _row(entry: Entry, links: Mapping[str, Entry]) -> str:
    placed, bound_s = entry["placed"], bound_of(entry, links)
    tok_s = entry["decode"]["tok_s"] if "decode" in entry else None
    in_pass = placed["pass_bytes"]
    cells = [
        entry["model"],
        entry["name"],
        _shown(tok_s),
        _shown(1 / bound_s if bound_s else None),
        f"{tok_s * bound_s:.0%}" if tok_s and bound_s else "",
        f"{_shown(placed['predicted_decode_tok_s'])}, {_shown(entry.get('predicted_decode_tok_s'))}",
        ", ".join(f"{in_pass.get(tier, 0) / 1e9:.1f}" for tier in ("vram", "ram", "nvme")),
        placed["limited_by"],
    ]
    for field in ("prefill_512", "prefill_4096"):
        run = entry.get(field)
        bound = prompt_bound_of(entry, run, links) if run else None
        cells += [_shown(run and run["tok_s"]), _shown(run["tokens"] / bound if run and bound else None)]
        if field == "prefill_512":
            cells.append(_shown(entry.get("predicted_prefill_tok_s")))
    return f"| {' | '.join(cells)} |"


def _shown(figure: float | None) -> str:
    if figure is None:
        return ""
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.2f}"


def _told(entry: Entry) -> Iterator[str]:
    """What is no row and no mark."""
    of = f"{entry['model']} {entry['name']}"
    if moves := entry.get("moves"):
        yield (
            f"{of}: {moves['equal_from_the_beginning']} of {moves['tokens']} ids are those of the reply "
            "without moves (where another processor computes, sums round differently)"
        )
    if load := entry.get("load"):
        settled = f"settled after {load['settled_s']:.1f}" if load["settled"] else "never settled"
        yield f"{of}: ready after {load['ready_s']:.1f} s, {settled}"


def _notices(measured: list[Entry]) -> Iterator[str]:
    """Each once, with the configurations that it came with."""
    came_with: dict[str, list[str]] = {}
    for entry in measured:
        for notice in entry.get("placed", {}).get("notices", ()):
            came_with.setdefault(notice, []).append(f"{entry['model']} {entry['name']}")
    for notice, names in came_with.items():
        yield f"{', '.join(names)}: {notice}"
