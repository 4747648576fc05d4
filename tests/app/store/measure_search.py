"""Build a large history in a temporary folder and print how long searching and opening take.

Run it by hand: `python tests/app/store/measure_search.py [MESSAGES]`, 100,000 by default. Words are drawn as
in real text: a few in most messages, most in a few.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from app.conversation import Conversation, Turn
from app.store import Store
from app.store.history_file import open_history

PER_CONVERSATION = 25
LONG = 500
REPEATS = 9
START_MS = 1_600_000_000_000
STEP_MS = 1_000_000


class Words:
    """Draws English and Chinese text from fixed vocabularies."""

    def __init__(self) -> None:
        self.random = random.Random(1)
        starts = "ttttttaaaassssooooiiiwwwccbbbpphhffmmddrreellnngguvyjkqxz"
        letters = "etaoinshrdlucmfwypvbgkqjxz"
        self.english = [
            self.random.choice(starts) + "".join(self.random.choices(letters, k=self.random.randint(1, 9)))
            for _ in range(20_000)
        ]
        self.chinese = [
            "".join(map(chr, self.random.choices(range(0x4E00, 0x5800), k=2))) for _ in range(8_000)
        ]
        self._english_odds = list(accumulate(1 / (place + 1) for place in range(20_000)))
        self._chinese_odds = list(accumulate(1 / (place + 3) for place in range(8_000)))

    def text(self, number: int) -> str:
        length = self.random.choice((8, 40, 120, 250) if number % 2 else (4, 12, 30))
        if number % 3:
            return " ".join(self.random.choices(self.english, cum_weights=self._english_odds, k=length))
        return "，".join(self.random.choices(self.chinese, cum_weights=self._chinese_odds, k=length))


def build(path: Path, messages: int, words: Words) -> None:
    """Store `messages` messages, one conversation of 500 among them."""
    with open_history(path, create=True) as history:
        history.take_in(
            conversation(number, words) for number in range((messages - LONG) // PER_CONVERSATION)
        )
        history.take_in([conversation(messages // PER_CONVERSATION, words, LONG)])


def conversation(number: int, words: Words, length: int = PER_CONVERSATION) -> Conversation:
    """Make one conversation; the last ones are the newest."""
    made = Conversation(f"Conversation {number}", id=number + 1)
    turns = []
    for place in range(length):
        at = START_MS + (number * PER_CONVERSATION + place) * STEP_MS
        role = "assistant" if place % 2 else "user"
        turns.append(Turn(made.id, role, words.text(place), created_at=at, id=at * 1_000_000))
        turns[-1].parent_id = turns[-2].id if place else None
        turns[-1].model = ("Rare-1B" if number % 1000 == 1 else "Common-7B") if place % 2 else ""
    made.grow(turns, turns[-1].id)
    made.updated_at = turns[-1].created_at
    return made


def measure(name: str, function: Callable[[], object]) -> float:
    """Print and return the worst time of several runs."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        result = function()
        times.append((time.perf_counter() - started) * 1000)
    size = len(result) if isinstance(result, list) else ""
    print(f"{name:<44} {statistics.median(times):8.1f} {max(times):8.1f}  {size}")
    return max(times)


def main() -> None:
    """Build, measure and print."""
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    words = Words()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.db"
        started = time.perf_counter()
        build(path, messages, words)
        took = time.perf_counter() - started
        print(f"{messages:,} messages, {path.stat().st_size / 1e6:.0f} MB, {took:.0f} s")
        store = Store(path)
        started = time.perf_counter()
        store.start()
        store.conversations()
        print(f"opened and listed after {(time.perf_counter() - started) * 1000:.0f} ms")
        print(f"{'':<44} {'median':>8} {'worst':>8}  ms, hits")
        english, chinese, week = words.english, words.chinese, START_MS + (messages - 600) * STEP_MS
        every = {"per_message": True}
        queries: list[tuple[str, str, dict[str, object]]] = [
            ("most frequent English word", english[0] + " ", every),
            ("frequent word, one hit a conversation", english[0] + " ", {}),
            ("middling English word", english[300] + " ", every),
            ("rare English word", english[19_000] + " ", every),
            ("one letter, frequent", "t", every),
            ("one letter, rare", "z", every),
            ("two letters", "ta", every),
            ("three letters", "tan", every),
            ("three frequent words", " ".join(english[:3]) + " ", every),
            ("frequent and rare word", f"{english[0]} {english[19_000]} ", every),
            ("frequent word and one letter", f"{english[0]} t", every),
            ("word that does not exist", "nosuchwordatall", every),
            ("most frequent Chinese word", chinese[0], every),
            ("middling Chinese word", chinese[200], every),
            ("rare Chinese word", chinese[7_900], every),
            ("one Chinese character", chinese[0][0], every),
            ("two Chinese characters, never together", chinese[0][0] + chinese[1][1], every),
            ("Chinese and English", f"{chinese[0]} {english[0]}", every),
            ("frequent word of the person", english[0] + " ", {**every, "role": "user"}),
            ("frequent word of a rare model", english[0] + " ", {**every, "model": "rare-1b"}),
            ("frequent word of no model", english[0] + " ", {**every, "model": "nobody"}),
            ("one letter of no model", "t", {**every, "model": "nobody"}),
            ("frequent word of the last week", english[0] + " ", {**every, "since_ms": week}),
            ("one letter since tomorrow", "t", {**every, "since_ms": START_MS * 2}),
        ]
        worst = max(
            measure(name, lambda query=query, how=how: store.search(query, **how))  # type: ignore[misc]
            for name, query, how in queries
        )
        print(f"worst of all searches: {worst:.0f} ms")
        newest = store.conversations()[0]
        measure("newest conversations", store.conversations)
        measure("newest message of each conversation", store.recent)
        measure("the same of a rare model", lambda: store.recent(model="rare-1b"))
        measure("messages sent", store.sent)
        measure(f"open a conversation of {LONG} messages", lambda: store.load(newest).turns)
        store.close()


if __name__ == "__main__":
    main()
