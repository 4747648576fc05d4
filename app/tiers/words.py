"""The tiers in words: sizes, rates, reasons and bars as people read them.

Knows no widget, no colour and no terminal. The screen and the command line use the same words; the command
line never chooses a language, so that it speaks English.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from app.devices import gpu_words
from app.i18n import _
from app.sanitize import sanitize_line
from app.tiers.layout import SKIPPED, Activity, in_order, letter_of
from app.tiers.report import Limit, Link, TierReport, TierTotal
from engine import BlockPlace, EngineState, Executor, Tier, TierEvent


def size(n_bytes: float) -> str:
    """Return an amount in MB or GB (1e6 and 1e9 bytes)."""
    if not n_bytes:
        return "0 MB"
    return (
        f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.{0 if n_bytes >= 1e7 else 1}f} MB"
    )


def size_of(part: float, whole: float) -> str:
    """Return a part and its whole in the unit of the whole."""
    unit, places = (1e9, 2) if whole >= 1e9 else (1e6, 0 if whole >= 1e7 else 1)
    return f"{part / unit:.{places}f}/{size(whole)}"


def rate(bytes_per_s: float) -> str:
    """Return a rate in MB or GB per second."""
    return f"{size(bytes_per_s)}/s"


def duration(seconds: float) -> str:
    """Return a time in seconds or milliseconds."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.{0 if seconds >= 0.01 else 1}f} ms"


def tier_name(tier: Tier) -> str:
    """Return what people call a tier."""
    return "NVMe" if tier is Tier.NVME else tier.value.upper()


def short_name(block: BlockPlace) -> str:
    """Return a block's name in a few columns: "L12 attention", "head 2"."""
    name = sanitize_line(block.name)
    if block.layer is None:
        return name
    return f"L{block.layer} " + (_("attn") if block.kind == "attention" else _("ffn"))


def clock(event: TierEvent) -> str:
    """Return the time of day of an event."""
    return time.strftime("%H:%M:%S", time.localtime(event.at))


def moving_words(report: TierReport, link: Link) -> str:
    """Return which block is on its way over `link` and how far, and how many follow.

    Where none is known: for how much of the time the link is in use. Empty where it is not.
    """
    if not link.moving:
        return _("in use {share}").format(share=f"{link.busy:.0%}") if link.busy >= 0.005 else ""
    first, *others = link.moving
    share = f"{first.share:.0%}" if first.share else _("next")
    more = _(", {n} more").format(n=len(others)) if others else ""
    return f"{short_name(report.blocks[first.index])} {share}{more}"


def link_words(link: Link) -> str:
    """Return how fast a link is, of how fast it can be."""
    if not link.rate:
        return _("idle")
    return size_of(link.rate, link.ceiling) + "/s" if link.ceiling else rate(link.rate)


def why_no_map(report: TierReport) -> str:
    """Say why there is nothing to draw; empty when there is."""
    if report.known:
        return ""
    if report.state is EngineState.LOADING:
        return _("a model is being loaded: its map comes with it")
    if report.model is None:
        return _("no model is loaded: F3 chooses one, and its map appears here")
    return _("NumPy computes this model: all weights are in memory, and nothing is streamed")


def limit_words(report: TierReport) -> str:
    """Say what holds the speed back; of waiting only while a reply is computed."""
    share = f"{report.limit_share or 0.0:.0%}"
    planned = limited_words(report.limited_by)
    measured = report.generating and report.limit_share is not None
    if not measured and (last := _last_limits().get(report.limit)) is not None:
        return last
    match report.limit:
        case Limit.DISK:
            return _("the disk: waiting {share}").format(share=share)
        case Limit.DISK_IN_PART:
            return _("partly the disk: waiting {share}").format(share=share)
        case Limit.LINK:
            return _("copies: waiting {share}").format(share=share)
        case Limit.LINK_IN_PART:
            return _("partly copies: waiting {share}").format(share=share)
        case Limit.COMPUTE if report.streams or report.pass_copy_bytes:
            # The plan may have taken a link for slower than it is: what was measured wins.
            links = ("", "the disk", "the link to the GPU")
            what = _("computing") if report.limited_by in links else planned
            return _("{what}: waiting {share}").format(what=what, share=share)
        case Limit.COMPUTE:
            return planned or (_("computing") if report.gpu is None else _("the GPU"))
        case Limit.PLANNED:
            return _("{what}, by plan").format(what=planned)
        case _:
            return _("not measured yet")


def _last_limits() -> dict[Limit, str]:
    """What held the last reply back."""
    return {
        Limit.DISK: _("the disk"),
        Limit.DISK_IN_PART: _("partly the disk"),
        Limit.LINK: _("copies"),
        Limit.LINK_IN_PART: _("partly copies"),
        Limit.COMPUTE: _("computing"),
    }


def limited_words(limited_by: str) -> str:
    """Say what the plan takes to be the limit."""
    words = {
        "the disk": _("the disk"),
        "memory bandwidth": _("memory bandwidth"),
        "the processor": _("the processor"),
        "video memory bandwidth": _("video memory bandwidth"),
        "the GPU": _("the GPU"),
        "the link to the GPU": _("the link to the GPU"),
    }
    return words.get(limited_by, limited_by)


def gpu_line(report: TierReport) -> str:
    """Return which GPU computes, and why; empty where the processor does."""
    if report.gpu is None:
        return ""
    return sanitize_line(report.reason) or gpu_words(report.gpu)


def why_there(report: TierReport, index: int) -> str:
    """Say why a block is where it is, and what happens to it."""
    if report.cells[index].skipped:
        return _("left out of every pass: nothing is read or computed, and others may have its place")
    block, activity = report.blocks[index], report.cells[index].activity
    to_gpu = report.gpu is not None and block.executor is not Executor.CPU
    links = (report.link, report.copies)
    ways = [moving for link in links if link is not None for moving in link.moving]
    share = next((moving.share for moving in ways if moving.index == index), 0.0)
    match activity:
        case Activity.MOVING if to_gpu and share > 0:
            return _("on its way to the GPU: {share} is there").format(share=f"{share:.0%}")
        case Activity.MOVING if to_gpu:
            return _("next to the GPU; nothing of it is there yet")
        case Activity.ACTIVE if to_gpu:
            return _("in the staging ring of the GPU, which computes it now")
        case Activity.ACTIVE:
            return _("in the staging ring: the processor computes it now")
        case Activity.STAGED:
            return _("in the staging ring, ready for its turn; it is given up after it")
        case Activity.MOVING if share > 0:
            return _("on its way from the disk into memory: {share} is there").format(share=f"{share:.0%}")
        case Activity.MOVING:
            return _("next from the disk; nothing of it is there yet")
    return path_words(block) if report.gpu is not None else _at_home(block)


def path_words(block: BlockPlace) -> str:
    """Return the way that a block of a model on a GPU takes to whoever computes it, in every decode step."""
    match block.tier, block.executor:
        case Tier.VRAM, _executor:
            return _("stays in video memory: the GPU finds it there in every pass")
        case Tier.NVME, _executor if block.kind == "embedding":
            return _("stays in the file: a pass reads only the rows of its tokens")
        case Tier.RAM, Executor.CPU if block.kind == "embedding":
            return _("stays in memory: a pass takes only the rows of its tokens")
        case Tier.RAM, Executor.CPU if block.kind == "attention":
            return _("computed by the processor in place; its keys and values are in memory too")
        case Tier.RAM, Executor.CPU:
            return _("computed by the processor in place, in memory")
        case Tier.RAM, Executor.GPU:
            return _("copied once after each prompt to video memory that only prompts use")
        case Tier.RAM, _executor:
            return _("page-locked memory, copied to the GPU by DMA in every pass")
        case _tier, Executor.CPU:
            return _("read from the disk into a page-locked ring, computed there by the processor")
        case _:
            return _("read from the disk into a page-locked ring, then by DMA to the GPU")


def _at_home(block: BlockPlace) -> str:
    """The same without a GPU."""
    if block.tier is Tier.RAM:
        return _("stays in memory: every pass finds it there")
    if block.kind == "embedding":
        return _("stays in the file: a pass reads only the rows of its tokens")
    return _("does not fit the budget: it is read from the file for every pass")


def wait_words(report: TierReport, index: int) -> str:
    """Say how long the last pass waited for a block; empty where it did not."""
    seconds = report.waits.get(index, 0.0)
    return _("stall {time}").format(time=duration(seconds)) if seconds else ""


class Bar(NamedTuple):
    """The parts of a bar, each with a shape of its own."""

    stays: str
    ring: str
    free: str
    """The rest of what may be used."""
    beyond: str
    """Of a GPU: what is not for us."""


def bar_parts(total: TierTotal, width: int) -> Bar:
    """Return a bar of `width` cells."""
    whole = max(total.whole, total.used, 1)
    ring = -(-width * total.ring // whole) if total.ring else 0
    beyond = width * (whole - max(total.total, total.used)) // whole
    eighths = min((width - ring - beyond) * 8, round((total.used - total.ring) * width * 8 / whole))
    if total.used > total.ring:
        eighths = max(1, eighths)
    stays = "█" * (eighths // 8) + EIGHTHS_ACROSS[eighths % 8]
    stays = stays[: width - ring - beyond]
    return Bar(stays, "▒" * ring, "░" * (width - ring - beyond - len(stays)), "·" * beyond)


EIGHTHS_ACROSS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def tier_numbers(total: TierTotal) -> str:
    """Return what stands behind a bar."""
    amount = size(total.used) if total.tier is Tier.NVME else size_of(total.used, total.total)
    kinds = total.kinds or ((total.letter, 0),)
    return " ".join([amount, *(f"{n}{letter}" for letter, n in kinds)])


def legend(report: TierReport) -> str:
    """Return what the letters and shapes mean: with a GPU the letters that are on the map."""
    if report.gpu is None:
        return _("R ram  N nvme  • ring  ▶ now  ↑▄ move")
    words = {
        "V": _("V vram"),
        "R": _("R ram"),
        "S": _("S ram→gpu"),
        "N": _("N disk"),
        "D": _("D disk→gpu"),
    }
    letters = in_order(letter_of(block) for block in report.blocks)
    return " ".join([*(words[letter] for letter in letters), _("•ring ▶now ↑▄move")])


def row_legend() -> str:
    """Return what the rows of the map are."""
    return _("a attention  f feed-forward")


def settling_words(*, settled: bool, progress: float) -> str:
    """Say what a model does that answers before it is where the plan wants it; empty once it is."""
    if settled:
        return ""
    if progress < 1:
        return _("answers while it loads: {share}").format(share=f"{progress:.0%}")
    return _("blocks move")


def skipped_words(report: TierReport) -> str:
    """Return the mark and number of blocks that passes leave out, and what that saves; empty for none."""
    if not report.skipped:
        return ""
    whole = report.pass_bytes + report.skipped_bytes
    return _("{mark} skipped {count} of {total}, {share} of bytes").format(
        mark=SKIPPED,
        count=len(report.skipped),
        total=sum(block.layer is not None for block in report.blocks),
        share=f"{report.skipped_bytes / whole if whole else 0.0:.0%}",
    )


def plan_words(report: TierReport) -> str:
    """Return what the plan brings over the links for every decode step; empty where nothing comes."""
    parts = []
    if report.pass_copy_bytes:
        parts.append(_("{size} →gpu").format(size=size(report.pass_copy_bytes)))
    if report.gpu is not None and report.pass_read_bytes:
        parts.append(_("{size} disk").format(size=size(report.pass_read_bytes)))
    return _("a token: {what}").format(what=", ".join(parts)) if parts else ""


def now_words(report: TierReport) -> str:
    """Return the speed at this moment."""
    if not report.generating:
        return _("idle")
    speed = report.now_tok_s or report.tok_s
    return _("{speed} tok/s").format(speed=f"{speed:.3g}") if speed else _("reading prompt")


def speed_words(report: TierReport) -> str:
    """Return the speed of a whole reply beside the planned one."""
    parts = []
    if report.tok_s:
        told = _("reply {speed}") if report.generating else _("last reply {speed}")
        parts.append(told.format(speed=f"{report.tok_s:.3g}"))
    if report.predicted_tok_s:
        parts.append(_("planned {speed}").format(speed=f"{report.predicted_tok_s:.3g}"))
    return " · ".join(parts) + _(" tok/s") if parts else _("no reply yet")


def prompt_words(report: TierReport) -> str:
    """Return the planned speed of a prompt; empty where nothing was measured."""
    speed = report.predicted_prefill_tok_s
    return _("prompt of 512 planned {speed} tok/s").format(speed=f"{speed:,.0f}") if speed else ""


def waiting_words(report: TierReport) -> str:
    """Return how much of a pass is in memory when it begins, and how long a pass waits for the rest.

    Of waiting only while a reply is computed.
    """
    parts = []
    if report.hit_rate is not None:
        parts.append(_("hit {share}").format(share=f"{report.hit_rate:.0%}"))
    if report.generating and report.stall_s is not None:
        words = _("stall {time}, {copies} copies") if report.copy_stall_s else _("stall {time} a pass")
        copies = duration(report.copy_stall_s or 0.0)
        parts.append(words.format(time=duration(report.stall_s), copies=copies))
    return " · ".join(parts)
