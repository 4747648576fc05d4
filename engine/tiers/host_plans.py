"""Plans for the blocks that no GPU has, as things are now: rates, and blocks elsewhere or left out of passes.

Knows what a plan is made for beside the budget, and what the disk has been like; does not choose (`planner`)
and moves nothing. Called by the store, from the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.tiers.blocks import Block
from engine.tiers.disk_pace import DiskPace
from engine.tiers.planner import Plan, least_memory, plan, predicted
from engine.tiers.rates import Rates
from engine.tiers.streamer import StreamStats


class HostPlans:
    """Of one model."""

    def __init__(self, blocks: Sequence[Block], rates: Rates | None, apart: frozenset[int]) -> None:
        """Predict by `rates` where they are known."""
        self._blocks, self._rates = blocks, rates
        self.pace = DiskPace(rates.disk if rates else None)
        self.apart = apart
        """Blocks, by index, that are a GPU's."""
        self.idle: frozenset[int] = frozenset()
        """Blocks, by index, that passes leave out."""

    @property
    def n_bytes(self) -> int:
        """Of all blocks that plans are made for."""
        return sum(block.n_bytes for block in self._blocks if block.index not in self.apart)

    def make(
        self, budget: int, among: frozenset[int] | None = None, *, apart: frozenset[int] | None = None
    ) -> Plan:
        """Plan for so many bytes, `among` the blocks that may stay, or for others that are `apart`.

        Raises BudgetError.
        """
        elsewhere = self.apart if apart is None else apart
        return plan(self._blocks, budget, self._rates, among=among, apart=elsewhere, idle=self.idle)

    def least(self, among: frozenset[int]) -> int:
        """Bytes that a plan takes at least in which only some of these blocks stay."""
        return least_memory(self._blocks, among, self.apart)

    def at_pace(self, present: Plan, read: StreamStats) -> Plan | None:
        """The same plan with what it promises at the rate that the disk has been read at; None: no news."""
        if self._rates is None or not self.pace.note(read):
            return None
        self._rates = replace(self._rates, disk=self.pace.rate)
        return predicted(present, self._blocks, self._rates, self.apart, self.idle)
