"""adapters.json: every entry is judged by itself, and an edit changes one word of it."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from relay_core import Binding
from relay_core.adapters.validation import AdapterSettings
from relay_core.errors import ConfigError, NotFound
from relay_supervisor.adapters.file import Entry, read_adapters, set_enabled
from relay_supervisor.adapters.settings import OperatorSettings

CANARY = "SECRET-CANARY"


@pytest.fixture
def path(data_dir: Path) -> Path:
    return data_dir / "adapters.json"


def write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document))


def entries(path: Path) -> list[Entry]:
    found = read_adapters(path).entries
    assert found is not None
    return list(found)


def test_a_missing_file_means_no_adapters(path: Path) -> None:
    file = read_adapters(path)
    assert (file.entries, file.problem) == ((), None)


def test_good_entries_are_read_with_their_defaults(path: Path) -> None:
    tg = {"id": "tg", "type": "telegram", "enabled": False, "config": {"token": "x"}}
    bound = {"chat": "relay.human.telegram.tg.>", "agent": "relay.agent.a"}
    write(path, {"adapters": [tg, {"id": "mine", "path": "plugins/mine.py"}], "bindings": [bound]})
    assert entries(path) == [
        Entry("tg", type="telegram", enabled=False, config={"token": "x"}),
        Entry("mine", path="plugins/mine.py"),
    ]
    assert [entry.source for entry in entries(path)] == ["telegram", "plugins/mine.py"]
    assert read_adapters(path).problem is None
    assert read_adapters(path).bindings == (Binding(chat="relay.human.telegram.tg.>", agent="relay.agent.a"),)


def test_the_operators_settings_stand_beside_the_config(path: Path) -> None:
    set_by_operator = {"probeSecs": 5, "priority": -3, "drainSecs": 0.5, "rate": 2}
    write(path, {"adapters": [{"id": "tg", "type": "telegram", **set_by_operator}, {"id": "mine", "path": "mine.py"}]})
    tg, mine = entries(path)
    assert tg.settings == OperatorSettings(probe_secs=5, priority=-3, drain_secs=0.5, rate=2)
    assert tg.settings.traits == AdapterSettings(priority=-3, rate=2, drain=0.5)
    assert mine.settings == OperatorSettings()
    assert mine.settings.traits == AdapterSettings()
    assert tg.problem is None
    assert mine.problem is None


BAD_BINDINGS: list[Any] = [
    pytest.param(3, "binding #2 is left out: it must be an object", id="no object"),
    pytest.param({"agent": "relay.agent.a"}, "binding #2 is left out: chat: Field required", id="no chat"),
    pytest.param({"chat": "a", "agent": "a.*"}, "binding #2 is left out: agent: subject 'a.*'", id="pattern for agent"),
    pytest.param({"chat": "a", "agent": "b", "starts": "c"}, "binding #2 is left out: starts: Extra", id="unknown key"),
    pytest.param({"chat": "a", "agent": "b", "start": "c"}, "binding #2 is left out: start: Input", id="unknown start"),
]


@pytest.mark.parametrize(("bad", "problem"), BAD_BINDINGS)
def test_a_bad_binding_is_named_and_costs_no_other_one(bad: Any, problem: str, path: Path) -> None:
    good = [
        {"chat": "relay.human.x.1", "agent": "relay.agent.a"},
        {"chat": "relay.human.x.2", "agent": "relay.agent.b"},
    ]
    write(path, {"adapters": [{"id": "tg", "type": "telegram"}], "bindings": [good[0], bad, good[1]]})
    file = read_adapters(path)
    assert problem in str(file.problem)
    assert [binding.agent for binding in file.bindings] == ["relay.agent.a", "relay.agent.b"]
    assert [entry.id for entry in entries(path)] == ["tg"]


def test_bindings_that_are_no_list_are_none(path: Path) -> None:
    write(path, {"adapters": [], "bindings": {}})
    file = read_adapters(path)
    assert (file.entries, file.bindings, file.problem) == ((), (), f"{path}: bindings must be a list")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("{", "adapters.json is not JSON: Expecting property name", id="cut off"),
        pytest.param("", "is not JSON", id="empty"),
        pytest.param("[]", "must hold one JSON object", id="a list"),
        pytest.param('{"adapters": {}}', "adapters must be a list", id="adapters an object"),
        pytest.param('{"adapters": [{"id": NaN}]}', "NaN is not a JSON number", id="NaN"),
        pytest.param('{"adaptors": []}', "unknown key 'adaptors', did you mean 'adapters'?", id="misspelt"),
        pytest.param("[" * 100_000, "nested too deeply", id="deep"),
    ],
)
def test_a_file_of_which_nothing_can_be_made_says_so(text: str, problem: str, path: Path) -> None:
    path.write_text(text)
    file = read_adapters(path)
    assert file.entries is None
    assert problem in str(file.problem)
    with pytest.raises(ConfigError, match=r"adapters\.json"):
        set_enabled(path, "tg", True)
    assert path.read_text() == text


def test_a_file_that_is_not_utf8_is_not_json(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")
    assert "is not JSON" in str(read_adapters(path).problem)


def test_a_file_that_cannot_be_read_says_so(path: Path) -> None:
    path.mkdir()
    file = read_adapters(path)
    assert (file.entries, file.problem) == (None, f"cannot read {path}: Is a directory")


def test_an_unknown_key_beside_the_list_is_reported_and_the_list_used(path: Path) -> None:
    write(path, {"adapters": [{"id": "tg", "type": "telegram"}], "binding": []})
    assert [entry.id for entry in entries(path)] == ["tg"]
    assert read_adapters(path).problem == f"{path}: unknown key 'binding', did you mean 'bindings'?"


BAD: list[Any] = [
    pytest.param(CANARY, "#2", "an entry must be an object", id="no object"),
    pytest.param({"type": "t"}, "#2", "id must be one subject token", id="no id"),
    pytest.param({"id": 7, "type": "t"}, "#2", "id must be one subject token", id="id a number"),
    pytest.param({"id": f"{CANARY}/..", "type": "t"}, "#2", "id must be one subject token", id="id a path"),
    pytest.param({"id": "a.b", "type": "t"}, "#2", "id must be one subject token", id="id of two tokens"),
    pytest.param({"id": "good", "type": "t"}, "#2", "the id good is taken by entry #1", id="id taken"),
    pytest.param({"id": "x", "typ": CANARY}, "x", "unknown key 'typ', did you mean 'type'?", id="unknown key"),
    pytest.param({"id": "x"}, "x", "either a type or a path", id="neither type nor path"),
    pytest.param({"id": "x", "type": "t", "path": "p"}, "x", "either a type or a path", id="type and path"),
    pytest.param({"id": "x", "type": [CANARY]}, "x", "type must be text, and not empty", id="type a list"),
    pytest.param(
        {"id": "x", "type": "t", "rate": 0}, "x", "rate: Input should be greater than 0", id="rate of nothing"
    ),
    pytest.param(
        {"id": "x", "type": "t", "rate": CANARY}, "x", "rate: Input should be a valid number", id="rate a text"
    ),
    pytest.param({"id": "x", "type": "t", "drainSecs": 0}, "x", "drainSecs: Input should be greater", id="no drain"),
    pytest.param(
        {"id": "x", "type": "t", "probeSecs": 0.5}, "x", "probeSecs: Input should be greater", id="probe often"
    ),
    pytest.param({"id": "x", "type": "t", "priority": True}, "x", "priority: Input should be", id="priority a flag"),
    pytest.param({"id": "x", "type": "t", "prioritty": 1}, "x", "did you mean 'priority'?", id="misspelt setting"),
    pytest.param({"id": "x", "path": ""}, "x", "path must be text, and not empty", id="empty path"),
    pytest.param({"id": "x", "type": "t", "enabled": CANARY}, "x", "enabled must be true or false", id="enabled"),
    pytest.param({"id": "x", "type": "t", "config": CANARY}, "x", "config must be an object", id="config a text"),
]


@pytest.mark.parametrize(("bad", "id", "problem"), BAD)
def test_a_bad_entry_is_reported_without_its_values_and_costs_no_other(
    bad: Any, id: str, problem: str, path: Path
) -> None:
    if isinstance(bad, dict):
        bad = {"config": {"token": CANARY}, **bad}
    write(path, {"adapters": [{"id": "good", "type": "t"}, bad, {"id": "last", "type": "t"}]})
    first, found, last = entries(path)
    assert [(entry.id, entry.problem) for entry in (first, last)] == [("good", None), ("last", None)]
    assert found.id == id
    assert problem in str(found.problem)
    assert CANARY not in str(found.problem)


def test_no_repr_shows_a_config(path: Path) -> None:
    write(path, {"adapters": [{"id": "x", "type": "t", "config": {"token": CANARY}}]})
    assert CANARY not in repr(read_adapters(path))


DOCUMENT = """\
{"bindings": [{"chat": "5", "agent": "relay.agent.ä"}, null],
 "adapters": [17, {"type": "t", "odd": 1e3, "enabled": true, "id": "a",
                   "config": {"z": 123456789012345678901234567890, "a": "\\ud800", "n": 1.10}},
              {"id": "b", "type": "t"}],
 "unknown": {"b": 1, "a": 2}}"""


@pytest.mark.parametrize(("id", "position"), [("a", 1), ("b", 2)])
def test_switching_an_entry_changes_nothing_else(id: str, position: int, path: Path) -> None:
    path.write_text(DOCUMENT)
    set_enabled(path, id, False)
    before, after = json.loads(DOCUMENT), json.loads(path.read_text())
    assert after["adapters"][position].get("enabled") is False
    before["adapters"][position]["enabled"] = False
    assert json.dumps(after) == json.dumps(before)  # the order of keys included
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_text_stays_readable_when_an_entry_is_switched(path: Path) -> None:
    path.write_text('{"adapters": [{"id": "b", "type": "t", "config": {"greeting": "Grüße"}}]}')
    set_enabled(path, "b", False)
    assert "Grüße" in path.read_text()


def test_switching_to_what_it_is_already_writes_nothing(path: Path) -> None:
    path.write_text(DOCUMENT)
    set_enabled(path, "a", True)
    set_enabled(path, "b", True)
    assert path.read_text() == DOCUMENT


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles.json"
    target.write_text(DOCUMENT)
    path.symlink_to(target)
    assert read_adapters(path).entries is None
    with pytest.raises(ConfigError, match="is a symbolic link"):
        set_enabled(path, "b", False)
    assert path.is_symlink()
    assert target.read_text() == DOCUMENT


def test_only_an_entry_that_is_there_can_be_switched(path: Path) -> None:
    path.write_text(DOCUMENT)
    with pytest.raises(NotFound, match=r"no adapter c in adapters\.json; there are: #1, a, b"):
        set_enabled(path, "c", True)
    with pytest.raises(ConfigError, match="entry #1 is not an object"):
        set_enabled(path, "#1", True)
