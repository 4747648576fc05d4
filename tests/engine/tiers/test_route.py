"""A route has every block once, in order, in runs that one executor computes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.events import Executor
from engine.tiers.route import route
from tests.engine.tiers.shapes import TIED

LAYERS = [block for block in TIED if block.layer is not None]
choices = st.lists(st.sampled_from(Executor), min_size=len(LAYERS), max_size=len(LAYERS))


@given(choices)
def test_runs_are_the_pass_cut_where_the_executor_changes(chosen: list[Executor]) -> None:
    executors = {block.index: executor for block, executor in zip(LAYERS, chosen, strict=True)}
    runs = route(LAYERS, executors)
    assert [block for run in runs for block in run.blocks] == LAYERS
    assert all({executors[block.index] for block in run.blocks} == {run.executor} for run in runs)
    assert all(len(run.blocks) == 1 for run in runs if run.executor is Executor.STREAM)
    assert all(
        one.executor is not other.executor or one.executor is Executor.STREAM for one, other in pairwise(runs)
    )
    assert all(run.on_gpu == (run.executor is not Executor.CPU) for run in runs)
