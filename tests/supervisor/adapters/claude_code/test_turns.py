"""A message is a turn: progress, then one result, in order for each agent, side by side for several."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay_core import Envelope, SignalType
from relay_core.testing import FakeClock
from relay_supervisor.adapters.claude_code.answer import PROGRESS_SECS
from tests.kit.waiting import until
from tests.supervisor.adapters.claude_code.bench import DESK, Bench, Frame


async def test_a_message_is_answered_with_its_correlation_id(bench: Bench) -> None:
    async with bench.run() as desk:
        assert await desk.ask("hello", correlationId="c-1", conversationId="talk") == "echo: hello"
        (reply,) = desk.replies
        assert reply.sender == "relay.agent.a"
        assert reply.payload["performative"] == "inform"
        assert reply.payload["correlationId"] == "c-1"
        assert reply.payload["conversationId"] == "talk"


async def test_without_a_correlation_id_it_is_the_messages_id(bench: Bench) -> None:
    async with bench.run() as desk:
        await desk.ask("hello")
        (reply,) = desk.replies
        assert reply.payload["correlationId"] == reply.parent_id == reply.payload["platformData"]["messageId"]


async def test_the_answer_has_the_message_as_its_parent_so_hops_and_ancestors_count(bench: Bench) -> None:
    async with bench.run() as desk:
        message_id = await desk.send("hello", budget={"maxHops": 4, "callBudgetRemaining": 6})
        await until(lambda: len(desk.replies) == 1)
        (reply,) = desk.replies
        assert reply.parent_id == message_id
        assert reply.budget.hop_count == 2
        assert reply.budget.max_hops == 4
        assert reply.budget.call_budget_remaining == 4
        assert reply.budget.ancestor_chain == ("relay.adapter.claude.a", DESK)


async def test_progress_comes_first_a_few_times_a_second_and_the_result_once(bench: Bench, clock: FakeClock) -> None:
    async with bench.run(clock=clock) as desk:
        await desk.ask("!blocks", correlationId="c-1")
        await desk.relay.idle()
        assert desk.contents == ["done"]
        kinds = [(signal.type, signal.state) for signal in desk.signals]
        assert kinds == [
            (SignalType.TYPING, "started"),
            (SignalType.PROGRESS, "working"),
            (SignalType.TYPING, "stopped"),
        ]
        assert {signal.data["correlationId"] for signal in desk.signals} == {"c-1"}
        assert {signal.endpoint_subject for signal in desk.signals} == {"relay.agent.a"}
        assert desk.signals[1].data["text"] == "first"


async def test_of_much_progress_the_latest_is_told_in_time(bench: Bench, clock: FakeClock) -> None:
    gate = bench.directory / "gate"
    async with bench.run(clock=clock) as desk:
        await desk.send(f"!talk {gate}")
        await bench.until("talked")
        await until(lambda: len(told(desk)) == 1)
        for _ in range(100):  # all that it has said lies in the pipe: let it be read
            await asyncio.sleep(0)
        clock.advance(PROGRESS_SECS)
        await until(lambda: len(told(desk)) == 2)
        gate.touch()
        await desk.relay.idle()
        assert told(desk) == ["first", "uses Read"]


def told(desk: Frame) -> list[str]:
    return [signal.data["text"] for signal in desk.signals if signal.type == SignalType.PROGRESS]


async def test_without_reply_to_the_answer_is_in_the_trace_alone(bench: Bench) -> None:
    async with bench.run() as desk:
        message_id = await desk.send("hello", reply_to=None)
        await desk.relay.idle()
        (detail,) = await desk.details(message_id)
        assert "echo: hello" in detail
        assert (desk.replies, desk.signals) == ([], [])


async def test_a_publish_returns_before_the_turn_is_over(bench: Bench) -> None:
    gate = bench.directory / "gate"
    async with bench.run() as desk:
        await desk.send(f"!wait {gate}")
        assert desk.relay.adapters()[0].delivered == 0
        gate.touch()
        await desk.relay.idle()
        assert desk.contents == ["waited for gate"]


async def test_an_agents_turns_come_one_at_a_time_in_order(bench: Bench) -> None:
    async with bench.run() as desk:
        for number in range(5):
            await desk.send(str(number))
        await desk.relay.idle()
        assert desk.contents == [f"echo: {number}" for number in range(5)]
        marks = [(event["event"], event["text"]) for event in bench.events("prompt", "turn_end")]
        assert marks == [(mark, str(number)) for number in range(5) for mark in ("prompt", "turn_end")]


async def test_an_agent_with_a_long_queue_keeps_no_other_waiting(bench: Bench) -> None:
    gate = bench.directory / "gate"
    async with bench.run({name: bench.agent() for name in "ab"}, maxConcurrent=2) as desk:
        for _ in range(5):
            await desk.send(f"!wait {gate}", "a")
        await bench.until("prompt")
        assert await desk.ask("hello", "b") == "echo: hello"
        gate.touch()
        await desk.relay.idle()
        assert len(desk.replies) == 6


async def test_never_more_than_max_concurrent_agents_have_a_turn(bench: Bench) -> None:
    gates = {name: bench.directory / f"gate-{name}" for name in "abcd"}
    async with bench.run({name: bench.agent() for name in gates}, maxConcurrent=2) as desk:
        for name, gate in gates.items():
            for _ in range(2):
                await desk.send(f"!wait {gate}", name)
        await bench.until("prompt", count=2)
        await pass_by(desk)
        assert sum(begun(desk).values()) == 2
        for gate in gates.values():
            gate.touch()
        await desk.relay.idle()
        running = most = 0
        for event in bench.events("prompt", "turn_end"):
            running += 1 if event["event"] == "prompt" else -1
            most = max(most, running)
        assert (most, len(desk.replies)) == (2, 8)


async def test_what_waits_for_a_slot_was_not_begun(bench: Bench) -> None:
    gate = bench.directory / "gate"
    async with bench.run({name: bench.agent() for name in "ab"}, maxConcurrent=1) as desk:
        await desk.send(f"!wait {gate}", "a")
        await bench.until("prompt")
        await desk.send("hello", "b")
        await pass_by(desk)
        assert begun(desk) == {"relay.adapter.claude.a": 1, "relay.adapter.claude.b": 0}
        gate.touch()
        await desk.relay.idle()


def begun(desk: Frame) -> dict[str, int]:
    """Return how many messages each agent has in hand."""
    return {
        box.subject: box.claimed for box in desk.relay.mailboxes() if box.subject.startswith("relay.adapter.claude.")
    }


async def pass_by(desk: Frame) -> None:
    """Have other messages go all the way, so that what can begin has begun."""
    for number in range(5):
        await desk.relay.publish(DESK, {"content": number}, sender="relay.test.other")
        await until(lambda number=number: number in desk.contents)  # type: ignore[misc]
    desk.replies.clear()


async def test_an_answer_reaches_another_agent_of_the_same_adapter(bench: Bench) -> None:
    async with bench.run({name: bench.agent() for name in "ab"}) as desk:
        await desk.send("hello", "a", reply_to="relay.agent.b")
        await until(lambda: bench.prompts == ["hello", "echo: hello"])
        await desk.relay.idle()
        assert await desk.letters() == []


@pytest.mark.parametrize(
    ("budget", "why"),
    [
        ({"maxHops": 1}, "max hops exceeded"),
        ({"callBudgetRemaining": 1}, "call budget is used up"),
    ],
    ids=["out of hops", "out of calls"],
)
async def test_an_answer_to_an_agent_needs_a_budget(bench: Bench, budget: Any, why: str) -> None:
    async with bench.run({name: bench.agent() for name in "ab"}) as desk:
        await desk.send("hello", "a", reply_to="relay.agent.b", budget=budget)
        await desk.relay.idle()
        reasons = [reason for _, reason in await desk.letters()]
        assert any(why in reason for reason in reasons), reasons
        assert bench.prompts[1:] == [notice for notice in bench.prompts[1:] if "did not reach" in notice]


async def test_an_answer_asks_for_none_so_agents_do_not_talk_for_ever(bench: Bench) -> None:
    async with bench.run() as desk:
        await desk.send("hello", "a", reply_to="relay.agent.a")
        await desk.relay.idle()
        assert bench.prompts == ["hello", "echo: hello"]
        assert await desk.letters() == []


async def test_two_agents_that_a_third_party_keeps_talking_stop_by_hops(bench: Bench) -> None:
    async with bench.run({name: bench.agent() for name in "abcdefgh"}) as desk:

        async def pass_on(envelope: Any) -> None:
            following = "abcdefgh"[len(bench.prompts) % 8]
            await desk.relay.publish(
                f"relay.agent.{following}",
                {"content": "go on"},
                sender=envelope.subject,
                reply_to=f"relay.test.forward{len(bench.prompts)}",
                parent_id=envelope.id,
            )

        await desk.relay.subscribe("relay.test.*", pass_on)
        for number in range(9):
            await desk.relay.register_endpoint(f"relay.test.forward{number}")
        await desk.send("go on", "a", reply_to="relay.test.forward0")
        await desk.relay.idle()
        assert 1 < len(bench.prompts) <= 3


async def test_an_answer_that_is_too_long_is_cut_and_says_so(bench: Bench) -> None:
    async with bench.run() as desk:
        answer = await desk.ask("!huge 3000000")
        assert answer.startswith("é\né\n")
        assert answer.endswith("[cut: the answer was longer than a message may be]")
        assert 500_000 < len(answer) < 1_048_576


async def test_half_a_character_does_not_cost_the_answer(bench: Bench) -> None:
    async with bench.run() as desk:
        assert await desk.ask("!broken") == "half ?"
        assert told(desk) == ["half ?"]


async def test_a_result_of_the_programs_own_work_is_not_the_answer(bench: Bench) -> None:
    async with bench.run() as desk:
        assert await desk.ask("!background") == "of the turn"
        assert told(desk) == []


async def test_what_a_background_task_says_into_the_next_turn_is_not_that_turns(bench: Bench) -> None:
    gate = bench.directory / "gate"
    async with bench.run() as desk:
        assert await desk.ask(f"!linger {gate}") == "answered"
        await bench.until("lingers")
        await desk.send("!wordless")
        await until(lambda: len(desk.signals) == 3)  # it has been begun
        gate.touch()
        await desk.relay.idle()
        assert desk.contents == ["answered", "(the agent ended its turn without a text)"]
        assert told(desk) == []


async def test_a_replayed_message_is_answered_again(bench: Bench) -> None:
    gate = bench.directory / "gate"
    async with bench.run() as desk:
        await desk.ask(f"!refuse-until {gate}")
        gate.touch()
        (letter,) = await desk.relay.dead_letters()
        plan = await desk.relay.plan_replay([letter.message_id])
        await desk.relay.run_replay(plan.id)
        await until(lambda: len(desk.replies) == 2)
        assert desk.contents[1] == "accepted"


async def test_a_replay_whose_first_answer_was_refused_is_answered_again(bench: Bench) -> None:
    late: list[str] = []

    async def hear(envelope: Envelope) -> None:
        late.append(envelope.payload["content"])

    async with bench.run() as desk:
        message_id = await desk.send("hello", reply_to="relay.test.late")
        await desk.relay.idle()
        assert sorted(code for code, _ in await desk.letters()) == ["adapter_failed", "no_match"]
        await desk.relay.register_endpoint("relay.test.late")
        await desk.relay.subscribe("relay.test.late", hear)
        plan = await desk.relay.plan_replay([message_id])
        await desk.relay.run_replay(plan.id)
        await until(lambda: late == ["echo: hello"])
        assert [code for code, _ in await desk.letters()] == ["no_match"]
