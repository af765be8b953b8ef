from __future__ import annotations

from pathlib import Path

import pytest

from relay_tui.app import all_actions
from relay_tui.screens import SCREENS
from relay_tui.shell.actions import EVERYWHERE, Registry, conflicts
from relay_tui.shell.keys import read_keys

ACTIONS = all_actions()


def test_no_two_actions_of_a_screen_share_a_key() -> None:
    assert list(conflicts(ACTIONS)) == []


def test_no_action_of_a_screen_takes_a_key_that_is_everywhere_but_to_move_within_itself() -> None:
    everywhere = {key for action in ACTIONS if action.where == EVERYWHERE for key in (action.key, *action.keys)} - {
        None,
        "tab",
        "shift+tab",
    }
    taken = [
        (action.where, action.name, key)
        for action in ACTIONS
        if action.where != EVERYWHERE
        for key in (action.key, *action.keys)
    ]
    assert [entry for entry in taken if entry[2] in everywhere] == []


def test_what_changes_something_has_a_capital_letter_or_a_chord() -> None:
    wrong = [
        action
        for action in ACTIONS
        if action.changes and action.key and not (action.key.isupper() or "+" in action.key)
    ]
    assert wrong == []


def test_a_capital_letter_that_changes_nothing_goes_somewhere_or_copies() -> None:
    harmless = {"bottom", "copy-command", "demo", "plan", *(screen.name for screen in SCREENS)}
    wrong = [
        action.name
        for action in ACTIONS
        if action.key and action.key.isupper() and not action.changes and action.name not in harmless
    ]
    assert wrong == []


def test_every_screen_of_the_list_is_there_with_its_key() -> None:
    registry = Registry(ACTIONS)
    for screen in SCREENS:
        if screen.key is not None:
            found = registry.by_key("overview", screen.key)
            assert found is not None
            assert found.name == screen.name


def test_read_only_leaves_out_every_action_that_changes_something() -> None:
    registry = Registry(ACTIONS, read_only=True)
    assert [action for action in registry.actions if action.changes] == []
    assert {action.name for action in ACTIONS} - {action.name for action in registry.actions}


def test_a_command_is_found_by_its_beginning_and_here_before_elsewhere() -> None:
    registry = Registry(ACTIONS)

    def found(name: str) -> list[tuple[str, str]]:
        return [(action.where, action.name) for action in registry.by_name("overview", name)]

    assert found("reset") == [("breakers", "reset")]
    assert found("dead") == [(EVERYWHERE, "dead-letters")]
    assert found("no-such-thing") == []
    assert {name for _, name in found("pa")} == {"page-down", "page-up", "pause", "palette"}


def test_what_is_offered_without_a_supervisor_cannot_be_asked_for_with_one() -> None:
    registry = Registry(ACTIONS)
    for name in ("demo", "start-supervisor"):
        assert [action.name for action in registry.by_name("no-supervisor", name)] == [name]
        assert registry.by_name("overview", name) == []
        assert name not in {action.name for action in registry.offered("overview")}


@pytest.mark.parametrize(
    ("text", "keys", "problem"),
    [
        pytest.param('reset = "ctrl+x"', {"reset": "ctrl+x"}, None, id="another-key"),
        pytest.param('reset = ""', {"reset": ""}, None, id="no-key"),
        pytest.param('rest = "B"', {}, "there is no action 'rest'", id="unknown"),
        pytest.param("reset = 3", {}, "needs a key in quotes", id="no-text"),
        pytest.param('reset = "F"', {}, "'F' is both reset and force", id="taken"),
        pytest.param("reset = ", {}, "Invalid value", id="no-toml"),
        pytest.param('reset = "Ctrl+X"', {"reset": "ctrl+x"}, None, id="capitals"),
        pytest.param('reset = " "', {"reset": "space"}, None, id="space"),
        pytest.param('reset = "two keys"', {}, "'two keys' is not a key", id="no-key-at-all"),
    ],
)
def test_the_operators_file_of_keys(tmp_path: Path, text: str, keys: dict[str, str], problem: str | None) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    found, problems = read_keys(path, ACTIONS)
    assert found == keys
    assert problem is None or problem in problems[0]
    assert (problem is None) == (problems == [])


def test_a_key_of_the_operators_takes_the_place_of_ours() -> None:
    registry = Registry(ACTIONS, keys={"reset": "ctrl+x", "force": ""})
    assert registry.by_key("breakers", "X") is None
    assert registry.by_key("breakers", "F") is None
    found = registry.by_key("breakers", "ctrl+x")
    assert found is not None
    assert found.name == "reset"


def test_a_key_of_the_operators_leaves_the_arrows() -> None:
    registry = Registry(ACTIONS, keys={"down": "n"})
    assert registry.by_key("breakers", "j") is None
    assert registry.by_key("breakers", "n") is registry.by_key("breakers", "down")
