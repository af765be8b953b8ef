"""Access rules: which senders may publish to which subjects.

Rules are checked by priority, highest first, then in file order. The first rule that matches sender and subject
decides; without a match, the publish is allowed.
`storage/access_file.py` keeps the rules in step with access-rules.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import ConfigDict, Field

from relay_core.messages.base import Pattern, WireModel
from relay_core.messages.subjects import matches_pattern
from relay_core.messages.trie import SubjectTrie
from relay_core.rules.entries import parse_entries, validate_strictly

_KEYS = ["from", "to", "action", "priority"]


class AccessRule(WireModel):
    """A rule of the operator; both patterns may have wildcards."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    sender: Annotated[Pattern, Field(alias="from")]
    """The sender, as a subject or a pattern."""
    to: Pattern
    """The subject published to, or a pattern."""
    action: Literal["allow", "deny"]
    """Whether the publish is allowed."""
    priority: int = 0
    """Rules with a higher priority are checked first; equal ones in file order."""


class AccessVerdict(NamedTuple):
    """Whether a sender may reach a subject, the rule that decided, and the reason for a denial."""

    allowed: bool
    rule: AccessRule | None = None
    reason: str | None = None


ALLOWED = AccessVerdict(True)


@dataclass(frozen=True)
class AccessTable:
    """An immutable set of rules, found by their `to` pattern."""

    rules: tuple[AccessRule, ...]
    """In file order."""
    _ranked: tuple[AccessVerdict, ...]
    """The verdict of each rule, in the order in which they are checked."""
    _ranks: SubjectTrie[int]

    @classmethod
    def of(cls, rules: list[AccessRule]) -> Self:
        """Return the table of these rules."""
        ranked = sorted(rules, key=lambda rule: -rule.priority)
        ranks: SubjectTrie[int] = SubjectTrie()
        for rank, rule in enumerate(ranked):
            ranks.add(rule.to, rank)
        return cls(tuple(rules), tuple(_verdict(rule) for rule in ranked), ranks)

    def check(self, sender: str, subject: str) -> AccessVerdict:
        """Decide whether a sender may reach a subject."""
        for rank in sorted(self._ranks.match(subject)):
            verdict = self._ranked[rank]
            if verdict.rule is not None and matches_pattern(sender, verdict.rule.sender):
                return verdict
        return ALLOWED


def parse_rules(data: bytes) -> list[AccessRule]:
    """Return the rules of a file's content.

    Raises:
        ValueError: if it is not a JSON array of valid rules.
    """
    return parse_entries(data, "rule", _KEYS, partial(validate_strictly, AccessRule))


def _verdict(rule: AccessRule) -> AccessVerdict:
    if rule.action == "allow":
        return AccessVerdict(True, rule)
    return AccessVerdict(False, rule, f"denied by the rule {rule.sender} -> {rule.to} (priority {rule.priority})")
