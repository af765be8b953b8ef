"""Operators look at everything and change it, as text or as JSON."""

from __future__ import annotations

import json
import os
import pty
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay_supervisor.cli.show import cut, lasting, safe, table
from tests.supervisor.cli_runner import Relay, a_relay, end


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    with a_relay(tmp_path_factory.mktemp("cli"), adapters=True) as relay:
        relay.add("relay.agent.a")
        relay.publish("relay.agent.a", sender="relay.someone")
        relay.publish("relay.nobody", sender="relay.someone")
        yield relay


LISTINGS: dict[str, tuple[list[str], str, str]] = {
    "status": (["status"], "survives kill -9", "server"),
    "endpoints": (["endpoints"], "relay.agent.a", "endpoints"),
    "all mailboxes": (["endpoints", "list", "--all"], "not registered", "endpoints"),
    "breakers": (["breakers"], "relay.agent.a", "breakers"),
    "senders": (["senders"], "nobody has published within the window", "senders"),
    "adapters": (["adapters"], "connected", "adapters"),
    "access": (["access"], "no rules", "rules"),
    "token": (["token"], "no tokens", "tokens"),
    "jobs": (["jobs"], "every 60 s", "jobs"),
    "report": (["report"], "no report yet", "reports"),
    "config": (["config"], 'durability = "os"', "config"),
    "dlq": (["dlq"], "no_match", "deadLetters"),
    "dlq groups": (["dlq", "groups"], "relay.nobody", "groups"),
    "dlq runs": (["dlq", "runs"], "nothing was replayed", "replays"),
}


@pytest.mark.parametrize(("args", "text", "key"), LISTINGS.values(), ids=LISTINGS)
def test_a_listing_is_a_table_or_one_json_document(relay: Relay, args: list[str], text: str, key: str) -> None:
    shown, document = relay.both(*args)
    assert text in shown.out
    assert shown.err == ""
    assert key in document


def test_an_endpoint_is_added_and_removed(relay: Relay) -> None:
    assert "keeps its mail" in relay.real("endpoints", "add", "relay.agent.b").out
    assert relay("endpoints", "add", "relay.agent.c", "--json").json["subject"] == "relay.agent.c"
    relay.real("endpoints", "rm", "relay.agent.b")
    assert relay("endpoints", "rm", "relay.agent.c", "--json").json == {"removed": "relay.agent.c"}
    assert "no endpoint relay.agent.b" in relay("endpoints", "rm", "relay.agent.b", code=1).err


def test_an_access_rule_is_added_and_removed_and_refuses_with_4(relay: Relay) -> None:
    rule = ["relay.guest.>", "relay.agent.>"]
    assert "there are 1 rules" in relay.real("access", "add", "deny", *rule).out
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
    assert "worthless" in relay("token", "rm", id).out
    relay(*mine, "--token", token, code=4)
    assert relay("token", "add", "relay.holder", "--json").json["info"]["pattern"] == "relay.holder"


def test_an_adapter_is_switched_off_and_on_and_tested(relay: Relay) -> None:
    assert "disabled" in relay.real("adapters", "disable", "broken").out
    assert relay("adapters", "enable", "broken", "--json").json["enabled"] is True
    shown, document = relay.both("adapters", "test", "broken")
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
    assert status.index("its breaker is OPEN") < status.index("traffic")
    refused = relay("publish", "relay.agent.held", "1", "--from", "relay.x", code=4)
    assert "circuit_open" in refused.err
    assert relay("breakers", "reset", "relay.agent.held", "--json").json["state"] == "CLOSED"
    relay.publish("relay.agent.held")


def test_a_job_runs_by_hand(relay: Relay) -> None:
    shown, document = relay.both("jobs", "run", "expire")
    assert "expire: ok" in shown.out
    assert document["outcome"] == "ok"
    assert "nosuch" in relay("jobs", "run", "nosuch", code=1).err


def test_a_report_is_shown(relay: Relay) -> None:
    assert "relay report run" in relay("report", "show", code=1).err
    assert relay.daemon is not None
    place = relay.daemon.data_dir / "reports" / "date=2026-01-31"
    place.mkdir(parents=True)
    (place / "report.json").write_text(json.dumps({"messages": 12345, "senders": [{"name": "relay.a"}]}))
    shown, document = relay.both("report", "show")
    assert "messages: 12,345" in shown.out
    assert "name: relay.a" in shown.out
    assert document == {"date": "2026-01-31", "report": {"messages": 12345, "senders": [{"name": "relay.a"}]}}
    assert relay("report", "run", code=1).out == ""  # the Spark part is not there


def test_the_configuration_is_reloaded_and_its_problems_are_told(relay: Relay) -> None:
    assert "all is well" in relay("config", "reload").out
    assert relay.daemon is not None
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
    assert "nothing is known" in relay("trace", "01ARZ3NDEKTSV4RRFFQ69G5FAV", code=1).err


def test_traces_are_listed_newest_first(relay: Relay) -> None:
    first, second = relay.publish("relay.traced.a", sender="relay.tracer"), relay.publish("relay.traced.b")
    shown, document = relay.both("traces", "--subject", "relay.traced.*")
    assert shown.out.index(second) < shown.out.index(first)
    assert [row["messageId"] for row in document["rows"]] == [second, first]
    for options in (["--from", "TRACER"], ["--id", first], ["--subject", "traced.a", "--status", "no_subscriber"]):
        assert [row["messageId"] for row in relay("traces", *options, "--json").json["rows"]] == [first]
    assert "no messages like that" in relay("traces", "--before", "2020-01-01T00:00Z").out
    assert "no time" in relay("traces", "--since", "yesterday", code=2).err
    assert "there are failed, no_subscriber, refused" in relay("traces", "--status", "bogus", code=2).err


def test_the_common_options_may_stand_anywhere(relay: Relay) -> None:
    assert relay.daemon is not None
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


SAFE: dict[str, tuple[Any, int | None, str]] = {
    "plain": ("hello", None, "hello"),
    "escape": ("a\x1b[31mb", None, "a\\x1b[31mb"),
    "newline": ("a\nb\r\tc", None, "a\\nb\\r\\tc"),
    "bidi": ("a\u202eb", None, "a\\u202eb"),
    "half a character": ("a\ud800", None, "a\\ud800"),
    "cut": ("abcdef", 4, "abc…"),
    "cut within wide characters": ("日本語日本語", 6, "日本…"),
    "fits": ("abcd", 4, "abcd"),
}


@pytest.mark.parametrize(("text", "width", "shown"), SAFE.values(), ids=SAFE)
def test_safe_text_is_one_harmless_line(text: Any, width: int | None, shown: str) -> None:
    assert safe(text, width) == shown


def test_a_table_is_aligned_by_columns_of_the_terminal() -> None:
    rows = [["日本", 5, None], ["a", 1234, "x\ny"]]
    assert list(table(["NAME", "COUNT", "WHY"], rows)) == [
        "NAME  COUNT  WHY",
        "日本      5  -",
        "a     1,234  x\\ny",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0123, "12 ms"), (5.9, "5s"), (61, "1m 1s"), (3600, "1h"), (90000, "1d 1h"), (-1, "0 ms")]
)
def test_a_duration_is_told_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert lasting(seconds) == text


def test_a_cut_text_is_never_wider_than_asked() -> None:
    assert all(len(cut("x" * 50, width)) <= width for width in range(1, 60))
