"""The rates that predictions go by while a model runs: those of probes, corrected by what passes have taken.

A machine that was busy while it was probed, or is busy now, is as fast as it is now. What a step takes of the
processor and of copies is compared with what the simulator makes of the rates in effect, and the quotients
correct these, so that the simulator says next what was measured. Nothing of it is kept: tomorrow's load is
another one. Knows rates; does not know plans.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from engine.tiers.rates import LinkRates, Rates, differ
from engine.tiers.step_pace import StepTimes
from engine.tiers.tier_clock import slowed
from kernels.quant_types import QuantType

_LEAST, _MOST = 0.25, 2.0
"""Shares of the probed rates between which corrections stay: what is beyond is no rate."""


class LiveRates:
    """Of one machine, for one model."""

    def __init__(self, probed: Rates, link: LinkRates, link_limit: float | None) -> None:
        """Begin with what probes found; `link_limit`: bytes per second that copies are held to."""
        self._link_limit = link_limit
        # What steps measure is slow already where copies are held back: a limit slows this no further.
        self._link = link if link_limit is None else slowed(link, link_limit)
        self._probed = replace(probed, link=self._link)
        self._shares = _Shares(1.0, self._link.cpu_beside_h2d, 1.0)
        self.now = self._probed
        """In effect."""

    def at_disk_rate(self, rate: float) -> None:
        """Go by other bytes per second of the disk from now on."""
        self._probed = replace(self._probed, disk=rate)
        self.now = replace(self.now, disk=rate)

    def are_others(self, promised: StepTimes, took: StepTimes) -> bool:
        """Whether steps took something else than what is `promised` by the rates in effect."""
        now, then = self._shares, self._corrected(promised, took)
        of_processor = differ(then.processor * then.kept, now.processor * now.kept)
        return of_processor or differ(then.copies, now.copies)

    def correct(self, promised: StepTimes, took: StepTimes) -> None:
        """Go by rates by which a step takes about what it `took`, and not what those in effect `promised`.

        Exactly where only one differs: products and copies are slower beside each other, and a step by other
        rates has more or less of that.
        """
        self._shares = shares = self._corrected(promised, took)
        probed, link = self._probed, self._link
        self.now = replace(
            probed,
            gemv={quant_type: probed.product(quant_type) * shares.processor for quant_type in QuantType},
            cpu_flops=None if probed.cpu_flops is None else probed.cpu_flops * shares.processor,
            link=replace(
                link,
                h2d=link.h2d * shares.copies,
                h2d_beside_cpu=link.h2d_beside_cpu * shares.copies,
                cpu_beside_h2d=shares.kept,
            ),
        )

    def _corrected(self, promised: StepTimes, took: StepTimes) -> _Shares:
        """What is not known stays."""
        processor, kept, copies = self._shares
        if promised.products_s is not None and took.products_s is not None:
            faster = promised.products_s / took.products_s
            beside = processor * kept * faster
            if promised.copy_rate is not None:
                # Measured is what the processor does beside copies. What it would do alone is not, and to
                # reckon with much would be to leave copies out for nothing: it has become slower, but no
                # faster than it was as long as copies can have become less of a burden.
                least = self._link.cpu_beside_h2d
                no_faster = min(max(processor, 1.0), processor * faster)
                kept = max(least, kept * faster if faster < 1 else min(1.0, beside / no_faster))
            processor = _within(beside / kept, _MOST)
        if promised.copy_rate is not None and took.copy_rate is not None:
            most = _MOST if self._link_limit is None else min(_MOST, self._link_limit / self._link.h2d)
            copies = _within(copies * took.copy_rate / promised.copy_rate, most)
        return _Shares(processor, kept, copies)


class _Shares(NamedTuple):
    """What corrects probed rates."""

    processor: float
    """Of the rates of its products, alone."""
    kept: float
    """Of these, what it keeps beside copies."""
    copies: float
    """Of the link's rates."""


def _within(share: float, most: float) -> float:
    return min(max(share, _LEAST), most)
