"""What the report says about a day: rows in, sentences out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from relay_core.protocol.report import Finding
from spark.report.findings import EACH, find
from spark.report.inputs import ReportInputs, Row
from tests.spark.report.days import HOSTILE, TRACE, a_day, before, numbers, seen, table


class Case(NamedTuple):
    table: str
    row: Row
    level: str
    title: str
    text: str
    command: str | None = None
    leads: Mapping[str, str] = MappingProxyType({})


BREAKER = {"target": "ab12", "name": "relay.agent.x", "openings": 2, "openSecs": 61.0, "openAtEnd": False}
ADAPTER = {"adapter": "telegram", "handled": 95, "failed": 0, "downSecs": 0.0, "outages": 0, "stateAtEnd": "connected"}
MAILBOX = {"target": "ab12", "name": "relay.agent.x", "episodes": 1, "aboveSecs": 90.0, "limit": 100}
LETTERS = {"code": "timeout", "target": "ab12", "name": "relay.agent.x", "letters": 3, "standing": 2, "older": 0}
SENDER = {"sender": "relay.agent.x", "messages": 900, "peakMinute": "14:05", "limitPerMinute": 100.0, "rateLimited": 0}
JOB = {"job": "backup", "runs": 5, "failed": 0, "timedOut": 0, "lastOutcome": "ok", "lastDetail": None}
TO_X = {"subject": "relay.agent.x", "target": "ab12"}

CASES = {
    "a breaker that is open": Case(
        "breakers",
        BREAKER | {"openAtEnd": True, "openSecs": 7830.0, "lastDetail": "5 failures\nin a row"},
        "bad",
        "The breaker of relay.agent.x is open",
        "Open for 2 h 10 min, opened 2 times. Last: 5 failures in a row",
        "relay breakers",
        TO_X,
    ),
    "a breaker that has been open since the day before": Case(
        "breakers",
        BREAKER | {"openAtEnd": True, "openings": 0, "openSecs": 86400.0},
        "bad",
        "The breaker of relay.agent.x is open",
        "Open for 1 d since before the day.",
        "relay breakers",
        TO_X,
    ),
    "a breaker that flaps": Case(
        "breakers",
        BREAKER | {"openings": 3, "openSecs": 2.5},
        "warn",
        "The breaker of relay.agent.x opened 3 times",
        "Open for 2.5 s, opened 3 times.",
        "relay breakers",
        TO_X,
    ),
    "a breaker that was open for long": Case(
        "breakers",
        BREAKER | {"openings": 1},
        "warn",
        "The breaker of relay.agent.x was open for 1 min 1 s",
        "Open for 1 min 1 s, opened 1 time.",
        "relay breakers",
        TO_X,
    ),
    "an adapter that is down and fails": Case(
        "adapters",
        ADAPTER | {"failed": 5, "downSecs": 120.0, "outages": 2, "stateAtEnd": "error", "lastDetail": "502"},
        "bad",
        "Adapter telegram is down (error)",
        "Down for 2 min in 2 outages. 5 deliveries failed, 5% of all. Last: 502",
        "relay adapters test telegram",
    ),
    "an adapter that was down": Case(
        "adapters",
        ADAPTER | {"downSecs": 61.0, "outages": 1},
        "warn",
        "Adapter telegram was down for 1 min 1 s",
        "Down for 1 min 1 s in 1 outage.",
        "relay adapters test telegram",
    ),
    "an adapter that fails": Case(
        "adapters",
        ADAPTER | {"failed": 5},
        "warn",
        "Adapter telegram failed 5 deliveries",
        "5 deliveries failed, 5% of all.",
        "relay adapters test telegram",
    ),
    "a mailbox that is full": Case(
        "pressure",
        MAILBOX | {"worstDepth": 100, "worstShare": 1.0, "aboveAtEnd": True},
        "bad",
        "The mailbox of relay.agent.x is full or nearly so",
        "It held up to 100 of 100 messages (100%), above the warning for 1 min 30 s. "
        "Further messages were refused (backpressure).",
        "relay endpoints",
        TO_X,
    ),
    "a mailbox that was full": Case(
        "pressure",
        MAILBOX | {"worstDepth": 100, "worstShare": 1.0, "aboveAtEnd": False},
        "warn",
        "The mailbox of relay.agent.x was full",
        "It held up to 100 of 100 messages (100%), above the warning for 1 min 30 s. "
        "Further messages were refused (backpressure).",
        "relay endpoints",
        TO_X,
    ),
    "a mailbox that is above its warning": Case(
        "pressure",
        MAILBOX | {"worstDepth": 85, "worstShare": 0.85, "aboveAtEnd": True},
        "warn",
        "The mailbox of relay.agent.x is above its warning",
        "It held up to 85 of 100 messages (85%), above the warning for 1 min 30 s.",
        "relay endpoints",
        TO_X,
    ),
    "dead letters that stand": Case(
        "dead_letters",
        LETTERS,
        "warn",
        "2 dead letters of relay.agent.x: timeout",
        "3 arrived on this day.",
        "relay dlq list --code timeout --endpoint relay.agent.x",
        TO_X,
    ),
    "old dead letters": Case(
        "dead_letters",
        LETTERS | {"code": "no_match", "letters": 0, "standing": 1, "older": 1, "name": None},
        "warn",
        "1 dead letter of ab12: no endpoint matched",
        "None of them arrived on this day. All are older than a week.",
        "relay dlq list --code no_match --endpoint ab12",
        {"target": "ab12"},
    ),
    "a sender that was held back": Case(
        "senders",
        SENDER | {"peakMessages": 104, "peakShare": 1.04, "rateLimited": 41},
        "warn",
        "relay.agent.x reached its rate limit",
        "41 messages refused. Its busiest minute, 14:05, had 104 messages against 100 a minute (104%).",
        "relay senders",
        {"sender": "relay.agent.x"},
    ),
    "a sender that came close": Case(
        "senders",
        SENDER | {"peakMessages": 80, "peakShare": 0.8},
        "info",
        "relay.agent.x came close to its rate limit",
        "Its busiest minute, 14:05, had 80 messages against 100 a minute (80%).",
        "relay senders",
        {"sender": "relay.agent.x"},
    ),
    "a denied sender": Case(
        "refusals",
        {"code": "access_denied", "sender": "relay.guest.b", "subject": "relay.agent.x", "target": "*", "refused": 9},
        "warn",
        "relay.guest.b was denied 9 times",
        "Access denied. To relay.agent.x. If it should be allowed, add a rule.",
        "relay access list",
        {"sender": "relay.guest.b"},
    ),
    "a loop": Case(
        "conversations",
        {"traceId": TRACE, "sender": "relay.a", "subject": "relay.b", "messages": 64, "depth": 5, "loopsStopped": 1},
        "warn",
        "1 loop was stopped in a conversation of relay.a",
        "It began with relay.b and had 64 messages over 5 hops.",
        f"relay trace {TRACE} --conversation",
        {"trace_id": TRACE, "sender": "relay.a", "subject": "relay.b"},
    ),
    "a job that fails": Case(
        "jobs",
        JOB | {"failed": 1, "timedOut": 2, "lastOutcome": "timed_out", "lastDetail": "after 60 s"},
        "bad",
        "Job backup failed",
        "1 of 5 runs failed, 2 took too long. Last: after 60 s",
        "relay jobs",
    ),
    "a job that went well again": Case(
        "jobs",
        JOB | {"timedOut": 1},
        "warn",
        "Job backup took too long",
        "1 of 5 runs took too long. The last run succeeded.",
        "relay jobs",
    ),
    "more than usual, and why": Case(
        "anomalies",
        {
            "metric": "refusals",
            "key": "",
            "value": 460.0,
            "usual": 22.0,
            "score": 49.0,
            "direction": "up",
            "because": [
                {"metric": "refusalsBySender", "key": f"relay.a{n}", "value": 9 - n, "usual": 0} for n in range(5)
            ],
        },
        "warn",
        "Refused: 460, usually 22",
        "Most of it: from relay.a0 9 (usually 0), from relay.a1 8 (usually 0) and from relay.a2 7 (usually 0).",
    ),
    "slower than usual": Case(
        "anomalies",
        {"metric": "p95TotalUs", "key": "relay.a", "value": 1.9e6, "usual": 3.1e5, "score": 9.0, "direction": "up"},
        "warn",
        "p95 end to end, relay.a: 1.9 s, usually 310 ms",
        "No single part of it stands out.",
        None,
        {"subject": "relay.a"},
    ),
    "better than usual": Case(
        "anomalies",
        {"metric": "deadLetters", "key": "", "value": 0.0, "usual": 50.0, "score": -9.0, "direction": "down"},
        "good",
        "Dead letters: 0, usually 50",
        "No single part of it stands out.",
    ),
    "less traffic than usual": Case(
        "anomalies",
        {"metric": "messages", "key": "", "value": 10.0, "usual": 5000.0, "score": -9.0, "direction": "down"},
        "warn",
        "Messages: 10, usually 5,000",
        "No single part of it stands out.",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_row_becomes_a_sentence(case: Case) -> None:
    found = [finding for finding in find(seen({case.table: table(case.row)})) if finding.table]
    expected: dict[str, Any] = {"level": case.level, "title": case.title, "text": case.text, "command": case.command}
    assert found == [Finding.model_validate({**expected, "table": case.table, **case.leads})]


CALM: dict[str, Row] = {
    "breakers": BREAKER | {"openSecs": 59.0},
    "adapters": ADAPTER | {"failed": 2, "downSecs": 59.0, "outages": 2},
    "pressure": MAILBOX | {"worstDepth": 99, "worstShare": 0.99, "aboveAtEnd": False},
    "dead_letters": LETTERS | {"standing": 0},
    "senders": SENDER | {"peakMessages": 79, "peakShare": 0.79},
    "refusals": {"code": "backpressure", "sender": "relay.a", "subject": "relay.b", "refused": 5},
    "conversations": {"traceId": TRACE, "sender": "relay.a", "subject": "relay.b", "messages": 9, "loopsStopped": 0},
    "jobs": JOB | {"ok": 5},
}


def test_a_quiet_day_is_one_good_sentence() -> None:
    (only,) = find(seen({name: table(row) for name, row in CALM.items()}))
    assert (only.level, only.title) == ("good", "A quiet day: 10 messages, nothing needs attention")
    assert only.text == "Nothing was refused, no dead letter is waiting, no number is far from the usual."


def test_a_day_without_anything_says_so() -> None:
    (only,) = find(ReportInputs(a_day(), {}, [], before(messages=0)))
    assert (only.level, only.title, only.text) == ("good", "Nothing was published", "Nothing is wrong.")


def test_the_worst_comes_first_and_what_is_wrong_everywhere_hides_nothing() -> None:
    letters = [LETTERS | {"target": f"{n:02}", "name": f"relay.agent.x{n}"} for n in range(9)]
    found = find(seen({"dead_letters": table(*letters), "jobs": table(JOB | {"failed": 1, "lastOutcome": "failed"})}))
    assert [finding.level for finding in found] == ["bad"] + ["warn"] * (EACH + 1)
    assert found[-1].title == "And 5 more groups of dead letters"
    assert "relay.agent.x4" in found[-1].text
    five = find(seen({"dead_letters": table(*letters[: EACH + 1])}))
    assert [finding.title for finding in five][-1] == "2 dead letters of relay.agent.x4: timeout"


def test_what_explains_a_change_is_not_said_again() -> None:
    parts = [
        {"metric": "messagesBySender", "key": "relay.a", "value": 900.0, "usual": 10.0},
        {"metric": "messagesBySubject", "key": "relay.b", "value": 880.0, "usual": 9.0},
    ]
    whole = {"metric": "messages", "key": "", "value": 950.0, "usual": 50.0, "score": 20.0, "direction": "up"}
    rows = [{**part, "score": 90.0, "direction": "up", "because": []} for part in parts]
    waiting = {"metric": "p95QueueUs", "key": "relay.c", "value": 9e5, "usual": 1e5}
    slow = {"metric": "p95TotalUs", "key": "relay.c", "value": 1e6, "usual": 2e5, "score": 9.0, "direction": "up"}
    other = {"metric": "messagesBySender", "key": "relay.d", "value": 0.0, "usual": 80.0, "direction": "down"}
    anomalies = table(*rows, whole | {"because": parts}, slow | {"because": [waiting]}, waiting | {"score": 8.0}, other)
    found = find(seen({"anomalies": anomalies}))
    assert [(finding.title, finding.text, finding.sender, finding.subject) for finding in found] == [
        (
            "Messages: 950, usually 50",
            "Most of it: from relay.a 900 (usually 10) and to relay.b 880 (usually 9).",
            None,
            None,
        ),
        (
            "p95 end to end, relay.c: 1 s, usually 200 ms",
            "Most of it: p95 of waiting 900 ms (usually 100 ms).",
            None,
            "relay.c",
        ),
        ("Messages from relay.d: 0, usually 80", "No single part of it stands out.", "relay.d", None),
    ]


def test_lines_that_could_not_be_used_are_told() -> None:
    ingest = {"badLines": {"torn": 1, "not_json": 3, "x": 0}, "unknownKinds": {"lease": 12}}
    assert [
        (finding.level, finding.title, finding.text.partition(".")[0]) for finding in find(seen(ingest=ingest))
    ] == [
        ("warn", "4 lines of the event log could not be read", "3 not json and 1 torn"),
        ("info", "12 events of unknown kinds", "12 lease"),
    ]


def test_a_day_that_is_not_over_has_too_little_of_nothing() -> None:
    low = {"metric": "messages", "key": "", "value": 1.0, "usual": 500.0, "score": -9.0, "direction": "down"}
    quiet, so_far = find(seen({"anomalies": table(low)}, day=a_day(hours=14.35)))
    assert quiet.title == "A quiet day so far: 10 messages, nothing needs attention"
    assert (so_far.level, so_far.title) == ("info", "The day is not over: this report ends at 14:21 UTC")


def test_the_first_day_has_nothing_to_compare_with() -> None:
    quiet, first = find(ReportInputs(a_day(), {}, numbers(messages=3, refusals=1)))
    assert quiet.text.startswith("1 refusal, ")
    assert first.title == "There are no earlier days to compare with"


@pytest.mark.parametrize(
    ("name", "row", "command"),
    [
        ("adapters", ADAPTER | {"adapter": HOSTILE, "stateAtEnd": "error"}, "relay adapters"),
        ("adapters", ADAPTER | {"adapter": "--help", "stateAtEnd": "error"}, "relay adapters"),
        ("dead_letters", LETTERS | {"code": "x; rm -rf ~", "name": "$(id)"}, "relay dlq list --endpoint ab12"),
        ("conversations", {"traceId": "a b", "loopsStopped": 1}, None),
    ],
)
def test_a_command_names_plain_words_alone(name: str, row: Row, command: str | None) -> None:
    (found,) = find(seen({name: table(row)}))
    assert found.command == command
    assert len(found.title) < 200
