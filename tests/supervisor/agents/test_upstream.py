"""What becomes of questions when the supervisor is slow, refuses, or goes away: on a supervisor that the test plays."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay_core.testing import FakeClock
from relay_supervisor.agents.light.sync_connection import Address
from relay_supervisor.agents.light.upstream import ANSWER_SECS, FIRST_PAUSE_SECS, Ask, Upstream
from tests.kit.bus import A, B
from tests.kit.daemon import Daemon
from tests.kit.waiting import PATIENCE_SECS
from tests.supervisor.agents.clients import Lines, lines

ID = "01M7JXNWYWZB2VT7A8Q0HC0000"
MESSAGE = {
    "id": ID,
    "subject": A,
    "from": B,
    "budget": {"hopCount": 1, "maxHops": 5, "ancestorChain": [A], "ttl": 10**13, "callBudgetRemaining": 9},
    "createdAt": "2026-11-16T19:00:00.000Z",
    "payload": {"content": "take me"},
}


class Played:
    """A supervisor whose every word is the test's."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(PATIENCE_SECS)
        self._listener.bind(str(path))
        self._listener.listen()
        self._connection = socket.socket(socket.AF_UNIX)
        self._begun = b""

    def accept(self) -> None:
        """Take the next connection, and accept whoever it is."""
        self.take()
        self.answer("server.hello", {"protocol": 1})
        self.answer("signal.subscribe", {"subscriptionId": "s"})

    def take(self) -> None:
        """Take the next connection."""
        self.leave()
        self._connection, _ = self._listener.accept()
        self._connection.settimeout(PATIENCE_SECS)
        self._begun = b""

    def asked(self, method: str) -> dict[str, Any]:
        """Return the next question."""
        while b"\n" not in self._begun:
            data = self._connection.recv(65536)
            assert data, "it has gone away"
            self._begun += data
        line, _, self._begun = self._begun.partition(b"\n")
        frame: dict[str, Any] = json.loads(line)
        assert frame["method"] == method, frame
        return frame

    def is_quiet(self) -> bool:
        """Tell whether nothing more was asked so far."""
        return not self._begun and not select.select([self._connection], [], [], 0)[0]

    def say(self, frame: dict[str, Any], **more: Any) -> None:
        """Answer a question."""
        self.say_bytes(json.dumps({"jsonrpc": "2.0", "id": frame["id"], **more}).encode() + b"\n")

    def say_bytes(self, data: bytes) -> None:
        """Say something."""
        self._connection.sendall(data)

    def answer(self, method: str, result: Any) -> dict[str, Any]:
        """Answer the next question, and return it."""
        frame = self.asked(method)
        self.say(frame, result=result)
        return frame

    def refuse(self, frame: dict[str, Any], code: str, message: str) -> None:
        """Refuse a question."""
        self.say(frame, error={"code": -32000, "message": message, "data": {"code": code}})

    def leave(self) -> None:
        """End the connection."""
        self._connection.close()

    def close(self) -> None:
        """End everything."""
        self._listener.close()
        self.leave()


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Played]:
    played = Played(tmp_path / "s")
    yield played
    played.close()


@pytest.fixture
def mcp(tmp_path: Path, supervisor: Played) -> Iterator[Lines]:
    with lines(Daemon(tmp_path, tmp_path / "s"), A, "--token", "secret") as mcp:
        mcp.initialize()
        yield mcp


@pytest.fixture
def upstream(tmp_path: Path, clock: FakeClock) -> Iterator[Upstream]:
    upstream = Upstream(Address(str(tmp_path), str(tmp_path / "s")), A, "secret", clock.monotonic, lambda signal: None)
    yield upstream
    upstream.close()


def connect(upstream: Upstream, supervisor: Played) -> None:
    """Have a line made, and accepted."""
    upstream.tick()
    supervisor.take()
    supervisor.answer("server.hello", {"protocol": 1})
    receive(upstream)
    supervisor.answer("signal.subscribe", {})


def lose(upstream: Upstream, supervisor: Played) -> None:
    """Have the line lost."""
    supervisor.leave()
    while upstream.connection is not None:
        receive(upstream)


def receive(upstream: Upstream) -> None:
    """Take the next thing that the supervisor says."""
    assert upstream.connection is not None
    assert select.select([upstream.connection], [], [], PATIENCE_SECS)[0]
    upstream.receive()


def test_what_was_claimed_after_the_time_was_over_is_kept(
    upstream: Upstream, supervisor: Played, clock: FakeClock
) -> None:
    connect(upstream, supervisor)
    kept: list[Any] = []
    claim = Ask("inbox.claim", {})
    claim.keep = kept.append
    upstream.ask(claim)
    asked = supervisor.asked("inbox.claim")
    clock.advance(ANSWER_SECS)
    upstream.tick()
    ((question, _, error),) = upstream.answers()
    assert question is claim
    assert "does not answer" in str(error)
    supervisor.say(asked, result={"messages": [MESSAGE]})
    while not kept:
        receive(upstream)
        assert upstream.answers() == []
    assert kept == [{"messages": [MESSAGE]}]


def test_a_line_is_made_again_at_once_unless_it_was_lost_at_once(
    upstream: Upstream, supervisor: Played, clock: FakeClock
) -> None:
    connect(upstream, supervisor)
    lose(upstream, supervisor)
    upstream.tick()
    assert upstream.connection is None
    clock.advance(FIRST_PAUSE_SECS)
    connect(upstream, supervisor)
    clock.advance(FIRST_PAUSE_SECS)
    lose(upstream, supervisor)
    connect(upstream, supervisor)


def test_a_supervisor_that_is_there_and_silent_is_not_called_absent(
    upstream: Upstream, supervisor: Played, clock: FakeClock, tmp_path: Path
) -> None:
    (tmp_path / "s").rename(tmp_path / "elsewhere")
    upstream.tick()
    (tmp_path / "elsewhere").rename(tmp_path / "s")
    upstream.ask(Ask("agents.list", {}))
    upstream.tick()
    supervisor.take()
    clock.advance(ANSWER_SECS)
    upstream.tick()
    ((_, _, error),) = upstream.answers()
    assert "does not answer" in str(error)


NO_SENSE = {
    "an id that is no id": b'{"id":{},"result":{}}\n',
    "an id of nothing": b'{"id":null,"error":{"code":1}}\n',
    "a signal that is none": b'{"method":"signal","params":{"subject":"%b","signal":[]}}\n' % A.encode(),
    "an unknown method": b'{"method":["signal"],"params":5}\n',
}


@pytest.mark.parametrize("said", NO_SENSE.values(), ids=NO_SENSE)
def test_what_makes_no_sense_is_passed_over(mcp: Lines, supervisor: Played, said: bytes) -> None:
    supervisor.accept()
    supervisor.say_bytes(said)
    mcp.call(1, "relay_inbox")
    supervisor.answer("inbox.peek", {"messages": []})
    assert mcp.text(1) == "0 messages."


@pytest.mark.parametrize("said", [b"\xff\n", b"[" * 100_000 + b"\n", b"[]\n"], ids=["no text", "deep", "no object"])
def test_whoever_speaks_no_json_is_left_and_tried_again(mcp: Lines, supervisor: Played, said: bytes) -> None:
    supervisor.accept()
    supervisor.say_bytes(said)
    supervisor.accept()
    mcp.call(1, "relay_inbox")
    supervisor.answer("inbox.peek", {"messages": []})
    assert mcp.text(1) == "0 messages."


def test_a_result_that_is_no_object_is_an_error(mcp: Lines, supervisor: Played) -> None:
    supervisor.accept()
    mcp.call(1, "relay_inbox")
    supervisor.answer("inbox.peek", 7)
    assert "not a supervisor: it sent a result that is not an object" in mcp.text(1)


def test_it_says_who_it_is_before_anything_else(mcp: Lines, supervisor: Played) -> None:
    mcp.call(1, "relay_inbox")
    supervisor.take()
    hello = supervisor.asked("server.hello")
    assert hello["params"] == {"protocol": 1, "client": f"mcp {A}", "agent": A, "token": "secret"}
    mcp.write({"jsonrpc": "2.0", "id": 2, "method": "ping"})
    assert mcp.read()["id"] == 2
    assert supervisor.is_quiet()
    supervisor.say(hello, result={"protocol": 1})
    supervisor.answer("signal.subscribe", {})
    supervisor.answer("inbox.peek", {"messages": []})
    assert mcp.text(1) == "0 messages."


def test_a_token_that_is_refused_is_tried_again_with_the_next_call(mcp: Lines, supervisor: Played) -> None:
    mcp.call(1, "relay_inbox")
    supervisor.take()
    supervisor.refuse(supervisor.asked("server.hello"), "bad_token", "this token is not known")
    assert mcp.text(1).startswith("Refused: this token is not known")
    mcp.call(2, "relay_inbox")
    supervisor.accept()
    supervisor.answer("inbox.peek", {"messages": []})
    assert mcp.text(2) == "0 messages."


def test_what_was_asked_on_a_lost_line_is_asked_again_in_its_order(mcp: Lines, supervisor: Played) -> None:
    supervisor.accept()
    mcp.call(1, "relay_send", to=B, content="one")
    mcp.call(2, "relay_send", to=B, content="two")
    before = [supervisor.asked("publish")["params"] for _ in range(2)]
    supervisor.leave()
    supervisor.accept()
    again = [supervisor.answer("publish", {"messageId": ID, "deliveredTo": 1})["params"] for _ in range(2)]
    assert again == before
    assert before[0]["dedupeId"] != before[1]["dedupeId"]
    assert mcp.text(1) == mcp.text(2) == f"Sent as message {ID}."


def test_a_supervisor_that_stops_is_asked_again_when_it_is_back(mcp: Lines, supervisor: Played) -> None:
    supervisor.accept()
    mcp.call(1, "relay_send", to=B, content="x")
    supervisor.refuse(supervisor.asked("publish"), "stopping", "the supervisor is stopping")
    supervisor.leave()
    supervisor.accept()
    supervisor.answer("publish", {"messageId": ID, "deliveredTo": 1})
    assert mcp.text(1) == f"Sent as message {ID}."


def test_an_acknowledgement_whose_answer_was_lost_is_done(mcp: Lines, supervisor: Played) -> None:
    supervisor.accept()
    mcp.call(1, "relay_ack", ids=[ID])
    supervisor.answer("inbox.claim", {"messages": [MESSAGE]})
    supervisor.asked("inbox.complete")
    supervisor.leave()
    supervisor.accept()
    supervisor.refuse(supervisor.asked("inbox.complete"), "not_found", "not claimed")
    assert mcp.text(1) == f"{ID}: done."


def test_what_a_cancelled_call_has_claimed_is_shown_by_the_next(mcp: Lines, supervisor: Played) -> None:
    supervisor.accept()
    mcp.call(1, "relay_inbox", claim=True)
    supervisor.answer("inbox.peek", {"messages": [MESSAGE]})
    claim = supervisor.asked("inbox.claim")
    mcp.write(
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
        {"jsonrpc": "2.0", "id": 2, "method": "ping"},
    )
    assert mcp.read()["id"] == 2
    supervisor.say(claim, result={"messages": [MESSAGE]})
    mcp.call(3, "relay_send", to=B, content="x")
    supervisor.answer("publish", {"messageId": ID, "deliveredTo": 1})  # the claim was answered before
    assert mcp.read()["id"] == 3
    mcp.call(4, "relay_inbox")
    assert mcp.text(4).startswith("Claimed by you in an earlier call, which ended before they arrived:\n\nMessage ")
    mcp.call(5, "relay_ack", ids=[ID])
    supervisor.answer("inbox.complete", {})
    assert mcp.text(5) == f"{ID}: done."


def test_what_a_cancelled_acknowledgement_has_claimed_is_not_forgotten(mcp: Lines, supervisor: Played) -> None:
    supervisor.accept()
    mcp.call(1, "relay_ack", ids=[ID])
    claim = supervisor.asked("inbox.claim")
    mcp.write(
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
        {"jsonrpc": "2.0", "id": 2, "method": "ping"},
    )
    assert mcp.read()["id"] == 2
    supervisor.say(claim, result={"messages": [MESSAGE]})
    mcp.call(3, "relay_list")
    supervisor.answer("agents.list", {"agents": []})  # the claim was answered before
    supervisor.answer("agents.people", {"people": []})
    mcp.text(3)
    mcp.call(4, "relay_inbox")
    supervisor.answer("inbox.peek", {"messages": []})
    assert mcp.text(4).endswith(f"Claimed by you earlier and not acknowledged: {ID}")


def test_an_answer_is_taken_only_after_it_was_shown(mcp: Lines, supervisor: Played) -> None:
    supervisor.accept()
    mcp.call(1, "relay_ask", to=B, content="x")
    supervisor.answer("publish", {"messageId": "01M7JXNWYW0000000000000000", "deliveredTo": 1})
    supervisor.answer("inbox.wait", {"ids": []})
    supervisor.answer("inbox.wait", {"ids": [ID]})
    supervisor.answer("inbox.peek", {"messages": [MESSAGE]})
    claim = supervisor.asked("inbox.claim")
    assert "\ntake me\n" in mcp.text(1)
    supervisor.leave()
    supervisor.accept()
    assert supervisor.answer("inbox.claim", {"messages": []})["params"] == claim["params"]
    assert supervisor.answer("inbox.complete", {"late": True})["params"]["id"] == ID


def test_a_question_whose_answer_is_refused_has_been_asked_all_the_same(mcp: Lines, supervisor: Played) -> None:
    supervisor.accept()
    mcp.call(1, "relay_ask", to=B, content="x")
    supervisor.answer("publish", {"messageId": ID, "deliveredTo": 1})
    supervisor.refuse(supervisor.asked("inbox.wait"), "subject_not_yours", "this is not yours")
    told = mcp.text(1)
    assert told.startswith(f"Your message {ID} is delivered; do not ask again. The answer: Refused: this is not yours.")


def test_a_call_that_waits_for_a_lost_supervisor_can_be_cancelled(mcp: Lines, supervisor: Played) -> None:
    supervisor.accept()
    mcp.call(1, "relay_inbox")
    supervisor.asked("inbox.peek")
    supervisor.leave()
    supervisor.take()
    mcp.write(
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
        {"jsonrpc": "2.0", "id": 2, "method": "ping"},
    )
    assert mcp.read()["id"] == 2
    mcp.call(3, "relay_list")
    supervisor.answer("server.hello", {})
    supervisor.answer("signal.subscribe", {})
    supervisor.answer("agents.list", {"agents": []})
    supervisor.answer("agents.people", {"people": []})
    assert mcp.text(3) == "relay_notify_user reaches: no one"
