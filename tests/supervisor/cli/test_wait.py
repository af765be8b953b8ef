"""``relay inbox --wait``: a shell loop that sleeps until there is something to do."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from tests.kit.cli import Ran, Relay, a_relay, end
from tests.kit.waiting import PATIENCE_SECS, wait_until

_numbers = count(1)


@pytest.fixture
def subject(relay: Relay) -> str:
    subject = f"relay.agent.w{next(_numbers)}"
    relay.add(subject)
    return subject


def others(relay: Relay) -> int:
    """Return how many are connected beside the question itself."""
    return int(relay.ask("server.status")["connections"]) - 1


def start_waiting(relay: Relay, *args: str) -> subprocess.Popen[str]:
    """Start a command that waits, and return once it is connected."""
    before = others(relay)
    process = relay.start("inbox", *args, "--wait", "--json")
    wait_until(lambda: others(relay) > before)
    return process


def ids(ran: Ran) -> list[str]:
    return [one["id"] for one in ran.json["messages"]]


def test_it_returns_when_mail_comes_and_takes_nothing(relay: Relay, subject: str) -> None:
    process = start_waiting(relay, subject)
    message = relay.publish(subject, "hi")
    assert ids(end(process)) == [message]
    assert relay.waiting(subject) == ["hi"]
    assert ids(relay("inbox", subject, "--wait", "--timeout", "1m", "--json")) == [message]
    assert message in relay("inbox", subject, "--wait").out


def test_after_a_message_only_newer_ones_count(relay: Relay, subject: str) -> None:
    first = relay.publish(subject, 1)
    process = start_waiting(relay, subject, "--after", first)
    second = relay.publish(subject, 2)
    assert ids(end(process)) == [second]
    assert ids(relay("inbox", subject, "--after", first, "--json")) == [second]
    assert ids(relay("inbox", subject, "--after", first, "--claim", "--json")) == [second]
    assert relay.waiting(subject) == [1]


def test_what_is_claimed_is_the_one_that_is_printed(relay: Relay, subject: str) -> None:
    sent = [relay.publish(subject, number) for number in range(3)]
    assert ids(relay("inbox", subject, "--wait", "--claim", "--json")) == sent[:1]
    assert ids(relay("inbox", subject, "--wait", "--claim", "--limit", "5", "--json")) == sent[1:]
    for one in sent:
        relay("ack", subject, one)
    assert relay.waiting(subject) == []


def test_of_two_who_wait_one_gets_it_and_the_other_waits_on(relay: Relay, subject: str) -> None:
    waiting = [start_waiting(relay, subject, "--claim") for _ in range(2)]
    first = relay.publish(subject, 1)
    wait_until(lambda: any(process.poll() is not None for process in waiting))
    done, left = sorted(waiting, key=lambda process: process.poll() is None)
    assert ids(end(done)) == [first]
    relay.ask("server.status")  # what the other was told, and asked then, came before this
    second = relay.publish(subject, 2)
    assert ids(end(left)) == [second]


def test_the_time_is_over(relay: Relay, subject: str) -> None:
    ran = relay("inbox", subject, "--wait", "--timeout", "50ms", code=5)
    assert ran.out == ""
    assert "no message for" in ran.err
    assert "--wait" in relay("inbox", subject, "--timeout", "1s", code=2).err
    relay("inbox", subject, "--wait", "--timeout", "soon", code=2)
    assert "register" in relay("inbox", "relay.agent.nobody", "--wait", code=1).err


def test_ctrl_c_ends_it(relay: Relay, subject: str) -> None:
    process = start_waiting(relay, subject)
    process.send_signal(signal.SIGINT)
    assert end(process, code=130).out == ""


def test_it_waits_through_a_restart_of_the_supervisor(tmp_path: Path) -> None:
    with a_relay(tmp_path) as relay:
        relay.add("relay.agent.patient")
        process = start_waiting(relay, "relay.agent.patient", "--claim")
        relay.restart()
        message = relay.publish("relay.agent.patient", "at last")
        assert ids(end(process)) == [message]
        relay("ack", "relay.agent.patient", message)


def test_it_waits_for_a_supervisor_that_is_not_there_yet(tmp_path: Path) -> None:
    with a_relay(tmp_path) as relay:
        relay.add("relay.agent.early")
        relay.daemon.send(signal.SIGKILL)
        wait_until(lambda: not _answers(relay))
        assert "waiting for it" in relay("inbox", "relay.agent.early", "--wait", "--timeout", "50ms", code=5).err
        relay("inbox", "relay.agent.early", code=3)
        process = relay.start("inbox", "relay.agent.early", "--wait", "--json")
        assert process.stderr is not None
        assert "waiting for it" in process.stderr.readline()
        relay.restart()
        message = relay.publish("relay.agent.early")
        assert ids(end(process)) == [message]


def test_a_supervisor_that_is_stopped_is_waited_for_no_longer_than_asked(tmp_path: Path) -> None:
    with a_relay(tmp_path) as relay:
        relay.add("relay.agent.early")
        relay.daemon.send(signal.SIGSTOP)
        try:
            ran = relay("inbox", "relay.agent.early", "--wait", "--timeout", "50ms", code=5)
        finally:
            relay.daemon.send(signal.SIGCONT)
        assert "did not answer in time" in ran.err, "after the client's own patience it would be another error"


def _answers(relay: Relay) -> bool:
    try:
        relay.ask("server.info")
    except OSError:
        return False
    return True


def test_a_message_that_only_waits_can_be_acknowledged(relay: Relay, subject: str) -> None:
    message = relay.publish(subject, "seen by a hook")
    assert "acknowledged" in relay("ack", subject, message).out
    assert relay.waiting(subject) == []
    assert "not claimed" in relay("ack", subject, message, code=1).err


def test_a_worker_in_the_shell(relay: Relay, subject: str, tmp_path: Path) -> None:
    """The loop of docs/agents.md, as it stands there."""
    loop = """
    while relay inbox "$SUBJECT" --wait --timeout 2s --claim --json > m.json; do
        id=$(python3 -c 'import json; print(json.load(open("m.json"))["messages"][0]["id"])')
        echo "$id" >> handled
        relay ack "$SUBJECT" "$id" > acked
    done
    """
    binary = Path(sys.executable).parent
    environment = {**relay.environment, "SUBJECT": subject, "PATH": f"{binary}:/usr/bin:/bin"}
    sent = [relay.publish(subject, number) for number in range(3)]
    process = subprocess.Popen(["/bin/sh", "-c", loop], cwd=tmp_path, env=environment)
    sent += [relay.publish(subject, number) for number in range(2)]
    process.wait(PATIENCE_SECS)
    assert (tmp_path / "handled").read_text().split() == sent
    assert relay.waiting(subject) == []
