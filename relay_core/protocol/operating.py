"""Models of breakers, senders, adapters, access rules and tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from relay_core.messages.operator_views import ConfiguredAdapter, TokenInfo
from relay_core.protocol.base import Params, Result
from relay_core.protocol.state import TargetBreaker
from relay_core.rules.access import AccessRule
from relay_core.rules.bindings import Binding
from relay_core.rules.rate_limit import SenderUsage


class BreakerList(Result):
    """Every breaker."""

    breakers: list[TargetBreaker]


class ResetBreakerParams(Params):
    """A breaker to close."""

    target: str
    """Subject or hash."""
    reason: str = "reset by the operator"
    """For the breaker's history."""


class ForceBreakerParams(Params):
    """A breaker to force."""

    target: str
    """Subject or hash."""
    state: Literal["OPEN", "CLOSED"]
    """`OPEN` holds it open, without probes, until it is reset; `CLOSED` resets it."""
    reason: str
    """For the breaker's history."""


class SenderList(Result):
    """The rate-limit usage of each sender, busiest first."""

    senders: list[SenderUsage]


class AdapterList(Result):
    """Every adapter in adapters.json, by id."""

    adapters: list[ConfiguredAdapter]
    bindings: list[Binding] = Field(default_factory=list)
    """Which agents belong to which chats, in file order."""
    problem: str | None = None
    """An error in the file as a whole, or in a binding."""


class AdapterParams(Params):
    """An adapter in adapters.json."""

    id: str


class ReloadAdaptersParams(Params):
    """An adapter to recreate; without an id, adapters.json is reloaded and its changes applied."""

    id: str | None = None


class AccessRules(Result):
    """The access rules, in file order."""

    rules: list[AccessRule]
    broken: str | None = None
    """The error in the file; everything is denied until it is repaired."""


class AddRuleParams(Params):
    """A rule to append."""

    rule: AccessRule


class RemoveRuleParams(Params):
    """The rules with exactly these patterns."""

    sender: Annotated[str, Field(alias="from")]
    """The pattern for senders."""
    to: str
    """The pattern for subjects."""


class Removed(Result):
    """The number of rules removed."""

    removed: int


class TokenList(Result):
    """Every token, without its secret."""

    tokens: list[TokenInfo]
    broken: str | None = None
    """The error in the file; no token is accepted until it is repaired."""


class AddTokenParams(Params):
    """A token to create."""

    pattern: str
    """The subjects that its holder may publish as and read."""
    note: Annotated[str, Field(max_length=200)] | None = None
    """For listings."""


class NewToken(Result):
    """A new token; its secret is not shown again."""

    token: str
    """The secret."""
    info: TokenInfo
