"""The list of conversations."""

from __future__ import annotations

from datetime import date, datetime, timedelta

from app.store import ConversationInfo
from app.widgets.conversation_list import ConversationList
from tests.app.hosting import hosting, screen_text

NOW = datetime(2026, 5, 20, 12)


def info(number: int, title: str, days: int = 0, persona: str = "") -> ConversationInfo:
    when = int((NOW - timedelta(days=days)).timestamp() * 1000)
    return ConversationInfo(number, title, when, persona)


ENTRIES = [
    info(1, "first", persona="pirate"),
    info(2, "[b]second\x1b", 1),
    info(3, "", 3),
    info(4, "old", 90),
]


async def test_it_shows_days_personas_drafts_and_replies_that_grow() -> None:
    chats = ConversationList()
    async with hosting(chats) as (host, pilot):
        chats.show(ENTRIES, 1, date(2026, 5, 20), {2: "●", 4: "✎"})
        await pilot.pause()
        lines = [line.rstrip() for line in screen_text(host).splitlines() if line.strip()]
        assert lines == [
            "Today",
            "▌first · pirate",
            "Yesterday",
            " ● [b]second␛",
            "This week",
            " New conversation",
            "2026-02",
            " ✎ old",
        ]


async def test_keys_ask_for_what_is_done_with_the_highlighted_one() -> None:
    chats = ConversationList()
    async with hosting(chats) as (host, pilot):
        chats.focus()
        await pilot.press("d", "r")
        chats.show(ENTRIES, 1, date(2026, 5, 20))
        await pilot.press("down", "d", "delete", "r", "enter")
        assert [m.conversation_id for m in host.heard_of(ConversationList.Deleted)] == [2, 2]
        assert [m.conversation_id for m in host.heard_of(ConversationList.RenameAsked)] == [2]
        assert [m.conversation_id for m in host.heard_of(ConversationList.Opened)] == [2]
