"""Who may publish to what: the operator's rules in access-rules.json.

1. Highest priority first; among equals, the order of the file; the first rule that matches both
   sender and subject decides; no match allows.
2. The file is one JSON array of ``{"from", "to", "action", "priority"?}``. It is taken as a whole or
   not at all: a file that cannot be read, may be another user's, is not JSON, has an unknown key or a bad
   pattern is *broken*, and while it is broken everything is denied. An empty file is broken; ``[]`` is no rules.
3. No file when the bus starts means no rules. A file that disappears later changes nothing, not
   even a broken state: an editor that moves it away for an instant must not open a gap.
4. Until the first `load` everything is denied.
5. A change is written durably first and applied second, and it starts from the file as it stands,
   so that it does not undo an edit the watcher has not reported yet.

`check` runs on the event loop and everything else may run in a thread: the rules are one immutable
table, replaced by one assignment.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import orjson
from pydantic import ConfigDict, Field, ValidationError

from relay_core.config import explain_unknown
from relay_core.errors import ConfigError
from relay_core.files import Reader, atomic_write
from relay_core.model import Pattern, WireModel, first_problem
from relay_core.own_files import Unreadable, read_own
from relay_core.subjects import matches_pattern
from relay_core.trie import SubjectTrie

_KEYS = ["from", "to", "action", "priority"]


class AccessRule(WireModel):
    """One line of the operator's policy; both patterns may have wildcards."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    sender: Annotated[Pattern, Field(alias="from")]
    """Senders, as a subject or a pattern."""
    to: Pattern
    """What they publish to, as a subject or a pattern."""
    action: Literal["allow", "deny"]
    """Whether they may."""
    priority: int = 0
    """Higher ones are asked first; among equals, the order of the file."""


class AccessVerdict(NamedTuple):
    """Whether a sender may reach a subject, by which rule, and why not."""

    allowed: bool
    rule: AccessRule | None = None
    reason: str | None = None


_ALLOWED = AccessVerdict(True)


@dataclass(frozen=True)
class _Table:
    """The rules by their `to` pattern, each known by its rank; a broken table denies everything."""

    rules: tuple[AccessRule, ...] = ()
    """In the order of the file."""
    ranked: tuple[AccessVerdict, ...] = ()
    """What each rule says, first to decide first."""
    ranks: SubjectTrie[int] | None = None
    broken: str | None = None


class AccessControl:
    """Check senders against the rules file and keep the two in step."""

    def __init__(self, path: Path, read: Reader = read_own) -> None:
        self._path = path
        self._read = read
        self._lock = threading.RLock()
        self._loaded = False
        # None stands for no rules, the common case: one attribute test on the publish path.
        self._table: _Table | None = _Table(broken=f"{path} has not been loaded yet")

    @property
    def broken(self) -> str | None:
        """Return what is wrong with the rules file, or None."""
        table = self._table
        return table.broken if table is not None else None

    def rules(self) -> list[AccessRule]:
        """Return the rules in the order of the file."""
        table = self._table
        return list(table.rules) if table is not None else []

    def check(self, sender: str, subject: str) -> AccessVerdict:
        """Decide whether a sender may reach a subject."""
        table = self._table
        if table is None:
            return _ALLOWED
        if table.ranks is None:
            return AccessVerdict(False, reason=f"everything is denied until this is repaired: {table.broken}")
        for rank in sorted(table.ranks.match(subject)):
            verdict = table.ranked[rank]
            if verdict.rule is not None and matches_pattern(sender, verdict.rule.sender):
                return verdict
        return _ALLOWED

    def load(self) -> None:
        """Read the rules file; what is wrong with it is told by `broken`; blocks."""
        with self._lock:
            try:
                rules = _parse(self._read(self._path))
            except FileNotFoundError:
                if not self._loaded:
                    self._table = None
            except OSError as error:
                self._table = _Table(broken=f"cannot read {self._path}: {error.strerror}")
            except Unreadable as error:
                self._table = _Table(broken=str(error))
            except ValueError as error:
                self._table = _Table(broken=f"{self._path}: {error}")
            else:
                self._table = _build(rules)
            self._loaded = True

    def add_rule(self, rule: AccessRule) -> None:
        """Append a rule to the file, unless it is there already; blocks.

        Raises:
            ConfigError: while the file is broken.
            StorageError: if it cannot be written; the rules stay as they were.
        """
        with self._lock:
            rules = self._current()
            if rule not in rules:
                self._store([*rules, rule])

    def remove_rule(self, sender: str, to: str) -> int:
        """Remove every rule with exactly these patterns and return how many there were; blocks.

        Raises:
            ConfigError: while the file is broken.
            StorageError: if it cannot be written; the rules stay as they were.
        """
        with self._lock:
            rules = self._current()
            kept = [rule for rule in rules if (rule.sender, rule.to) != (sender, to)]
            if len(kept) < len(rules):
                self._store(kept)
            return len(rules) - len(kept)

    def _current(self) -> list[AccessRule]:
        self.load()
        if self.broken is not None:
            raise ConfigError(f"repair the file first: {self.broken}", path=str(self._path))
        return self.rules()

    def _store(self, rules: list[AccessRule]) -> None:
        data = orjson.dumps([rule.to_wire() for rule in rules], option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        atomic_write(self._path, data)
        self._table = _build(rules)


def _build(rules: list[AccessRule]) -> _Table | None:
    if not rules:
        return None
    ranked = sorted(rules, key=lambda rule: -rule.priority)
    ranks: SubjectTrie[int] = SubjectTrie()
    for rank, rule in enumerate(ranked):
        ranks.add(rule.to, rank)
    return _Table(tuple(rules), tuple(_verdict(rule) for rule in ranked), ranks)


def _verdict(rule: AccessRule) -> AccessVerdict:
    if rule.action == "allow":
        return AccessVerdict(True, rule)
    return AccessVerdict(False, rule, f"denied by the rule {rule.sender} -> {rule.to} (priority {rule.priority})")


def _parse(data: bytes) -> list[AccessRule]:
    try:
        entries = orjson.loads(data)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(entries, list):
        raise ValueError("must hold one JSON array of rules")
    return [_parse_rule(number, entry) for number, entry in enumerate(entries, start=1)]


def _parse_rule(number: int, entry: Any) -> AccessRule:
    if not isinstance(entry, dict):
        raise ValueError(f"rule {number} is not an object")
    for key in entry:
        if key not in _KEYS:
            raise ValueError(f"rule {number}: {explain_unknown(key, _KEYS)}")
    try:
        # Strict: a priority of "5" or true is a mistake, and a guess could widen access.
        return AccessRule.model_validate(entry, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        where, problem = first_problem(error)
        raise ValueError(f"rule {number}: {where}: {problem}") from error
