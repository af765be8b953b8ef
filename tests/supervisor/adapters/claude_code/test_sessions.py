"""An agent's conversation goes on: in one program while it is busy, in a resumed one afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import pytest

from relay_core.testing import FakeClock
from relay_supervisor.adapters.claude_code.memory import SessionMemory
from tests.kit.processes import is_gone
from tests.kit.waiting import until
from tests.supervisor.adapters.claude_code.bench import Bench


async def test_a_program_is_kept_between_turns(bench: Bench) -> None:
    async with bench.run() as desk:
        await desk.ask("one")
        await desk.ask("two")
        assert len(bench.starts) == 1


async def test_a_session_is_resumed_after_a_restart(bench: Bench) -> None:
    for text in ("one", "two"):
        async with bench.run() as desk:
            await desk.ask(text)
    first, second = bench.starts
    assert second["resume"] == first["session"]


async def test_each_agent_has_a_session_of_its_own(bench: Bench) -> None:
    for _ in range(2):
        async with bench.run({name: bench.agent() for name in "ab"}) as desk:
            await desk.ask("hello", "a")
            await desk.ask("hello", "b")
    a, b, again_a, again_b = bench.starts
    assert a["session"] != b["session"]
    assert [again_a["resume"], again_b["resume"]] == [a["session"], b["session"]]


async def test_the_session_is_on_disk_as_soon_as_it_is_known(bench: Bench) -> None:
    gate = bench.directory / "gate"
    async with bench.run() as desk:
        await desk.send(f"!wait {gate}")
        path = bench.data_dir / "adapters" / "claude" / "session-a.json"
        await until(path.exists)
        assert json.loads(path.read_text())["sessionId"] == bench.starts[0]["session"]
        gate.touch()
        await desk.relay.idle()


async def test_sessions_are_not_resumed_if_the_config_says_so(bench: Bench) -> None:
    for text in ("one", "two"):
        async with bench.run({"a": bench.agent(resumeSessions=False)}) as desk:
            await desk.ask(text)
    assert [start["resume"] for start in bench.starts] == [None, None]


async def test_a_session_that_is_gone_is_replaced_once_and_the_trace_says_so(bench: Bench) -> None:
    async with bench.run() as desk:
        await desk.ask("one")
    (bench.work / ".fake-sessions").unlink()
    async with bench.run() as desk:
        message_id = await desk.send("two")
        await desk.relay.idle()
        assert desk.contents == ["echo: two"]
        (detail,) = await desk.details(message_id)
        assert detail.startswith("the session was gone, so a new one was started; session ")
    assert bench.prompts == ["one", "two"]
    assert [start["resume"] for start in bench.starts] == [None, bench.starts[0]["session"], None]


@pytest.mark.parametrize(
    "kept",
    [
        "",
        "{",
        "[]",
        '{"sessionId": 1, "cwd": "x"}',
        '{"sessionId": "--evil", "cwd": "WORK"}',
        '{"sessionId": "s", "cwd": "/x"}',
    ],
    ids=["empty", "half", "no object", "no id", "an option", "another directory"],
)
def test_a_memory_that_cannot_be_used_counts_as_none(bench: Bench, kept: str) -> None:
    memory = SessionMemory(bench.directory, "a", bench.work)
    memory.save("s-1")
    assert memory.load() == "s-1"
    (bench.directory / "session-a.json").write_text(kept.replace("WORK", str(bench.work)))
    assert memory.load() is None
    memory.forget()
    memory.forget()
    assert memory.load() is None


async def test_an_idle_program_is_closed_and_the_next_turn_resumes(bench: Bench, clock: FakeClock) -> None:
    async with bench.run(clock=clock, idleSecs=600) as desk:
        await desk.ask("one")
        await desk.relay.idle()
        clock.advance(599)
        await desk.ask("two")
        await desk.relay.idle()
        clock.advance(599)
        assert not is_gone(bench.starts[0]["pid"])
        clock.advance(2)
        await until(lambda: is_gone(bench.starts[0]["pid"]))
        assert len(bench.starts) == 1
        assert await desk.ask("three") == "echo: three"
        assert bench.starts[1]["resume"] == bench.starts[0]["session"]


async def test_a_program_that_died_between_turns_is_started_again(bench: Bench) -> None:
    async with bench.run() as desk:
        await desk.ask("one")
        os.kill(bench.starts[0]["pid"], signal.SIGKILL)
        await until(lambda: is_gone(bench.starts[0]["pid"]))
        answers = [await desk.ask("two"), await desk.ask("three")]
        assert answers[-1] == "echo: three"
        assert bench.prompts.count("two") <= 1


async def test_a_reload_lets_the_turn_end_and_goes_on_in_its_session(bench: Bench) -> None:
    gate = bench.directory / "gate"
    async with bench.run() as desk:
        await desk.send(f"!wait {gate}")
        await desk.send("after")
        await bench.until("prompt")
        new = bench.adapter({name: bench.agent() for name in "ab"})
        async with asyncio.TaskGroup() as group:
            group.create_task(desk.relay.replace_adapter(new))
            await until(lambda: len(desk.relay.adapters()[0].patterns) == 2)
            assert await desk.ask("meanwhile", "b") == "echo: meanwhile"
            gate.touch()
        await desk.relay.idle()
        assert desk.contents == ["echo: meanwhile", "waited for gate", "echo: after"]
        assert_one_after_the_other(bench, bench.starts[0], bench.starts[2])
        assert await desk.letters() == []


async def test_an_idle_program_of_the_old_config_is_gone_before_the_new_one_resumes_its_session(bench: Bench) -> None:
    gate = bench.directory / "gate"
    async with bench.run({name: bench.agent() for name in "ab"}) as desk:
        await desk.ask("one", "a")
        await desk.send(f"!wait {gate}", "b")  # keeps the old instance at work
        await bench.until("prompt", count=2)
        new = bench.adapter({name: bench.agent() for name in "abc"})
        async with asyncio.TaskGroup() as group:
            group.create_task(desk.relay.replace_adapter(new))
            await until(lambda: len(desk.relay.adapters()[0].patterns) == 3)
            assert await desk.ask("two", "a") == "echo: two"
            assert_one_after_the_other(bench, bench.starts[0], bench.starts[2])
            gate.touch()
        await desk.relay.idle()
        assert desk.contents == ["echo: one", "echo: two", "waited for gate"]


def assert_one_after_the_other(bench: Bench, old: dict[str, Any], new: dict[str, Any]) -> None:
    assert new["resume"] == old["session"]
    events = bench.events()
    assert events.index({"event": "exit", "session": old["session"]}) < events.index(new)
    assert is_gone(old["pid"])


async def test_no_more_than_max_concurrent_agents_have_a_turn_while_the_config_is_replaced(bench: Bench) -> None:
    gate = bench.directory / "gate"
    async with bench.run({name: bench.agent() for name in "abc"}, maxConcurrent=1) as desk:
        await desk.send(f"!wait {gate}", "a")
        await bench.until("prompt")
        new = bench.adapter({name: bench.agent() for name in "abcd"}, maxConcurrent=1)
        async with asyncio.TaskGroup() as group:
            group.create_task(desk.relay.replace_adapter(new))
            await until(lambda: len(desk.relay.adapters()[0].patterns) == 4)
            for name in "bc":
                await desk.send("hello", name)
            gate.touch()
        await desk.relay.idle()
        marks = [event["event"] for event in bench.events("prompt", "turn_end")]
        assert marks == ["prompt", "turn_end"] * 3
