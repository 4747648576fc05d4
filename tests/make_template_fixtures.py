"""Make tests/engine/fixtures/chat_templates.json: what Hugging Face's `apply_chat_template` renders.

For developers, not run by the tests. Needs `transformers` in an environment of its own:

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install transformers
    /tmp/oracle/bin/python tests/make_template_fixtures.py ../shared/data/templates

Every template is rendered with every conversation; where it refuses, the text is null. `now` is fixed.
"""

from __future__ import annotations

import datetime as datetime_module
import json
import sys
from pathlib import Path
from typing import Any

import transformers
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

FIXTURE = Path(__file__).parent / "engine" / "fixtures" / "chat_templates.json"
NOW = datetime_module.datetime(2025, 2, 3, 4, 5, 6)

SPECIAL = {
    "HuggingFaceTB-SmolLM3-3B": ("", "<|im_end|>"),
    "Qwen-Qwen2.5-7B-Instruct": ("", "<|im_end|>"),
    "Qwen-Qwen3-0.6B": ("", "<|im_end|>"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "google-gemma-2-2b-it": ("<bos>", "<eos>"),
    "meta-llama-Llama-3.1-8B-Instruct": ("<|begin_of_text|>", "<|eot_id|>"),
    "meta-llama-Llama-3.3-70B-Instruct": ("<|begin_of_text|>", "<|eot_id|>"),
    "microsoft-Phi-3.5-mini-instruct": ("<s>", "<|endoftext|>"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("<s>", "</s>"),
    "openai-gpt-oss-120b": ("<|startoftext|>", "<|return|>"),
}

SYSTEM = {"role": "system", "content": "Answer briefly. Use <b>HTML</b> & 'quotes'."}
HELLO = {"role": "user", "content": "Hello, who are you?"}
REPLY = {"role": "assistant", "content": "A model."}
THINKING = {"role": "assistant", "content": "<think>\nShort.\n</think>\n\n  42  "}
FOLLOW_UP = {"role": "user", "content": "  你好 🙂\n\n{{ 7 * 7 }} {% raw %}\t"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "abcdef123",
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}},
        }
    ],
}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "abcdef123", "content": '{"sky": "<blue>"}'}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Forecast for a city & its surroundings.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name, e.g. Zürich"},
                    "days": {"type": "integer", "description": "How many", "default": 1},
                    "unit": {"type": "string", "enum": ["C", "F"], "description": "Scale"},
                },
                "required": ["city"],
            },
        },
    }
]

CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one turn": {"messages": [HELLO]},
    "one turn, system": {"messages": [SYSTEM, HELLO]},
    "one turn, closed": {"messages": [HELLO], "add_generation_prompt": False},
    "several turns": {"messages": [HELLO, REPLY, FOLLOW_UP]},
    "several turns, system": {"messages": [SYSTEM, HELLO, REPLY, FOLLOW_UP]},
    "several turns, closed": {"messages": [SYSTEM, HELLO, REPLY], "add_generation_prompt": False},
    "a thought in the past": {"messages": [HELLO, THINKING, FOLLOW_UP]},
    "a thought at the end": {"messages": [HELLO, THINKING], "add_generation_prompt": False},
    "no thinking, please": {"messages": [{"role": "system", "content": "/no_think Be kind."}, HELLO]},
    "empty texts": {
        "messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}, HELLO]
    },
    "two users in a row": {"messages": [HELLO, FOLLOW_UP]},
    "assistant first": {"messages": [REPLY, HELLO]},
    "system late": {"messages": [HELLO, REPLY, SYSTEM, FOLLOW_UP]},
    "typed control tokens": {"messages": [{"role": "user", "content": "<|im_end|>\n<|im_start|>system"}]},
    "tools": {"messages": [SYSTEM, HELLO], "tools": TOOLS},
    "tools, no system": {"messages": [HELLO], "tools": TOOLS},
    "a tool's answer": {"messages": [SYSTEM, HELLO, CALL, RESULT], "tools": TOOLS},
    "after a tool's answer": {"messages": [HELLO, CALL, RESULT, REPLY, FOLLOW_UP], "tools": TOOLS},
    "an unknown role": {"messages": [{"role": "narrator", "content": "Once upon a time"}, HELLO]},
}


class FixedClock(datetime_module.datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: datetime_module.tzinfo | None = None) -> FixedClock:
        """Return the fixed time."""
        return cls(*NOW.timetuple()[:6])


def expected(source: str, bos: str, eos: str, conversation: dict[str, Any]) -> str | None:
    """Render one conversation as Hugging Face does; None where it refuses."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(BPE()), bos_token=bos or None, eos_token=eos or None
    )
    arguments = {"add_generation_prompt": True, **conversation}
    try:
        text = tokenizer.apply_chat_template(
            arguments.pop("messages"), chat_template=source, tokenize=False, **arguments
        )
    except (TemplateError, TypeError, ValueError) as error:
        print(f"  refused: {type(error).__name__}: {error}")
        return None
    assert isinstance(text, str)
    return text


def main() -> None:
    """Write the fixture; `sys.argv[1]` is the folder of templates."""
    chat_template_utils.datetime = FixedClock
    folder = Path(sys.argv[1])
    texts = {}
    for name, (bos, eos) in SPECIAL.items():
        print(name)
        source = (folder / f"{name}.jinja").read_text(encoding="utf-8")
        texts[name] = {
            "bos_token": bos,
            "eos_token": eos,
            "expected": {title: expected(source, bos, eos, chat) for title, chat in CONVERSATIONS.items()},
        }
    fixture = {
        "made_by": f"transformers {transformers.__version__}, tests/make_template_fixtures.py",
        "now": NOW.isoformat(),
        "conversations": CONVERSATIONS,
        "templates": texts,
    }
    FIXTURE.parent.mkdir(parents=True, exist_ok=True)
    FIXTURE.write_text(json.dumps(fixture, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
