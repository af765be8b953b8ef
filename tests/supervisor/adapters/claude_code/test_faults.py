"""What can go wrong with the program and the platform, and what each must show: one final failure, and why."""

from __future__ import annotations

import logging
import sys

import claude_agent_sdk
import pytest

from relay_core import CircuitBreakerConfig, CircuitState, RateLimitConfig, RelayConfig, RelayError, ReliabilityConfig
from relay_core.testing import FakeClock
from tests.kit.processes import is_gone
from tests.kit.waiting import until
from tests.supervisor.adapters.claude_code.bench import Bench

FAULTS = {
    "error result": ("!error", "(error_during_execution)"),
    "out of turns": ("!maxturns", "no answer within 4 model turns: raise maxTurns"),
    "crash": ("!exit 3", "Claude Code ended with exit code 3 before the result"),
    "clean exit": ("!exit 0", "Claude Code ended before the result"),
    "half a message": ("!garbage", "sent a message that cannot be parsed"),
    "malformed message": ("!malformed", "sent a message that cannot be parsed"),
    "not logged in": ("!auth", "not logged in: run 'claude'"),
    "server error": ("!api 500", "(500)"),
    "limit after work": ("!limit late", "so it is not retried"),
}


@pytest.mark.parametrize(("order", "why"), FAULTS.values(), ids=FAULTS)
async def test_a_turn_that_fails_is_one_failure_and_the_next_one_works(
    bench: Bench, order: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with bench.run() as desk:
        message_id = await desk.send(order, correlationId="c-1")
        await desk.relay.idle()
        ((code, reason),) = await desk.letters()
        assert (code, why in reason) == ("adapter_failed", True), reason
        (notice,) = desk.replies
        assert notice.payload["performative"] == "failure"
        assert notice.payload["correlationId"] == "c-1"
        assert notice.payload["platformData"]["messageId"] == message_id
        assert [
            breaker.consecutive_failures
            for breaker in desk.relay.breakers()
            if breaker.subject == "relay.adapter.claude.a"
        ] == [1]
        assert await desk.ask("hello") == "echo: hello"
        assert (
            "secret-in-garbage" not in f"{await desk.letters()} {desk.contents} {desk.relay.adapters()} {caplog.text}"
        )


async def test_what_is_not_json_and_what_is_unknown_is_passed_over(bench: Bench) -> None:
    async with bench.run() as desk:
        assert await desk.ask("!noise") == "after the noise"


async def test_a_platform_that_refuses_before_anything_was_done_is_asked_again(bench: Bench, clock: FakeClock) -> None:
    async with bench.run(clock=clock) as desk:
        await desk.send("!limit once")
        await bench.until("turn_end")
        await until(lambda: "asked again" in (desk.relay.adapters()[0].last_error or ""))
        assert await desk.letters() == []
        clock.advance(61)
        await until(lambda: desk.contents == ["no limit any more"])
        assert len(bench.prompts) == 2


async def test_a_message_that_expires_before_the_platform_may_be_asked_again_fails_when_it_expires(
    bench: Bench, clock: FakeClock
) -> None:
    async with bench.run(clock=clock) as desk:
        await desk.send("!limit", budget={"ttl": clock.now_ms() + 10_000})
        await until(lambda: "asked again" in (desk.relay.adapters()[0].last_error or ""))
        clock.advance(12)
        await until(lambda: len(desk.failures) == 1)
        assert [code for code, _ in await desk.letters()] == ["expired"]
        assert len(bench.prompts) == 1


async def test_an_agent_that_is_not_logged_in_is_told_of_in_the_status_until_it_is(bench: Bench) -> None:
    gate = bench.directory / "gate"
    order = {"a": bench.agent(), "b": bench.agent()}
    async with bench.run(order) as desk:
        await desk.ask("!auth")
        (state,) = desk.relay.adapters()
        assert state.state == "connected"
        assert state.detail is not None
        assert state.detail.startswith("agent a: Claude Code is not logged in")
        gate.touch()
        await desk.ask("hello", "b")
        assert desk.relay.adapters()[0].detail == state.detail
        await desk.ask("hello")
        assert desk.relay.adapters()[0].detail is None


async def test_an_agent_that_keeps_failing_opens_its_own_breaker_alone(bench: Bench) -> None:
    reliability = ReliabilityConfig(
        rate_limit=RateLimitConfig(enabled=False), circuit_breaker=CircuitBreakerConfig(failure_threshold=2)
    )
    config = RelayConfig(durability="os", reliability=reliability)
    async with bench.run({name: bench.agent() for name in "ab"}, relay_config=config) as desk:
        for _ in range(2):
            await desk.send("!error", "a")
        await desk.relay.idle()
        states = {breaker.subject: breaker.state for breaker in desk.relay.breakers()}
        assert states["relay.adapter.claude.a"] == CircuitState.OPEN
        assert await desk.ask("hello", "b") == "echo: hello"


async def test_a_working_directory_that_is_gone_is_said_so_until_it_is_back(bench: Bench) -> None:
    async with bench.run() as desk:
        bench.work.rmdir()
        assert f"the directory {bench.work} does not exist or is not accessible: create it" in await desk.ask("hello")
        assert bench.starts == []
        bench.work.mkdir()
        assert await desk.ask("hello") == "echo: hello"


async def test_a_disk_that_does_not_take_the_sessions_id_fails_that_delivery_alone(bench: Bench) -> None:
    path = bench.data_dir / "adapters" / "claude" / "session-a.json"
    async with bench.run() as desk:
        path.mkdir()
        await desk.send("!silent")
        await desk.relay.idle()
        ((code, reason),) = await desk.letters()
        assert code == "adapter_failed"
        assert "the session id could not be saved" in reason
        await until(lambda: is_gone(bench.starts[0]["pid"]))
        path.rmdir()
        assert await desk.ask("hello") == "echo: hello"
        assert path.is_file()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (None, "there is no Claude Code program"),
        ("#!/bin/sh\necho 2.1.247\n", "too old to take messages verbatim: run 'claude update'"),
        ("#!/bin/sh\necho hello\n", "prints no version"),
        ("#!/bin/sh\nexit 3\n", "exit code 3"),
        ("#!/nowhere/at/all\n", "cannot be run"),
    ],
    ids=["missing", "too old", "another program", "broken", "no interpreter"],
)
async def test_a_program_that_cannot_be_used_keeps_the_adapter_from_starting(
    bench: Bench, script: str | None, why: str
) -> None:
    path = bench.directory / "claude"
    if script is not None:
        path.write_text(script)
        path.chmod(0o755)
    with pytest.raises(RelayError, match=why):
        async with bench.run(cliPath=str(path)):
            pass


async def test_a_program_that_cannot_be_run_says_so(bench: Bench) -> None:
    path = bench.directory / "claude"
    path.write_text("#!/bin/sh\n")
    with pytest.raises(RelayError, match="chmod"):
        async with bench.run(cliPath=str(path)):
            pass


async def test_health_looks_at_the_program_without_running_it(bench: Bench) -> None:
    path = bench.directory / "claude"
    path.write_bytes(bench.program.read_bytes())
    path.chmod(0o755)
    async with bench.run(cliPath=str(path)) as desk:
        assert [state.healthy for state in await desk.relay.probe_adapters()] == [True]
        assert bench.starts == []
        path.unlink()
        (state,) = await desk.relay.probe_adapters()
        assert (state.healthy, state.state) == (False, "error")
        assert state.detail is not None
        assert "install it, or correct cliPath" in state.detail
        await desk.send("hello")
        assert await desk.letters() == []


async def test_a_missing_sdk_says_how_to_get_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", None)
    with pytest.raises(RelayError, match=r"pip install 'relay-bus\[claude-code\]'"):
        async with bench.run():
            pass


async def test_an_sdk_that_cannot_pass_on_messages_verbatim_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(claude_agent_sdk.ClaudeAgentOptions, "verbatim_prompts")
    with pytest.raises(RelayError, match="too old: run pip install -U"):
        async with bench.run():
            pass
