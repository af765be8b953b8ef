"""Hot reload: the operator's files are changed on disk, and the running bus follows them, or reports why not."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay_core import (
    AccessDenied,
    BackpressureConfig,
    BudgetConfig,
    ConfigError,
    RateLimitConfig,
    RelayConfig,
    RelayCore,
    ReliabilityConfig,
)
from relay_core.messages.signals import Signal
from relay_core.testing import FakeClock
from tests.kit.bus import SENDER, A, B
from tests.kit.waiting import until

BASE = RelayConfig(
    durability="os",
    reliability=ReliabilityConfig(
        rate_limit=RateLimitConfig(max_per_window=5, window_secs=10),
        backpressure=BackpressureConfig(max_mailbox_size=7),
    ),
    budget=BudgetConfig(max_hops=3),
)

pytestmark = pytest.mark.bus(BASE, endpoints=[A])


def overwrite(path: Path, data: bytes) -> None:
    """Write as ``echo > file`` does."""
    path.write_bytes(data)


def replace(path: Path, data: bytes) -> None:
    """Write beside the file and rename into place, as careful programs do."""
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_bytes(data)
    beside.replace(path)


def move_away_and_write(path: Path, data: bytes) -> None:
    """Rename the old file to a backup and write a new one, as vim does."""
    backup = path.with_name(f"{path.name}~")
    if path.exists():
        path.rename(backup)
    path.write_bytes(data)
    backup.unlink(missing_ok=True)


Write = Callable[[Path, bytes], None]
WRITES = [
    pytest.param(overwrite, id="overwritten"),
    pytest.param(replace, id="renamed into place"),
    pytest.param(move_away_and_write, id="as vim writes"),
]


def configure(data_dir: Path, data: Any, write: Write = overwrite) -> None:
    write(data_dir / "config.json", data if isinstance(data, bytes) else orjson.dumps(data))


def rule(data_dir: Path, data: Any, write: Write = overwrite) -> None:
    write(data_dir / "access-rules.json", data if isinstance(data, bytes) else orjson.dumps(data))


def limit(relay: RelayCore) -> int:
    return relay.bus.config.reliability.rate_limit.max_per_window


DENY_A = [{"from": SENDER, "to": A, "action": "deny"}]


# config.json


@pytest.mark.parametrize("write", WRITES)
async def test_a_change_of_config_json_is_in_force_without_a_restart(
    relay: RelayCore, data_dir: Path, write: Write
) -> None:
    for maximum in (2, 3):
        configure(data_dir, {"reliability": {"rateLimit": {"maxPerWindow": maximum}}}, write)
        await until(lambda maximum=maximum: limit(relay) == maximum)  # type: ignore[misc]
    results = [await relay.publish(A, number, sender=SENDER) for number in range(4)]
    assert [result.delivered_to for result in results] == [1, 1, 1, 0]
    assert relay.bus.settings.problem is None


async def test_config_json_is_merged_field_by_field_over_what_the_program_set(relay: RelayCore, data_dir: Path) -> None:
    configure(data_dir, {"reliability": {"rateLimit": {"maxPerWindow": 2}}, "budget": {"callBudget": 4}})
    await until(lambda: limit(relay) == 2)
    found = relay.bus.config
    assert found.reliability.rate_limit.window_secs == 10  # the program's, in the same section
    assert found.reliability.backpressure.max_mailbox_size == 7  # the program's, in another one
    assert (found.budget.max_hops, found.budget.call_budget) == (3, 4)
    assert found.budget.ttl_ms == 3_600_000  # the default
    await relay.publish(A, 1, sender=SENDER)
    (envelope,) = await relay.inbox(A)
    assert (envelope.budget.max_hops, envelope.budget.call_budget_remaining) == (3, 3)


async def test_a_field_that_is_taken_out_of_config_json_is_the_programs_again(relay: RelayCore, data_dir: Path) -> None:
    configure(data_dir, {"reliability": {"rateLimit": {"maxPerWindow": 2}}, "budget": {"maxHops": 1}})
    await until(lambda: limit(relay) == 2)
    configure(data_dir, {"budget": {"maxHops": 1}})
    await until(lambda: limit(relay) == 5)
    assert relay.bus.config.budget.max_hops == 1
    (data_dir / "config.json").unlink()
    await until(lambda: relay.bus.config == BASE)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        pytest.param(b"", "is not JSON", id="empty"),
        pytest.param(b'{"reliability": {', "is not JSON", id="cut short"),
        pytest.param(b"[]", "must hold one JSON object", id="an array"),
        pytest.param(b'{"reliabilty": {}}', "unknown key 'reliabilty', did you mean 'reliability'", id="misspelt"),
        pytest.param(
            b'{"reliability": {"rateLimit": {"maxPerWindow": 0}}}',
            "reliability.rateLimit.maxPerWindow",
            id="out of range",
        ),
    ],
)
async def test_a_bad_config_json_leaves_the_last_good_one_in_force_and_is_reported(
    relay: RelayCore, data_dir: Path, data: bytes, problem: str
) -> None:
    configure(data_dir, {"reliability": {"rateLimit": {"maxPerWindow": 2}}})
    await until(lambda: limit(relay) == 2)
    good = relay.bus.config
    configure(data_dir, data, replace)
    await until(lambda: relay.bus.settings.problem is not None)
    assert relay.bus.settings.problem is not None
    assert problem in relay.bus.settings.problem
    assert str(data_dir / "config.json") in relay.bus.settings.problem
    assert relay.bus.config is good
    results = [await relay.publish(A, number, sender=SENDER) for number in range(3)]
    assert [result.delivered_to for result in results] == [1, 1, 0]
    configure(data_dir, {"reliability": {"rateLimit": {"maxPerWindow": 3}}}, replace)
    await until(lambda: limit(relay) == 3)
    assert relay.bus.settings.problem is None


async def test_a_half_of_a_change_is_never_in_force(relay: RelayCore, data_dir: Path) -> None:
    configure(data_dir, {"budget": {"maxHops": 1}, "reliability": {"rateLimit": {"maxPerWindow": -1}}}, replace)
    await until(lambda: relay.bus.settings.problem is not None)
    assert relay.bus.config == BASE


async def test_a_bad_config_json_at_the_start_stops_the_start(data_dir: Path, clock: FakeClock) -> None:
    configure(data_dir, b"{")
    with pytest.raises(ConfigError, match="is not JSON"):
        async with RelayCore(data_dir, BASE, clock):
            pass
    configure(data_dir, {"reliability": {"rateLimit": {"maxPerWindow": 2}}})
    async with RelayCore(data_dir, BASE, clock) as relay:
        assert limit(relay) == 2


async def test_a_config_json_that_becomes_unreadable_leaves_the_last_good_one_in_force(
    relay: RelayCore, data_dir: Path
) -> None:
    configure(data_dir, {"reliability": {"rateLimit": {"maxPerWindow": 2}}})
    await until(lambda: limit(relay) == 2)
    (data_dir / "config.json").unlink()
    beside = data_dir / "beside"
    os.symlink(data_dir, beside)  # reading it is an error, and not that it is missing
    beside.rename(data_dir / "config.json")
    await until(lambda: relay.bus.settings.problem is not None)
    assert relay.bus.settings.problem is not None
    assert "cannot read" in relay.bus.settings.problem


async def test_new_limits_hold_for_mail_that_waits_already(relay: RelayCore, data_dir: Path) -> None:
    for number in range(4):
        await relay.publish(A, number, sender=SENDER)
    configure(data_dir, {"reliability": {"backpressure": {"maxMailboxSize": 4}}})
    await until(lambda: relay.mailboxes()[0].pressure == 1.0)
    result = await relay.publish(A, 5, sender=SENDER)
    assert [rejection.reason for rejection in result.rejected or ()] == ["backpressure"]


async def test_breakers_keep_their_state_over_a_reload(relay: RelayCore, data_dir: Path) -> None:
    def fail(envelope: object) -> None:
        raise ValueError("no")

    await relay.subscribe(A, fail)
    for number in range(3):
        await relay.publish(A, number, sender=SENDER)
        await relay.idle()
    configure(data_dir, {"reliability": {"circuitBreaker": {"failureThreshold": 4}}})
    await until(lambda: relay.bus.config.reliability.circuit_breaker.failure_threshold == 4)
    assert relay.breakers()[0].consecutive_failures == 3
    await relay.publish(A, 4, sender=SENDER)
    await relay.idle()
    assert relay.breakers()[0].state == "OPEN"


# access-rules.json


async def allowed(relay: RelayCore, subject: str = A) -> bool:
    try:
        await relay.publish(subject, 1, sender=SENDER)
    except AccessDenied:
        return False
    return True


@pytest.fixture
async def busy(data_dir: Path, clock: FakeClock) -> AsyncIterator[RelayCore]:
    """Run a bus without rate limits."""
    limits = ReliabilityConfig(
        rate_limit=RateLimitConfig(enabled=False), backpressure=BackpressureConfig(enabled=False)
    )
    async with RelayCore(data_dir, RelayConfig(durability="os", reliability=limits), clock) as relay:
        for subject in (A, B):
            await relay.register_endpoint(subject)
        yield relay


def checks(relay: RelayCore, subject: str = A) -> bool:
    return relay.bus.access.check(SENDER, subject).allowed


@pytest.mark.parametrize("write", WRITES)
async def test_a_change_of_the_rules_is_in_force_without_a_restart(
    busy: RelayCore, data_dir: Path, write: Write
) -> None:
    assert await allowed(busy)
    rule(data_dir, DENY_A, write)
    await until(lambda: not checks(busy))
    assert (await allowed(busy), await allowed(busy, B)) == (False, True)
    rule(data_dir, [], write)
    await until(lambda: checks(busy))
    assert await allowed(busy)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'[{"from": "relay.>"', id="cut short"),
        pytest.param(b"{}", id="an object"),
        pytest.param(b'[{"from": "relay.>", "to": ">", "action": "alow"}]', id="no action"),
        pytest.param(b'[{"from": "relay.>", "to": "a b", "action": "allow"}]', id="a bad pattern"),
        pytest.param(b'[{"from": "relay.>", "to": ">", "action": "allow", "prio": 1}]', id="an unknown key"),
    ],
)
async def test_bad_rules_deny_everything_until_they_are_repaired(
    busy: RelayCore, data_dir: Path, data: bytes, write: Write
) -> None:
    rule(data_dir, DENY_A)
    await until(lambda: not checks(busy))
    rule(data_dir, data, write)
    await until(lambda: busy.bus.access.broken is not None)
    assert (await allowed(busy), await allowed(busy, B)) == (False, False)
    with pytest.raises(AccessDenied, match="everything is denied until this is repaired"):
        await busy.publish(B, 1, sender=SENDER)
    rule(data_dir, DENY_A, write)
    await until(lambda: busy.bus.access.broken is None)
    assert (await allowed(busy), await allowed(busy, B)) == (False, True)


async def test_rules_that_are_bad_at_the_start_deny_everything_until_they_are_repaired(
    data_dir: Path, clock: FakeClock
) -> None:
    rule(data_dir, b"[")
    async with RelayCore(data_dir, BASE, clock) as relay:
        await relay.register_endpoint(A)
        assert not await allowed(relay)
        rule(data_dir, [])
        await until(lambda: checks(relay))
        assert await allowed(relay)


async def test_rules_that_are_moved_away_stay_in_force(busy: RelayCore, data_dir: Path) -> None:
    rule(data_dir, DENY_A)
    await until(lambda: not checks(busy))
    path = data_dir / "access-rules.json"
    path.rename(data_dir / "access-rules.json~")
    configure(data_dir, {"budget": {"maxHops": 2}})  # what comes later is seen later
    await until(lambda: busy.bus.config.budget.max_hops == 2)
    assert not checks(busy)
    busy.bus.reload()
    assert (checks(busy), checks(busy, B)) == (False, True)
    rule(data_dir, [])
    await until(lambda: checks(busy))


async def test_a_bad_config_does_not_affect_the_rules_nor_vice_versa(busy: RelayCore, data_dir: Path) -> None:
    configure(data_dir, b"{")
    await until(lambda: busy.bus.settings.problem is not None)
    assert await allowed(busy)
    rule(data_dir, b"[")
    await until(lambda: busy.bus.access.broken is not None)
    configure(data_dir, {"budget": {"maxHops": 2}})
    await until(lambda: busy.bus.settings.problem is None)
    assert busy.bus.config.budget.max_hops == 2
    assert not await allowed(busy)


async def test_a_message_that_waits_is_delivered_though_its_sender_is_denied_by_now(
    busy: RelayCore, data_dir: Path
) -> None:
    await busy.publish(A, 1, sender=SENDER)
    rule(data_dir, DENY_A)
    await until(lambda: not checks(busy))
    assert [envelope.payload for envelope in await busy.claim(A)] == [1]


async def test_a_closed_bus_follows_nothing(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, BASE, clock) as relay:
        bus = relay.bus
    rule(data_dir, DENY_A)
    configure(data_dir, {"budget": {"maxHops": 1}})
    async with RelayCore(data_dir, BASE, clock) as relay:
        assert not checks(relay)
        assert bus.config.budget.max_hops == 3


# Signals about problems


@pytest.fixture
def reported(relay: RelayCore) -> list[tuple[str, str, Any]]:
    """Where each problem was signalled, its state and its data."""
    found: list[tuple[str, str, Any]] = []

    def note(subject: str, signal: Signal) -> None:
        assert (signal.type, signal.endpoint_subject) == ("problem", "relay.system.bus")
        found.append((subject, signal.state, signal.data))

    relay.on_signal("relay.system.>", note)
    return found


async def test_a_refused_config_json_is_signalled_once_and_so_is_its_repair(
    relay: RelayCore, data_dir: Path, reported: list[tuple[str, str, Any]]
) -> None:
    configure(data_dir, {"budgt": {}}, replace)
    await until(lambda: bool(reported))
    problem = relay.config_problem
    assert problem is not None
    error = ("relay.system.config", "error", {"file": "config.json", "problem": problem})
    relay.reload()
    relay.reload()
    assert reported == [error]
    configure(data_dir, {"budget": {"maxHops": -1}}, replace)
    await until(lambda: len(reported) == 2)
    other = relay.config_problem
    assert reported[1] == ("relay.system.config", "error", {"file": "config.json", "problem": other})
    configure(data_dir, {}, replace)
    await until(lambda: len(reported) == 3)
    relay.reload()
    assert reported[2:] == [("relay.system.config", "ok", {"file": "config.json", "was": other})]
    told = [event for event in relay.events.recent if event["kind"] == "problem"]
    assert [(event["code"], event["status"]) for event in told] == [
        ("config.json", "error"),
        ("config.json", "error"),
        ("config.json", "ok"),
    ]
    assert told[0]["detail"] == problem


async def test_broken_access_rules_are_signalled_beside_a_refused_config_json(
    relay: RelayCore, data_dir: Path, reported: list[tuple[str, str, Any]]
) -> None:
    rule(data_dir, b"[", replace)
    await until(lambda: bool(reported))
    configure(data_dir, b"{", replace)
    await until(lambda: len(reported) == 2)
    rule(data_dir, [], replace)
    await until(lambda: len(reported) == 3)
    assert [(state, data["file"]) for _, state, data in reported] == [
        ("error", "access-rules.json"),
        ("error", "config.json"),
        ("ok", "access-rules.json"),
    ]


async def test_access_rules_that_were_broken_at_the_start_are_signalled_when_repaired(data_dir: Path) -> None:
    rule(data_dir, b"[", replace)
    async with RelayCore(data_dir, BASE) as relay:
        states: list[str] = []
        relay.on_signal("relay.system.config", lambda subject, signal: states.append(signal.state))
        relay.reload()
        assert states == []
        rule(data_dir, [], replace)
        await until(lambda: states == ["ok"])
