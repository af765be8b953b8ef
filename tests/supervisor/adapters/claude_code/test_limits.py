"""A message's budget rules its turn: time, even in silence, and calls."""

from __future__ import annotations

import pytest

from relay_core.testing import FakeClock
from tests.kit.processes import is_gone
from tests.kit.waiting import until
from tests.supervisor.adapters.claude_code.bench import Bench, Frame


async def one_failure(desk: Frame) -> str:
    await until(lambda: bool(desk.replies))
    await desk.relay.idle()
    assert len(desk.replies) == len(desk.failures) == 1
    ((code, reason),) = await desk.letters()
    assert code == "adapter_failed"
    return reason


async def test_a_silent_turn_ends_when_its_time_is_over(bench: Bench, clock: FakeClock) -> None:
    async with bench.run(clock=clock, turnTimeoutSecs=60) as desk:
        await desk.send("!silent")
        await bench.until("prompt")
        clock.advance(59)
        assert await desk.letters() == []
        clock.advance(2)
        assert "no result within 60 s (turnTimeoutSecs) (timeout)" in await one_failure(desk)
        assert bench.events("interrupt")


async def test_a_silent_turn_ends_when_its_message_expires(bench: Bench, clock: FakeClock) -> None:
    async with bench.run(clock=clock) as desk:
        await desk.send("!silent", budget={"ttl": clock.now_ms() + 5_000})
        await bench.until("prompt")
        clock.advance(6)
        assert "expired before there was a result (expired)" in await one_failure(desk)


@pytest.mark.usefixtures("hasty")
async def test_a_program_that_hears_nothing_is_gone_all_the_same_with_what_it_started(
    bench: Bench, clock: FakeClock
) -> None:
    async with bench.run(clock=clock, turnTimeoutSecs=60) as desk:
        await desk.send("!grandchild deaf")
        deaf = await bench.until("deaf")
        await until((bench.data_dir / "adapters" / "claude" / "session-a.json").exists)
        clock.advance(61)
        assert "(timeout)" in await one_failure(desk)
        assert is_gone(deaf["pid"])
        assert is_gone(bench.events("grandchild")[0]["pid"])
        assert await desk.ask("hello") == "echo: hello"
        assert bench.starts[-1]["resume"] == bench.starts[0]["session"]


@pytest.mark.parametrize(
    ("max_turns", "calls", "expected"),
    [(None, 5, "4"), (3, 8, "3"), (7, 4, "3")],
    ids=["the call budget", "maxTurns is smaller", "the call budget is smaller"],
)
async def test_the_call_budget_bounds_the_model_turns(
    bench: Bench, max_turns: int | None, calls: int, expected: str
) -> None:
    async with bench.run({"a": bench.agent(maxTurns=max_turns)}) as desk:
        await desk.ask("hello", budget={"callBudgetRemaining": calls})
        argv = bench.starts[0]["argv"]
        assert argv[argv.index("--max-turns") + 1] == expected


async def test_another_number_of_turns_restarts_the_program_in_the_same_session(bench: Bench) -> None:
    async with bench.run({"a": bench.agent(resumeSessions=False)}) as desk:
        await desk.ask("one")
        await desk.ask("two")
        assert len(bench.starts) == 1
        await desk.ask("three", budget={"callBudgetRemaining": 4})
        assert [start["resume"] for start in bench.starts] == [None, bench.starts[0]["session"]]
        assert len({event["session"] for event in bench.events("prompt")}) == 1


async def test_a_message_without_a_call_left_is_refused_unread(bench: Bench) -> None:
    async with bench.run() as desk:
        await desk.send("hello", budget={"callBudgetRemaining": 1})
        await desk.relay.idle()
        ((_, reason),) = await desk.letters()
        assert "call budget is used up (call_budget)" in reason
        assert bench.starts == []
