"""A budget in headers: it comes back as it left, asks for nothing that is not there, and refuses nonsense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.config import BudgetConfig
from relay_core.messages.envelope import Budget, BudgetOverrides
from relay_core.rules.budget import clamp_budget
from relay_supervisor.adapters.budget_headers import (
    ANCESTORS,
    CALLS_LEFT,
    EXPIRES_AT,
    FROM,
    HOPS,
    MAX_HOPS,
    TRACE,
    read_budget,
    write_budget,
)

NOW = 1_700_000_000_000
BUDGETS = st.builds(
    Budget,
    hop_count=st.integers(0, 100),
    max_hops=st.integers(1, 100),
    ancestor_chain=st.lists(st.sampled_from(["relay.a", "relay.b.c", "x"]), max_size=5).map(tuple),
    ttl=st.integers(0, 10**14),
    call_budget_remaining=st.integers(0, 100),
)


@given(BUDGETS)
def test_a_budget_comes_back_as_it_left(budget: Budget) -> None:
    asked = read_budget(write_budget(budget, ancestors=True), ancestors=True)
    assert (asked.hop_count, asked.max_hops, asked.ttl, asked.call_budget_remaining) == (
        budget.hop_count,
        budget.max_hops,
        budget.ttl,
        budget.call_budget_remaining,
    )
    assert (asked.ancestor_chain or ()) == budget.ancestor_chain


@given(BUDGETS)
def test_ancestors_cross_only_where_both_sides_mean_the_same_by_them(budget: Budget) -> None:
    assert ANCESTORS not in write_budget(budget)
    assert read_budget(write_budget(budget, ancestors=True)).ancestor_chain is None


@given(BUDGETS)
def test_a_budget_that_has_crossed_only_shrinks(budget: Budget) -> None:
    ceilings = BudgetConfig()
    after = clamp_budget(NOW, read_budget(write_budget(budget)), ceilings)
    assert after.hop_count == budget.hop_count
    assert after.max_hops <= min(budget.max_hops, ceilings.max_hops)
    assert after.ttl <= min(budget.ttl, NOW + ceilings.ttl_ms)
    assert after.call_budget_remaining <= min(budget.call_budget_remaining, ceilings.call_budget)


def test_headers_that_are_not_there_ask_for_nothing() -> None:
    assert read_budget({"other": "1"}).model_dump(exclude_none=True) == {}
    assert read_budget({HOPS: "3"}) == BudgetOverrides(
        hop_count=3, max_hops=None, ttl=None, call_budget_remaining=None, ancestor_chain=None
    )


@pytest.mark.parametrize("name", [HOPS, MAX_HOPS, CALLS_LEFT, EXPIRES_AT])
@pytest.mark.parametrize(
    "value", ["", "-1", "1.5", " 1", "1e3", "0x1", "\u0661", "\u00b2", "many", "1, 2", "9" * 16, "9" * 5000]
)
def test_a_number_that_makes_no_sense_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        read_budget({name: value})


def test_a_message_may_have_no_calls_left_but_not_no_hops_at_all() -> None:
    assert read_budget({CALLS_LEFT: "0", HOPS: "0"}).call_budget_remaining == 0
    with pytest.raises(ValueError, match=MAX_HOPS):
        read_budget({MAX_HOPS: "0"})


@pytest.mark.parametrize("chain", ["", "relay.a,", "relay.*", "a b", ",".join(["relay.a"] * 65)])
def test_ancestors_that_make_no_sense_are_refused(chain: str) -> None:
    with pytest.raises(ValueError, match=ANCESTORS):
        read_budget({ANCESTORS: chain}, ancestors=True)


def test_every_name_is_lower_case_and_one_of_ours() -> None:
    names = {HOPS, MAX_HOPS, CALLS_LEFT, EXPIRES_AT, ANCESTORS, FROM, TRACE}
    assert len(names) == 7
    assert all(name == name.lower() and name.startswith("relay-") for name in names)
