"""``relay subscribe --exec``: a command for each message."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.kit.cli import Relay
from tests.kit.waiting import wait_until

ME = "relay.me"
_numbers = count(1)


@pytest.fixture
def subject(relay: Relay) -> str:
    subject = f"relay.agent.a{next(_numbers)}"
    relay.add(subject)
    return subject


def publish(relay: Relay, subject: str, *payloads: object) -> list[str]:
    return [
        str(
            relay("publish", subject, json.dumps(one), "--from", ME, "--reply-to", "relay.answers", "--json").json[
                "messageId"
            ]
        )
        for one in payloads
    ]


def letters(relay: Relay, subject: str) -> list[tuple[str, str]]:
    found = relay("dlq", "list", "--endpoint", subject, "--json").json["deadLetters"]
    return sorted((one["messageId"], one["reason"].partition(": ")[2]) for one in found)


@contextmanager
def listening(relay: Relay, subject: str, command: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    program = [sys.executable, "-m", "relay_supervisor.cli", "subscribe", subject, "--exec", command, *options]
    with subprocess.Popen(
        program, env=relay.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert "listening to" in process.stderr.readline()
            yield process
        finally:
            process.kill()


def state(relay: Relay, subject: str) -> tuple[int, int, int]:
    endpoints = relay("endpoints", "list", "--json").json["endpoints"]
    (one,) = (one for one in endpoints if one["subject"] == subject)
    return one["mailbox"]["depth"], one["mailbox"]["claimed"], one["mailbox"]["failed"]


def test_the_command_gets_the_message_and_its_parts_and_what_it_prints_is_printed(relay: Relay, subject: str) -> None:
    first, second = publish(relay, subject, {"content": "one"}, {"content": "zwei"})
    ran = relay.real(
        "subscribe", subject, "-n", "2", "--exec", 'cat; echo "$RELAY_MESSAGE_ID $RELAY_MESSAGE_FROM $RELAY_REPLY_TO"'
    )
    lines = ran.out.splitlines()
    assert [json.loads(lines[at])["payload"]["content"] for at in (0, 2)] == ["one", "zwei"]
    assert [lines[at] for at in (1, 3)] == [f"{one} {ME} relay.answers" for one in (first, second)]
    assert (ran.code, state(relay, subject)) == (0, (0, 0, 0))


def test_a_command_that_fails_makes_a_dead_letter_with_its_last_words(relay: Relay, subject: str) -> None:
    failing = publish(relay, subject, 1)
    ran = relay.real("subscribe", subject, "-n", "1", "--exec", "echo first >&2; echo 'no database' >&2; exit 3")
    assert ran.code == 0
    assert "no database" in ran.err
    assert letters(relay, subject) == [(failing[0], "exit code 3: no database")]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        pytest.param("exit 1", "exit code 1", id="without-a-word"),
        pytest.param("kill -9 $$", "killed by SIGKILL", id="killed"),
        pytest.param("printf 'half a line' >&2; exit 2", "exit code 2: half a line", id="half-a-line"),
        pytest.param("./is-not-there 2>/dev/null", "exit code 127", id="not-there"),
    ],
)
def test_how_it_failed_is_the_reason(relay: Relay, subject: str, command: str, reason: str) -> None:
    publish(relay, subject, 1)
    relay.real("subscribe", subject, "-n", "1", "--exec", command)
    assert [why for _, why in letters(relay, subject)] == [reason]


def test_a_command_need_not_read_a_large_message(relay: Relay, subject: str) -> None:
    publish(relay, subject, "x" * 900_000)
    assert relay.real("subscribe", subject, "-n", "1", "--exec", "exit 0").code == 0
    assert state(relay, subject) == (0, 0, 0)


def test_what_a_command_leaves_behind_does_not_hold_up_the_next(relay: Relay, subject: str, tmp_path: Path) -> None:
    publish(relay, subject, 1, 2)
    pids = tmp_path / "pids"
    relay.real("subscribe", subject, "-n", "2", "--exec", f"cat; sleep 1000 > /dev/null & echo $! >> {pids}")
    assert state(relay, subject) == (0, 0, 0)
    for pid in pids.read_text().split():
        os.kill(int(pid), signal.SIGKILL)


def test_a_signal_lets_the_running_command_end_and_begins_no_other(relay: Relay, subject: str, tmp_path: Path) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"
    publish(relay, subject, 1, 2)
    with listening(
        relay, subject, f"cat > /dev/null; touch {begun}; until [ -e {go_on} ]; do sleep 0.01; done"
    ) as process:
        wait_until(begun.exists)
        process.send_signal(signal.SIGINT)
        go_on.touch()
        assert process.wait(30) == 0
    assert state(relay, subject) == (1, 0, 0)


def test_a_second_signal_kills_it(relay: Relay, subject: str, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    publish(relay, subject, 1, 2)
    with listening(relay, subject, f"touch {begun}; sleep 1000") as process:
        wait_until(begun.exists)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert [why for _, why in letters(relay, subject)] == ["killed by SIGKILL"]
    assert state(relay, subject) == (1, 0, 1)


def test_a_signal_while_nothing_runs_ends_it_at_once(relay: Relay, subject: str) -> None:
    with listening(relay, subject, "cat") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_two_share_a_queue(relay: Relay, subject: str, tmp_path: Path) -> None:
    barrier = tmp_path / "barrier"
    barrier.mkdir()
    # Each waits for the other: with one message in hand at a time, none would ever end.
    meet = f"touch {barrier}/$RELAY_MESSAGE_ID; until [ $(ls {barrier} | wc -l) = 2 ]; do sleep 0.01; done"
    with (
        listening(relay, subject, meet, "--queue", "q") as one,
        listening(relay, subject, meet, "--queue", "q") as other,
    ):
        publish(relay, subject, 1, 2)
        wait_until(lambda: state(relay, subject) == (0, 0, 0) and len(list(barrier.iterdir())) == 2)
        for process in (one, other):
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
