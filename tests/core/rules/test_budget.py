"""Budgets only ever shrink, and a spent one stops the message."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.config import BudgetConfig
from relay_core.errors import InvalidPayload
from relay_core.messages.envelope import Budget, BudgetOverrides, Envelope
from relay_core.rules.budget import (
    BudgetVerdict,
    clamp_budget,
    create_default_budget,
    enforce_budget,
    refuse_budget,
    spend,
)

NOW = 1_700_000_000_000
HOUR = 3_600_000

CHAINS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=3).map(tuple)
TIMES = st.integers(NOW - 2 * HOUR, NOW + 2 * HOUR)
BUDGETS = st.builds(
    lambda hops, most, chain, ttl, calls: Budget(
        hop_count=hops, max_hops=most, ancestor_chain=chain, ttl=ttl, call_budget_remaining=calls
    ),
    st.integers(0, 8),
    st.integers(1, 8),
    CHAINS,
    TIMES,
    st.integers(0, 12),
)
LIVE = st.builds(
    lambda hops, more, chain, ttl, calls: Budget(
        hop_count=hops, max_hops=hops + more, ancestor_chain=chain, ttl=ttl, call_budget_remaining=calls
    ),
    st.integers(0, 8),
    st.integers(1, 8),
    CHAINS,
    st.integers(NOW, NOW + HOUR),
    st.integers(1, 12),
)
OVERRIDES = st.fixed_dictionaries(
    {},
    optional={
        "hop_count": st.integers(0, 8),
        "max_hops": st.integers(1, 100),
        "ancestor_chain": CHAINS,
        "ttl": TIMES,
        "call_budget_remaining": st.integers(0, 100),
    },
)
CEILINGS = st.builds(
    lambda hops, ttl, calls: BudgetConfig(max_hops=hops, ttl_ms=ttl, call_budget=calls),
    st.integers(1, 10),
    st.integers(1, HOUR),
    st.integers(1, 20),
)


def budget(**changes: Any) -> Budget:
    return Budget.model_validate({"ttl": NOW + HOUR, **changes})


def test_the_default_is_the_seeds() -> None:
    assert create_default_budget(NOW) == Budget(
        hop_count=0, max_hops=5, ancestor_chain=(), ttl=NOW + HOUR, call_budget_remaining=10
    )


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param({"max_hops": 2, "call_budget_remaining": 3}, id="snake-case"),
        pytest.param({"maxHops": 2, "callBudgetRemaining": 3}, id="camel-case"),
        pytest.param(BudgetOverrides(max_hops=2, call_budget_remaining=3), id="model"),
    ],
)
def test_overrides_may_ask_for_less(overrides: BudgetOverrides | dict[str, Any]) -> None:
    assert create_default_budget(NOW, overrides) == budget(max_hops=2, call_budget_remaining=3)


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        pytest.param({"max_hops": 100}, {"max_hops": 5}, id="hops-above-the-ceiling"),
        pytest.param({"ttl": NOW + 2 * HOUR}, {"ttl": NOW + HOUR}, id="ttl-above-the-ceiling"),
        pytest.param({"call_budget_remaining": 11}, {"call_budget_remaining": 10}, id="calls-above-the-ceiling"),
        pytest.param({"ttl": NOW - 1}, {"ttl": NOW - 1}, id="ttl-in-the-past"),
        pytest.param({"call_budget_remaining": 0}, {"call_budget_remaining": 0}, id="no-calls"),
        pytest.param({"hop_count": 4}, {"hop_count": 4}, id="hops-already-made"),
        pytest.param({"ancestor_chain": ["a", "b"]}, {"ancestor_chain": ["a", "b"]}, id="chain-without-a-parent"),
        pytest.param({"max_hops": None, "ttl": None}, {}, id="null-asks-for-nothing"),
        pytest.param({}, {}, id="nothing-asked"),
    ],
)
def test_overrides_are_clamped(asked: dict[str, Any], got: dict[str, Any]) -> None:
    assert create_default_budget(NOW, asked) == budget(**got)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        pytest.param({"maxHop": 1}, "did you mean 'maxHops'", id="misspelt"),
        pytest.param({1: 1}, "unknown key '1'", id="key-is-no-text"),
        pytest.param({"max_hops": 0}, "max_hops: .*got 0", id="no-hops"),
        pytest.param({"hopCount": -1}, "hopCount: .*got -1", id="negative-hops"),
        pytest.param({"ttl": "soon"}, "ttl: .*got 'soon'", id="ttl-is-text"),
        pytest.param({"ttl": 1.5}, "ttl: ", id="ttl-is-a-fraction"),
        pytest.param({"ancestorChain": [1]}, "ancestorChain.0: ", id="chain-of-numbers"),
        pytest.param({"ancestorChain": ["\ud800"]}, "surrogates", id="chain-that-cannot-be-stored"),
        pytest.param({"hopCount": 2**70}, "64-bit", id="hops-that-cannot-be-stored"),
        pytest.param(BudgetOverrides(ttl=-(2**70)), "64-bit", id="ttl-that-cannot-be-stored"),
        pytest.param([("ttl", 1)], "must be an object, not list", id="list"),
        pytest.param("none", "must be an object, not str", id="text"),
    ],
)
def test_a_bad_override_is_named(overrides: Any, says: str) -> None:
    with pytest.raises(InvalidPayload, match=says) as caught:
        create_default_budget(NOW, overrides)
    assert caught.value.code == "invalid_budget"


@given(OVERRIDES, CEILINGS, st.none() | BUDGETS)
def test_no_override_gets_around_ceilings_or_parent(
    overrides: dict[str, Any], ceilings: BudgetConfig, parent: Budget | None
) -> None:
    got = clamp_budget(NOW, overrides, ceilings, parent)
    assert got.max_hops <= ceilings.max_hops
    assert got.ttl <= NOW + ceilings.ttl_ms
    assert got.call_budget_remaining <= ceilings.call_budget
    if parent is not None:
        assert got.max_hops <= parent.max_hops
        assert got.ttl <= parent.ttl
        assert got.call_budget_remaining <= parent.call_budget_remaining
        assert got.hop_count >= parent.hop_count
        assert got.ancestor_chain == parent.ancestor_chain
    unclamped = Budget.model_validate({"ttl": NOW, **overrides})
    for limit in ("max_hops", "ttl", "call_budget_remaining"):
        assert limit not in overrides or getattr(got, limit) <= getattr(unclamped, limit)
    assert got.hop_count >= unclamped.hop_count


@given(CEILINGS, BUDGETS)
def test_a_child_that_asks_for_nothing_has_what_its_parent_had_left(ceilings: BudgetConfig, parent: Budget) -> None:
    got = clamp_budget(NOW, None, ceilings, parent)
    assert got == Budget(
        hop_count=parent.hop_count,
        max_hops=min(parent.max_hops, ceilings.max_hops),
        ancestor_chain=parent.ancestor_chain,
        ttl=min(parent.ttl, NOW + ceilings.ttl_ms),
        call_budget_remaining=min(parent.call_budget_remaining, ceilings.call_budget),
    )


@pytest.mark.parametrize(
    ("state", "reason", "code"),
    [
        pytest.param({"hop_count": 5}, "max hops exceeded (5/5)", "max_hops", id="hops-at-the-limit"),
        pytest.param({"hop_count": 7}, "max hops exceeded (7/5)", "max_hops", id="hops-beyond"),
        pytest.param(
            {"ancestor_chain": ["relay.x", "relay.a"]},
            "cycle detected: relay.a already in chain",
            "cycle",
            id="cycle",
        ),
        pytest.param({"ttl": NOW - 1}, "message expired (TTL)", "expired", id="expired"),
        pytest.param({"call_budget_remaining": 0}, "call budget exhausted", "call_budget", id="no-calls-left"),
    ],
)
def test_a_spent_budget_is_refused_in_the_seeds_words(state: dict[str, Any], reason: str, code: str) -> None:
    held = budget(**state)
    assert refuse_budget(held, "relay.a", NOW) == (reason, code)
    verdict = enforce_budget(carrying(held), "relay.a", now_ms=NOW)
    assert verdict == BudgetVerdict(allowed=False, reason=reason, code=code, updated_budget=None)


def carrying(held: Budget) -> Envelope:
    return Envelope(id="0" * 26, subject="relay.a", sender="relay.b", budget=held, created_at="2026-01-01T00:00:00Z")


FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("max_hops", {"hop_count": 5}),
    ("cycle", {"ancestor_chain": ["relay.a"]}),
    ("expired", {"ttl": NOW - 1}),
    ("call_budget", {"call_budget_remaining": 0}),
]


@pytest.mark.parametrize("first", range(len(FAULTS)), ids=[code for code, _ in FAULTS])
def test_the_first_fault_in_the_fixed_order_is_the_reason(first: int) -> None:
    everything_from_here: dict[str, Any] = {}
    for _, fault in FAULTS[first:]:
        everything_from_here |= fault
    refusal = refuse_budget(budget(**everything_from_here), "relay.a", NOW)
    assert refusal is not None
    assert refusal[1] == FAULTS[first][0]


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"hop_count": 4}, "one hop is left"),
        ({"ttl": NOW}, "a message lives up to and including its TTL"),
        ({"call_budget_remaining": 1}, "one call is left"),
        ({"ancestor_chain": ["relay.a.b", "relay"]}, "a cycle is the same endpoint, not a similar one"),
    ],
    ids=["hops", "ttl", "calls", "chain"],
)
def test_the_last_of_a_budget_is_still_good(state: dict[str, Any], why: str) -> None:
    assert refuse_budget(budget(**state), "relay.a", NOW) is None, why


def test_an_allowed_delivery_returns_what_travels_on() -> None:
    held = budget(hop_count=1, ancestor_chain=["relay.x"], call_budget_remaining=4)
    verdict = enforce_budget(carrying(held), "relay.a", now_ms=NOW)
    left = budget(hop_count=2, ancestor_chain=["relay.x", "relay.a"], call_budget_remaining=3)
    assert verdict == BudgetVerdict(allowed=True, reason=None, code=None, updated_budget=left)
    assert held == budget(hop_count=1, ancestor_chain=["relay.x"], call_budget_remaining=4)


@given(LIVE, st.sampled_from(["relay.a", "relay.b"]))
def test_a_delivery_only_ever_shrinks_a_budget(held: Budget, endpoint: str) -> None:
    assert refuse_budget(held, endpoint, NOW) is None
    left = spend(held, endpoint)
    assert (left.hop_count, left.call_budget_remaining) == (held.hop_count + 1, held.call_budget_remaining - 1)
    assert (left.max_hops, left.ttl) == (held.max_hops, held.ttl)
    assert left.ancestor_chain == (*held.ancestor_chain, endpoint)
    assert refuse_budget(left, endpoint, NOW) is not None, "no endpoint is visited twice"


@given(CEILINGS, st.data())
def test_every_chain_of_messages_ends(ceilings: BudgetConfig, data: st.DataObject) -> None:
    held: Budget | None = None
    for hop in range(ceilings.max_hops + 1):
        held = clamp_budget(NOW, data.draw(OVERRIDES), ceilings, held)
        endpoint = f"relay.{hop}"
        if refuse_budget(held, endpoint, NOW):
            return
        held = spend(held, endpoint)
    pytest.fail("the chain outlived its ceilings")


@given(LIVE)
def test_a_copy_cannot_be_told_from_a_validated_budget(held: Budget) -> None:
    made = spend(held, "relay.a")
    validated = Budget.model_validate(made.to_wire())
    assert made == validated
    assert hash(made) == hash(validated)
    assert repr(made) == repr(validated)
    assert made.to_wire() == validated.to_wire()
    assert made.model_fields_set == validated.model_fields_set
    assert type(made.model_fields_set) is set
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == copy.copy(made) == validated
    assert made.model_copy(update={"ttl": 1}) == validated.model_copy(update={"ttl": 1})
    assert vars(made).keys() == vars(validated).keys()
