"""Schedules: each due time is published once or not at all, over restarts and jumps of the clock."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relay_core import AccessRule, ConfigError, NotFound, RateLimitConfig, RelayCore, StorageError
from relay_core.clock import iso
from relay_core.config import RelayConfig, merge_config
from relay_core.protocol.scheduling import ScheduleState
from relay_core.testing import FakeClock
from relay_supervisor.schedules.schedules import START_SECS, Schedules
from relay_supervisor.schedules.state_file import STATE_FILE
from tests.kit.bus import UNHEARD, UNLIMITED, A, B, a_bus, config, refusing_journal
from tests.kit.supervisor import a_client, a_supervisor
from tests.kit.waiting import until

HOUR = 3600
HOURLY: dict[str, Any] = {"id": "hourly", "to": A, "payload": {"content": "hi"}, "cron": "0 * * * *"}
ONCE = HOURLY | {"catchUp": "once"}
FIRST = "2023-11-14T23:00:00.000Z"
"""The first full hour of the tests' clock, which begins at 22:13:20."""
TO_FIRST = 46 * 60 + 40


class Site:
    """A bus with schedules, on a clock that the test advances."""

    def __init__(self, relay: RelayCore, schedules: Schedules, clock: FakeClock) -> None:
        self.relay, self.schedules, self.clock = relay, schedules, clock

    async def advance(self, seconds: float) -> None:
        """Let time pass, and everything that is due happen."""
        self.clock.advance(seconds)
        await self.settle()

    async def settle(self) -> None:
        await until(lambda: not self.schedules._tasks)

    def set_sections(self, *sections: dict[str, Any]) -> None:
        self.schedules.apply(merge_config(RelayConfig(), {"schedules": list(sections)}).schedules)

    async def published(self, subject: str = A) -> list[str]:
        """Return when each message in a mailbox was published."""
        return [envelope.created_at for envelope in await self.relay.inbox(subject)]

    def state(self, schedule_id: str = "hourly") -> ScheduleState:
        (found,) = [state for state in self.schedules.states() if state.id == schedule_id]
        return found

    def outcome(self, schedule_id: str = "hourly") -> str | None:
        last = self.state(schedule_id).last
        return last.outcome if last is not None else None


@asynccontextmanager
async def a_schedule(
    data_dir: Path, clock: FakeClock, *sections: dict[str, Any], base: RelayConfig = UNLIMITED
) -> AsyncIterator[Site]:
    """Open a bus with schedules, ready to publish."""
    merged = merge_config(base, {"schedules": list(sections)})
    async with a_bus(data_dir, clock, merged, endpoints=[A, B]) as relay, Schedules(relay, clock) as schedules:
        site = Site(relay, schedules, clock)
        await site.advance(START_SECS)
        yield site


async def test_a_due_message_is_published_from_the_schedule(data_dir: Path, clock: FakeClock) -> None:
    async with a_schedule(data_dir, clock, HOURLY | {"replyTo": B}) as site:
        await site.advance(TO_FIRST - START_SECS - 1)
        assert await site.published() == []
        await site.advance(1)
        (message,) = await site.relay.inbox(A)
        assert (message.sender, message.payload) == ("relay.system.pulse.hourly", {"content": "hi"})
        assert (message.created_at, message.reply_to) == (FIRST, B)
        last = site.state().last
        assert last is not None
        assert (last.due, last.outcome, last.message_id, last.delivered_to) == (
            clock.now_ms(),
            "published",
            message.id,
            1,
        )
        assert site.state().next_run == clock.now_ms() + HOUR * 1000


async def test_an_interval_is_published_each_time(data_dir: Path, clock: FakeClock) -> None:
    often = {"id": "often", "to": A, "everySecs": 60}
    async with a_schedule(data_dir, clock, often) as site:
        for seconds in (30, 60, 60, 60, 60):
            await site.advance(seconds)
        assert [at[11:19] for at in await site.published()] == [f"22:{minute}:00" for minute in range(14, 19)]


async def test_a_pattern_reaches_every_endpoint(data_dir: Path, clock: FakeClock) -> None:
    async with a_schedule(data_dir, clock, HOURLY | {"to": "relay.agent.*"}) as site:
        await site.advance(HOUR)
        assert [len(await site.published(subject)) for subject in (A, B)] == [1, 1]


# Restarts


@pytest.mark.parametrize(("section", "expected"), [(ONCE, ["22:13:30"]), (HOURLY, [])], ids=["once", "skip"])
async def test_after_a_downtime_one_message_or_none(
    data_dir: Path, clock: FakeClock, section: dict[str, Any], expected: list[str]
) -> None:
    async with a_schedule(data_dir, clock, section):
        pass
    clock.advance(3 * 24 * HOUR - START_SECS)
    async with a_schedule(data_dir, clock, section) as site:
        assert [at[11:19] for at in await site.published()] == expected
        assert site.outcome() == ("published" if expected else "skipped")
        last = site.state().last
        assert last is not None
        assert last.due is not None
        assert iso(last.due) == "2023-11-17T22:00:00.000Z"
        await site.advance(HOUR)
        assert len(await site.published()) == len(expected) + 1


async def test_a_due_time_that_is_a_few_seconds_late_is_not_missed(data_dir: Path, clock: FakeClock) -> None:
    async with a_schedule(data_dir, clock, HOURLY):
        pass
    clock.advance(TO_FIRST)
    async with a_schedule(data_dir, clock, HOURLY) as site:
        assert len(await site.published()) == 1


async def test_nothing_is_published_before_clients_had_time_to_connect(data_dir: Path, clock: FakeClock) -> None:
    async with a_schedule(data_dir, clock, ONCE):
        pass
    clock.advance(HOUR)
    merged = merge_config(UNLIMITED, {"schedules": [ONCE]})
    async with a_bus(data_dir, clock, merged) as relay, Schedules(relay, clock) as schedules:
        site = Site(relay, schedules, clock)
        await site.advance(START_SECS - 1)
        assert await site.published() == []
        await site.advance(1)
        assert len(await site.published()) == 1


@pytest.mark.parametrize("section", [ONCE, HOURLY], ids=["once", "skip"])
async def test_a_lost_record_of_a_publish_does_not_repeat_it(
    data_dir: Path, clock: FakeClock, section: dict[str, Any]
) -> None:
    async with a_schedule(data_dir, clock, section) as site:
        await site.settle()
        before = (data_dir / STATE_FILE).read_bytes()
        await site.advance(TO_FIRST)
        (message,) = await site.relay.inbox(A)
    (data_dir / STATE_FILE).write_bytes(before)  # as if it had been killed right after the publish
    async with a_schedule(data_dir, clock, section) as site:
        assert [envelope.id for envelope in await site.relay.inbox(A)] == [message.id]
        last = site.state().last
        assert last is not None
        assert (last.outcome, last.message_id) == ("published", message.id)


async def test_the_state_file_is_private_and_forgets_removed_schedules(data_dir: Path, clock: FakeClock) -> None:
    async with a_schedule(data_dir, clock, HOURLY) as site:
        path = data_dir / STATE_FILE
        assert path.stat().st_mode & 0o777 == 0o600
        assert list(json.loads(path.read_text())["schedules"]) == ["hourly"]
        site.set_sections()
        await site.settle()
        assert json.loads(path.read_text()) == {"schedules": {}}


async def test_without_schedules_there_is_no_file(data_dir: Path, clock: FakeClock) -> None:
    async with a_schedule(data_dir, clock):
        pass
    assert not (data_dir / STATE_FILE).exists()


# Clocks that jump


@pytest.mark.parametrize(("section", "count"), [(ONCE, 1), (HOURLY, 0)], ids=["once", "skip"])
async def test_a_clock_set_forwards_is_no_flood(
    data_dir: Path, clock: FakeClock, section: dict[str, Any], count: int
) -> None:
    async with a_schedule(data_dir, clock, section) as site:
        clock.jump_wall(10 * 365 * 24 * HOUR)
        await site.advance(60)
        assert len(await site.published()) == count
        await site.advance(HOUR)
        assert len(await site.published()) == count + 1


async def test_a_clock_set_back_repeats_nothing_and_stops_nothing(data_dir: Path, clock: FakeClock) -> None:
    async with a_schedule(data_dir, clock, HOURLY) as site:
        await site.advance(TO_FIRST)
        clock.jump_wall(-2 * HOUR)
        for _ in range(2 * 60):
            await site.advance(60)
        times = [at[11:16] for at in await site.published()]
        assert times == ["23:00", "22:00"]  # 23:00 has been published
        clock.jump_wall(-365 * 24 * HOUR)
        for _ in range(61):
            await site.advance(60)
        assert len(await site.published()) == 3


# By the operator


async def test_a_paused_schedule_stays_paused_and_catches_nothing_up(data_dir: Path, clock: FakeClock) -> None:
    async with a_schedule(data_dir, clock, ONCE) as site:
        paused = await site.schedules.pause("hourly")
        assert (paused.paused, paused.next_run) == (True, None)
        await site.advance(2 * HOUR)
    async with a_schedule(data_dir, clock, ONCE) as site:
        assert site.state().paused
        await site.advance(2 * HOUR)
        assert await site.published() == []
        resumed = await site.schedules.resume("hourly")
        assert (resumed.paused, resumed.next_run is None) == (False, False)
        await site.settle()
        assert await site.published() == []
        await site.advance(HOUR)
        assert len(await site.published()) == 1


@pytest.mark.parametrize("change", [{}, {"enabled": False}])
async def test_a_run_by_hand_is_always_possible_and_each_one_counts(
    data_dir: Path, clock: FakeClock, change: dict[str, Any]
) -> None:
    async with a_schedule(data_dir, clock, HOURLY | change) as site:
        await site.schedules.pause("hourly")
        runs = [await site.schedules.run("hourly") for _ in range(2)]
        assert [(run.outcome, run.due) for run in runs] == [("published", None)] * 2
        assert [envelope.id for envelope in await site.relay.inbox(A)] == [run.message_id for run in runs]
        assert site.state().last == runs[1]


async def test_an_unknown_schedule_is_named(data_dir: Path, clock: FakeClock) -> None:
    async with a_schedule(data_dir, clock, HOURLY) as site:
        for verb in (site.schedules.run, site.schedules.pause, site.schedules.resume):
            with pytest.raises(NotFound, match="no schedule nosuch: choose one of hourly"):
                await verb("nosuch")


async def test_a_pause_that_cannot_be_saved_is_none(data_dir: Path, clock: FakeClock) -> None:
    async with a_schedule(data_dir, clock, HOURLY) as site:
        (data_dir / STATE_FILE).unlink()
        (data_dir / STATE_FILE).mkdir()
        with pytest.raises(StorageError):
            await site.schedules.pause("hourly")
        assert not site.state().paused
        await site.advance(HOUR)
        assert len(await site.published()) == 1


async def test_a_broken_state_file_stops_the_schedules_until_it_is_repaired(data_dir: Path, clock: FakeClock) -> None:
    path = data_dir / STATE_FILE
    path.touch(mode=0o600)
    path.write_text('{"schedules": {"hourly": {"paused": 1}}}')
    async with a_schedule(data_dir, clock, ONCE) as site:
        assert str(path) in (site.schedules.broken or "")
        await site.advance(2 * HOUR)
        assert (await site.published(), site.state().next_run) == ([], None)
        with pytest.raises(ConfigError, match="repair or remove"):
            await site.schedules.pause("hourly")
        assert (await site.schedules.run("hourly")).outcome == "published"
        assert path.read_text() == '{"schedules": {"hourly": {"paused": 1}}}'
        path.unlink()
        site.set_sections(HOURLY)
        assert site.schedules.broken is None
        await site.advance(HOUR)
        assert len(await site.published()) == 2


# A changed configuration


async def test_a_new_or_changed_schedule_begins_now(data_dir: Path, clock: FakeClock) -> None:
    async with a_schedule(data_dir, clock) as site:
        await site.advance(HOUR)
        site.set_sections(ONCE)
        await site.settle()
        assert await site.published() == []
        await site.advance(30 * 60)
        site.set_sections(ONCE | {"cron": "20 * * * *"})
        await site.settle()
        assert await site.published() == []
        site.set_sections(ONCE | {"enabled": False})
        await site.advance(5 * HOUR)
        site.set_sections(ONCE)
        await site.settle()
        assert (await site.published(), site.state().enabled) == ([], True)
        await site.advance(HOUR)
        assert len(await site.published()) == 1


async def test_another_payload_misses_no_time(data_dir: Path, clock: FakeClock) -> None:
    async with a_schedule(data_dir, clock, HOURLY) as site:
        await site.advance(TO_FIRST - START_SECS - 1)
        site.set_sections(HOURLY | {"payload": 2})
        await site.advance(1)
        assert [envelope.payload for envelope in await site.relay.inbox(A)] == [2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cron": None}, "needs one of cron and everySecs"),
        ({"everySecs": 60}, "needs one of cron and everySecs"),
        ({"cron": "0 25 * * *"}, "hour: '25' is not between 0 and 23"),
        ({"id": "two.tokens"}, "is not an id"),
        ({"to": "relay..a"}, "is not a subject or a pattern"),
        ({"to": "relay.>.a"}, "is not a subject or a pattern"),
        ({"replyTo": "relay.*"}, "without wildcards"),
        ({"catchup": "once"}, "did you mean 'catchUp'"),
        ({"catchUp": "all"}, "once"),
    ],
)
def test_a_bad_schedule_is_refused_with_its_place(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        merge_config(RelayConfig(), {"schedules": [ONCE | {"id": "good"}, HOURLY | change]})
    assert (caught.value.key or "").startswith("schedules.1")


def test_two_schedules_with_one_id_are_refused() -> None:
    with pytest.raises(ConfigError, match="two schedules have the id 'hourly'"):
        merge_config(RelayConfig(), {"schedules": [HOURLY, ONCE]})


# Refusals and errors


async def test_access_rules_and_rate_limits_apply(data_dir: Path, clock: FakeClock) -> None:
    limited = config(rate_limit=RateLimitConfig(max_per_window=1))
    async with a_schedule(data_dir, clock, HOURLY, base=limited) as site:
        outcomes = [await site.schedules.run("hourly") for _ in range(2)]
        assert [(run.outcome, run.detail) for run in outcomes] == [("published", None), ("refused", "rate_limited")]
        rule = AccessRule.model_validate({"from": "relay.system.pulse.*", "to": A, "action": "deny"})
        await site.relay.add_access_rule(rule)
        await site.advance(HOUR)
        assert site.outcome() == "failed"
        assert len(await site.published()) == 1
        await site.relay.remove_access_rule(rule.sender, rule.to)
        await site.advance(HOUR)
        assert len(await site.published()) == 2


async def test_a_message_without_a_consumer_is_a_dead_letter(data_dir: Path, clock: FakeClock) -> None:
    async with a_schedule(data_dir, clock, HOURLY | {"to": UNHEARD}) as site:
        await site.advance(HOUR)
        last = site.state().last
        assert last is not None
        assert (last.outcome, last.detail) == ("refused", "no consumer matched: it is a dead letter")
        (letter,) = await site.relay.dead_letters()
        assert (letter.message_id, letter.code) == (last.message_id, "no_match")


@pytest.mark.parametrize(("section", "count"), [(ONCE, 1), (HOURLY, 0)], ids=["once", "skip"])
async def test_a_disk_that_refuses_is_tried_again(
    data_dir: Path, clock: FakeClock, section: dict[str, Any], count: int
) -> None:
    async with a_schedule(data_dir, clock, section) as site:
        with refusing_journal(site.relay):
            await site.advance(TO_FIRST)
            assert site.outcome() == "failed"
            await site.advance(120)
        await site.advance(60)
        assert len(await site.published()) == count
        assert site.outcome() == ("published" if count else "skipped")


# In a supervisor


async def test_a_supervisor_follows_its_file_and_keeps_the_last_good_one(data_dir: Path) -> None:
    path = data_dir / "config.json"
    path.write_text(json.dumps({"durability": "os", "schedules": [HOURLY]}))
    async with a_supervisor(data_dir, None) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(A)
        assert [state.id for state in (await client.schedules()).schedules] == ["hourly"]
        path.write_text(json.dumps({"durability": "os", "schedules": [HOURLY, HOURLY | {"id": "b", "cron": "x"}]}))
        assert ["schedules.1.cron" in problem for problem in await client.reload()] == [True]
        assert [state.id for state in (await client.schedules()).schedules] == ["hourly"]
        path.write_text(json.dumps({"durability": "os", "schedules": [HOURLY | {"id": "b"}]}))
        assert await client.reload() == []
        assert (await client.run_schedule("b")).outcome == "published"
        assert (await client.pause_schedule("b")).paused
        assert not (await client.resume_schedule("b")).paused
        assert [state.id for state in (await client.schedules()).schedules] == ["b"]
