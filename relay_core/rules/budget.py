"""Budgets: how far a message may travel. They only ever shrink.

1. A publisher asks, the operator's ceilings and the parent's remains decide: every limit is the smallest of the three,
   the hop count the largest, and with a parent the chain of ancestors is the parent's, whatever the caller claims.
2. A delivery is refused for the first of: hops, cycle, TTL, call budget. A message lives up to and including its TTL.
3. Each target gets its own copy: one hop more, the target at the end of the chain, one call less.

`refuse_budget` is the gate and `spend` makes the copy; the pipeline calls them apart, `enforce_budget` is both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import orjson
from pydantic import ValidationError

from relay_core.config import BudgetConfig
from relay_core.errors import InvalidPayload
from relay_core.messages.base import first_problem, trusted
from relay_core.messages.envelope import Budget, BudgetOverrides

DEFAULT_CEILINGS = BudgetConfig()


class BudgetVerdict(NamedTuple):
    """Whether a budget covers one more delivery, and what is left after it."""

    allowed: bool
    reason: str | None = None
    code: str | None = None
    updated_budget: Budget | None = None


class Budgeted(Protocol):
    """Anything that carries a budget, such as an envelope."""

    @property
    def budget(self) -> Budget:
        """Return the budget."""
        ...


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
    """Return what was asked for, cut to the operator's ceilings and to what the parent had left.

    Raises:
        InvalidPayload: with code `invalid_budget`, if an override cannot be used.
    """
    max_hops = ceilings.max_hops
    ttl = now_ms + ceilings.ttl_ms
    calls = ceilings.call_budget
    hop_count = 0
    chain: tuple[str, ...] = ()
    if overrides is not None:
        asked = _read_overrides(overrides)
        hop_count = asked.hop_count or 0
        chain = asked.ancestor_chain or ()
        if asked.max_hops is not None:
            max_hops = min(max_hops, asked.max_hops)
        if asked.ttl is not None:
            ttl = min(ttl, asked.ttl)
        if asked.call_budget_remaining is not None:
            calls = min(calls, asked.call_budget_remaining)
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
    """Return the copy for one target of a budget that `refuse_budget` has passed."""
    return _make(
        budget.hop_count + 1,
        budget.max_hops,
        (*budget.ancestor_chain, endpoint),
        budget.ttl,
        budget.call_budget_remaining - 1,
    )


def enforce_budget(envelope: Budgeted, endpoint: str, *, now_ms: int) -> BudgetVerdict:
    """Decide whether an envelope may be delivered to an endpoint, and return the budget that travels on."""
    refusal = refuse_budget(envelope.budget, endpoint, now_ms)
    if refusal is not None:
        return BudgetVerdict(False, *refusal)
    return BudgetVerdict(True, None, None, spend(envelope.budget, endpoint))


def _make(hop_count: int, max_hops: int, chain: tuple[str, ...], ttl: int, calls: int) -> Budget:
    # Every value comes from a validated model, and one budget is made per publish and per target.
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
        # Python's integers and texts reach further than a stored message can.
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


def _refuse(what: str) -> InvalidPayload:
    return InvalidPayload(f"budget: {what}", code="invalid_budget")
