"""Where the weights of a model would go, who would compute them and how fast, in words and figures.

Knows what is told of a forecast; plans nothing itself. Called by `tiercel plan`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from engine.cancel import CancelToken
from engine.config import KVType, LoadOptions, Precision
from engine.drafting.forecast_draft import Forecasts, forecast_both
from engine.events import BlockPlace, Tier
from engine.forecast import Forecast, Memory, OnGpu, planner_for
from engine.gguf import open_gguf
from engine.machine import available_memory
from engine.tiers.advice import Advice, PlanReport, explain, places, what_if
from engine.tiers.budget import shown_bytes
from engine.tiers.placement import place_of
from engine.tiers.planner import plan
from engine.tiers.simulator import draw
from engine.tiers.tier_clock import TierClock

_MORE_RAM = 8 * 10**9
_COLUMNS = 80
"""Of the chart of a decode step."""
_SHOWN_PROMPT = 512
"""Tokens of the prompt that is predicted."""


def plan_report(options: LoadOptions, cancel: CancelToken) -> PlanReport:
    """What loading with these options would plan; rates that are not known yet are measured, as loading does.

    Raises what loading raises before it reserves anything, and CancelledError.
    """
    with open_gguf(options.path) as gguf:
        both = forecast_both(gguf, options, Memory(available_memory()), cancel, measure=True)
    planned = both.model
    report = PlanReport(
        blocks=_places(planned),
        predicted_decode_tok_s=_per_second(1, planned.host.predicted_decode_s),
        predicted_prefill_tok_s=None,
        limited_by=planned.host.limited_by,
        lines=tuple(_on_processor(planned)),
        advice=tuple(_more_memory(planned)),
        timeline=(),
        vram_bytes=0,
        vram_budget_bytes=0,
        ram_bytes=planned.ram_bytes,
        ram_budget_bytes=planned.ram_budget,
        context=planned.max_context,
        chunk=planned.chunk,
        slots=0,
        notices=planned.notices,
    )
    if planned.gpu is not None:
        report = _with_gpu(report, planned, planned.gpu)
    return report if both.draft is None else replace(report, lines=(*report.lines, _beside_it(both)))


def _beside_it(both: Forecasts) -> str:
    """What the draft model takes."""
    ram, vram = both.ram_bytes - both.model.ram_bytes, both.vram_bytes - both.model.vram_bytes
    places = [f"{shown_bytes(ram)} of memory"] if ram else []
    if vram:
        places.append(f"{shown_bytes(vram)} of the GPU's")
    return f"its draft model takes {' and '.join(places)} beside it"


def _with_gpu(report: PlanReport, planned: Forecast, gpu: OnGpu) -> PlanReport:
    """The same where a GPU takes part."""
    options, rates, placed = planned.options, planned.rates, gpu.plan
    eight_bits = options.kv_type is KVType.Q8_0 or options.precision is Precision.FLOAT
    advice = what_if(
        planner_for(options, rates),
        planned.blocks,
        gpu.sizes,
        gpu.budget,
        planned.room.weights,
        eight_bit_kv=eight_bits,  # in float precision there is no such cache
    )
    timeline: list[str] = []
    if rates is not None and rates.link is not None:
        clock = TierClock(planned.blocks, rates, rates.link, options.link_limit)
        timeline = draw(clock.decode(placed), _COLUMNS)
    return replace(
        report,
        blocks=places(placed, planned.blocks),
        predicted_decode_tok_s=_per_second(1, placed.predicted_decode_s),
        predicted_prefill_tok_s=_per_second(_SHOWN_PROMPT, placed.predicted_prefill_s),
        limited_by=placed.limited_by,
        lines=(f"{gpu.facts.name} computes", *explain(placed, planned.blocks, gpu.sizes)),
        advice=tuple(map(str, advice)),
        timeline=tuple(timeline),
        vram_bytes=placed.vram_bytes,
        vram_budget_bytes=gpu.budget,
        slots=placed.slots,
    )


def _places(planned: Forecast) -> tuple[BlockPlace, ...]:
    return tuple(
        place_of(block, Tier.RAM if block.index in planned.host.resident else Tier.NVME)
        for block in planned.blocks
    )


def _on_processor(planned: Forecast) -> Iterator[str]:
    """Where everything goes and why, where there are memory and disk alone."""
    host, blocks = planned.host, planned.blocks
    yield f"the processor computes: {planned.no_gpu}"
    stays = sum(block.n_bytes for block in blocks if block.index in host.resident)
    if not host.streamed:
        yield f"memory holds all that a token takes ({shown_bytes(stays)}): nothing is read for it"
    else:
        yield f"{len(host.resident)} blocks ({shown_bytes(stays)}) stay in memory, spread evenly over a pass"
        yield (
            f"{len(host.streamed)} blocks ({shown_bytes(host.read_bytes)}) are read from disk for every "
            f"token, through a ring of {host.slots} slots of {shown_bytes(host.slot_bytes)} each"
        )
    yield f"the KV cache of {planned.max_context} tokens takes {shown_bytes(planned.kv_bytes)} of memory"
    if host.predicted_decode_s is not None:
        yield (
            f"a token takes {host.predicted_decode_s * 1e3:.1f} ms ({1 / host.predicted_decode_s:.1f} per "
            f"second), and what limits it is {host.limited_by}"
        )


def _more_memory(planned: Forecast) -> Iterator[str]:
    """What more memory would bring a processor that reads weights from disk."""
    now = planned.host.predicted_decode_s
    if now is None or not planned.host.streamed:
        return
    then = plan(planned.blocks, planned.room.weights + _MORE_RAM, planned.rates).predicted_decode_s
    if then is not None:
        yield str(Advice(f"{shown_bytes(_MORE_RAM)} more RAM", 1 / then, now / then))


def _per_second(n_tokens: int, seconds: float | None) -> float | None:
    return None if seconds is None else n_tokens / seconds
