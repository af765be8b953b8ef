"""The adapters of adapters.json: real plugin files, run on a real bus."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relay_core import Binding, Closed, ConfigError, NotFound, RelayConfig, RelayCore, StorageError
from relay_core.messages.operator_views import ConfiguredAdapter
from relay_core.testing import FakeClock, FakeTimer
from relay_supervisor.adapters import configured
from relay_supervisor.adapters.configured import ConfiguredAdapters
from relay_supervisor.adapters.settings import PROBE_SECS
from relay_supervisor.observability.secrets import SecretRedactor
from tests.kit.adapters import DIARY_PLUGIN, SampleAdapter
from tests.kit.waiting import until

SENDER = "relay.agent.a"
SUBJECT = "relay.out.chat"
CANARY = "SECRET-CANARY"


BOUND = {"chat": "relay.human.x.1", "agent": "relay.agent.a"}


class ProbeClock(FakeClock):
    """A clock that knows how many probes were set."""

    def __init__(self) -> None:
        super().__init__()
        self.probes = 0
        self.set_delays: list[float] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> FakeTimer:
        self.set_delays.append(delay)
        if delay == PROBE_SECS:
            self.probes += 1
        return super().call_later(delay, callback)


class Home:
    """A data directory with a plugin, adapters.json, and the diary of what the adapters did."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / "adapters.json"
        self.plugin = path / "plugins" / "diary.py"
        self.plugin.parent.mkdir(mode=0o700)
        shutil.copyfile(DIARY_PLUGIN, self.plugin)
        self.plugin.chmod(0o600)

    def entry(self, id: str, *, enabled: bool = True, **config: object) -> dict[str, Any]:
        config = {"diary": str(self.path / "diary"), **config}
        return {"id": id, "path": "plugins/diary.py", "enabled": enabled, "config": config}

    def write(self, *entries: object, **more: object) -> None:
        # Through a rename, as editors do, so that a reload never meets half a file.
        draft = self.path / "adapters.draft"
        draft.write_text(json.dumps({"adapters": entries, **more}))
        draft.rename(self.file)

    def mark(self, id: str, what: str) -> Path:
        path = self.path / f"{id}.{what}"
        path.touch()
        return path

    def diary(self, id: str) -> list[str]:
        path = self.path / "diary"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.removeprefix(f"{id} ") for line in lines if line.startswith(f"{id} ")]

    def starts(self, id: str) -> int:
        return sum(line.startswith("start") for line in self.diary(id))


@pytest.fixture
def home(data_dir: Path) -> Iterator[Home]:
    yield Home(data_dir)
    for name in [name for name in sys.modules if name.startswith("relay_plugin")]:
        del sys.modules[name]


@pytest.fixture
def clock() -> ProbeClock:
    return ProbeClock()


@asynccontextmanager
async def hosted(relay: RelayCore, home: Home, clock: ProbeClock) -> AsyncIterator[ConfiguredAdapters]:
    async with ConfiguredAdapters(relay, home.file, clock) as host:
        await until(lambda: clock.probes == 1)
        yield host


def state_of(host: ConfiguredAdapters, id: str = "a") -> ConfiguredAdapter:
    (state,) = [state for state in host.states() if state.id == id]
    return state


async def probe(clock: ProbeClock) -> None:
    """Let the next probe fall due, and wait until the one after it is set."""
    await probe_after(clock, PROBE_SECS)


async def probe_after(clock: ProbeClock, secs: float) -> None:
    before = clock.probes
    clock.advance(secs)
    await until(lambda: clock.probes > before)


async def at_rest(host: ConfiguredAdapters) -> None:
    """Wait until what the host has begun is done: a reload looks at every adapter in its turn."""
    await host.reload()


# Starting


async def test_the_enabled_adapters_run_and_get_mail(relay: RelayCore, home: Home, clock: ProbeClock) -> None:
    home.write(home.entry("b"), home.entry("a"), home.entry("off", enabled=False))
    async with hosted(relay, home, clock) as host:
        assert (await relay.publish(SUBJECT, "hi", sender=SENDER)).delivered_to == 2
        found = [
            (state.id, state.type, state.enabled, state.problem, state.state and state.state.state)
            for state in host.states()
        ]
        assert found == [
            ("a", "plugins/diary.py", True, None, "connected"),
            ("b", "plugins/diary.py", True, None, "connected"),
            ("off", "plugins/diary.py", False, None, None),
        ]
        assert host.problem is None
    assert home.diary("a") == ["start - v1", "deliver hi - v1"]
    assert home.diary("off") == []


async def test_without_a_file_there_are_no_adapters(relay: RelayCore, home: Home, clock: ProbeClock) -> None:
    async with hosted(relay, home, clock) as host:
        assert (host.states(), host.problem) == ([], None)


async def test_adapters_run_on_after_leaving_until_the_bus_closes(home: Home, clock: ProbeClock) -> None:
    home.write(home.entry("a"))
    async with RelayCore(home.path, RelayConfig(durability="os"), clock) as relay:
        async with hosted(relay, home, clock) as host:
            pass
        assert (await relay.publish(SUBJECT, "late", sender=SENDER)).delivered_to == 1
        with pytest.raises(Closed):
            await host.reload()
    assert home.diary("a") == ["start - v1", "deliver late - v1", "stop - v1"]


BAD: list[Any] = [
    pytest.param(CANARY, "#1", "an entry must be an object", id="no object"),
    pytest.param({"id": "x", "type": "carrier-pigeon"}, "x", "unknown adapter type", id="unknown type"),
    pytest.param({"id": "x", "path": "gone.py"}, "x", "cannot read the plugin", id="no plugin"),
    pytest.param({"id": "x", "path": "plugins/diary.py", "tokn": 1}, "x", "unknown key 'tokn'", id="unknown key"),
    pytest.param({"id": "x", "path": "plugins/diary.py"}, "x", "config.diary: Field required", id="bad config"),
    pytest.param(
        {"id": "x", "path": "plugins/diary.py", "config": {"diary": "d", "pages": CANARY}},
        "x",
        "config.pages: Input should be a valid integer",
        id="bad value",
    ),
    pytest.param(
        {"id": "x", "path": "plugins/diary.py", "config": {"diary": "d", "note": "exits", "password": CANARY}},
        "x",
        "it cannot be created: SystemExit: ***",
        id="exits",
    ),
]


@pytest.mark.parametrize(("bad", "id", "problem"), BAD)
async def test_a_bad_entry_is_reported_and_kept_and_the_others_run(
    bad: Any, id: str, problem: str, relay: RelayCore, home: Home, clock: ProbeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    if isinstance(bad, dict):
        bad = {**bad, "config": {"password": CANARY, **bad.get("config", {})}}
    home.write(bad, home.entry("a"))
    before = home.file.read_text()
    async with hosted(relay, home, clock) as host:
        state = state_of(host, id)
        assert problem in str(state.problem)
        assert (state.state, state.retry_at) == (None, None)
        assert problem in caplog.text
        assert (await relay.publish(SUBJECT, "hi", sender=SENDER)).delivered_to == 1
        assert home.file.read_text() == before
        assert CANARY not in f"{host.states()!r} {host.problem} {vars(host)!r} {caplog.text}"


async def test_a_reload_that_fails_is_signalled_once_and_so_is_its_repair(
    relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    found: list[tuple[str, str, Any]] = []
    relay.on_signal("relay.system.>", lambda subject, signal: found.append((subject, signal.state, signal.data)))
    home.write(home.entry("a"))
    async with hosted(relay, home, clock) as host:
        assert found == []
        unstartable = home.mark("a", "unstartable")
        home.write(home.entry("a", note="new"))
        await host.reload("a")
        problem = state_of(host).problem
        assert problem is not None
        assert problem.endswith("the running adapter stays in place")
        about = {"file": "adapters.json", "adapter": "a"}
        error = ("relay.system.adapter.a", "error", about | {"problem": problem})
        assert found == [error]
        await host.reload("a")
        clock.advance(1.0)  # a retry fails in the same way
        await at_rest(host)
        assert found == [error]
        unstartable.unlink()
        await host.reload("a")
        assert found[1:] == [("relay.system.adapter.a", "ok", about | {"was": problem})]
        events = [event for event in relay.events.recent if event["kind"] == "problem"]
        assert [(event["adapter"], event["status"]) for event in events] == [("a", "error"), ("a", "ok")]


async def test_problems_of_the_file_and_of_entries_without_an_id_are_signalled_as_the_configs(
    relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    found: list[tuple[str, str, Any]] = []
    relay.on_signal("relay.system.config", lambda subject, signal: found.append((subject, signal.state, signal.data)))
    async with hosted(relay, home, clock) as host:
        home.write({"path": "plugins/diary.py"}, bindings=[7])
        await host.reload()
        await host.reload()
        assert [(state, data.get("adapter")) for _, state, data in found] == [("error", None), ("error", "#1")]
        assert found[0][2]["problem"] == host.problem
        home.write()
        await host.reload()
        assert [(state, data.get("adapter")) for _, state, data in found[2:]] == [("ok", None), ("ok", "#1")]


async def test_a_secret_that_an_adapter_quotes_is_blotted_out(
    relay: RelayCore, home: Home, clock: ProbeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    unstartable = home.mark("a", "unstartable")
    home.write(home.entry("a", password=CANARY))
    async with hosted(relay, home, clock) as host:
        assert state_of(host).problem == "adapter a did not start: PermissionError: *** was refused"
        unstartable.unlink()
        await host.reload("a")
        home.mark("a", "sick")
        tested = await host.test("a")
        assert tested.state is not None
        assert tested.state.detail == "the health probe failed: ConnectionError: *** has expired"
        assert CANARY not in f"{host.states()!r} {vars(host)!r} {caplog.text}"


async def test_an_adapter_that_does_not_start_is_tried_again_ever_more_slowly(
    relay: RelayCore, home: Home, clock: ProbeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    unstartable = home.mark("a", "unstartable")
    home.write(home.entry("a"), home.entry("b"))
    async with hosted(relay, home, clock) as host:
        assert state_of(host, "b").state is not None
        waits = [1, 2, 4, 8, 16, 32, 60, 60]
        for tries, wait in enumerate(waits, start=1):
            state = state_of(host)
            assert "PermissionError" in str(state.problem)
            assert (home.starts("a"), state.retry_at) == (tries, clock.now_ms() + wait * 1000)
            clock.advance(wait - 0.001)
            await at_rest(host)
            assert home.starts("a") == tries
            clock.advance(0.001)
            await until(lambda: state_of(host).retry_at is not None)
        unstartable.unlink()
        clock.advance(60)
        await until(lambda: state_of(host).state is not None)
        state = state_of(host)
        assert (state.problem, state.retry_at, state.restarts) == (None, None, 0)
        assert "adapter a has started, after 9 failed attempts" in caplog.messages
        assert not any("adapter b has started" in line for line in caplog.messages)
        unstartable.touch()
        home.write(home.entry("a", note="new"), home.entry("b"))
        await host.reload()
        assert state_of(host).retry_at == clock.now_ms() + 1000  # it has been running: counted from the start
        unstartable.unlink()


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        pytest.param("exits", "SystemExit: no", id="exits"),
        pytest.param("cancels", "it cancelled its own start", id="cancels"),
    ],
)
async def test_not_even_an_adapter_that_exits_or_cancels_ends_the_supervisor(
    how: str, problem: str, relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    home.mark("a", "unstartable").write_text(how)
    home.write(home.entry("a"), home.entry("b"))
    async with hosted(relay, home, clock) as host:
        assert state_of(host).problem == problem
        assert state_of(host).retry_at == clock.now_ms() + 1000
        assert [state.id for state in relay.adapters()] == ["b"]


async def test_a_new_entry_ends_the_tries_of_the_old_one(relay: RelayCore, home: Home, clock: ProbeClock) -> None:
    unstartable = home.mark("a", "unstartable")
    home.write(home.entry("a", note="old"))
    async with hosted(relay, home, clock) as host:
        unstartable.unlink()
        home.write(home.entry("a", note="new"))
        await host.reload()
        assert (state_of(host).problem, state_of(host).retry_at) == (None, None)
        for _ in range(3):
            await probe(clock)
        await at_rest(host)
    assert home.diary("a") == ["start old v1", "stop old v1", "start new v1"]


async def test_probes_that_fail_restarts_and_reloads_are_logged(
    relay: RelayCore, home: Home, clock: ProbeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    home.write(home.entry("a"), home.entry("off", enabled=False))
    async with hosted(relay, home, clock) as host:
        assert "adapters.json was read: 1 of 2 adapters are enabled" in caplog.messages
        home.mark("a", "sick")
        await probe(clock)
        assert any(line.startswith("adapter a: the health probe failed: ") for line in caplog.messages)
        await probe(clock)
        assert "adapter a was in error at 2 probes in a row: restarting it" in caplog.messages
        await until(lambda: "adapter a was restarted" in caplog.messages)
        home.file.write_text("{")
        await host.reload()
        assert any("adapters.json" in record.message for record in caplog.records if record.levelname == "ERROR")


async def test_leaving_ends_the_tries_and_the_probes(relay: RelayCore, home: Home, clock: ProbeClock) -> None:
    home.mark("a", "unstartable")
    home.write(home.entry("a"))
    async with hosted(relay, home, clock):
        pass
    before = asyncio.all_tasks()
    clock.advance(3600)
    assert asyncio.all_tasks() <= before
    assert home.starts("a") == 1


async def test_an_adapter_that_hangs_as_it_is_tried_again_delays_no_other(
    relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    unstartable = home.mark("a", "unstartable")
    home.write(home.entry("a"), home.entry("b"))
    async with hosted(relay, home, clock) as host:
        home.mark("a", "hanging")
        unstartable.unlink()
        clock.advance(1)
        await until(lambda: home.starts("a") == 2)
        home.write(home.entry("a"), home.entry("b", note="new"))
        await until(lambda: "start new v1" in home.diary("b"))
        assert state_of(host).state is None


async def test_a_plugin_that_hangs_as_it_is_loaded_is_given_up(
    relay: RelayCore, home: Home, clock: ProbeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configured, "LOAD_TIMEOUT_SECS", 0.05)
    pipe = home.path / "pipe"
    os.mkfifo(pipe)
    home.plugin.write_text(f"with open({str(pipe)!r}) as pipe: pipe.read()")
    home.write(home.entry("a"))
    async with hosted(relay, home, clock) as host:
        assert state_of(host).problem == "its type was not loaded within 0.05 s: check what it does"
        assert state_of(host).retry_at is None
    pipe.open("w").close()  # lets the thread go


# Probes and restarts


async def test_an_adapter_in_error_twice_in_a_row_is_restarted(relay: RelayCore, home: Home, clock: ProbeClock) -> None:
    home.write(home.entry("a"), home.entry("b"))
    async with hosted(relay, home, clock) as host:
        sick = home.mark("a", "sick")
        await probe(clock)
        sick.unlink()
        await probe(clock)  # healthy again: the count restarts
        home.mark("a", "sick")
        await probe(clock)
        state = state_of(host).state
        assert state is not None
        assert state.state == "error"
        assert home.starts("a") == 1
        await probe(clock)
        await until(lambda: state_of(host).restarts == 1)
        state = state_of(host).state
        assert state is not None
        assert state.state == "connected"
        await probe(clock)
        await probe(clock)
        assert (state_of(host).restarts, state_of(host, "b").restarts) == (1, 0)
    assert home.diary("a") == ["start - v1", "start - v1", "stop - v1"]


async def test_an_adapter_is_probed_as_often_as_the_operator_says(
    relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    home.write(home.entry("a") | {"probeSecs": 5}, home.entry("b"))
    async with hosted(relay, home, clock) as host:
        assert (state_of(host, "a").probe_secs, state_of(host, "b").probe_secs) == (5, PROBE_SECS)
        for id in "ab":
            home.mark(id, "sick")

        def health() -> list[bool | None]:
            return [state.healthy for state in relay.adapters()]

        await until(lambda: 5 in clock.set_delays)
        clock.set_delays.clear()
        clock.advance(5)
        await until(lambda: health() == [False, None])
        await until(lambda: 5 in clock.set_delays)
        clock.set_delays.clear()
        clock.advance(5)
        await until(lambda: state_of(host, "a").restarts == 1)
        assert health() == [None, None], "a was restarted, b not yet probed"
        await until(lambda: 5 in clock.set_delays)
        home.write(home.entry("a"), home.entry("b"))
        await until(lambda: state_of(host, "a").probe_secs == PROBE_SECS)
        clock.set_delays.clear()
        clock.advance(5)  # the last timer of that interval
        await at_rest(host)
        await probe_after(clock, PROBE_SECS - 15)
        assert health() == [True, False]
        assert 5 not in clock.set_delays


async def test_the_operators_priority_rate_and_drain_reach_the_bus(
    relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    home.write(home.entry("a") | {"priority": 3, "rate": 2, "drainSecs": 60})
    async with hosted(relay, home, clock) as host:

        def found() -> tuple[object, ...]:
            (state,) = relay.adapters()
            return state.priority, state.rate, state.drain_secs

        assert found() == (3, 2, 60)
        home.write(home.entry("a") | {"priority": 4})
        await host.reload()
        assert found() == (4, None, 10)
        home.write(home.entry("a") | {"priority": "high"})
        await host.reload()
        assert "priority: Input should be a valid integer" in str(state_of(host).problem)
        assert found() == (4, None, 10), "the running one stays"


async def test_a_restart_that_fails_leaves_the_old_one_and_is_tried_again(
    relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    home.write(home.entry("a"))
    async with hosted(relay, home, clock) as host:
        home.mark("a", "sick")
        unstartable = home.mark("a", "unstartable")
        await probe(clock)
        await probe(clock)
        await until(lambda: state_of(host).retry_at == clock.now_ms() + 1000)
        state = state_of(host)
        assert "the running adapter stays in place" in str(state.problem)
        assert (state.state is not None, state.restarts) == (True, 0)
        clock.advance(1)
        await until(lambda: state_of(host).retry_at == clock.now_ms() + 2000)
        unstartable.unlink()
        clock.advance(2)
        await until(lambda: state_of(host).restarts == 1)
        assert (state_of(host).problem, state_of(host).retry_at) == (None, None)


async def test_an_adapter_that_gets_well_by_itself_is_not_restarted(
    relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    home.write(home.entry("a"))
    async with hosted(relay, home, clock) as host:
        sick, unstartable = home.mark("a", "sick"), home.mark("a", "unstartable")
        await probe(clock)
        await probe(clock)
        await until(lambda: state_of(host).retry_at is not None)
        tries = home.starts("a")
        sick.unlink()
        unstartable.unlink()
        await host.test("a")
        clock.advance(1)
        await until(lambda: state_of(host).problem is None)
        assert (home.starts("a"), state_of(host).restarts) == (tries, 0)


async def test_a_restart_that_cannot_be_made_is_said_until_the_old_one_is_well(
    relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    home.write(home.entry("a"))
    async with hosted(relay, home, clock) as host:
        sick = home.mark("a", "sick")
        home.plugin.write_text("broken =")
        await probe(clock)
        await probe(clock)
        await until(lambda: "SyntaxError" in str(state_of(host).problem))
        assert state_of(host).retry_at is None
        await probe(clock)
        assert "SyntaxError" in str(state_of(host).problem)
        sick.unlink()
        await probe(clock)
        assert (state_of(host).problem, state_of(host).restarts) == (None, 0)


async def test_a_test_probes_at_once(relay: RelayCore, home: Home, clock: ProbeClock) -> None:
    home.write(home.entry("a"), home.entry("off", enabled=False))
    async with hosted(relay, home, clock) as host:
        assert (await host.test("a")).state == state_of(host).state
        home.mark("a", "sick")
        tested = (await host.test("a")).state
        assert tested is not None
        assert (tested.state, tested.healthy) == ("error", False)
        assert (await host.test("off")).state is None
        with pytest.raises(NotFound, match=r"no adapter c in adapters\.json; there are: a, off"):
            await host.test("c")


# Secrets


KEEPER = """
from pydantic import BaseModel
from relay_core import AdapterStatus, DeliveryResult, Secret

class Config(BaseModel):
    token: Secret
    host: str = "nowhere"

class Keeper:
    config_model = Config
    patterns = ("relay.out.>",)

    def __init__(self, id, config):
        self.id, self.config = id, config
        self.status = AdapterStatus("disconnected")

    async def start(self, context):
        context.logger.warning("token %s for %s", self.config.token.reveal(), self.config.host)
        self.status = AdapterStatus("connected", f"with {self.config.token.reveal()} at {self.config.host}")

    async def stop(self):
        self.status = AdapterStatus("disconnected")

    async def deliver(self, envelope, context):
        return DeliveryResult(ok=False, error=f"{self.config.token.reveal()} is refused by {self.config.host}")

adapter = Keeper
"""


async def test_a_secret_by_reference_is_resolved_and_never_shown(
    relay: RelayCore, home: Home, clock: ProbeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEPERS_TOKEN", CANARY)
    home.plugin.write_text(KEEPER)
    home.write({"id": "a", "path": "plugins/diary.py", "config": {"token": "env:KEEPERS_TOKEN", "host": "example.com"}})
    redactor = SecretRedactor()
    async with ConfiguredAdapters(relay, home.file, clock, redactor) as host:
        state = state_of(host)
        assert state.state is not None
        assert (state.problem, state.warning, state.state.detail) == (None, None, "with *** at example.com")
        await relay.publish(SUBJECT, "hi", sender=SENDER)
        (letter,) = await relay.dead_letters()
        assert letter.reason == "adapter delivery failed: a: *** is refused by example.com"
        assert redactor.redact(f"token {CANARY}") == "token ***"
        assert CANARY not in f"{host.states()!r} {vars(host)!r} {relay.adapters()!r}"


async def test_a_secret_in_the_file_works_and_is_warned_about(
    relay: RelayCore, home: Home, clock: ProbeClock, caplog: pytest.LogCaptureFixture
) -> None:
    home.plugin.write_text(KEEPER)
    home.write({"id": "a", "path": "plugins/diary.py", "config": {"token": CANARY}})
    async with hosted(relay, home, clock) as host:
        warning = "config.token holds a secret itself: write env:NAME or file:PATH there instead"
        assert state_of(host).warning == warning
        assert f"adapter a: {warning}" in caplog.text


async def test_a_secret_that_is_not_there_is_a_problem_and_the_running_one_stays(
    relay: RelayCore, home: Home, clock: ProbeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEPERS_TOKEN", CANARY)
    home.plugin.write_text(KEEPER)
    entry = {"id": "a", "path": "plugins/diary.py", "config": {"token": "env:KEEPERS_TOKEN"}}
    home.write(entry)
    async with hosted(relay, home, clock) as host:
        home.write({**entry, "config": {"token": "env:MISSPELT"}})
        await host.reload()
        state = state_of(host)
        assert state.problem == (
            "config.token is not valid: the environment has no MISSPELT (set it where the supervisor is started); "
            "the running adapter stays in place"
        )
        assert state.state is not None
        assert state.state.state == "connected"


# Starting together


TALKER = """
from relay_core import AdapterStatus, DeliveryResult
from relay_core.tasks import Tasks

class Talker:
    patterns = ("relay.talker",)

    def __init__(self, id, config):
        self.id, self.tasks = id, Tasks()
        self.status = AdapterStatus("disconnected")

    async def start(self, context):
        self.status = AdapterStatus("connected")
        await context.publish("relay.hello", "while starting", sender="relay.talker")
        self.tasks.start(context.publish("relay.out.x", "when started", sender="relay.talker"), name="talk")

    async def stop(self):
        self.status = AdapterStatus("disconnected")
        await self.tasks.close()

    async def deliver(self, envelope, context):
        return DeliveryResult(ok=True)

adapter = Talker
"""


async def test_what_comes_in_while_others_start_waits_until_they_are_there(
    relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    talker = home.path / "plugins" / "talker.py"
    talker.write_text(TALKER)
    talker.chmod(0o600)
    await relay.register_endpoint("relay.hello")
    home.write({"id": "talker", "path": "plugins/talker.py"}, home.entry("slow"))
    held = home.path / "slow.held"
    os.mkfifo(held)
    async with asyncio.TaskGroup() as group:
        host = ConfiguredAdapters(relay, home.file, clock)
        entering = group.create_task(host.__aenter__())
        await until(lambda: [state.id for state in relay.adapters()] == ["talker"])
        assert [mail.payload for mail in await relay.inbox("relay.hello")] == ["while starting"]
        await asyncio.to_thread(held.write_bytes, b"")
        await entering
    try:
        await until(lambda: "deliver when started - v1" in home.diary("slow"))
        assert await relay.dead_letters() == []
    finally:
        await host.__aexit__(None, None, None)


# Reloading


async def test_a_reload_touches_what_changed_and_nothing_else(relay: RelayCore, home: Home, clock: ProbeClock) -> None:
    home.write(home.entry("same"), home.entry("changed", note="old"), home.entry("gone"))
    async with hosted(relay, home, clock) as host:
        home.write(home.entry("new"), home.entry("changed", note="new"), home.entry("same"), bindings=[BOUND])
        await host.reload()
        assert relay.bindings() == [Binding.model_validate(BOUND)]
        assert [(state.id, state.problem) for state in host.states()] == [
            ("changed", None),
            ("new", None),
            ("same", None),
        ]
        assert [state.id for state in relay.adapters()] == ["changed", "new", "same"]
        home.file.write_text("{")
        await host.reload()
        assert relay.bindings() == [Binding.model_validate(BOUND)]
    assert home.diary("same") == ["start - v1"]
    assert home.diary("changed") == ["start old v1", "start new v1", "stop old v1"]
    assert home.diary("gone") == ["start - v1", "stop - v1"]
    assert home.diary("new") == ["start - v1"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param({"config": {"note": "new", "pages": "many"}}, "config.pages: Input should be", id="bad config"),
        pytest.param({"path": "gone.py"}, "cannot read the plugin", id="bad path"),
        pytest.param({"enabled": "sure"}, "enabled must be true or false", id="bad entry"),
    ],
)
async def test_a_change_that_is_refused_leaves_the_running_one_alone(
    change: dict[str, Any], problem: str, relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    home.write(home.entry("a"))
    async with hosted(relay, home, clock) as host:
        entry = home.entry("a")
        config = {**entry["config"], **change.get("config", {})}
        home.write({**entry, **change, "config": config})
        await host.reload()
        state = state_of(host)
        assert problem in str(state.problem)
        assert "the running adapter stays in place" in str(state.problem)
        assert (state.state is not None, state.retry_at) == (True, None)
        home.write(entry)
        await host.reload()
        assert state_of(host).problem is None
    assert home.diary("a") == ["start - v1"]


async def test_a_change_that_does_not_start_leaves_the_running_one_and_is_tried_again(
    relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    home.write(home.entry("a", note="old"))
    async with hosted(relay, home, clock) as host:
        unstartable = home.mark("a", "unstartable")
        home.write(home.entry("a", note="new"))
        await host.reload()
        assert "the running adapter stays in place" in str(state_of(host).problem)
        await relay.publish(SUBJECT, "hi", sender=SENDER)
        assert home.diary("a")[-1] == "deliver hi old v1"
        unstartable.unlink()
        clock.advance(1)
        await until(lambda: state_of(host).problem is None)
        assert state_of(host).restarts == 0
        assert home.diary("a")[-2:] == ["start new v1", "stop old v1"]


async def test_a_named_reload_makes_the_adapter_anew_of_the_plugin_as_it_is_now(
    relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    home.write(home.entry("a"), home.entry("b"))
    async with hosted(relay, home, clock) as host:
        good = home.plugin.read_text()
        home.plugin.write_text(good.replace('"v1"', '"v2"'))
        await host.reload()
        assert home.starts("a") == 1
        await host.reload("a")
        assert home.diary("a") == ["start - v1", "start - v2", "stop - v1"]
        home.plugin.write_text("broken =")
        await host.reload("a")
        assert "SyntaxError" in str(state_of(host).problem)
        assert state_of(host).state is not None
        home.plugin.write_text(good.replace('"v1"', '"v3"'))
        await host.reload()  # what an operator asked for is still to be done
        assert (home.diary("a")[-2:], state_of(host).problem) == (["start - v3", "stop - v2"], None)
        assert home.starts("b") == 1


async def test_a_named_reload_that_does_not_start_is_tried_again(
    relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    home.write(home.entry("a"))
    async with hosted(relay, home, clock) as host:
        unstartable = home.mark("a", "unstartable")
        await host.reload("a")
        clock.advance(1)
        await until(lambda: state_of(host).retry_at == clock.now_ms() + 2000)
        assert "the running adapter stays in place" in str(state_of(host).problem)
        unstartable.unlink()
        clock.advance(2)
        await until(lambda: state_of(host).problem is None)
        assert (home.starts("a"), state_of(host).restarts) == (4, 0)


async def test_only_an_adapter_of_the_file_can_be_reloaded(relay: RelayCore, home: Home, clock: ProbeClock) -> None:
    home.write(home.entry("a"))
    async with hosted(relay, home, clock) as host:
        with pytest.raises(NotFound, match="there are: a"):
            await host.reload("c")


async def test_a_file_that_is_no_json_keeps_what_runs(relay: RelayCore, home: Home, clock: ProbeClock) -> None:
    home.write(home.entry("a"))
    async with hosted(relay, home, clock) as host:
        home.file.write_text('{"adapters": [')
        await host.reload()
        assert "is not JSON" in str(host.problem)
        assert (state_of(host).problem, home.diary("a")) == (None, ["start - v1"])
        await host.reload("a")
        assert home.starts("a") == 2
        with pytest.raises(ConfigError, match="is not JSON"):
            await host.disable("a")
        home.write(home.entry("a"))
        await host.reload()
        assert (host.problem, home.starts("a")) == (None, 2)


async def test_a_supervisor_starts_although_the_file_is_no_json(
    relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    home.file.write_text("{")
    async with hosted(relay, home, clock) as host:
        assert (host.states(), "is not JSON" in str(host.problem)) == ([], True)


async def test_a_change_of_the_file_is_taken_up_by_itself(relay: RelayCore, home: Home, clock: ProbeClock) -> None:
    async with hosted(relay, home, clock) as host:
        home.write(home.entry("a"))
        await until(lambda: bool(host.states()) and state_of(host).state is not None)
        home.file.unlink()
        await until(lambda: host.states() == [])
    assert home.diary("a") == ["start - v1", "stop - v1"]


async def test_reloads_at_the_same_time_come_one_after_another(relay: RelayCore, home: Home, clock: ProbeClock) -> None:
    home.write(home.entry("a"))
    async with hosted(relay, home, clock) as host:
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(host.reload("a"))
        assert [state.id for state in relay.adapters()] == ["a"]
    assert home.diary("a") == ["start - v1"] + ["start - v1", "stop - v1"] * 5


async def test_an_adapter_that_comes_back_while_it_is_being_removed_runs_in_the_end(
    relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    home.write(home.entry("a"))
    async with hosted(relay, home, clock) as host:
        gate = home.path / "a.gate"
        os.mkfifo(gate)
        home.write()
        async with asyncio.TaskGroup() as group:
            group.create_task(host.reload())
            await until(lambda: home.diary("a")[-1] == "stop - v1")
            home.write(home.entry("a"))
            group.create_task(host.reload())
            for _ in range(3):  # room for the second one to overtake the first, if it could
                await asyncio.to_thread(home.file.read_bytes)
            await asyncio.to_thread(gate.write_bytes, b"open")
        gate.unlink()
        await at_rest(host)
        assert (state_of(host).problem, state_of(host).state is not None) == (None, True)
    assert home.diary("a") == ["start - v1", "stop - v1", "start - v1"]


async def test_a_reload_is_finished_although_its_caller_goes_away(
    relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    home.write(home.entry("a"))
    async with hosted(relay, home, clock) as host:
        home.write(home.entry("a", note="new"))
        async with asyncio.TaskGroup() as group:
            caller = group.create_task(host.reload())
            await asyncio.sleep(0)
            caller.cancel()
        await until(lambda: home.diary("a")[-2:] == ["start new v1", "stop - v1"])
        assert state_of(host).problem is None


async def test_a_caller_that_waits_for_a_reload_is_told_when_the_host_is_left(
    relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    home.write(home.entry("a"))
    async with asyncio.TaskGroup() as group:
        async with hosted(relay, home, clock) as host:
            home.mark("a", "hanging")
            caller = group.create_task(_refused(host))
            await until(lambda: home.starts("a") == 2)
        await caller
    assert [state.id for state in relay.adapters()] == ["a"]


async def _refused(host: ConfiguredAdapters) -> None:
    with pytest.raises(Closed):
        await host.reload("a")


async def test_an_adapter_that_was_not_configured_is_let_be(relay: RelayCore, home: Home, clock: ProbeClock) -> None:
    await relay.add_adapter(SampleAdapter("a"))
    home.write(home.entry("a"))
    async with hosted(relay, home, clock) as host:
        assert "there is an adapter a already" in str(state_of(host).problem)
        assert state_of(host).state is None
        home.write()
        await host.reload()
        assert [state.id for state in relay.adapters()] == ["a"]


async def test_an_adapter_that_was_removed_from_the_bus_comes_back(
    relay: RelayCore, home: Home, clock: ProbeClock
) -> None:
    home.write(home.entry("a"))
    async with hosted(relay, home, clock) as host:
        await relay.remove_adapter("a")
        await host.reload("a")
        clock.advance(1)
        await until(lambda: state_of(host).state is not None)


# Switching on and off


async def test_switching_an_adapter_off_and_on_is_written_down(relay: RelayCore, home: Home, clock: ProbeClock) -> None:
    home.write(17, home.entry("a"), bindings=[{"chat": 1}])
    before = json.loads(home.file.read_text())
    async with hosted(relay, home, clock) as host:
        state = await host.disable("a")
        assert (state.enabled, state.state, relay.adapters()) == (False, None, [])
        after = json.loads(home.file.read_text())
        before["adapters"][1]["enabled"] = False
        assert after == before
        state = await host.enable("a")
        assert (state.enabled, state.state is not None) == (True, True)
        with pytest.raises(NotFound, match=r"there are: #1, a"):
            await host.enable("c")
        await at_rest(host)
    assert home.diary("a") == ["start - v1", "stop - v1", "start - v1"]


async def test_a_switch_that_cannot_be_written_changes_nothing(
    relay: RelayCore, home: Home, clock: ProbeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    home.write(home.entry("a"))
    async with hosted(relay, home, clock) as host:
        with monkeypatch.context() as disk:
            disk.setattr("os.rename", full)
            with pytest.raises(StorageError, match="free some space"):
                await host.disable("a")
        assert (state_of(host).enabled, state_of(host).state is not None) == (True, True)


async def test_switching_off_ends_the_tries(relay: RelayCore, home: Home, clock: ProbeClock) -> None:
    home.mark("a", "unstartable")
    home.write(home.entry("a"))
    async with hosted(relay, home, clock) as host:
        state = await host.disable("a")
        assert (state.problem, state.retry_at) == (None, None)
        await probe(clock)
    assert home.starts("a") == 1
