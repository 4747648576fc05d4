"""The bound is what the figures of the machine it was first worked out for say, and gives way as rates do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.tiers.bound import Links, decode_bound, prefill_bound

SERVER = Links(vram=3.3e12, h2d=55.4e9, h2d_beside_cpu=46e9, cpu=134e9, cpu_beside_h2d=121e9, disk=2e9)
"""16 cores, PCIe 5, an H200."""
rates = st.floats(1e8, 1e12)


def test_a_70b_with_half_of_it_outside_the_card() -> None:
    only_copies = SERVER._replace(cpu=1.0, cpu_beside_h2d=1.0)
    only_cpu = SERVER._replace(h2d=1.0, h2d_beside_cpu=1.0)
    assert 1 / decode_bound(23.1e9, 19.4e9, 0, only_copies) == pytest.approx(2.85, abs=0.05)
    assert 1 / decode_bound(23.1e9, 19.4e9, 0, only_cpu) == pytest.approx(6.6, abs=0.1)
    assert 1 / decode_bound(23.1e9, 19.4e9, 0, SERVER) == pytest.approx(8.2, abs=0.1)
    assert decode_bound(23.1e9, 19.4e9, 8e9, SERVER) == pytest.approx(4.0)
    assert decode_bound(42.5e9, 0, 0, SERVER) == pytest.approx(42.5e9 / 3.3e12)


def test_a_prompt_waits_for_copies_disk_or_arithmetic() -> None:
    assert prefill_bound(19.4e9, 0, 2 * 512 * 70e9, SERVER, 4e14) == pytest.approx(19.4e9 / 55.4e9)
    assert prefill_bound(19.4e9, 4e9, 2 * 512 * 70e9, SERVER, 4e14) == pytest.approx(2.0)
    assert prefill_bound(19.4e9, 0, 2 * 4096 * 70e9, SERVER, 4e14) == pytest.approx(1.43, abs=0.01)


@given(
    st.floats(0, 1e11),
    st.floats(0, 1e11),
    st.builds(Links, st.floats(2e12, 9e12), rates, rates, rates, rates, disk=rates),
    st.floats(1, 4),
)
def test_faster_links_never_take_longer(vram: float, host: float, links: Links, faster: float) -> None:
    links = links._replace(
        h2d_beside_cpu=min(links.h2d_beside_cpu, links.h2d),
        cpu_beside_h2d=min(links.cpu_beside_h2d, links.cpu),
    )
    before = decode_bound(vram, host, 0, links)
    assert before >= vram / links.vram
    after = links._replace(
        h2d=links.h2d * faster, h2d_beside_cpu=links.h2d_beside_cpu * faster, cpu=links.cpu * faster
    )
    assert decode_bound(vram, host, 0, after) <= before * (1 + 1e-9)
