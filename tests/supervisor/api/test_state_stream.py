"""The state stream: everything once, then what has changed, at most 5 times a second, whatever goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from relay_core import Envelope, Rejection, RelayConfig
from relay_core.config import JobsConfig, ReliabilityConfig
from relay_core.messages.ids import ulid_ms
from relay_core.messages.subjects import subject_hash
from relay_core.protocol.live_state import LiveState, StateUpdate
from relay_core.testing import FakeClock
from relay_supervisor.api import state_stream
from relay_supervisor.supervisor import Supervisor
from tests.kit.bus import SENDER, UNHEARD, A, B
from tests.kit.daemon import UNLIMITED, Daemon, a_daemon
from tests.kit.raw_client import Raw
from tests.kit.supervisor import a_supervisor
from tests.kit.waiting import PATIENCE_SECS

NAMES = ["expire", "purge", "unread", "retention", "index", "metrics"]
CONFIG = RelayConfig(
    durability="os",
    reliability=ReliabilityConfig.model_validate(
        {"circuitBreaker": {"failureThreshold": 1, "cooldownMs": 5000}, "backpressure": {"maxMailboxSize": 4}}
    ),
    jobs=JobsConfig.model_validate({name: {"enabled": False} for name in NAMES}),
)
"""Nothing runs by itself."""
TASK = "state stream"
NOTHING_BUT_THE_TIME = {"watchId", "full", "at"}


class Watched:
    """A supervisor whose time stands still, and a connection to it."""

    def __init__(self, supervisor: Supervisor, wire: Raw, clock: FakeClock) -> None:
        self.supervisor = supervisor
        self.relay = supervisor.context.relay
        self.wire = wire
        self.clock = clock

    async def look(self, after: float = 5.0) -> list[dict[str, Any]]:
        """Let the next look fall due, and return what it has sent but for the time alone."""
        return [note for note in await self.look_at_all(after) if note.keys() > NOTHING_BUT_THE_TIME]

    async def look_at_all(self, after: float) -> list[dict[str, Any]]:
        """Let the next look fall due, and return everything it has sent."""
        self.clock.advance(after)
        for _ in range(3):  # the look is a task of this very loop: it has its turn while these are answered
            await self.wire.call("server.ping")
        notes = [note["params"] for note in self.wire.notes]
        self.wire.notes.clear()
        return notes

    async def news(self, *wanted: str) -> dict[str, Any]:
        """Return what the next updates say together, once everything wanted is among it."""
        await self.relay.idle()
        update: dict[str, Any] = {}
        async with asyncio.timeout(PATIENCE_SECS):
            while not (update and update.keys() >= set(wanted)):
                for note in await self.look():
                    earlier = update
                    update = {**earlier, **note}
                    for key in earlier.keys() & note.keys():
                        if isinstance(note[key], dict):
                            update[key] = {**earlier[key], **note[key]}
                    update["events"] = earlier.get("events", []) + note.get("events", [])
        if not update["events"]:
            del update["events"]
        return update

    async def begin(self) -> dict[str, Any]:
        """Watch, and return the first update."""
        await self.wire.call("state.watch")
        first: dict[str, Any] = await self.wire.note("state")
        return first

    def another(self) -> Raw:
        """Return another connection, which is not open yet."""
        return Raw(self.supervisor.socket)

    def about(self, name: str) -> Path:
        return self.relay.data_dir.path / name


@pytest.fixture
async def watched(data_dir: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    # The next look is due after `INTERVAL_SECS` of the clock, however long the last one took on a busy machine.
    monkeypatch.setattr(state_stream, "_SHARE", 0)
    async with a_supervisor(data_dir, CONFIG, clock) as supervisor, Raw(supervisor.socket) as wire:
        await supervisor.context.relay.register_endpoint(A)
        yield Watched(supervisor, wire, clock)


def tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


class TestStream:
    async def test_the_first_update_is_everything_and_the_next_only_what_changed(self, watched: Watched) -> None:
        first = await watched.begin()
        assert first["full"] is True
        assert first["at"] == watched.clock.now_ms()
        assert [row["subject"] for row in first["mailboxes"].values()] == [A]
        assert set(first["jobs"]) == set(NAMES)
        assert first["problems"] == []
        assert first["throughput"]["publishes"] == 0
        await watched.relay.register_endpoint(B)
        update = await watched.news()
        assert update["full"] is False
        assert update.keys() == {"watchId", "full", "at", "mailboxes"}
        assert [row["subject"] for row in update["mailboxes"].values()] == [B]

    async def test_more_rows_than_fit_into_a_frame_come_in_parts(
        self, watched: Watched, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(state_stream, "PART_ROWS", 5)
        subjects = {f"relay.agent.n{number}" for number in range(12)}
        for subject in subjects:
            await watched.relay.register_endpoint(subject)
        state, notes = LiveState(), [await watched.begin()]
        while len(state.jobs) < len(NAMES):  # they come last
            state.apply(StateUpdate.model_validate(notes[-1]))
            if len(state.jobs) < len(NAMES):
                notes.append(await watched.wire.note("state"))
        assert [note["full"] for note in notes] == [True, False, False, False]
        assert {row.subject for row in state.mailboxes.values()} == subjects | {A}

    async def test_nothing_but_the_time_is_sent_while_nothing_changes(self, watched: Watched) -> None:
        watch_id = (await watched.begin())["watchId"]
        for _ in range(20):
            (note,) = await watched.look_at_all(after=1.0)
            assert note == {"watchId": watch_id, "full": False, "at": watched.clock.now_ms()}
        await watched.relay.register_endpoint(B)
        assert (await watched.news("mailboxes"))["mailboxes"].keys() == {subject_hash(B)}

    async def test_the_time_alone_is_sent_once_a_second(self, watched: Watched) -> None:
        await watched.begin()
        await watched.look_at_all(after=1.0)
        sent = [len(await watched.look_at_all(after=0.25)) for _ in range(20)]
        assert sent == [0, 0, 0, 1] * 5

    async def test_groups_are_queried_again_after_a_rebuild_of_the_index(self, watched: Watched) -> None:
        await watched.relay.publish(UNHEARD, "hi", sender=SENDER)
        while checks := [task for task in asyncio.all_tasks() if task.get_name() == "check index"]:
            await asyncio.wait(checks)
        await watched.relay.bus.index.run(lambda db: db.execute("DELETE FROM deliveries").fetchall())
        assert "deadLetters" not in await watched.begin()
        await watched.relay.rebuild_index()
        (group,) = (await watched.news("deadLetters"))["deadLetters"].values()
        assert group["count"] == 1

    async def test_unwatch_ends_it_and_without_watchers_there_is_no_work(self, watched: Watched) -> None:
        assert TASK not in tasks()
        first = await watched.begin()
        assert TASK in tasks()
        await watched.wire.call("state.unwatch", watchId=first["watchId"])
        await watched.relay.register_endpoint(B)
        assert await watched.look() == []
        assert TASK not in tasks()
        refusal = await watched.wire.refusal("state.unwatch", watchId=first["watchId"])
        assert refusal == ("NotFound", "not_found")

    async def test_a_watcher_that_goes_away_ends_it_too(self, watched: Watched) -> None:
        async with watched.another() as other:
            await other.call("state.watch")
            await other.note("state")
        await watched.look()
        await watched.look()
        assert TASK not in tasks()

    async def test_who_watches_again_gets_everything_again(self, watched: Watched) -> None:
        first = await watched.begin()
        await watched.wire.call("state.unwatch", watchId=first["watchId"])
        await watched.look()
        await watched.relay.register_endpoint(B)
        again = await watched.begin()
        assert again["full"] is True
        assert {row["subject"] for row in again["mailboxes"].values()} == {A, B}

    async def test_a_later_watcher_gets_everything_and_disturbs_no_other(self, watched: Watched) -> None:
        await watched.begin()
        async with watched.another() as other:
            await other.call("state.watch")
            assert await watched.look() == []
            assert (await other.note("state"))["full"] is True
            await watched.relay.register_endpoint(B)
            assert (await watched.news("mailboxes"))["mailboxes"].keys() == {subject_hash(B)}
            assert (await other.note("state"))["mailboxes"].keys() == {subject_hash(B)}

    async def test_one_connection_may_watch_twice_and_tell_its_streams_apart(self, watched: Watched) -> None:
        ids = {(await watched.wire.call("state.watch"))["watchId"] for _ in range(2)}
        notes = [await watched.wire.note("state"), (await watched.look() or [await watched.wire.note("state")])[0]]
        assert {note["watchId"] for note in notes} == ids

    async def test_another_connections_stream_cannot_be_ended(self, watched: Watched) -> None:
        first = await watched.begin()
        async with watched.another() as other:
            refusal = await other.refusal("state.unwatch", watchId=first["watchId"])
        assert refusal == ("NotFound", "not_found")
        await watched.relay.register_endpoint(B)
        assert (await watched.news())["watchId"] == first["watchId"]

    async def test_what_has_gone_is_said_by_its_key(self, watched: Watched) -> None:
        await watched.relay.publish(UNHEARD, "hi", sender=SENDER)
        first = await watched.begin()
        assert list(first["deadLetters"]) == [f"no_match/{subject_hash(UNHEARD)}"]
        await watched.wire.call("deadletters.purge")
        update = await watched.news("gone")
        assert update["gone"]["deadLetters"] == [f"no_match/{subject_hash(UNHEARD)}"]
        assert "deadLetters" not in update


class TestWhatIsTold:
    async def test_how_full_a_mailbox_is_and_since_when_its_oldest_message_waits(self, watched: Watched) -> None:
        await watched.begin()
        sent = await watched.relay.publish(A, "hi", sender=SENDER)
        (row,) = (await watched.news("mailboxes"))["mailboxes"].values()
        assert (row["depth"], row["pressure"], row["oldestAt"]) == (1, 0.25, ulid_ms(sent.message_id))
        refused = [await watched.relay.publish(A, "hi", sender=SENDER) for _ in range(4)][-1]
        assert refused.rejected == (Rejection(endpoint_hash=subject_hash(A), reason="backpressure"),)
        (row,) = (await watched.news("mailboxes"))["mailboxes"].values()
        assert (row["depth"], row["pressure"], row["oldestAt"]) == (4, 1.0, ulid_ms(sent.message_id))

    async def test_when_a_sender_has_room_again_and_that_it_draws_nearer_is_no_news(self, watched: Watched) -> None:
        await watched.begin()
        now = watched.clock.now_ms()
        await watched.relay.publish(A, "hi", sender=SENDER)
        update = await watched.news("senders")
        assert update["senders"] == {
            SENDER: {"count": 1, "limit": 100, "windowSecs": 60, "resetsAt": pytest.approx(now + 60_000, abs=100)}
        }
        for _ in range(5):
            assert all("senders" not in note for note in await watched.look())
        watched.clock.advance(60.0)
        assert (await watched.news("gone"))["gone"] == {"senders": [SENDER]}

    async def test_when_an_open_breaker_lets_a_probe_through(self, watched: Watched) -> None:
        async def explode(envelope: Envelope) -> None:
            raise ConnectionError("down")

        await watched.begin()
        async with await watched.relay.subscribe(A, explode):
            opened = watched.clock.now_ms()
            await watched.relay.publish(A, "hi", sender=SENDER)
            update = await watched.news("breakers", "deadLetters")
        row = update["breakers"][subject_hash(A)]
        assert (row["state"], row["openedAt"], row["retryAt"]) == ("OPEN", opened, opened + 5000)
        assert [event["kind"] for event in update["events"]] == ["breaker", "failed", "dead_letter"]
        assert update["deadLetters"].keys() == {f"handler_failed/{subject_hash(A)}"}

    async def test_a_breaker_that_is_held_open_has_no_such_time(self, watched: Watched) -> None:
        await watched.begin()
        await watched.wire.call("breakers.force", target=A, state="OPEN", reason="repairs")
        row = (await watched.news("breakers"))["breakers"][subject_hash(A)]
        assert (row["state"], row["forced"]) == ("OPEN", True)
        assert "retryAt" not in row

    async def test_how_a_job_went(self, watched: Watched) -> None:
        await watched.begin()
        run = await watched.wire.call("jobs.run", name="purge")
        update = await watched.news("jobs", "events")
        assert update["jobs"].keys() == {"purge"}
        assert update["jobs"]["purge"]["last"] == run
        assert {event["kind"] for event in update["events"]} == {"job"}

    async def test_how_a_replay_goes(self, watched: Watched) -> None:
        await watched.relay.publish(UNHEARD, "hi", sender=SENDER)
        await watched.begin()
        await watched.relay.register_endpoint(UNHEARD)
        plan = await watched.wire.call("deadletters.plan")
        await watched.wire.call("deadletters.run", planId=plan["id"])
        state = LiveState()
        while not (plan["id"] in state.replays and state.replays[plan["id"]].state == "finished"):
            state.apply(StateUpdate.model_validate(await watched.news()))
        assert state.replays[plan["id"]].delivered == 1

    async def test_what_is_wrong_with_the_operators_files(self, watched: Watched) -> None:
        await watched.begin()
        watched.about("config.json").write_text("{")
        (problem,) = (await watched.wire.call("config.reload"))["problems"]
        assert (await watched.news("problems"))["problems"] == [problem]
        assert "config.json is not JSON" in problem
        watched.about("config.json").write_text("{}")
        await watched.wire.call("config.reload")
        assert (await watched.news("problems"))["problems"] == []

    async def test_an_adapter_and_what_is_wrong_with_it(self, watched: Watched) -> None:
        await watched.begin()
        watched.about("adapters.json").write_text(json.dumps({"adapters": [{"id": "x", "type": "nonsense"}]}))
        await watched.wire.call("adapters.reload")
        row = (await watched.news("adapters"))["adapters"]["x"]
        assert "nonsense" in row["problem"]


@pytest.mark.parametrize(
    ("took", "pause"), [(0.0, 0.2), (0.05, 1.0), (2.0, 2.0), (60.0, 2.0)], ids=["quick", "slow", "slower", "slowest"]
)
def test_looks_are_further_apart_if_they_take_long_but_never_far(took: float, pause: float) -> None:
    assert state_stream.pause_after(took) == pytest.approx(pause)


# A real daemon under load


def merged(state: LiveState) -> dict[str, Any]:
    """Return what was put together, in a form that can be compared with the listings."""
    return {
        "mailboxes": {
            key: (row.subject, row.kind, row.registered, row.depth, row.claimed, row.failed, row.consumers)
            for key, row in state.mailboxes.items()
        },
        "pressure": {key: row.pressure for key, row in state.mailboxes.items()},
        "breakers": {
            key: (row.subject, row.state, row.consecutive_failures, row.opened_at, row.forced)
            for key, row in state.breakers.items()
        },
        "groups": {key: row.to_wire() for key, row in state.dead_letters.items()},
    }


async def listed(wire: Raw) -> dict[str, Any]:
    """Return what the listings say, in the same form."""
    mailboxes = (await wire.call("mailboxes.list"))["mailboxes"]
    breakers = (await wire.call("breakers.list"))["breakers"]
    groups = (await wire.call("deadletters.groups"))["groups"]
    shown = ("subject", "kind", "registered", "depth", "claimed", "failed", "consumers")
    return {
        "mailboxes": {row["hash"]: tuple(row[name] for name in shown) for row in mailboxes},
        "pressure": {row["hash"]: round(row["pressure"], 4) for row in mailboxes},
        "breakers": {
            row["key"]: (
                row.get("subject"),
                row["state"],
                row["consecutiveFailures"],
                row.get("openedAt"),
                row["forced"],
            )
            for row in breakers
        },
        "groups": {f"{row['code']}/{row['endpointHash']}": row for row in groups},
    }


async def publish_until(daemon: Daemon, ended: asyncio.Event) -> None:
    """Publish as fast as possible: to consumers that succeed, to consumers that fail, and to none."""
    batch = [
        {"subject": subject, "from": SENDER, "payload": number}
        for number in range(20)
        for subject in (A, B, UNHEARD, f"relay.agent.{number}")
    ]
    async with Raw(daemon.socket) as wire:
        while not ended.is_set():
            await wire.call("publish.batch", messages=batch)


async def fail_all(daemon: Daemon) -> None:
    """Subscribe, and fail whatever comes."""
    async with Raw(daemon.socket) as wire:
        await wire.call("subscribe", pattern=B)
        while True:
            await wire.call("fail", deliveryId=(await wire.note("message"))["deliveryId"], reason="no")


@asynccontextmanager
async def under_load(daemon: Daemon) -> AsyncIterator[None]:
    """Keep a daemon busy."""
    ended = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        failing = group.create_task(fail_all(daemon))
        publishing = group.create_task(publish_until(daemon, ended))
        try:
            yield
        finally:
            ended.set()
            await asyncio.wait([publishing])
            failing.cancel()


@pytest.mark.serial
async def test_under_load_at_most_5_updates_a_second_come_and_together_they_are_true(tmp_path: Path) -> None:
    async with a_daemon(tmp_path, UNLIMITED) as daemon, Raw(daemon.socket) as wire, Raw(daemon.socket) as lists:
        for subject in (A, B, *(f"relay.agent.{number}" for number in range(10))):
            await lists.call("endpoints.register", subject=subject)
        await wire.call("state.watch")
        updates = [await wire.note("state")]
        async with under_load(daemon):
            while updates[-1]["at"] < updates[0]["at"] + 3000:
                updates.append(await wire.note("state"))
        assert [update["full"] for update in updates] == [True] + [False] * (len(updates) - 1)
        for first, sixth in zip(updates, updates[5:], strict=False):
            assert sixth["at"] - first["at"] >= 990  # a clock may be set by a few milliseconds meanwhile
        assert sum("throughput" in update for update in updates) > 3

        state = LiveState()
        for update in updates:
            state.apply(StateUpdate.model_validate(update))
        async with asyncio.timeout(PATIENCE_SECS):
            while merged(state) != await listed(lists):
                state.apply(StateUpdate.model_validate(await wire.note("state")))
        assert state.mailboxes[subject_hash(A)].depth > 0
        assert state.dead_letters.keys() >= {
            f"no_match/{subject_hash(UNHEARD)}",
            f"consumer_failed/{subject_hash(B)}",
        }
        assert state.breakers[subject_hash(B)].consecutive_failures > 0


def resident(pid: int) -> int:
    """Return the bytes of memory that a process has in use."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
async def test_a_watcher_that_does_not_read_costs_no_memory_and_gets_everything_again(tmp_path: Path) -> None:
    subjects = [f"relay.many.{number}-{'x' * 200}" for number in range(250)]
    state = LiveState()
    seen = 0
    async with a_daemon(tmp_path, UNLIMITED) as daemon, Raw(daemon.socket) as wire, Raw(daemon.socket) as lists:
        for subject in subjects:
            await lists.call("endpoints.register", subject=subject)
        await wire.call("state.watch")

        async def change_every_row() -> None:
            nonlocal seen
            depth = min((row.depth for row in state.mailboxes.values()), default=0) + 1
            await lists.call("publish", subject="relay.many.*", payload=depth, **{"from": SENDER})
            async with asyncio.timeout(PATIENCE_SECS):
                while not state.mailboxes or any(row.depth < depth for row in state.mailboxes.values()):
                    note = await wire.note("state")
                    seen += len(json.dumps(note))
                    state.apply(StateUpdate.model_validate(note))

        for _ in range(3):
            await change_every_row()
        async with a_stalled_watcher(daemon) as stalled:
            resident_before, seen = resident(daemon.pid), 0
            while seen < 2_500_000:  # more than the sockets and the daemon's buffer hold
                await change_every_row()
            assert resident(daemon.pid) - resident_before < 20_000_000
            # It reads again: what had been sent before it stalled, and then everything.
            stalled.go_on()
            theirs, wholes, received = LiveState(), 0, 0
            async with asyncio.timeout(PATIENCE_SECS):
                while wholes < 2 or merged(theirs) != merged(state):
                    line = await stalled.line()
                    received += len(line)
                    frame = json.loads(line)
                    if "params" in frame:  # not the answer to its request
                        wholes += frame["params"]["full"]
                        theirs.apply(StateUpdate.model_validate(frame["params"]))
            assert wholes == 2
            assert received < seen
        assert merged(theirs) == await listed(lists)


class Stalled:
    """A watcher that reads nothing until it is asked to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._transport = cast(asyncio.Transport, writer.transport)
        self._transport.pause_reading()

    def go_on(self) -> None:
        self._transport.resume_reading()

    async def line(self) -> bytes:
        return await self._reader.readline()


@asynccontextmanager
async def a_stalled_watcher(daemon: Daemon) -> AsyncIterator[Stalled]:
    reader, writer = await asyncio.open_unix_connection(daemon.socket, limit=2**22)
    stalled = Stalled(reader, writer)
    writer.write(b'{"jsonrpc":"2.0","id":1,"method":"state.watch"}\n')
    await writer.drain()
    try:
        yield stalled
    finally:
        writer.close()
        await writer.wait_closed()
