"""What a message looks like on the other side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay_core.messages.envelope import Budget, Envelope
from relay_core.testing import FakeClock
from relay_supervisor.adapters.nats.config import NatsConfig
from relay_supervisor.adapters.nats.crossing import UNREADABLE, Incoming, Outgoing, Poison, has_looped, pack, unpack
from relay_supervisor.adapters.nats.files import COPIES_KEPT, keep_copy
from relay_supervisor.adapters.nats.put_off import MAX_PENDING, PutOff

ID = "01M7HTYQA9ETCYWZ3DSAVD0000"
CONFIG = NatsConfig.model_validate({"servers": ["nats://h:1"], "import": ["relay.>"], "prefix": "team.blue"})


def out(chain: tuple[str, ...] = (), **fields: Any) -> Outgoing:
    budget = Budget(hop_count=2, max_hops=5, ancestor_chain=chain, ttl=1_700_000_000_000, call_budget_remaining=7)
    known: dict[str, Any] = {"id": ID, "subject": "relay.agent.x", "sender": "relay.agent.a", "budget": budget}
    envelope = Envelope(**{**known, "created_at": "2026-01-01T00:00:00Z", "payload": {"n": 1}, **fields})
    return pack(envelope, CONFIG, "nats", "r1", ID)


def back(message: Outgoing, **headers: str) -> Incoming:
    found = {**{name.lower(): value for name, value in message.headers.items()}, **headers}
    return unpack(message.subject, message.data, found, CONFIG, "nats", "RELAY-1-2")


def test_a_message_comes_out_as_it_went_in() -> None:
    came = back(out(reply_to="relay.agent.b"))

    assert (came.subject, came.payload, came.sender) == ("relay.agent.x", {"n": 1}, "relay.agent.a")
    assert came.reply_to == "relay.agent.b"
    assert (came.budget.hop_count, came.budget.max_hops, came.budget.call_budget_remaining) == (2, 5, 7)
    assert came.budget.ttl == 1_700_000_000_000
    assert came.dedupe_id == f"nats-r1-{ID}"


def test_the_stream_gets_the_prefix_and_the_message_id() -> None:
    message = out()

    assert message.subject == "team.blue.relay.agent.x"
    assert message.headers["Nats-Msg-Id"] == ID


def test_a_replay_is_the_same_message_to_the_stream() -> None:
    assert out(replays=3).headers["Nats-Msg-Id"] == ID


@pytest.mark.parametrize("mailbox", ["relay.adapter.nats", "relay.adapter.nats.lane3"])
def test_the_bridges_own_mailbox_does_not_cross_as_an_ancestor(mailbox: str) -> None:
    came = back(out(chain=("relay.agent.a", mailbox)))

    assert came.budget.ancestor_chain == ("relay.agent.a", "relay.nats.r1")


def test_another_adapters_mailbox_crosses_as_it_is() -> None:
    assert back(out(chain=("relay.adapter.natsy",))).budget.ancestor_chain == ("relay.adapter.natsy",)


@pytest.mark.parametrize(
    ("claimed", "sender"),
    [
        pytest.param("relay.agent.a", "relay.agent.a", id="agent"),
        pytest.param("relay.human.ann", "relay.nats.nats", id="human"),
        pytest.param("relay.system.bus", "relay.nats.nats", id="system"),
        pytest.param("relay.adapter.x", "relay.nats.nats", id="adapter"),
        pytest.param("not a subject", "relay.nats.nats", id="nonsense"),
        pytest.param("relay.agent.*", "relay.nats.nats", id="wildcard"),
    ],
)
def test_only_agents_keep_their_name_unless_others_are_let(claimed: str, sender: str) -> None:
    assert back(out(), **{"relay-from": claimed}).sender == sender


def test_no_imported_message_has_the_bus_as_its_sender() -> None:
    config = CONFIG.model_copy(update={"import_senders": (">",)})

    def sender(claimed: str) -> str:
        return unpack("team.blue.relay.x", b"1", {"relay-from": claimed}, config, "nats", "p").sender

    assert sender("relay.human.ann") == "relay.human.ann"
    assert sender("relay.system.bus") == "relay.nats.nats"
    assert sender("relay.adapter.telegram") == "relay.nats.nats"


def test_a_foreign_message_is_known_again_by_its_place() -> None:
    came = unpack("team.blue.relay.agent.x", b'"hello"', {}, CONFIG, "nats", "RELAY-1-2")

    assert (came.payload, came.sender, came.dedupe_id) == ("hello", "relay.nats.nats", "nats-RELAY-1-2")


@pytest.mark.parametrize(
    ("subject", "data", "headers", "why"),
    [
        pytest.param("relay.x", b"{", {}, "not JSON", id="no-json"),
        pytest.param("relay.x", b"", {}, "not JSON", id="empty"),
        pytest.param("relay.x", b"NaN", {}, "not JSON", id="nan"),
        pytest.param("relay.a~b", b"1", {}, "not valid in Relay", id="subject"),
        pytest.param("relay.system.bus", b"1", {}, "belongs to the bus", id="system"),
        pytest.param("relay.adapter.x", b"1", {}, "belongs to the bus", id="adapter"),
        pytest.param("relay.x", b"1", {"relay-hops": "-1"}, "relay-hops", id="hops"),
        pytest.param("relay.x", b"1", {"relay-ancestors": "a b"}, "relay-ancestors", id="ancestors"),
        pytest.param("relay.x", b"1", {"relay-reply-to": "a b"}, "relay-reply-to", id="reply-to"),
        pytest.param("relay.x", b"1", {"relay-reply-to": "relay.adapter.x"}, "relay-reply-to", id="reply-to-adapter"),
        pytest.param("relay.x", b"1", {"relay-id": "1", "relay-relay": "r"}, "relay-id", id="id"),
        pytest.param("relay.x", b"1", {"relay-id": ID}, "relay-id", id="id-alone"),
        pytest.param("relay.x", b"1", {UNREADABLE: "yes"}, "cannot be parsed", id="unreadable-headers"),
    ],
)
def test_what_makes_no_sense_is_not_guessed_at(subject: str, data: bytes, headers: dict[str, str], why: str) -> None:
    with pytest.raises(Poison, match=why):
        unpack(f"team.blue.{subject}", data, headers, CONFIG, "nats", "place")


def test_the_size_is_never_less_than_what_the_server_counts() -> None:
    message = out(chain=tuple(f"relay.agent.a{n}" for n in range(20)), payload="x" * 1000)
    lines = "".join(f"{name}: {value}\r\n" for name, value in message.headers.items())

    assert message.size >= len(f"NATS/1.0\r\n{lines}\r\n") + len(message.data)


def test_only_the_newest_refused_messages_are_kept_and_none_is_counted_twice(tmp_path: Path) -> None:
    def keep(n: int) -> bool:
        return keep_copy(tmp_path, f"RELAY-{n}-0", "relay.x", {}, b"x" * 100_000, "why")

    assert [keep(n) for n in range(COPIES_KEPT + 5)] == [True] * (COPIES_KEPT + 5)
    assert not keep(COPIES_KEPT + 4)
    copies = list((tmp_path / "refused").iterdir())
    assert len(copies) == COPIES_KEPT
    assert max(copy.stat().st_size for copy in copies) < 70_000


@pytest.mark.parametrize(
    ("chain", "round"),
    [
        pytest.param((), False, id="foreign"),
        pytest.param(("relay.nats.other",), False, id="sent-by-another"),
        pytest.param(("relay.nats.r1", "relay.nats.other"), True, id="came-back"),
        pytest.param(("relay.agent.a", "relay.nats.r1", "relay.nats.b", "relay.nats.c"), True, id="over-two"),
        pytest.param(("relay.nats.r1", "relay.agent.x", "relay.nats.other"), False, id="answered"),
        pytest.param(("relay.nats.r1", "relay.adapter.hook", "relay.nats.other"), False, id="answered-by-an-adapter"),
        pytest.param(("relay.nats.r11", "relay.nats.other"), False, id="longer-name"),
    ],
)
def test_a_message_has_looped_if_only_bridges_had_it(chain: tuple[str, ...], round: bool) -> None:
    assert has_looped(chain, "r1") == round


def test_the_put_off_are_counted_once_and_forgotten_if_they_do_not_come_again() -> None:
    clock = FakeClock()
    put_off = PutOff(clock, 5)
    for number, why in [(1, "rate_limited"), (2, "rate_limited"), (3, "rules_broken"), (1, "rate_limited")]:
        put_off.note(number, why)
    assert put_off.describe() == "3 incoming put off, sent again every 5 s (2 rate limited, 1 rules broken)"

    clock.advance(60)
    put_off.note(2, "rate_limited", ID)
    clock.advance(60)
    put_off.forget_old()
    assert put_off.describe() == "1 incoming put off, sent again every 5 s (1 rate limited)"
    assert put_off.is_remembered(2, ID)
    assert not put_off.is_remembered(1, ID)

    put_off.settle(2)
    assert put_off.describe() is None
    assert put_off.level == (frozenset(), 0)


def test_a_full_line_of_those_that_are_put_off_says_what_that_means() -> None:
    put_off = PutOff(FakeClock(), 5)
    for number in range(MAX_PENDING):
        put_off.note(number, "backpressure")

    assert (put_off.describe() or "").endswith("no more messages come in until some of them are accepted")
