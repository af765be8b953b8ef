"""Which message a send follows from, so that two agents cannot answer each other for ever."""

from __future__ import annotations

import pytest

from relay_core.testing import FakeClock
from relay_supervisor.agents.light.handled import AFTERWARDS_MS, Handled, Seen, Unknown

AFTERWARDS = AFTERWARDS_MS / 1000


def lasting(until_ms: int) -> Seen:
    return Seen(budget={"ttl": until_ms})


@pytest.fixture
def handled(clock: FakeClock) -> Handled:
    return Handled(clock.now_ms)


def test_at_first_everything_is_a_new_conversation(handled: Handled) -> None:
    assert handled.parent() is None


def test_a_send_that_names_nothing_follows_from_the_newest_message_read(handled: Handled) -> None:
    handled.read("m1")
    handled.read("m2")
    assert handled.parent() == "m2"
    assert handled.parent("m1") == "m1"


def test_an_acknowledgement_does_not_wash_a_budget_off_at_once(handled: Handled, clock: FakeClock) -> None:
    handled.read("m1")
    handled.acknowledged("m1")
    clock.advance(AFTERWARDS)
    assert handled.parent() == "m1"
    clock.advance(0.001)
    assert handled.parent() is None


def test_acknowledging_an_older_one_does_not_make_it_the_newest(handled: Handled, clock: FakeClock) -> None:
    handled.read("m1")
    handled.read("m2")
    handled.acknowledged("m1")
    assert handled.parent() == "m2"
    handled.acknowledged("m2")
    clock.advance(AFTERWARDS + 1)
    assert handled.parent() is None


def test_without_an_acknowledgement_a_message_is_handled_until_its_own_end(handled: Handled, clock: FakeClock) -> None:
    handled.read("m1", lasting(clock.now_ms() + 3_600_000))
    clock.advance(3600)
    assert handled.parent() == "m1"
    clock.advance(0.001)
    assert handled.parent() is None


def test_the_end_of_a_message_comes_before_the_end_of_what_follows_from_it(handled: Handled, clock: FakeClock) -> None:
    handled.read("m1", lasting(clock.now_ms() + 10_000))
    handled.acknowledged("m1")
    clock.advance(10.001)
    assert handled.parent() is None


def test_what_a_hook_has_shown_gets_its_end_when_it_is_claimed(handled: Handled, clock: FakeClock) -> None:
    handled.read("m1")
    handled.read("m1", lasting(clock.now_ms() + 1000))
    clock.advance(1.001)
    assert handled.parent() is None


def test_a_persons_prompt_ends_it_all_but_what_was_seen_can_be_named(handled: Handled) -> None:
    handled.read("m1")
    handled.prompted(["m2"])
    assert handled.parent() is None
    handled.read("m3")
    assert [handled.parent(one) for one in ("m1", "m2")] == ["m1", "m2"]


def test_a_made_up_id_does_not_take_the_place_of_what_is_being_handled(handled: Handled) -> None:
    handled.read("m1")
    with pytest.raises(Unknown, match="m1"):
        handled.parent("made-up")


def test_a_message_of_an_earlier_session_can_be_named_while_nothing_is_handled(handled: Handled) -> None:
    assert handled.parent("earlier") == "earlier"


def test_the_answer_to_a_question_is_seen_and_not_handled(handled: Handled) -> None:
    handled.read("m1")
    handled.see("answer")
    assert handled.parent() == "m1"
    assert handled.parent("answer") == "answer"


def test_it_remembers_to_which_exchange_a_message_belongs(handled: Handled) -> None:
    handled.read("m1", Seen("c1", "k1"))
    handled.read("m1")
    assert (handled.about("m1").correlation_id, handled.about("m1").conversation_id) == ("c1", "k1")
    assert handled.about(None).correlation_id is None


def test_it_remembers_no_more_than_it_must(handled: Handled) -> None:
    for number in range(3000):
        handled.read(f"m{number}")
    with pytest.raises(Unknown):
        handled.parent("m0")
    assert handled.parent("m2999") == "m2999"
