"""What made a message, also where an import says nonsense about it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from app.conversation import Conversation
from engine import GenerationStats, SamplingParams
from tests.app.driving import running


@pytest.mark.parametrize(
    ("made_by", "shown", "hidden"),
    [
        (
            {
                "backend": "cpu avx2",
                "ram_budget": 2_000_000_000,
                "changes": [[7, asdict(SamplingParams(temperature=0))]],
            },
            ["cpu avx2", "2.0 GB", "from token 7 on", "temperature 0"],
            [],
        ),
        (
            {"backend": "\x1b[2J", "ram_budget": "much", "changes": [1, [2], ["x", {}], {"a": 1}]},
            ["␛[2J"],
            ["much", "from token"],
        ),
        (
            {"backend": "cuda sm_90", "gpu": "NVIDIA H200", "vram_budget": 20_000_000_000},
            ["cuda sm_90", "NVIDIA H200", "video memory", "20.0 GB", "2.5 GB copied"],
            ["memory for weights"],
        ),
        ({"changes": 5}, ["sampling"], ["from token"]),
        ({"expected": 0.956}, ["not tried: 0.96x plain expected"], ["taken"]),
    ],
)
async def test_what_made_a_reply(
    home: Path, made_by: dict[str, object], shown: list[str], hidden: list[str]
) -> None:
    async with running(size=(100, 40)) as driver:
        await driver.ready()
        conversation: Conversation = driver.chat.workspace.current
        conversation.add("user", "question")
        reply = conversation.add("assistant", "answer")
        reply.sampling, reply.made_by = SamplingParams(), made_by
        reply.stats = GenerationStats(
            h2d_bytes=2_500_000_000 if "vram_budget" in made_by else 0,
            expected_speed_up=0.956 if "expected" in made_by else 0.0,
        )
        await driver.chat.show_conversation()
        driver.chat.action_turn_details()
        await driver.until(lambda: "written" in driver.screen_text(), "the details")
        text = driver.screen_text()
        assert [part for part in shown if part not in text] == []
        assert [part for part in hidden if part in text] == []
