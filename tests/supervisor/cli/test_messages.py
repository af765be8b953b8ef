"""Messages go out and come in through the command line, and every outcome has its exit code."""

from __future__ import annotations

import array
import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import termios
from pathlib import Path
from typing import IO

import pytest

from tests.kit.cli import Relay, a_relay, end
from tests.kit.waiting import PATIENCE_SECS, wait_until

ME = ["--from", "relay.me"]
ENDPOINTS = [f"relay.agent.{name}" for name in ("a", "pull", "feed", "asked", "idle", "batch", "held")]

pytestmark = pytest.mark.bus(endpoints=ENDPOINTS, adapters=True)


def first_line(process: subprocess.Popen[str]) -> str:
    """Return the next line of a command that goes on."""
    assert process.stdout is not None
    return process.stdout.readline()


def waiting_bytes(pipe: IO[str] | None) -> int:
    """Return how much a pipe holds."""
    assert pipe is not None
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def listening(relay: Relay, pattern: str, *options: str) -> subprocess.Popen[str]:
    """Return a subscriber that has said it listens."""
    process = relay.start("subscribe", pattern, *options)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("listening")
    return process


PUBLISHED: dict[str, tuple[list[str], str, object]] = {
    "an argument": (['{"n": 1}'], "", {"n": 1}),
    "stdin by dash": (["-"], '{"n": 2}\n', {"n": 2}),
    "stdin by itself": ([], "[3]", [3]),
    "text": (["hi there", "--text"], "", {"content": "hi there"}),
    "text of stdin": (["--text"], "two\nlines\n", {"content": "two\nlines"}),
}


@pytest.mark.parametrize(("args", "stdin", "payload"), PUBLISHED.values(), ids=PUBLISHED)
def test_a_payload_comes_from(relay: Relay, args: list[str], stdin: str, payload: object) -> None:
    sent = relay.real("publish", "relay.agent.a", *args, *ME, "--json", stdin=stdin)
    assert sent.err == ""
    assert sent.json["deliveredTo"] == 1
    taken = relay("inbox", "relay.agent.a", "--claim", "--json").json["messages"][0]
    assert taken["id"] == sent.json["messageId"]
    assert taken["payload"] == payload
    relay("ack", "relay.agent.a", taken["id"])


def test_the_other_parts_of_a_message_are_options(relay: Relay) -> None:
    budget = ["--budget", '{"maxHops": 2}']
    options = ["--reply-to", "relay.me", "--dedupe", "once", *budget]
    sent = relay("publish", "relay.agent.a", "1", *ME, *options, "--json").json
    assert relay("publish", "relay.agent.a", "1", *ME, *options, "--json").json == sent
    (message,) = relay("inbox", "relay.agent.a", "--claim", "--limit", "5", "--json").json["messages"]
    assert (message["replyTo"], message["budget"]["maxHops"]) == ("relay.me", 2)
    relay("ack", "relay.agent.a", message["id"])


REFUSED: dict[str, tuple[list[str], int, str]] = {
    "bad JSON": (["relay.agent.a", '{"a": ]', *ME], 2, "line 1, column 7"),
    "no JSON on stdin": (["relay.agent.a", "-", *ME], 2, "stdin is not valid JSON"),
    "bad budget": (["relay.agent.a", "1", *ME, "--budget", "[1]"], 2, "--budget must be"),
    "bad budget value": (["relay.agent.a", "1", *ME, "--budget", '{"maxHops": "x"}'], 2, "maxHops"),
    "unknown budget key": (["relay.agent.a", "1", *ME, "--budget", '{"maxhops": 1}'], 2, "did you mean 'maxHops'"),
    "no sender": (["relay.agent.a", "1"], 2, "--from"),
    "no subject": (ME, 2, "SUBJECT"),
    "bad subject": (["relay..a", "1", *ME], 2, "empty token"),
    "unknown option": (["relay.agent.a", "1", *ME, "--bogus"], 2, "--bogus"),
    "nobody there": (["relay.nobody", "1", *ME], 4, "no consumer"),
    "reserved sender": (["relay.agent.a", "1", "--from", "relay.system.x"], 4, "reserved"),
    "wait and reply-to": (["relay.agent.a", "1", *ME, "--wait", "--reply-to", "relay.me"], 2, "--reply-to"),
    "batch and subject": (["relay.agent.a", *ME, "--batch", "-"], 2, "--batch"),
    "no such file": ([*ME, "--batch", "/nowhere/at/all"], 1, "/nowhere/at/all"),
}


@pytest.mark.parametrize(("args", "code", "said"), REFUSED.values(), ids=REFUSED)
def test_a_publish_that_does_not_work_says_why_in_a_line(relay: Relay, args: list[str], code: int, said: str) -> None:
    ran = relay("publish", *args, code=code)
    assert said in ran.err
    assert ran.err.startswith("relay: ")
    assert ran.err.count("\n") == 1


def test_a_publish_without_a_supervisor_exits_3(tmp_path: Path) -> None:
    ran = Relay().real("publish", "relay.a", "1", *ME, "--socket", str(tmp_path / "s"), code=3)
    assert "relay-supervisor run" in ran.err


# Asking


@pytest.mark.parametrize("as_json", [False, True], ids=["payload", "envelope"])
def test_wait_prints_the_answer(relay: Relay, as_json: bool) -> None:
    reader = listening(relay, "relay.agent.asked", "--limit", "1")
    asking = relay.start("publish", "relay.agent.asked", "1", *ME, "--wait", *(["--json"] if as_json else []))
    question = json.loads(first_line(reader))
    end(reader)
    for forged in (question["replyTo"], "relay.reply.>"):
        refused = relay.real("publish", forged, '"forged"', "--from", "relay.agent.stranger", code=4)
        assert "only from a recipient of the question" in refused.err
    relay.publish(question["replyTo"], {"content": "pong"}, "relay.agent.asked", parentId=question["id"])
    ran = end(asking)
    assert re.search(r"relay: reply [0-9A-Z]{26} from relay\.agent\.asked\n", ran.err)
    answer = ran.json
    assert (answer["payload"] if as_json else answer) == {"content": "pong"}
    if as_json:
        assert answer["from"] == "relay.agent.asked"


def test_wait_without_an_answer_exits_5(relay: Relay) -> None:
    ran = relay.real("publish", "relay.agent.idle", "1", *ME, "--wait", "--timeout", "0.3", code=5)
    assert "no reply from relay.agent.idle within 0.3 s" in ran.err
    assert ran.out == ""


def test_wait_for_nobody_exits_4(relay: Relay) -> None:
    assert "no endpoint or consumer matches" in relay("publish", "relay.nobody", "1", *ME, "--wait", code=4).err


def test_wait_for_a_consumer_that_fails_exits_1_with_its_reason(relay: Relay) -> None:
    ran = relay.real("publish", "relay.out.chat", "1", *ME, "--wait", code=1)
    assert "the chat is closed" in ran.err
    assert ran.json["performative"] == "failure"


# Many


def lines(*messages: object) -> str:
    return "".join(json.dumps(message) + "\n" for message in messages)


def test_a_batch_is_published_from_stdin_and_from_a_file(relay: Relay, tmp_path: Path) -> None:
    messages = lines(*({"subject": "relay.agent.batch", "payload": number} for number in range(500)))
    path = tmp_path / "messages.jsonl"
    path.write_text("\n" + messages.rstrip("\n"))  # an empty line, and a last one without its end
    shown = relay.real("publish", "--batch", str(path), *ME)
    assert shown.out == "500 published, 0 refused, 0 failed\n"
    assert shown.err == ""
    piped = relay.real("publish", "--batch", "-", *ME, "--json", stdin=messages)
    assert piped.json == {"published": 500, "refused": 0, "failed": 0, "errors": []}
    assert relay.waiting("relay.agent.batch") == list(range(50))


def test_a_bad_line_ends_a_batch_and_those_before_it_count(relay: Relay) -> None:
    good = {"subject": "relay.agent.held", "payload": 1}
    text = lines(good, good) + '{"subject": \n' + lines(good)
    ran = relay.real("publish", "--batch", "-", *ME, "--json", stdin=text, code=1)
    assert (ran.json["published"], ran.json["failed"]) == (2, 1)
    assert ran.json["errors"][0]["line"] == 3
    assert "line 3" in ran.err
    assert len(relay.waiting("relay.agent.held")) == 2


BAD_LINES = {
    "no subject": ({"payload": 1}, "'subject'"),
    "no payload": ({"subject": "relay.agent.held"}, "'payload'"),
    "no object": ([1], "not a JSON object"),
    "unknown key": ({"subject": "relay.agent.held", "payload": 1, "replyto": "relay.x"}, "replyto"),
    "wrong type": ({"subject": 5, "payload": 1}, "subject"),
}


@pytest.mark.parametrize(("line", "said"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_line_is_bad_if_it_has(relay: Relay, tmp_path: Path, line: object, said: str) -> None:
    (tmp_path / "batch").write_text(lines(line))
    ran = relay("publish", "--batch", str(tmp_path / "batch"), *ME, code=1)
    assert "line 1" in ran.err
    assert said in ran.err


def test_a_batch_with_a_refused_message_exits_4_and_goes_on(relay: Relay) -> None:
    text = lines({"subject": "relay.nobody", "payload": 1}, {"subject": "relay.agent.idle", "payload": 2})
    ran = relay.real("publish", "--batch", "-", *ME, "--json", stdin=text, code=4)
    assert (ran.json["published"], ran.json["refused"]) == (1, 1)
    assert ran.json["errors"][0]["line"] == 1


def test_a_repeated_batch_with_a_dedupe_id_publishes_nothing_twice(relay: Relay) -> None:
    relay.add("relay.agent.once")
    text = lines(*({"subject": "relay.agent.once", "payload": number} for number in range(10)))
    for _ in range(2):
        relay.real("publish", "--batch", "-", *ME, "--dedupe", "tonight", stdin=text)
    assert relay.waiting("relay.agent.once") == list(range(10))


def test_a_batch_is_sent_as_it_is_written(relay: Relay) -> None:
    reader = listening(relay, "relay.agent.feed", "--limit", "1")
    writer = relay.start("publish", "--batch", "-", *ME, stdin=subprocess.PIPE)
    assert writer.stdin is not None
    writer.stdin.write(lines({"subject": "relay.agent.feed", "payload": "early"}))
    writer.stdin.flush()
    assert json.loads(first_line(reader))["payload"] == "early"
    assert writer.poll() is None
    end(writer)
    end(reader)


# Receiving


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_subscribe_prints_json_lines_until_interrupted(relay: Relay, number: signal.Signals) -> None:
    reader = listening(relay, "relay.agent.feed")
    ids = [relay.publish("relay.agent.feed") for _ in range(2)]
    assert [json.loads(first_line(reader))["id"] for _ in ids] == ids
    reader.send_signal(number)
    assert end(reader).out == ""
    assert relay.waiting("relay.agent.feed") == []
    assert relay.letters(endpoint="relay.agent.feed") == []


def test_subscribe_with_a_limit_leaves_the_rest(relay: Relay) -> None:
    relay.add("relay.agent.rest")
    for number in range(5):
        relay.publish("relay.agent.rest", number)
    ran = relay.real("subscribe", "relay.agent.rest", "--limit", "2")
    assert [json.loads(line)["payload"] for line in ran.out.splitlines()] == [0, 1]
    assert relay.waiting("relay.agent.rest") == [2, 3, 4]
    assert relay.letters(endpoint="relay.agent.rest") == []


def test_a_message_that_cannot_be_printed_is_a_dead_letter(relay: Relay) -> None:
    relay.add("relay.agent.pipe")
    reader, writer = os.pipe()
    subscriber = relay.start("subscribe", "relay.agent.pipe", stdout=writer)
    os.close(writer)
    assert subscriber.stderr is not None
    assert subscriber.stderr.readline().startswith("listening")
    os.close(reader)
    id = relay.publish("relay.agent.pipe")
    assert end(subscriber, code=1).err == ""
    (letter,) = relay.letters(ids=[id])
    assert letter["code"] == "consumer_failed"
    assert "cannot be printed" in letter["reason"]


def test_subscribe_survives_a_killed_supervisor(tmp_path: Path) -> None:
    with a_relay(tmp_path) as relay:
        relay.add("relay.agent.feed")
        reader = listening(relay, "relay.agent.feed", "--limit", "2")
        relay.publish("relay.agent.feed", "before")
        assert json.loads(first_line(reader))["payload"] == "before"
        relay.restart()
        relay.publish("relay.agent.feed", "after")
        assert json.loads(first_line(reader))["payload"] == "after"
        end(reader)


def test_inbox_looks_and_claims_and_ack_and_fail_finish(relay: Relay) -> None:
    ids = [relay.publish("relay.agent.pull", {"content": f"number {number}"}) for number in range(3)]
    shown, document = relay.both("inbox", "relay.agent.pull")
    assert "number 2" in shown.out
    assert [one["id"] for one in document["messages"]] == ids
    claimed = relay.real("inbox", "relay.agent.pull", "--claim", "--limit", "2", "--lease", "5m", "--json")
    assert [one["id"] for one in claimed.json["messages"]] == ids[:2]
    assert "relay ack" in claimed.err
    assert "acknowledged" in relay.real("ack", "relay.agent.pull", ids[0]).out
    assert relay.real("fail", "relay.agent.pull", ids[1], "no such page", "--json").json == {
        "id": ids[1],
        "failed": True,
    }
    assert relay.letters(ids=[ids[1]])[0]["reason"] == "no such page"
    assert relay("ack", "relay.agent.pull", ids[0], code=1).err.startswith("relay: ")
    assert "not a duration" in relay("inbox", "relay.agent.pull", "--lease", "soon", code=2).err
    relay.add("relay.agent.empty")
    assert "no messages waiting" in relay("inbox", "relay.agent.empty").out


def test_a_second_signal_gives_up_a_write_that_does_not_end(relay: Relay) -> None:
    relay.add("relay.agent.full")
    subscriber = listening(relay, "relay.agent.full")
    id = relay.publish("relay.agent.full", "x" * 500_000)
    assert subscriber.stdout is not None
    wait_until(lambda: waiting_bytes(subscriber.stdout) >= 65_536)  # a pipe's room: the write hangs now
    subscriber.send_signal(signal.SIGINT)
    subscriber.send_signal(signal.SIGTERM)
    assert subscriber.wait(PATIENCE_SECS) == 0
    subscriber.communicate()
    assert relay.letters(ids=[id])[0]["reason"].endswith("interrupted before it was printed")


# Signals


def watching(relay: Relay, pattern: str, *options: str) -> subprocess.Popen[str]:
    """Return a watcher of signals that has said it listens."""
    process = relay.start("signal", "--watch", pattern, *options)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("listening")
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_signals_are_sent_and_watched_until_interrupted(relay: Relay, number: signal.Signals) -> None:
    watcher = watching(relay, "relay.agent.*", "--json")
    options = ["--type", "progress", "--state", "working", "--data", '{"step": 1}']
    sent = relay.real("signal", "relay.agent.a", *options, *ME, "--json").json
    assert sent["signal"] | {"timestamp": ""} == {
        "type": "progress",
        "state": "working",
        "endpointSubject": "relay.me",
        "timestamp": "",
        "data": {"step": 1},
    }
    relay("signal", "relay.job.a", *options)
    relay("signal", "relay.agent.b", "--type", "typing", "--state", "started")
    assert json.loads(first_line(watcher)) == sent
    assert json.loads(first_line(watcher))["signal"]["endpointSubject"] == "relay.agent.b"
    watcher.send_signal(number)
    assert end(watcher).out == ""


def test_signals_for_people_are_lines_that_move_no_cursor(relay: Relay) -> None:
    watcher = watching(relay, "relay.agent.a", "--limit", "2")
    ran = relay("signal", "relay.agent.a", "--type", "presence", "--state", "a\x1b[2Jway", *ME)
    assert "presence" in ran.out
    relay("signal", "relay.agent.a", "--type", "progress", "--state", "working", "--data", '["x"]')
    shown = end(watcher).out.splitlines()
    assert len(shown) == 2
    assert "\x1b" not in "".join(shown)
    assert " relay.agent.a presence " in shown[0]
    assert shown[0].endswith(" from relay.me")
    assert shown[1].endswith(' relay.agent.a progress working ["x"]')


WRONG_SIGNALS: dict[str, tuple[list[str], int, str]] = {
    "nothing": ([], 2, "SUBJECT is missing"),
    "no state": (["relay.agent.a", "--type", "typing"], 2, "needs --type and --state"),
    "an unknown type": (["relay.agent.a", "--type", "shout", "--state", "x"], 2, "'shout' is not one of"),
    "bad data": (["relay.agent.a", "--type", "typing", "--state", "x", "--data", "{"], 2, "--data is not valid JSON"),
    "a pattern": (["relay.*", "--type", "typing", "--state", "x", *ME], 2, "relay.*"),
    "both": (["relay.agent.a", "--watch", "relay.>"], 2, "--watch takes a pattern"),
    "a reserved sender": (
        ["relay.agent.a", "--type", "problem", "--state", "error", "--from", "relay.system.bus"],
        4,
        "reserved for the bus",
    ),
}


@pytest.mark.parametrize(("args", "code", "text"), WRONG_SIGNALS.values(), ids=WRONG_SIGNALS)
def test_a_wrong_signal_says_what_is_wrong(relay: Relay, args: list[str], code: int, text: str) -> None:
    assert text in relay("signal", *args, code=code).err


def test_a_refused_config_json_is_seen_by_a_watcher(relay: Relay) -> None:
    watcher = watching(relay, "relay.system.>", "--json", "--limit", "2")
    config = relay.daemon.data_dir / "config.json"
    before = config.read_bytes() if config.exists() else None
    beside = config.with_name("config.draft")
    beside.write_text('{"nonsense": 1}')
    beside.replace(config)
    relay("config", "reload", code=1)
    if before is None:
        config.unlink()
    else:
        beside.write_bytes(before)
        beside.replace(config)
    relay("config", "reload")
    told = [json.loads(line)["signal"] for line in end(watcher).out.splitlines()]
    assert [(signal["state"], signal["data"]["file"]) for signal in told] == [
        ("error", "config.json"),
        ("ok", "config.json"),
    ]
    assert "nonsense" in told[0]["data"]["problem"]


def test_subscriptions_show_the_process_behind_them(relay: Relay) -> None:
    reader = listening(relay, "relay.agent.feed", "--queue", "team")
    shown, document = relay.both("subscriptions")
    (row,) = document["subscriptions"]
    assert (row["pattern"], row["queue"], row["pid"]) == ("relay.agent.feed", "team", reader.pid)
    assert str(reader.pid) in shown.out
    reader.send_signal(signal.SIGINT)
    end(reader)
    assert relay("subscriptions").out == "no subscriptions\n"


def test_an_interrupted_command_exits_130_without_a_word(relay: Relay) -> None:
    asking = relay.start("publish", "relay.agent.asked", "1", *ME, "--wait")
    wait_until(lambda: relay.waiting("relay.agent.asked") == [1])
    asking.send_signal(signal.SIGINT)
    assert end(asking, code=130).err == ""


def test_a_supervisor_that_does_not_answer_is_exit_code_5(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay_supervisor.cli.command.TIMEOUT_SECS", 0.3)
    relay.daemon.send(signal.SIGSTOP)
    try:
        assert "within 0.3 s" in relay("status", code=5).err
    finally:
        relay.daemon.send(signal.SIGCONT)


def test_a_batch_draws_a_bar_on_a_terminal(relay: Relay, tmp_path: Path) -> None:
    relay.add("relay.agent.bar")
    (tmp_path / "batch").write_text(lines({"subject": "relay.agent.bar", "payload": 1}))
    leader, follower = pty.openpty()
    try:
        process = relay.start("publish", "--batch", str(tmp_path / "batch"), *ME, stderr=follower)
        assert end(process).out == "1 published, 0 refused, 0 failed\n"
        assert b"[##############################] 100%" in os.read(leader, 10_000)
    finally:
        os.close(leader)
        os.close(follower)


def test_a_reader_that_goes_away_is_not_worth_a_word(relay: Relay) -> None:
    reader, writer = os.pipe()
    process = relay.start("config", "--json", stdout=writer)
    os.close(reader)
    os.close(writer)
    assert end(process, code=1).err == ""
