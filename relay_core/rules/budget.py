"""Budgets: how far a message may travel. They only shrink.

1. Every limit is the smallest of the publisher's request, the operator's ceiling and the parent's remaining budget; the
   hop count is the largest. With a parent, the ancestor chain is the parent's, whatever the publisher requests.
2. A delivery is refused for the first of: hops, cycle, TTL, call budget. A message lives up to and including its TTL.
3. Each target gets its own copy: one hop more, the target at the end of the chain, one call less.

`refuse_budget` checks and `spend` makes the copy; the pipeline calls them separately, `enforce_budget` does both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
from pydantic import ValidationError

from relay_core.config import BudgetConfig
from relay_core.errors import InvalidPayload
from relay_core.messages.base import first_problem, trusted
from relay_core.messages.envelope import Budget, BudgetOverrides, Envelope

DEFAULT_CEILINGS = BudgetConfig()


class BudgetVerdict(NamedTuple):
    """Whether a budget covers one more delivery, and the remaining budget."""

    allowed: bool
    reason: str | None = None
    code: str | None = None
    updated_budget: Budget | None = None


def create_default_budget(now_ms: int, overrides: BudgetOverrides | Mapping[str, Any] | None = None) -> Budget:
    """Return a new message's budget under the default ceilings.

    Raises:
        InvalidPayload: with code `invalid_budget`, if an override cannot be used.
    """
    return clamp_budget(now_ms, overrides, DEFAULT_CEILINGS)


def clamp_budget(
    now_ms: int,
    overrides: BudgetOverrides | Mapping[str, Any] | None,
    ceilings: BudgetConfig,
    parent: Budget | None = None,
) -> Budget:
    """Return the requested budget, limited by the operator's ceilings and the parent's remaining budget.

    Raises:
        InvalidPayload: with code `invalid_budget`, if an override cannot be used.
    """
    max_hops = ceilings.max_hops
    ttl = now_ms + ceilings.ttl_ms
    calls = ceilings.call_budget
    hop_count = 0
    chain: tuple[str, ...] = ()
    if overrides is not None:
        requested = _read_overrides(overrides)
        hop_count = requested.hop_count or 0
        chain = requested.ancestor_chain or ()
        if requested.max_hops is not None:
            max_hops = min(max_hops, requested.max_hops)
        if requested.ttl is not None:
            ttl = min(ttl, requested.ttl)
        if requested.call_budget_remaining is not None:
            calls = min(calls, requested.call_budget_remaining)
    if parent is not None:
        hop_count = max(hop_count, parent.hop_count)
        chain = parent.ancestor_chain
        max_hops = min(max_hops, parent.max_hops)
        ttl = min(ttl, parent.ttl)
        calls = min(calls, parent.call_budget_remaining)
    return _make(hop_count, max_hops, chain, ttl, calls)


def refuse_budget(budget: Budget, endpoint: str, now_ms: int) -> tuple[str, str] | None:
    """Return the reason and code for which a delivery is refused, or None if the budget covers it."""
    if budget.hop_count >= budget.max_hops:
        return f"max hops exceeded ({budget.hop_count}/{budget.max_hops})", "max_hops"
    if endpoint in budget.ancestor_chain:
        return f"cycle detected: {endpoint} already in chain", "cycle"
    if now_ms > budget.ttl:
        return "message expired (TTL)", "expired"
    if budget.call_budget_remaining <= 0:
        return "call budget exhausted", "call_budget"
    return None


def spend(budget: Budget, endpoint: str) -> Budget:
    """Return the copy of a budget for one target; `refuse_budget` must have passed it."""
    return _make(
        budget.hop_count + 1,
        budget.max_hops,
        (*budget.ancestor_chain, endpoint),
        budget.ttl,
        budget.call_budget_remaining - 1,
    )


def enforce_budget(envelope: Envelope, endpoint: str, *, now_ms: int) -> BudgetVerdict:
    """Decide whether an envelope may be delivered to an endpoint, and return its remaining budget."""
    refusal = refuse_budget(envelope.budget, endpoint, now_ms)
    if refusal is not None:
        return BudgetVerdict(False, *refusal)
    return BudgetVerdict(True, None, None, spend(envelope.budget, endpoint))


def _make(hop_count: int, max_hops: int, chain: tuple[str, ...], ttl: int, calls: int) -> Budget:
    # Every value comes from a validated model, and this runs for every publish and every target.
    return trusted(
        Budget,
        {
            "hop_count": hop_count,
            "max_hops": max_hops,
            "ancestor_chain": chain,
            "ttl": ttl,
            "call_budget_remaining": calls,
        },
    )


def _read_overrides(overrides: BudgetOverrides | Mapping[str, Any]) -> BudgetOverrides:
    if not isinstance(overrides, BudgetOverrides):
        overrides = _parse_overrides(overrides)
    try:
        orjson.dumps(overrides.model_dump())
    except (TypeError, ValueError) as error:
        # Not every Python integer or text can be stored as JSON.
        raise _refuse(str(error)) from error
    return overrides


def _parse_overrides(overrides: Mapping[str, Any]) -> BudgetOverrides:
    if not isinstance(overrides, Mapping):
        raise _refuse(f"must be an object, not {type(overrides).__name__}")
    try:
        return BudgetOverrides.model_validate(dict(overrides))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where, problem = first_problem(error)
        raise _refuse(f"{where}: {problem} (got {first['input']!r})" if where else problem) from error


def _refuse(problem: str) -> InvalidPayload:
    return InvalidPayload(f"budget: {problem}", code="invalid_budget")
