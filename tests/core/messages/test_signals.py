"""Signals reach the current listeners, and a failing listener does not affect the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from relay_core.errors import InvalidSubject
from relay_core.messages.signals import Signal, SignalHub, SignalSubscription, SignalType

TYPING = Signal(
    type=SignalType.TYPING, state="active", endpoint_subject="relay.agent.a", timestamp="2026-02-24T12:00:00.000Z"
)


def boom(subject: str, signal: Signal) -> None:
    raise RuntimeError("boom")


def collector() -> tuple[list[str], Callable[[str, Signal], None]]:
    heard: list[str] = []

    def handler(subject: str, signal: Signal) -> None:
        assert signal is TYPING
        heard.append(subject)

    return heard, handler


def test_the_types_are_the_seeds_and_problem() -> None:
    assert [kind.value for kind in SignalType] == [
        "typing",
        "presence",
        "read_receipt",
        "delivery_receipt",
        "progress",
        "backpressure",
        "problem",
    ]


def test_a_signal_is_written_in_camel_case() -> None:
    wire = {
        "type": "progress",
        "state": "50%",
        "endpointSubject": "relay.agent.a",
        "timestamp": "2026-02-24T12:00:00Z",
        "data": {"done": 1, "of": None},
    }
    assert Signal.model_validate(wire).to_wire() == wire
    assert "data" not in TYPING.to_wire()


@pytest.mark.parametrize(
    "change",
    [{"type": "shouting"}, {"timestamp": "now"}, {"state": None}, {"endpointSubject": 1}],
    ids=["type", "timestamp", "state", "endpoint"],
)
def test_a_signal_is_checked(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Signal.model_validate({**TYPING.to_wire(), **change})


def test_a_handler_hears_what_its_pattern_matches() -> None:
    hub = SignalHub()
    heard, handler = collector()
    hub.on("relay.agent.*", handler)
    for subject in ("relay.agent.a", "relay.agent.a.b", "relay.human.x", "relay.agent.b"):
        hub.emit(subject, TYPING)
    assert heard == ["relay.agent.a", "relay.agent.b"]


def test_every_matching_handler_hears_it() -> None:
    hub = SignalHub()
    heard, handler = collector()
    for pattern in ("relay.agent.a", "relay.*.a", "relay.>", ">", "relay.agent.a"):
        hub.on(pattern, handler)
    hub.emit("relay.agent.a", TYPING)
    assert len(heard) == 5


def test_a_signal_without_listeners_is_no_error() -> None:
    SignalHub().emit("relay.agent.a", TYPING)


@pytest.mark.parametrize("subject", ["", "a..b", "relay.*", ">"])
def test_a_signal_needs_a_concrete_subject(subject: str) -> None:
    with pytest.raises(InvalidSubject):
        SignalHub().emit(subject, TYPING)


def test_a_bad_pattern_is_refused_at_once() -> None:
    with pytest.raises(InvalidSubject):
        SignalHub().on("relay.>.a", boom)


def test_a_handler_that_raises_stops_neither_the_others_nor_the_emitter(caplog: pytest.LogCaptureFixture) -> None:
    hub = SignalHub()
    heard, handler = collector()
    hub.on("relay.agent.a", boom)
    hub.on("relay.agent.a", handler)
    hub.on("relay.>", boom)
    hub.on("relay.agent.a", handler)
    hub.emit("relay.agent.a", TYPING)
    assert heard == ["relay.agent.a"] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "signal handler for relay.> failed on relay.agent.a",
        "signal handler for relay.agent.a failed on relay.agent.a",
    ]
    assert all(record.exc_info for record in caplog.records)


def test_an_async_handler_is_called_out_and_leaves_no_coroutine_behind(caplog: pytest.LogCaptureFixture) -> None:
    ran = []

    async def handler(subject: str, signal: Signal) -> None:
        ran.append(subject)

    hub = SignalHub()
    hub.on("relay.agent.a", handler)
    hub.emit("relay.agent.a", TYPING)  # a coroutine left open would warn, and a warning is an error here
    assert ran == []
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "use a plain function" in record.getMessage()


async def test_a_handler_that_returns_a_future_is_called_out_too(caplog: pytest.LogCaptureFixture) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    hub = SignalHub()
    hub.on("relay.agent.a", lambda subject, signal: future)
    hub.emit("relay.agent.a", TYPING)
    assert "use a plain function" in caplog.text
    assert not future.done()


def test_a_handler_may_return_anything_else(caplog: pytest.LogCaptureFixture) -> None:
    hub = SignalHub()
    hub.on("relay.agent.a", lambda subject, signal: "fine")
    hub.emit("relay.agent.a", TYPING)
    assert not caplog.records


def test_a_closed_subscription_hears_no_more_and_may_be_closed_again() -> None:
    hub = SignalHub()
    heard, handler = collector()
    first = hub.on("relay.agent.a", handler)
    hub.on("relay.agent.a", handler)
    first.close()
    first.close()
    hub.emit("relay.agent.a", TYPING)
    assert heard == ["relay.agent.a"], "the same handler's other subscription goes on"
    assert len(hub) == 1


def test_closing_takes_effect_within_the_signal_being_emitted() -> None:
    hub = SignalHub()
    heard, handler = collector()
    later: list[SignalSubscription] = []
    hub.on("relay.agent.a", lambda subject, signal: later[0].close())
    later.append(hub.on("relay.agent.a", handler))
    hub.emit("relay.agent.a", TYPING)
    assert heard == []


def test_a_handler_may_subscribe_and_emit(caplog: pytest.LogCaptureFixture) -> None:
    hub = SignalHub()
    heard, handler = collector()

    def relay(subject: str, signal: Signal) -> None:
        hub.on("relay.agent.>", handler)
        hub.emit("relay.agent.b", signal)

    hub.on("relay.agent.a", relay)
    hub.emit("relay.agent.a", TYPING)
    assert heard == ["relay.agent.b"]
    assert not caplog.records
