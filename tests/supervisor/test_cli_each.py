"""``relay subscribe --exec``: a command for each message."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.supervisor.cli_runner import Relay, a_relay, until

A, ME = "relay.agent.a", "relay.me"


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    with a_relay(tmp_path) as relay:
        relay("endpoints", "add", A)
        yield relay


def publish(relay: Relay, *payloads: object) -> list[str]:
    return [
        str(
            relay("publish", A, json.dumps(one), "--from", ME, "--reply-to", "relay.answers", "--json").json[
                "messageId"
            ]
        )
        for one in payloads
    ]


def letters(relay: Relay) -> list[tuple[str, str]]:
    found = relay("dlq", "list", "--json").json["deadLetters"]
    return sorted((one["messageId"], one["reason"].partition(": ")[2]) for one in found)


@contextmanager
def listening(relay: Relay, command: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    program = [sys.executable, "-m", "relay_supervisor.cli", "subscribe", A, "--exec", command, *options]
    with subprocess.Popen(
        program, env=relay.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert "listening to" in process.stderr.readline()
            yield process
        finally:
            process.kill()


def state(relay: Relay) -> tuple[int, int, int]:
    (one,) = relay("endpoints", "list", "--json").json["endpoints"]
    return one["mailbox"]["depth"], one["mailbox"]["claimed"], one["mailbox"]["failed"]


def test_the_command_gets_the_message_and_its_parts_and_what_it_prints_is_printed(relay: Relay) -> None:
    first, second = publish(relay, {"content": "one"}, {"content": "zwei"})
    ran = relay.real(
        "subscribe", A, "-n", "2", "--exec", 'cat; echo "$RELAY_MESSAGE_ID $RELAY_MESSAGE_FROM $RELAY_REPLY_TO"'
    )
    lines = ran.out.splitlines()
    assert [json.loads(lines[at])["payload"]["content"] for at in (0, 2)] == ["one", "zwei"]
    assert [lines[at] for at in (1, 3)] == [f"{one} {ME} relay.answers" for one in (first, second)]
    assert (ran.code, state(relay)) == (0, (0, 0, 0))


def test_a_command_that_fails_makes_a_dead_letter_with_its_last_words(relay: Relay) -> None:
    failing = publish(relay, 1)
    ran = relay.real("subscribe", A, "-n", "1", "--exec", "echo first >&2; echo 'no database' >&2; exit 3")
    assert ran.code == 0
    assert "no database" in ran.err
    assert letters(relay) == [(failing[0], "exit code 3: no database")]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        pytest.param("exit 1", "exit code 1", id="without-a-word"),
        pytest.param("kill -9 $$", "killed by SIGKILL", id="killed"),
        pytest.param("printf 'half a line' >&2; exit 2", "exit code 2: half a line", id="half-a-line"),
        pytest.param("./is-not-there 2>/dev/null", "exit code 127", id="not-there"),
    ],
)
def test_how_it_failed_is_the_reason(relay: Relay, command: str, reason: str) -> None:
    publish(relay, 1)
    relay.real("subscribe", A, "-n", "1", "--exec", command)
    assert [why for _, why in letters(relay)] == [reason]


def test_a_command_need_not_read_a_large_message(relay: Relay) -> None:
    publish(relay, "x" * 900_000)
    assert relay.real("subscribe", A, "-n", "1", "--exec", "exit 0").code == 0
    assert state(relay) == (0, 0, 0)


def test_what_a_command_leaves_behind_does_not_hold_up_the_next(relay: Relay, tmp_path: Path) -> None:
    publish(relay, 1, 2)
    pids = tmp_path / "pids"
    relay.real("subscribe", A, "-n", "2", "--exec", f"cat; sleep 1000 > /dev/null & echo $! >> {pids}")
    assert state(relay) == (0, 0, 0)
    for pid in pids.read_text().split():
        os.kill(int(pid), signal.SIGKILL)


def test_a_signal_lets_the_running_command_end_and_begins_no_other(relay: Relay, tmp_path: Path) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"
    publish(relay, 1, 2)
    with listening(relay, f"cat > /dev/null; touch {begun}; until [ -e {go_on} ]; do sleep 0.01; done") as process:
        until(begun.exists)
        process.send_signal(signal.SIGINT)
        go_on.touch()
        assert process.wait(30) == 0
    assert state(relay) == (1, 0, 0)


def test_a_second_signal_kills_it(relay: Relay, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    publish(relay, 1, 2)
    with listening(relay, f"touch {begun}; sleep 1000") as process:
        until(begun.exists)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert [why for _, why in letters(relay)] == ["killed by SIGKILL"]
    assert state(relay) == (1, 0, 1)


def test_a_signal_while_nothing_runs_ends_it_at_once(relay: Relay) -> None:
    with listening(relay, "cat") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_two_share_a_queue(relay: Relay, tmp_path: Path) -> None:
    barrier = tmp_path / "barrier"
    barrier.mkdir()
    # Each waits for the other: with one message in hand at a time, none would ever end.
    meet = f"touch {barrier}/$RELAY_MESSAGE_ID; until [ $(ls {barrier} | wc -l) = 2 ]; do sleep 0.01; done"
    with listening(relay, meet, "--queue", "q") as one, listening(relay, meet, "--queue", "q") as other:
        publish(relay, 1, 2)
        until(lambda: state(relay) == (0, 0, 0) and len(list(barrier.iterdir())) == 2)
        for process in (one, other):
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
