"""Keys of the person's own: what works is bound and shown, what would not is refused in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App
from textual.binding import Binding

from app.actions import ACTIONS, Scope
from app.keymap import (
    NO_KEY,
    Keymap,
    by_id,
    clashes,
    load_keymap,
    parse_key,
    shipped_keys,
    shown_key,
    use_keymap,
)


@pytest.fixture
def written(tmp_path: Path):  # type: ignore[no-untyped-def]
    def write(text: str) -> Keymap:
        path = tmp_path / "keymap.toml"
        path.write_text(text, encoding="utf-8")
        return load_keymap(path)

    return write


@pytest.fixture(autouse=True)
def _shipped_keys_afterwards() -> Iterator[None]:
    yield
    use_keymap(Keymap())


def test_no_shipped_keys_clash() -> None:
    assert list(clashes(shipped_keys())) == []


def test_ids_are_unique() -> None:
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)


def test_every_shipped_key_could_have_been_written_by_a_person() -> None:
    for keys in shipped_keys().values():
        assert [parse_key(key) for key in keys] == list(keys)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("e", "e"),
        ("E", "E"),
        ("shift+e", "E"),
        ("Ctrl+X", "ctrl+x"),
        ("alt+Up", "alt+up"),
        ("shift+ctrl+left", "ctrl+shift+left"),
        ("PageDown", "pagedown"),
        ("/", "slash"),
        ("+", "plus"),
        (",", "comma"),
        ("alt+[", "alt+left_square_bracket"),
        ("F5", "f5"),
    ],
)
def test_keys_are_read_as_people_write_them(text: str, key: str) -> None:
    assert parse_key(text) == key


@pytest.mark.parametrize(
    "text", ["", "ctrl", "f25", "ctrl+", "hyper+x", "ctrl+ctrl+x", "ab", "ox", "\x1b", "\n"]
)
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no key"):
        parse_key(text)


@given(st.text(max_size=12))
def test_any_text_is_a_key_or_refused(text: str) -> None:
    try:
        key = parse_key(text)
    except ValueError:
        return
    assert parse_key(key) == key
    assert "," not in key


def test_without_a_file_all_keys_are_as_shipped(tmp_path: Path) -> None:
    keymap = load_keymap(tmp_path / "none.toml")
    assert (keymap.keys, keymap.problems) == ({}, ())
    assert all(shown_key(action) == action.shown for action in ACTIONS)


def test_a_key_and_a_list_of_keys_are_bound_and_shown(written) -> None:  # type: ignore[no-untyped-def]
    keymap = written('"turn.edit" = "x"\n"help" = ["f8", "alt+h"]\n')
    assert keymap.problems == ()
    assert keymap.keys == {"turn.edit": "x", "help": "f8,alt+h"}
    use_keymap(keymap)
    assert shown_key(by_id("turn.edit")) == "x"
    assert shown_key(by_id("help")) == "F8 Alt-H"


def test_ids_need_no_quotes(written) -> None:  # type: ignore[no-untyped-def]
    assert written('turn.edit = "x"').keys == {"turn.edit": "x"}


def test_an_empty_text_takes_the_key_away(written) -> None:  # type: ignore[no-untyped-def]
    keymap = written('"help" = ""\n"sampling" = []')
    assert keymap.problems == ()
    assert keymap.keys == {"help": NO_KEY, "sampling": NO_KEY}
    assert keymap.shown(by_id("help")) == ""


def test_two_actions_may_change_their_keys_with_each_other(written) -> None:  # type: ignore[no-untyped-def]
    keymap = written('"chat.list" = "f3"\n"model.choose" = "f2"')
    assert keymap.problems == ()
    assert keymap.keys == {"chat.list": "f3", "model.choose": "f2"}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('"turn.edti" = "x"', "no such action"),
        ('"turn.edit" = "hyper+x"', "hyper"),
        ('"turn.edit" = 3', "in quotes"),
        ('"turn.edit" = ["x", 3]', "in quotes"),
        ('"send" = "f5"', "cannot be changed"),
        ('"help" = "x"', "writing"),
        ('"help" = "/"', "writing"),
        ('"help" = "space"', "writing"),
        ('"help" = "enter"', "writing"),
        ('"help" = "ctrl+m"', "Enter"),
        ('"help" = "ctrl+i"', "Tab"),
        ('"help" = "f2"', "chat.list"),
        ('"help" = "tab"', "pane"),
        ('"turn.edit" = "r"', "turn.retry"),
        ('"turn.edit" = "ctrl+n"', "chat.new"),
        ('"turn.edit" = "j"', "conversation"),
        ('"quit" = ""', "quit"),
        ('"quit" = "ctrl+s"', "quit"),
    ],
)
def test_what_would_not_work_is_one_line_and_not_applied(written, line: str, named: str) -> None:  # type: ignore[no-untyped-def]
    keymap = written(f'"sampling" = "f9"\n{line}\n')
    assert keymap.keys == {"sampling": "f9"}
    assert len(keymap.problems) == 1
    assert named in keymap.problems[0]
    assert line.split('"')[1] in keymap.problems[0]


@pytest.mark.parametrize("text", ["= x", "\x00"])
def test_a_file_that_is_no_toml_is_one_line(written, text: str) -> None:  # type: ignore[no-untyped-def]
    keymap = written(text)
    assert keymap.keys == {}
    assert len(keymap.problems) == 1
    assert "keymap.toml" in keymap.problems[0]


@pytest.mark.parametrize("key", ["ctrl+b", "ctrl+a", "ctrl+s", "f10", "f11"])
def test_a_key_that_may_never_arrive_is_applied_with_a_warning(written, key: str) -> None:  # type: ignore[no-untyped-def]
    keymap = written(f'"sampling" = "{key}"')
    assert keymap.keys == {"sampling": key}
    assert "never arrive" in keymap.problems[0]


def test_an_entry_that_is_dropped_gives_its_action_the_shipped_key_back(written) -> None:  # type: ignore[no-untyped-def]
    # f2 is taken by help; chat.list would go to f3 but model.choose has it, so f2 is chat.list's again.
    keymap = written('"help" = "f2"\n"chat.list" = "f3"\n')
    assert keymap.keys == {}
    assert len(keymap.problems) == 2


@given(
    st.dictionaries(
        st.sampled_from([a.id for a in ACTIONS]), st.sampled_from(["e", "f1", "f2", "ctrl+n", ""])
    )
)
def test_whatever_is_written_no_key_serves_two_actions(
    tmp_path_factory: pytest.TempPathFactory, entries: dict[str, str]
) -> None:
    path = tmp_path_factory.mktemp("keys") / "keymap.toml"
    path.write_text("".join(f'"{id}" = "{key}"\n' for id, key in entries.items()))
    keymap = load_keymap(path)
    applied = {id: () if keys == NO_KEY else tuple(keys.split(",")) for id, keys in keymap.keys.items()}
    assert list(clashes(shipped_keys() | applied)) == []
    assert len(keymap.problems) + len(keymap.keys) == len(entries)


async def test_textual_obeys_the_map(written) -> None:  # type: ignore[no-untyped-def]
    """Given, exchanged and taken away; also for an action that ships without a key."""
    pressed: list[str] = []

    class Bound(App[None]):
        BINDINGS = [  # noqa: RUF012
            Binding(action.keys or NO_KEY, f"note('{action.id}')", id=action.id)
            for action in ACTIONS
            if action.method and action.scope is not Scope.TURN
        ]

        def action_note(self, id: str) -> None:
            pressed.append(id)

    app = Bound()
    app.set_keymap(
        written(
            'chat.list = "f3"\nmodel.choose = "f2"\nhelp = ""\nundo = "ctrl+u"\nsampling = ["f8", "f9"]'
        ).keys
    )
    async with app.run_test() as pilot:
        await pilot.press("f1", "f2", "f3", "ctrl+u", "f8", "f9", "ctrl+r", "f4")
    assert pressed == ["model.choose", "chat.list", "undo", "sampling", "sampling", "tiers.size"]
