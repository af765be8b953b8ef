"""A message's budget as headers of another transport.

1. Hops, calls and the expiry are written as they are in the bridge's copy, which has paid for the hop. They are read
   as overrides, which the bus clamps to its own limits: a budget that crosses a bridge only shrinks, so relays that
   are bridged in both directions cannot keep a message circulating.
2. Ancestors are subjects, so they cross only between relays that share a namespace.
3. Missing headers set no limit. Invalid ones are refused: a sender that meant to limit a message must not be ignored.
"""

from __future__ import annotations

from collections.abc import Mapping

from relay_core.messages.envelope import Budget, BudgetOverrides
from relay_core.messages.subjects import is_subject

HOPS = "relay-hops"
MAX_HOPS = "relay-max-hops"
CALLS_LEFT = "relay-calls-left"
EXPIRES_AT = "relay-expires-at"
"""Wall time in milliseconds."""
ANCESTORS = "relay-ancestors"
"""Subjects separated by commas, oldest first."""
FROM = "relay-from"
"""The sender, for people and logs; not part of the budget."""
TRACE = "relay-trace-id"
"""The first message of the conversation; not part of the budget either."""

_MOST_ANCESTORS = 64
_MOST_DIGITS = 15


def write_budget(budget: Budget, *, ancestors: bool = False) -> dict[str, str]:
    """Return the headers for a message with this budget."""
    headers = {
        HOPS: str(budget.hop_count),
        MAX_HOPS: str(budget.max_hops),
        CALLS_LEFT: str(budget.call_budget_remaining),
        EXPIRES_AT: str(budget.ttl),
    }
    if ancestors and budget.ancestor_chain:
        headers[ANCESTORS] = ",".join(budget.ancestor_chain)
    return headers


def read_budget(headers: Mapping[str, str], *, ancestors: bool = False) -> BudgetOverrides:
    """Return the budget in headers with lower-case names.

    Raises:
        ValueError: if a header is invalid; the message names it.
    """
    chain = headers.get(ANCESTORS) if ancestors else None
    return BudgetOverrides(
        hop_count=_read_number(headers, HOPS, 0),
        max_hops=_read_number(headers, MAX_HOPS, 1),
        call_budget_remaining=_read_number(headers, CALLS_LEFT, 0),
        ttl=_read_number(headers, EXPIRES_AT, 0),
        ancestor_chain=_read_chain(chain) if chain is not None else None,
    )


def _read_number(headers: Mapping[str, str], name: str, least: int) -> int | None:
    text = headers.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS) or int(text) < least:
        raise ValueError(f"the header {name} must be a whole number of at least {least}")
    return int(text)


def _read_chain(text: str) -> tuple[str, ...]:
    chain = tuple(text.split(","))
    if len(chain) > _MOST_ANCESTORS or not all(map(is_subject, chain)):
        raise ValueError(f"the header {ANCESTORS} must be at most {_MOST_ANCESTORS} subjects separated by commas")
    return chain
