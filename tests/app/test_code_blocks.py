"""Code blocks of a message, as they are copied."""

from __future__ import annotations

import pytest

from app.code_blocks import code_blocks
from app.conversation import Conversation


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("no code, only `words`", []),
        ("```py\nx = 1\n\ny = 2\n```\ntext\n~~~\nls\n~~~\n", ["x = 1\n\ny = 2", "ls"]),
        ("- item\n  ```sh\n  make\n  ```\n", ["make"]),
        ("    indented\n", ["indented"]),
        ("```\nnever closed", ["never closed"]),
        ("```\n```\n", []),
        ("```\n\x1b]52;c;x\x07\n```", ["␛]52;c;x␇"]),
    ],
)
def test_code_blocks_are_clean_and_run_nothing_when_pasted(text: str, blocks: list[str]) -> None:
    assert code_blocks(Conversation().add("assistant", text)) == blocks
