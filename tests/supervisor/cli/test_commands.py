"""Operators look at everything and change it, as text or as JSON."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay_supervisor.cli.output import safe, table
from tests.kit.cli import Relay, a_relay, end
from tests.kit.waiting import wait_until
from tests.spark.report.days import an_empty_day

pytestmark = pytest.mark.bus(endpoints=["relay.agent.a"], adapters=True)


@pytest.fixture(scope="module")
def relay(relay: Relay) -> Relay:
    relay.publish("relay.agent.a", sender="relay.someone")
    relay.publish("relay.nobody", sender="relay.someone")
    return relay


LISTINGS: dict[str, tuple[list[str], str, str]] = {
    "status": (["status"], "survives kill -9", "server"),
    "endpoints": (["endpoints"], "relay.agent.a", "endpoints"),
    "all mailboxes": (["endpoints", "list", "--all"], "not registered", "endpoints"),
    "subscriptions": (["subscriptions"], "no subscriptions", "subscriptions"),
    "breakers": (["breakers"], "relay.agent.a", "breakers"),
    "senders": (["senders"], "no messages within the window", "senders"),
    "adapters": (["adapters"], "connected", "adapters"),
    "access": (["access"], "no rules", "rules"),
    "token": (["token"], "no tokens", "tokens"),
    "jobs": (["jobs"], "every 1 min", "jobs"),
    "schedules": (["schedules"], "no schedules", "schedules"),
    "report": (["report"], "no reports yet", "reports"),
    "config": (["config"], 'durability = "os"', "config"),
    "dlq": (["dlq"], "no_match", "deadLetters"),
    "dlq groups": (["dlq", "groups"], "relay.nobody", "groups"),
    "dlq runs": (["dlq", "runs"], "no replays", "replays"),
}


@pytest.mark.parametrize(("args", "text", "key"), LISTINGS.values(), ids=LISTINGS)
def test_a_listing_is_a_table_or_one_json_document(relay: Relay, args: list[str], text: str, key: str) -> None:
    shown, document = relay.both(*args)
    assert text in shown.out
    assert shown.err == ""
    assert key in document


def test_an_endpoint_is_added_and_removed(relay: Relay) -> None:
    assert "stored in" in relay.real("endpoints", "add", "relay.agent.b").out
    assert relay("endpoints", "add", "relay.agent.c", "--json").json["subject"] == "relay.agent.c"
    relay.real("endpoints", "rm", "relay.agent.b")
    assert relay("endpoints", "rm", "relay.agent.c", "--json").json == {"removed": "relay.agent.c"}
    assert "no endpoint relay.agent.b" in relay("endpoints", "rm", "relay.agent.b", code=1).err


def test_an_access_rule_is_added_and_removed_and_refuses_with_4(relay: Relay) -> None:
    rule = ["relay.guest.>", "relay.agent.>"]
    assert "1 rule" in relay.real("access", "add", "deny", *rule).out
    assert "deny" in relay("access", "list").out
    assert relay("access", "list", "--json").json["rules"] == [
        {"from": rule[0], "to": rule[1], "action": "deny", "priority": 0}
    ]
    denied = relay("publish", "relay.agent.a", "1", "--from", "relay.guest.x", "--json", code=4)
    assert denied.out == ""
    assert denied.err.startswith("relay: ")
    assert relay("access", "rm", *rule, "--json").json == {"removed": 1}
    assert "no rule" in relay("access", "rm", *rule, code=1).err
    assert "empty token" in relay("access", "add", "deny", "relay..x", "relay.y", code=2).err


def test_a_token_is_alone_on_stdout_and_binds_whoever_uses_it(relay: Relay) -> None:
    made = relay.real("token", "add", "relay.holder", "--note", "for the test")
    token = made.out.strip()
    assert made.out == token + "\n"
    assert token not in made.err
    mine = ["publish", "relay.agent.a", "1", "--from", "relay.holder"]
    relay(*mine, "--token", token)
    relay(*mine, environment={"RELAY_TOKEN": token})
    other = relay("publish", "relay.agent.a", "1", "--from", "relay.other", "--token", token, code=4)
    assert "token is for relay.holder" in other.err
    listed = relay("token", "list", "--json")
    assert token not in listed.out
    id = listed.json["tokens"][0]["id"]
    assert "revoked" in relay("token", "rm", id).out
    relay(*mine, "--token", token, code=4)
    assert relay("token", "add", "relay.holder", "--json").json["info"]["pattern"] == "relay.holder"


def test_an_adapter_is_switched_off_and_on_and_tested(relay: Relay) -> None:
    assert "disabled" in relay.real("adapters", "disable", "broken").out
    assert relay("adapters", "enable", "broken", "--json").json["enabled"] is True
    shown, document = relay.both("adapters", "test", "broken")
    assert "DELIVERED  FAILED  PUBLISHED  REFUSED" in shown.out
    assert "connected" in shown.out
    assert document["state"]["state"] == "connected"
    assert "broken" in relay("adapters", "reload").out
    assert relay("adapters", "reload", "broken", "--json").json["adapters"][0]["id"] == "broken"
    assert "nosuch" in relay("adapters", "test", "nosuch", code=1).err


def test_a_breaker_is_held_open_shown_with_the_problems_and_reset(relay: Relay) -> None:
    relay.add("relay.agent.held")
    relay.publish("relay.agent.held")
    relay.real("breakers", "force", "relay.agent.held", "open", "--reason", "for the test")
    breakers, status = relay("breakers").out, relay("status").out
    assert any("OPEN" in line and "relay.agent.held" in line for line in breakers.splitlines())
    assert status.index("is OPEN: see") < status.index("traffic")
    refused = relay("publish", "relay.agent.held", "1", "--from", "relay.x", code=4)
    assert "circuit_open" in refused.err
    assert relay("breakers", "reset", "relay.agent.held", "--json").json["state"] == "CLOSED"
    relay.publish("relay.agent.held")


def test_a_job_runs_by_hand(relay: Relay) -> None:
    shown, document = relay.both("jobs", "run", "expire")
    assert "expire: ok" in shown.out
    assert document["outcome"] == "ok"
    assert "nosuch" in relay("jobs", "run", "nosuch", code=1).err


def test_a_schedule_runs_by_hand_and_is_paused(relay: Relay) -> None:
    before = json.loads((relay.daemon.data_dir / "config.json").read_text())
    daily = {"id": "daily", "to": "relay.agent.a", "payload": "hi", "cron": "0 9 * * *"}
    unheard = {"id": "unheard", "to": "relay.nobody", "everySecs": 86_400, "enabled": False}
    relay.daemon.write_config({**before, "schedules": [daily, unheard]})
    relay("config", "reload")
    shown, document = relay.both("schedules", "run", "daily")
    assert "daily: published 01" in shown.out
    assert (document["outcome"], document["deliveredTo"]) == ("published", 1)
    assert "no consumer" in relay("schedules", "run", "unheard", code=4).out
    assert relay("schedules", "pause", "daily").out == "daily: paused\n"
    paused, off = relay("schedules").out.splitlines()[1:]
    assert "0 9 * * * UTC  paused" in paused
    assert "off" in off
    assert relay("schedules", "resume", "daily").out.startswith("daily: next in ")
    assert "no schedule nosuch" in relay("schedules", "pause", "nosuch", code=1).err
    assert [state["id"] for state in relay("schedules", "--json").json["schedules"]] == ["daily", "unheard"]
    relay.daemon.write_config(before)
    relay("config", "reload")


def test_the_newest_report_is_shown(relay: Relay) -> None:
    assert "relay report run" in relay("report", "show", code=1).err
    assert "write it as YYYY-MM-DD" in relay("report", "show", "yesterday", code=2).err
    place = relay.daemon.data_dir / "reports" / "date=2026-01-31"
    place.mkdir(parents=True)
    (place / "report.json").write_bytes(an_empty_day().to_json())
    shown, document = relay.both("report", "show")
    assert "✓ Nothing was published" in shown.out
    assert document == {"date": "2026-01-31", "report": json.loads(an_empty_day().to_json())}


# Making a report


SAYS = """
import json, os, pathlib, sys
day, (gate, *lines) = "2026-01-30", sys.argv[1:]
place = pathlib.Path(os.environ["RELAY_DATA_DIR"]) / "reports" / f"date={day}"
place.mkdir(parents=True, exist_ok=True)
for name in ("report.json", "report.html"):
    (place / name).write_text("{}")
print("asked for", os.environ["RELAY_JOB_OPTIONS"], *lines, sep="\\n", flush=True)
text = open(gate).read()  # which waits for somebody to write
print(text or json.dumps({"result": {"reports": [day], "events": 1234, "badLines": 2}}), flush=True)
sys.exit(text.startswith("no"))
"""
STAGES = ['{"progress": {"stage": "ingest", "done": 0.1}}', '{"progress": {"stage": "tab\\u001bles", "done": 0.45}}']


@pytest.fixture
def gate(relay: Relay, tmp_path: Path) -> Iterator[Path]:
    """Have the report made by a program of ours, which waits until somebody has written to the gate."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    before = json.loads((relay.daemon.data_dir / "config.json").read_text())
    nightly = {"enabled": False, "command": [sys.executable, "-c", SAYS, str(path), *STAGES]}
    relay.daemon.write_config({**before, "jobs": {"metrics": nightly}})
    relay("config", "reload")
    yield path
    if running(relay):
        relay.ask("jobs.cancel", name="metrics")
    relay.daemon.write_config(before)
    relay("config", "reload")


def until_at(relay: Relay, stage: str) -> None:
    """Return once the job says that it has come to a stage."""
    wait_until(lambda: running(relay).get("progress", {}).get("stage") == stage)


def running(relay: Relay) -> Any:
    """Return the run of the job that is under way, or nothing."""
    (job,) = [job for job in relay.ask("jobs.list")["jobs"] if job["name"] == "metrics"]
    return job["last"] if job["running"] else {}


def test_a_report_is_made_with_its_stages_on_stderr_and_the_next_commands_on_stdout(relay: Relay, gate: Path) -> None:
    process = relay.start("report", "run")
    assert process.stderr is not None
    until_at(relay, "tab\x1bles")
    assert "running: 45 % tab␛les" in relay("jobs").out
    told = process.stderr.readline()
    while "tab" not in told:  # of a stage that was over between two looks nothing is told
        told = process.stderr.readline()
    assert told.startswith("metrics: tab␛les (45 %, ")
    gate.write_text("")
    out = end(process).out.splitlines()
    assert out[0].startswith("created the report of 2026-01-30 from 1,234 events in ")
    assert out[1:3] == [
        "  2 unreadable lines of the event log quarantined",
        "  relay report show 2026-01-30",
    ]
    page = Path(out[3].strip().removeprefix("file://"))
    assert page.name == "report.html"
    assert page.is_file()


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ([], "--today"),
        (["--date", "2026-01-31"], "--date 2026-01-31"),
        (["--since", "2026-01-30", "--until", "2026-01-31"], "--since 2026-01-30 --until 2026-01-31"),
        (["--backfill"], "--backfill"),
    ],
)
def test_days_are_asked_for_and_the_answer_is_one_document(
    relay: Relay, gate: Path, options: list[str], asked: str
) -> None:
    relay("report", "run", *options, "--no-wait")
    until_at(relay, "tab\x1bles")
    assert "is running" in relay("report", "run", "--date", "2020-01-01", code=1).err
    joined = relay.start("report", "run", *options, "--json")
    assert joined.stderr is not None
    assert "45 %" in joined.stderr.readline()  # it has joined
    gate.write_text("")
    run = end(joined).json
    assert (run["outcome"], run["reports"]) == ("ok", ["2026-01-30"])
    assert run["counts"] == {"reports": 1, "events": 1234, "bad_lines": 2}
    assert run["output"] == f"asked for\n{asked}\n"


def test_a_report_that_fails_says_how(relay: Relay, gate: Path) -> None:
    process = relay.start("report", "run")
    until_at(relay, "tab\x1bles")
    gate.write_text("no room left\n")
    out = end(process, code=1).out
    assert "metrics: failed in" in out
    assert "exit code 1: no room left" in out


def test_who_interrupts_the_command_leaves_the_run_alone_and_is_told_how_to_end_it(relay: Relay, gate: Path) -> None:
    process = relay.start("report", "run")
    until_at(relay, "tab\x1bles")
    assert process.stderr is not None
    process.stderr.readline()  # it is following
    process.send_signal(signal.SIGINT)
    left = end(process, code=130)
    assert left.out == ""
    assert "metrics continues in the supervisor" in left.err
    assert "'relay jobs cancel metrics'" in left.err
    until_at(relay, "tab\x1bles")
    shown = relay.real("jobs", "cancel", "metrics")
    assert "metrics: cancelled in" in shown.out
    assert "not running" in relay("jobs", "cancel", "metrics", code=1).err


def test_on_a_terminal_progress_is_one_line_that_is_gone_at_the_end(relay: Relay, gate: Path) -> None:
    leader, follower = pty.openpty()
    try:
        process = relay.start("report", "run", stderr=follower)
        shown = b""
        while "45 % tab␛les".encode() not in shown:
            shown += os.read(leader, 4096)
        assert "metrics ██████████░░░░░░░░░░░░░░ ".encode() in shown
        gate.write_text("")
        end(process)
        shown += os.read(leader, 4096)
    finally:
        os.close(follower)
        os.close(leader)
    assert b"\n" not in shown
    assert shown.endswith(b"\r\x1b[K")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--date", "yesterday"], "--date: write a day as YYYY-MM-DD"),
        (["--since", "2026-02-30"], "--since: 2026-02-30 is not a date"),
        (
            ["--since", "2026-02-02", "--until", "2026-02-01"],
            "since (2026-02-02) is after until (2026-02-01)",
        ),
        (["--until", "2026-02-01"], "until needs since"),
        (["--date", "2026-02-01", "--backfill"], "date, since and backfill exclude each other"),
        (["--date", "2999-01-01"], "date: 2999-01-01 is in the future"),
    ],
)
def test_days_that_make_no_sense_are_a_wrong_call(relay: Relay, options: list[str], text: str) -> None:
    assert text in relay("report", "run", *options, code=2).err


def test_without_spark_it_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['pyspark'] = None")
    with a_relay(tmp_path, environment={"PYTHONPATH": str(tmp_path)}) as relay:
        told = relay("report", "run", code=1)
        assert told.out == ""
        assert "pip install 'relay-bus[spark]'" in told.err


def test_the_configuration_is_reloaded_and_its_problems_are_told(relay: Relay) -> None:
    assert "without problems" in relay("config", "reload").out
    rules = relay.daemon.data_dir / "access-rules.json"
    before = rules.read_text() if rules.exists() else "[]"
    rules.write_text("[{]")
    broken = relay("config", "reload", "--json", code=1)
    assert "access-rules.json" in broken.json["problems"][0]
    rules.write_text(before)
    relay("config", "reload")


def test_a_trace_tells_what_became_of_a_message(relay: Relay) -> None:
    parent = relay.publish("relay.agent.a")
    child = relay.publish("relay.agent.a", parentId=parent)
    shown, document = relay.both("trace", parent)
    assert parent in shown.out
    assert [span["messageId"] for span in document["spans"]] == [parent]
    whole = relay("trace", child, "--conversation", "--json").json["spans"]
    assert {span["messageId"] for span in whole} == {parent, child}
    assert "no trace of" in relay("trace", "01ARZ3NDEKTSV4RRFFQ69G5FAV", code=1).err


def test_traces_are_listed_newest_first(relay: Relay) -> None:
    first, second = relay.publish("relay.traced.a", sender="relay.tracer"), relay.publish("relay.traced.b")
    shown, document = relay.both("traces", "--subject", "relay.traced.*")
    assert shown.out.index(second) < shown.out.index(first)
    assert [row["messageId"] for row in document["rows"]] == [second, first]
    for options in (["--from", "TRACER"], ["--id", first], ["--subject", "traced.a", "--status", "no_subscriber"]):
        assert [row["messageId"] for row in relay("traces", *options, "--json").json["rows"]] == [first]
    assert "no matching messages" in relay("traces", "--before", "2020-01-01T00:00Z").out
    assert "not a time" in relay("traces", "--since", "yesterday", code=2).err
    assert "choose from failed, no_subscriber, refused" in relay("traces", "--status", "bogus", code=2).err


def test_the_common_options_may_stand_anywhere(relay: Relay) -> None:
    socket = ["--socket", str(relay.daemon.socket)]
    lost = {"RELAY_SOCKET": "/nowhere/relay.sock"}
    ways = [
        [*socket, "--json", "dlq", "list"],
        ["dlq", f"--socket={relay.daemon.socket}", "list", "--json"],
        ["--json", "dlq", *socket],
        ["dlq", "list", "--json", *socket],
    ]
    assert all("deadLetters" in relay(*way, environment=lost).json for way in ways)
    assert "deadLetters" in relay.real(*ways[0], environment=lost).json


def test_the_socket_is_found_in_the_data_directory(relay: Relay, tmp_path: Path) -> None:
    missing = Relay().real("status", "--data-dir", str(tmp_path), code=3)
    assert str(tmp_path / "relay.sock") in missing.err
    assert "relay-supervisor run" in missing.err
    assert missing.out == ""


def on_a_terminal(relay: Relay, *args: str, **environment: str) -> str:
    """Return what a command writes to a terminal."""
    leader, follower = pty.openpty()
    try:
        process = relay.start(*args, stdout=follower, environment={"TERM": "xterm", **environment})
        end(process)
    finally:
        os.close(follower)
    try:
        return os.read(leader, 100_000).decode()
    finally:
        os.close(leader)


def test_colours_are_for_terminals_that_want_them(relay: Relay) -> None:
    assert "\x1b[" in on_a_terminal(relay, "endpoints")
    assert "\x1b[" not in on_a_terminal(relay, "endpoints", NO_COLOR="1")
    assert "\x1b[" not in relay("endpoints").out


def test_foreign_text_moves_no_cursor(relay: Relay) -> None:
    relay("publish", "relay.nobody.2", "--from", "relay.someone", "--text", "\x1b[2J\r\nevil‮", code=4)
    id = relay("dlq", "--text", "evil", "--json").json["deadLetters"][0]["messageId"]
    shown = relay("dlq", "show", id).out
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "evil" in shown


def test_safe_text_is_one_clean_line_cut_to_a_width() -> None:
    assert safe("a\x1b[31mb\n\u202e") == "a␛[31mb␊‹U+202E›"
    assert safe("日本語日本語", 6) == "日本…"
    assert safe("x" * 1000) == "x" * 1000


def test_a_table_is_aligned_by_columns_of_the_terminal() -> None:
    rows = [["日本", 5, None], ["a", 1234, "x\ny"]]
    assert list(table(["NAME", "COUNT", "WHY"], rows)) == [
        "NAME  COUNT  WHY",
        "日本      5  -",
        "a     1,234  x␊y",
    ]


def test_a_column_without_any_number_stands_left() -> None:
    assert list(table(["LAST", "X"], [[None, "a"], [None, "b"]])) == ["LAST  X", "-     a", "-     b"]
