"""Access rules: who wins, what a broken file means, and that no moment is ever wider than the rules."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from relay_core.config import BudgetConfig, RelayConfig, load_config
from relay_core.errors import ConfigError, StorageError
from relay_core.messages.subjects import matches_pattern
from relay_core.rules.access import AccessRule
from relay_core.storage.access_file import AccessControl
from relay_core.storage.trusted_file import read_trusted

SUBJECTS = ["a", "b", "a.a", "a.b", "b.a", "a.b.c"]
PATTERNS = [*SUBJECTS, "*", ">", "a.*", "*.a", "a.>", "*.*", "*.b.>"]


@pytest.fixture
def path(data_dir: Path) -> Path:
    return data_dir / "access-rules.json"


def rule(sender: str, to: str, action: str, priority: int = 0) -> AccessRule:
    return AccessRule.model_validate({"from": sender, "to": to, "action": action, "priority": priority})


def loaded(path: Path, content: bytes | None = None) -> AccessControl:
    if content is not None:
        path.write_bytes(content)
    access = AccessControl(path)
    access.load()
    return access


def encoded(*rules: AccessRule) -> bytes:
    return orjson.dumps([each.to_wire() for each in rules])


def allowed_pairs(access: AccessControl) -> set[tuple[str, str]]:
    return {pair for pair in product(SUBJECTS, SUBJECTS) if access.check(*pair).allowed}


EVERYTHING = set(product(SUBJECTS, SUBJECTS))


# Which rule decides


def test_without_a_file_everything_is_allowed(path: Path) -> None:
    access = loaded(path)
    assert allowed_pairs(access) == EVERYTHING
    assert access.broken is None
    assert access.check("a", "b") == (True, None, None)


def test_before_it_is_loaded_everything_is_denied(path: Path) -> None:
    access = AccessControl(path)
    assert allowed_pairs(access) == set()
    assert "not been loaded" in str(access.check("a", "b").reason)


def test_the_highest_priority_decides_whatever_the_order_in_the_file(path: Path) -> None:
    low, high = rule(">", ">", "deny", 1), rule("a", "b.*", "allow", 10)
    for order in ((low, high), (high, low)):
        access = loaded(path, encoded(*order))
        assert access.check("a", "b.a") == (True, high, None)
        assert access.check("b", "b.a").rule == low


def test_among_equals_the_first_in_the_file_decides(path: Path) -> None:
    deny, allow = rule("a", ">", "deny", 5), rule(">", "b", "allow", 5)
    assert not loaded(path, encoded(deny, allow)).check("a", "b").allowed
    assert loaded(path, encoded(allow, deny)).check("a", "b").allowed


def test_a_denial_names_its_rule(path: Path) -> None:
    verdict = loaded(path, encoded(rule("a.*", "b.>", "deny", 3))).check("a.b", "b.a")
    assert verdict.reason == "denied by the rule a.* -> b.> (priority 3)"


rules = st.lists(
    st.builds(
        rule,
        st.sampled_from(PATTERNS),
        st.sampled_from(PATTERNS),
        st.sampled_from(["allow", "deny"]),
        st.integers(-2, 2),
    ),
    max_size=8,
)


@given(rules)
def test_it_agrees_with_a_plain_reading_of_the_rules(
    tmp_path_factory: pytest.TempPathFactory, given_rules: list[AccessRule]
) -> None:
    access = loaded(tmp_path_factory.getbasetemp() / "rules.json", encoded(*given_rules))
    assert access.rules() == given_rules
    for sender, subject in EVERYTHING:
        matching = [
            each for each in given_rules if matches_pattern(sender, each.sender) and matches_pattern(subject, each.to)
        ]
        first = max(matching, key=lambda each: each.priority, default=None)
        verdict = access.check(sender, subject)
        assert verdict.rule == first
        assert verdict.allowed == (first is None or first.action == "allow")


# A broken file

STRICT = encoded(
    rule("a", "b", "allow", 10), rule("a.>", "a.*", "deny", 5), rule(">", "b.*", "deny"), rule("b", ">", "deny", -1)
)


def test_a_file_cut_at_any_byte_never_gives_wider_access(path: Path) -> None:
    whole = allowed_pairs(loaded(path, STRICT))
    assert set() < whole < EVERYTHING
    for length in range(len(STRICT)):
        access = loaded(path, STRICT[:length])
        assert allowed_pairs(access) == set(), STRICT[:length]
        assert access.broken is not None


def test_a_file_rewritten_byte_by_byte_under_a_running_bus_is_never_wider(path: Path) -> None:
    """An editor that writes in place shows the bus every prefix on the way."""
    access = loaded(path, STRICT)
    whole = allowed_pairs(access)
    for length in range(len(STRICT) + 1):
        path.write_bytes(STRICT[:length])
        access.load()
        assert allowed_pairs(access) <= whole
    assert allowed_pairs(access) == whole


GOOD: dict[str, Any] = {"from": "a", "to": "b", "action": "allow", "priority": 1}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(b"", "not JSON", id="empty"),
        pytest.param(b"\xff", "not JSON", id="not-utf8"),
        pytest.param(b"[NaN]", "not JSON", id="nan"),
        pytest.param(b"{}", "one JSON array", id="object"),
        pytest.param(b"null", "one JSON array", id="null"),
        pytest.param(b"[[]]", "rule 1 is not an object", id="not-a-rule"),
        pytest.param([GOOD, {**GOOD, "form": "a"}], "rule 2: unknown key 'form', did you mean 'from'?", id="unknown"),
        pytest.param([{**GOOD, "sender": "a"}], "unknown key 'sender'", id="python-name"),
        pytest.param([{**GOOD, "from": "a..b"}], "rule 1: from: subject 'a..b' has an empty token", id="bad-sender"),
        pytest.param([{**GOOD, "to": "a.>.b"}], "'>' must be the last token", id="bad-pattern"),
        pytest.param([{**GOOD, "action": "permit"}], "rule 1: action", id="bad-action"),
        pytest.param([{**GOOD, "priority": "5"}], "rule 1: priority", id="text-priority"),
        pytest.param([{**GOOD, "priority": True}], "rule 1: priority", id="bool-priority"),
        pytest.param([{**GOOD, "to": None}], "rule 1: to", id="null-pattern"),
        pytest.param([{"from": "a", "to": "b"}], "rule 1: action: Field required", id="missing"),
    ],
)
def test_a_broken_file_denies_everything_and_says_why(path: Path, content: Any, says: str) -> None:
    access = loaded(path, content if isinstance(content, bytes) else orjson.dumps(content))
    assert allowed_pairs(access) == set()
    assert says in str(access.broken)
    verdict = access.check("a", "b")
    assert (verdict.allowed, verdict.rule) == (False, None)
    assert says in str(verdict.reason)
    assert str(path) in str(verdict.reason)


def test_a_file_that_cannot_be_read_denies_everything(path: Path) -> None:
    path.mkdir()
    access = loaded(path)
    assert allowed_pairs(access) == set()
    assert "cannot read" in str(access.broken)


def test_a_repaired_file_takes_effect(path: Path) -> None:
    access = loaded(path, b"[")
    path.write_bytes(b"[]")
    access.load()
    assert access.broken is None
    assert allowed_pairs(access) == EVERYTHING


@pytest.mark.parametrize("content", [STRICT, b"["], ids=["rules", "broken"])
def test_a_file_that_disappears_changes_nothing(path: Path, content: bytes) -> None:
    access = loaded(path, content)
    before = allowed_pairs(access)
    path.unlink()
    access.load()
    assert allowed_pairs(access) == before


def test_rules_that_appear_later_take_effect(path: Path) -> None:
    access = loaded(path)
    path.write_bytes(STRICT)
    access.load()
    assert allowed_pairs(access) < EVERYTHING


# Changing the rules


def test_a_rule_that_was_added_is_on_disk_and_in_force(path: Path) -> None:
    access = loaded(path)
    access.add_rule(rule("a", "b", "deny", 7))
    assert not access.check("a", "b").allowed
    assert orjson.loads(path.read_bytes()) == [{"from": "a", "to": "b", "action": "deny", "priority": 7}]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == [path.name]
    assert loaded(path).rules() == access.rules()


def test_adding_a_rule_twice_keeps_one(path: Path) -> None:
    access = loaded(path)
    access.add_rule(rule("a", "b", "deny"))
    access.add_rule(rule("a", "b", "deny"))
    access.add_rule(rule("a", "b", "deny", 1))
    assert access.rules() == [rule("a", "b", "deny"), rule("a", "b", "deny", 1)]


def test_removing_takes_every_rule_with_exactly_these_patterns(path: Path) -> None:
    access = loaded(path, encoded(rule("a", ">", "deny", 1), rule("a", ">", "allow", 2), rule("a", "b", "deny")))
    assert access.remove_rule("a", ">") == 2
    assert access.remove_rule("a", ">") == 0
    assert access.rules() == loaded(path).rules() == [rule("a", "b", "deny")]


def test_without_its_last_rule_everything_is_allowed_again(path: Path) -> None:
    access = loaded(path, encoded(rule("a", "b", "deny")))
    access.remove_rule("a", "b")
    assert path.read_bytes() == b"[]\n"
    assert allowed_pairs(access) == allowed_pairs(loaded(path)) == EVERYTHING


def test_a_change_does_not_undo_an_edit_that_was_not_reported_yet(path: Path) -> None:
    access = loaded(path)
    path.write_bytes(encoded(rule("b", "a", "deny")))
    access.add_rule(rule("a", "b", "deny"))
    assert loaded(path).rules() == [rule("b", "a", "deny"), rule("a", "b", "deny")]


CHANGES: dict[str, Callable[[AccessControl], object]] = {
    "add": lambda access: access.add_rule(rule("a", "b", "deny")),
    "remove": lambda access: access.remove_rule("a", "b"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_broken_file_is_not_overwritten(path: Path, change: Callable[[AccessControl], object]) -> None:
    access = loaded(path, b'[{"from": "a" "to"}]')
    with pytest.raises(ConfigError, match="repair the file first") as caught:
        change(access)
    assert caught.value.path == str(path)
    assert path.read_bytes() == b'[{"from": "a" "to"}]'


def test_a_change_that_cannot_be_written_changes_nothing(path: Path) -> None:
    access = loaded(path, STRICT)
    before = access.rules()
    path.unlink()
    path.parent.rmdir()
    with pytest.raises(StorageError):
        access.add_rule(rule("a", ">", "allow", 99))
    assert access.rules() == before


def test_a_rule_is_checked_when_it_is_made() -> None:
    assert AccessRule(sender="a.*", to=">", action="deny").priority == 0
    with pytest.raises(ValidationError, match="empty token"):
        AccessRule(sender="a..b", to=">", action="deny")


# config.json, by the same law

CONFIG = b'{"durability": "os", "budget": {"maxHops": 3}, "reliability": {"rateLimit": {"maxPerWindow": 5}}}'


def test_a_config_cut_at_any_byte_is_an_error_and_never_half_applied(data_dir: Path) -> None:
    path = data_dir / "config.json"
    for length in range(len(CONFIG)):
        path.write_bytes(CONFIG[:length])
        with pytest.raises(ConfigError):
            load_config(path, RelayConfig(budget=BudgetConfig(max_hops=2)), read_trusted)
    path.write_bytes(CONFIG)
    assert load_config(path, RelayConfig(), read_trusted).budget.max_hops == 3
