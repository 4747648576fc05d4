"""The conversation on the screen: cursor, window, following, marks, finding words."""

from __future__ import annotations

from typing import Any

import pytest
from textual.containers import Vertical
from textual.content import Content
from textual.pilot import Pilot
from textual.widgets import Static

from app.conversation import Conversation, Turn, TurnStatus
from app.widgets.transcript import Transcript
from app.widgets.turn import TurnView
from app.widgets.turn_window import MOST, PAGE
from tests.app.hosting import Host, hosting, screen_text, until

WELCOME = Content("welcome")


def talk(n: int, answer: str = "answer {}") -> Conversation:
    """Return a conversation of `n` questions and answers."""
    conversation = Conversation()
    for number in range(n):
        conversation.add("user", f"question {number}")
        conversation.add("assistant", answer.format(number))
    return conversation


async def opened(
    transcript: Transcript, pilot: Pilot[Any], conversation: Conversation, at: Turn | None = None
) -> Conversation:
    await transcript.show(conversation, at)
    await pilot.pause()
    await pilot.pause()
    return conversation


def marked(transcript: Transcript) -> list[str]:
    return [view.turn.text for view in transcript.query(TurnView) if view.has_class("-current")]


def mounted(transcript: Transcript) -> list[str]:
    return [view.turn.text for view in transcript.query(TurnView)]


def in_view(host: Host, text: str) -> bool:
    return text in screen_text(host)


async def test_the_newest_turn_is_meant_until_another_is_chosen() -> None:
    transcript = Transcript(Conversation(), WELCOME)
    async with hosting(transcript) as (host, pilot):
        assert transcript.current is None
        transcript.move_cursor(-1)
        conversation = await opened(transcript, pilot, talk(2))
        assert transcript.current is conversation.turns[-1]
        assert "▸" not in screen_text(host)
        transcript.move_cursor(-1)
        await pilot.pause()
        assert transcript.current is conversation.turns[-2]
        assert marked(transcript) == ["question 1"]
        assert "▸ You" in screen_text(host)
        transcript.move_cursor(1)
        transcript.move_cursor(1)
        await pilot.pause()
        assert transcript.current is conversation.turns[-1]
        assert marked(transcript) == []


async def test_keys_move_the_cursor_while_the_conversation_has_the_focus() -> None:
    transcript = Transcript(Conversation(), WELCOME)
    async with hosting(transcript) as (host, pilot):
        await opened(transcript, pilot, talk(30))
        transcript.focus()
        await pilot.pause()
        assert marked(transcript) == ["answer 29"]
        await pilot.press("k", "k", "j")
        assert marked(transcript) == ["question 29"]
        await pilot.press("g")
        await until(pilot, lambda: in_view(host, "▸ You") and in_view(host, "question 0"))
        assert marked(transcript) == ["question 0"]
        await pilot.press("G")
        await until(pilot, lambda: in_view(host, "answer 29"))
        assert marked(transcript) == ["answer 29"]
        top = transcript.scroll_y
        await pilot.press("shift+space")
        await pilot.pause()
        assert transcript.scroll_y < top
        await pilot.press("space")
        await until(pilot, lambda: transcript.scroll_y == top)


async def test_the_cursor_walks_through_a_long_conversation_and_always_is_in_view() -> None:
    transcript = Transcript(Conversation(), WELCOME)
    async with hosting(transcript) as (host, pilot):
        conversation = await opened(transcript, pilot, talk(30))
        texts = [turn.text for turn in conversation.turns]
        for text in reversed(texts[:-1]):
            transcript.move_cursor(-1)
            await until(pilot, lambda text=text: marked(transcript) == [text] and in_view(host, text))
            assert len(mounted(transcript)) <= MOST
        for text in texts[1:]:
            transcript.move_cursor(1)
            await until(pilot, lambda text=text: marked(transcript) == [text] and in_view(host, text))
            assert len(mounted(transcript)) <= MOST


async def test_of_500_messages_few_are_mounted_wherever_one_is() -> None:
    transcript = Transcript(Conversation(), WELCOME)
    async with hosting(transcript) as (host, pilot):
        conversation = await opened(transcript, pilot, talk(250))
        assert mounted(transcript) == [turn.text for turn in conversation.turns[-PAGE:]]
        transcript.choose(conversation.turns[100])
        await until(pilot, lambda: in_view(host, "question 50"))
        assert len(mounted(transcript)) == PAGE
        assert "earlier messages" in screen_text(host) or transcript.scroll_y > 0
        transcript.focus()
        transcript.scroll_home(animate=False)
        for _ in range(30):
            transcript.scroll_page_down(animate=False)
            await pilot.pause(0.03)
            texts = mounted(transcript)
            assert len(texts) <= MOST
            start = [turn.text for turn in conversation.turns].index(texts[0])
            assert texts == [turn.text for turn in conversation.turns[start : start + len(texts)]]
        await pilot.press("end")
        await until(pilot, lambda: in_view(host, "answer 249"))
        assert len(mounted(transcript)) == PAGE


async def test_scrolling_up_and_down_again_reads_on_where_it_was() -> None:
    transcript = Transcript(Conversation(), WELCOME)
    async with hosting(transcript) as (host, pilot):
        conversation = await opened(transcript, pilot, talk(35))
        texts = [turn.text for turn in conversation.turns]
        assert len(texts) > MOST
        seen = [screen_text(host)]
        for scroll in [transcript.scroll_page_up] * 13 + [transcript.scroll_page_down] * 13:
            scroll(animate=False)
            await pilot.pause(0.05)
            await until(pilot, lambda: not transcript._loading)
            await pilot.pause(0.05)
            seen.append(screen_text(host))
        for shots in (seen[:14], seen[13:]):
            assert [text for text in texts if not any(f"{text} " in shot for shot in shots)] == []
        assert "question 0 " in seen[13]
        assert "answer 34 " in seen[-1]


async def test_text_that_comes_out_of_view_is_counted_and_end_goes_there() -> None:
    transcript = Transcript(Conversation(), WELCOME)
    async with hosting(transcript) as (host, pilot):
        conversation = await opened(transcript, pilot, talk(10))
        reply = conversation.add("assistant", status=TurnStatus.STREAMING)
        await transcript.add(reply)
        await pilot.pause()
        view = transcript.view(reply)
        assert view is not None
        for number in range(3):
            reply.text += f"row {number}\n\n"
            view.grow("")
            await until(pilot, lambda: f"row {number}" in screen_text(host))  # noqa: B023
        assert "new lines" not in screen_text(host)
        transcript.focus()
        await pilot.press("pageup")
        await pilot.pause()
        before = transcript.virtual_size.height
        for number in range(3, 6):
            height = transcript.virtual_size.height
            reply.text += f"row {number}\n\n"
            view.grow("")
            await until(pilot, lambda: transcript.virtual_size.height > height)  # noqa: B023
        n_new = transcript.virtual_size.height - before
        assert n_new > 0
        await until(pilot, lambda: f"▼ {n_new} new lines (^End)" in screen_text(host))
        assert "row 5" not in screen_text(host)
        await pilot.press("end")
        await until(pilot, lambda: in_view(host, "row 5"))
        assert "new lines" not in screen_text(host)
        reply.text += "row 6\n\n"
        view.grow("")
        await until(pilot, lambda: in_view(host, "row 6"))


async def test_a_line_stands_above_what_the_model_still_sees() -> None:
    transcript = Transcript(Conversation(), WELCOME)
    async with hosting(transcript, size=(80, 40)) as (host, pilot):
        conversation = await opened(transcript, pilot, talk(3))
        words = "▲ the model no longer sees what is above"
        assert words not in screen_text(host)
        transcript.show_border(conversation.turns[2].id)
        await pilot.pause()
        shown = screen_text(host)
        assert shown.index("answer 0") < shown.index(words) < shown.index("question 1")
        for nothing_above in (None, conversation.turns[0].id):
            transcript.show_border(nothing_above)
            await pilot.pause()
            assert words not in screen_text(host)


async def test_versions_are_told_and_what_stays_is_not_drawn_anew() -> None:
    transcript = Transcript(Conversation(), WELCOME)
    async with hosting(transcript, size=(80, 40)) as (host, pilot):
        conversation = await opened(transcript, pilot, talk(3))
        before = list(transcript.query(TurnView))
        first = conversation.turns[-1]
        conversation.cut(first)
        second = conversation.add("assistant", "another answer")
        await opened(transcript, pilot, conversation)
        after = list(transcript.query(TurnView))
        assert after[:5] == before[:5]
        assert mounted(transcript)[5:] == ["another answer"]
        assert "‹2/2›" in screen_text(host)
        conversation.show(first)
        await opened(transcript, pilot, conversation, at=first)
        assert mounted(transcript)[5:] == ["answer 2"]
        assert "‹1/2›" in screen_text(host)
        assert transcript.current is first
        conversation.remove(second)
        await opened(transcript, pilot, conversation)
        assert "‹" not in screen_text(host)


async def test_what_is_sent_while_one_reads_far_above_is_shown() -> None:
    transcript = Transcript(Conversation(), WELCOME)
    async with hosting(transcript) as (host, pilot):
        conversation = await opened(transcript, pilot, talk(100))
        transcript.choose(conversation.turns[0])
        await until(pilot, lambda: in_view(host, "question 0"))
        await transcript.add(conversation.add("user", "and now?"))
        await until(pilot, lambda: in_view(host, "and now?"))
        assert transcript.current is conversation.turns[-1]
        assert mounted(transcript) == [turn.text for turn in conversation.turns[-PAGE:]]


async def test_a_click_chooses_a_turn() -> None:
    transcript = Transcript(Conversation(), WELCOME)
    async with hosting(transcript, size=(80, 40)) as (_host, pilot):
        await opened(transcript, pilot, talk(3))
        await pilot.click(next(iter(transcript.query(TurnView))))
        assert marked(transcript) == ["question 0"]


async def test_words_are_found_in_turns_that_are_not_mounted() -> None:
    transcript = Transcript(Conversation(), WELCOME)
    async with hosting(transcript) as (host, pilot):
        conversation = talk(100, "Some **text** about number {}.")
        for place in (3, 101, 150):
            conversation.turns[place].text += " And a [b]Needle(*)."
        await opened(transcript, pilot, conversation)
        assert transcript.find("needle(*)") == (3, 3)
        expected = [(2, 101), (1, 3), (3, 150)]
        for number, place in expected:
            assert transcript.find_next(-1) == (number, 3)
            await until(pilot, lambda place=place: marked(transcript) == [conversation.turns[place].text])
            await until(pilot, lambda: host.screen.get_selected_text() == "Needle(*)")
            await until(pilot, lambda: in_view(host, "Needle(*)"))
        assert transcript.find_next(1) == (1, 3)
        assert transcript.find("nothing like it") == (0, 0)
        assert transcript.find_next(1) == (0, 0)
        assert transcript.find("") == (0, 0)
        assert host.screen.get_selected_text() is None


async def test_n_goes_on_with_the_search_and_says_where_it_is() -> None:
    transcript = Transcript(Conversation(), WELCOME)
    async with hosting(transcript) as (host, pilot):
        await opened(transcript, pilot, talk(5))
        transcript.focus()
        await pilot.press("n")
        assert host.heard_of(Transcript.Found) == []
        transcript.find("question")
        await pilot.press("n", "N", "N")
        found = [(message.place, message.count) for message in host.heard_of(Transcript.Found)]
        assert found == [(1, 5), (5, 5), (4, 5)]


@pytest.mark.parametrize("heavy", [False, True], ids=["markdown", "one-widget"])
async def test_a_word_far_down_a_long_turn_is_brought_into_view(heavy: bool) -> None:
    transcript = Transcript(Conversation(), WELCOME)
    lines = 300 if heavy else 60
    text = "".join(f"paragraph {number}\n\n" for number in range(lines))
    async with hosting(transcript) as (host, pilot):
        await opened(transcript, pilot, talk(20, text + "{}"))
        transcript.find(f"paragraph {lines // 2}\n")
        assert transcript.find(f"paragraph {lines // 2}")[1] == 20
        await until(pilot, lambda: in_view(host, f"paragraph {lines // 2}"))


async def test_letters_do_nothing_where_no_screen_takes_them() -> None:
    transcript = Transcript(Conversation(), WELCOME)
    async with hosting(Vertical(transcript)) as (host, pilot):
        await opened(transcript, pilot, talk(1))
        transcript.focus()
        await pilot.press("e", "r", "y", "t", "[", "]", "enter")
        assert host.is_running


async def test_an_empty_conversation_says_welcome() -> None:
    transcript = Transcript(Conversation(), WELCOME)
    async with hosting(transcript) as (host, pilot):
        assert "welcome" in screen_text(host)
        await opened(transcript, pilot, talk(1))
        assert "welcome" not in screen_text(host)
        assert not transcript.query_one("#later", Static).display
