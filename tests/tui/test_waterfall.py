from __future__ import annotations

from typing import Any

import pytest

from relay_core.messages.delivery import Span, TracePage, TraceSummary
from relay_tui.views.traces.detail import span_lines
from relay_tui.views.traces.query import TraceQuery
from relay_tui.views.traces.spans import SpanRows
from relay_tui.views.traces.trace_list import TraceList
from relay_tui.views.traces.waterfall import Waterfall
from relay_tui.views.wrap import wrapped
from relay_tui.widgets.styled_lines import line, width_of
from tests.tui.hostile import CORPUS

NOW = 1_000_000.0
"""When the conversations of these tests begin."""


def a_span(id: str, parent: str | None = None, to: str = "relay.agent.b", **parts: Any) -> Span:
    given: dict[str, Any] = {
        "message_id": id,
        "parent_id": parent,
        "target": f"hash-of-{to}",
        "target_kind": "endpoint",
        "target_subject": to,
        "subject": to,
        "sender": "relay.agent.a",
        "trace_id": "m1",
        "status": "done",
        "sent_at": NOW,
        "hops_before": 0,
        "hops_after": 1,
        "calls_before": 10,
        "calls_after": 9,
        "max_hops": 5,
        "expires_at": int(NOW) + 60_000,
        "size": 10,
    }
    return Span(**(given | parts))


def the_tree(waterfall: Waterfall) -> list[str]:
    return [f"{node.guide}{node.span.message_id}" for node in waterfall.nodes]


def test_what_a_message_led_to_stands_below_it_in_the_order_of_sending() -> None:
    waterfall = Waterfall(
        [
            a_span("m5", "m2", sent_at=NOW + 4),
            a_span("m1"),
            a_span("m3", "m1", sent_at=NOW + 2),
            a_span("m2", "m1", sent_at=NOW + 1),
            a_span("m4", "m2", sent_at=NOW + 3),
        ]
    )
    assert the_tree(waterfall) == ["m1", "├ m2", "│ ├ m4", "│ └ m5", "└ m3"]
    assert sorted(waterfall.children("m2")) == ["m4", "m5"]


def test_with_several_targets_an_answer_stands_below_the_one_that_sent_it() -> None:
    waterfall = Waterfall(
        [
            a_span("m1", to="relay.agent.b"),
            a_span("m1", to="relay.agent.c"),
            a_span("m2", "m1", to="relay.agent.a", sender="relay.agent.b"),
        ]
    )
    assert [(node.depth, node.span.target_subject) for node in waterfall.nodes] == [
        (0, "relay.agent.b"),
        (1, "relay.agent.a"),
        (0, "relay.agent.c"),
    ]


@pytest.mark.parametrize(
    "spans",
    [
        pytest.param([a_span("m1", "m1")], id="its own parent"),
        pytest.param([a_span("m1", "m2"), a_span("m2", "m1")], id="each other's parents"),
        pytest.param(
            [a_span("m0"), a_span("m1", "m3"), a_span("m2", "m1"), a_span("m3", "m2")], id="beside a beginning"
        ),
        pytest.param([a_span("m1", "gone"), a_span("m2", "m1")], id="a parent that is not there"),
        pytest.param([a_span("m1", to="a.b"), a_span("m1", to="a.c"), a_span("m2", "m1")], id="two targets"),
    ],
)
def test_every_span_is_there_exactly_once(spans: list[Span]) -> None:
    shown = [node.key for node in Waterfall(spans).nodes]
    assert sorted(shown) == sorted(f"{span.message_id}/{span.target}" for span in spans)


def test_a_part_is_what_followed_from_one_message_on_an_axis_of_its_own() -> None:
    spans = [
        a_span("m1", handled_at=NOW + 1000),
        a_span("m2", "m1", sent_at=NOW + 500, handled_at=NOW + 600),
        a_span("m3", "m2", sent_at=NOW + 550, handled_at=NOW + 580),
    ]
    part = Waterfall(spans, "m2")
    assert the_tree(part) == ["m2", "└ m3"]
    assert (part.begin, part.end(NOW)) == (NOW + 500, NOW + 600)


@pytest.mark.parametrize(
    ("parts", "bar"),
    [
        pytest.param({"claimed_at": NOW + 40, "handled_at": NOW + 99}, "░░░░██████", id="waiting, then handled"),
        pytest.param({"sent_at": NOW + 50, "claimed_at": NOW + 50, "handled_at": NOW + 60}, "     ██   ", id="later"),
        pytest.param({"status": "refused", "sent_at": NOW + 30}, "   ▪      ", id="ended at once"),
        pytest.param({"status": "failed", "handled_at": NOW + 99}, "░░░░░░░░░▪", id="ended without being taken"),
        pytest.param({"status": "new"}, "░░░░░░░░░›", id="still waiting"),
        pytest.param({"status": "cur", "claimed_at": NOW + 50}, "░░░░░████›", id="still being handled"),
        pytest.param({"claimed_at": NOW - 70, "handled_at": NOW - 50}, "█         ", id="a clock went backwards"),
        pytest.param({"sent_at": 0.0, "handled_at": 5.0}, "◂         ", id="far before all others"),
        pytest.param({"sent_at": NOW * 900, "handled_at": NOW * 900}, "         ▸", id="far behind all others"),
    ],
)
def test_waiting_and_handling_differ_by_character(parts: dict[str, Any], bar: str) -> None:
    far = {"sent_at": NOW + 400_000_000} if parts.get("sent_at") == 0.0 else {}
    base = far.get("sent_at", NOW)
    others = [a_span(f"m{n}", sent_at=base, claimed_at=base, handled_at=base + 99.9) for n in range(3)]
    span = a_span("odd", **parts)
    waterfall = Waterfall([*others, span])
    assert waterfall.bar(span, 10, base + 99.9) == bar


@pytest.mark.parametrize("width", [1, 8, 27, 200])
@pytest.mark.parametrize(
    "spans",
    [
        pytest.param([a_span("m1")], id="no times at all"),
        pytest.param([a_span("m1", status="new"), a_span("m2", status="cur", claimed_at=NOW)], id="under way"),
        pytest.param([a_span("m1", sent_at=0.0), a_span("m2", sent_at=2.5e14)], id="thousands of years apart"),
        pytest.param([a_span("m1", sent_at=-6.2e13, handled_at=-6.3e13)], id="before all time"),
    ],
)
def test_no_times_break_the_axis(spans: list[Span], width: int) -> None:
    waterfall = Waterfall(spans)
    assert [len(waterfall.bar(span, width, NOW)) for span in spans] == [width] * len(spans)
    rows = SpanRows(waterfall, width, NOW)
    assert [len(rows[at].cells) for at in range(len(rows))] == [len(rows.columns())] * len(spans)
    assert all(list(span_lines(span, waterfall, NOW)) for span in spans)


def test_a_chain_of_a_thousand_is_walked_without_depth() -> None:
    spans = [a_span(f"m{n:04}", f"m{n - 1:04}" if n else None, sent_at=NOW + n) for n in range(1000)]
    rows = SpanRows(Waterfall(reversed(spans)), 120, NOW)
    assert rows[999].cells[0] == "…999 └ relay.agent.b"


def test_a_span_is_told_with_its_budget_before_and_after() -> None:
    span = a_span(
        "m2",
        "m1",
        stored_at=NOW + 2,
        claimed_at=NOW + 12,
        handled_at=NOW + 1012,
        ancestors=("relay.agent.x", "relay.agent.b"),
        replays=2,
        outcomes=({"handler": "first", "ok": False, "error": "no \x1b[2Jdisk"},),
        code="handler_failed",
        reason="no disk",
        status="failed",
    )
    told = "\n".join("".join(text for text, _ in line) for line in span_lines(span, Waterfall([span]), NOW))
    for words in (
        "hops 0 → 1 of 5",
        "calls left 10 → 9",
        "TTL 1m00s → 59s",
        "stored +2ms  claimed +10ms  ended +1.0s  total 1.0s",
        "relay.agent.x › relay.agent.b",
        "handler_failed: no disk",
        "✗ failed first  no ␛[2Jdisk",
        "replayed 2 times",
        "parent     m1",
    ):
        assert words in told


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS.keys())
def test_what_strangers_write_is_safe_to_show(text: str) -> None:
    names = ("message_id", "target", "target_kind", "target_subject", "subject", "sender", "status", "code", "reason")
    span = a_span("m", text, **dict.fromkeys(names, text), ancestors=(text,), replay_of=text)
    span = span.model_copy(update={"outcomes": ({"handler": text, "ok": False, "error": text},)})
    waterfall = Waterfall([span, a_span("child", text)])
    cells = [cell for at in range(2) for cell in SpanRows(waterfall, 80, NOW)[at].cells]
    found = TraceList(TraceQuery())
    row = TraceSummary(
        message_id=text,
        subject=text,
        sender=text,
        sent_at=NOW,
        trace_id=text,
        parent_id=text,
        status=text,
        code=text,
        targets=1,
        size=1,
    )
    found.follow(TracePage(rows=[row], complete=True))
    cells += found[0].cells
    pieces = [cell if isinstance(cell, str) else cell[0] for cell in cells]
    told = [piece for line in wrapped(span_lines(span, waterfall, NOW), 80) for piece in line]
    told += found.note(following=False, looking=False, search=text)
    assert all(text.isprintable() for text in [*pieces, *(text for text, _ in told)])


def test_a_long_line_goes_on_below_and_loses_nothing() -> None:
    long = line((" why       ", "dim"), ("code", "bad"), ": ", "the disk of this machine is full of old letters")
    rows = list(wrapped([long], 30, indent=11))
    assert [width_of(row) <= 30 for row in rows] == [True] * len(rows)
    said = " ".join("".join(text for text, _ in row).strip() for row in rows)
    assert said == "why       code: the disk of this machine is full of old letters"
    assert list(wrapped([long], 200)) == [long]


EXTREMES = (0.0, -1e308, 1e308, -(2.0**63), 2.0**63, 5e-324)


@pytest.mark.parametrize("last", EXTREMES)
@pytest.mark.parametrize("first", EXTREMES)
def test_times_that_are_none_are_drawn_and_told(first: float, last: float) -> None:
    spans = [
        a_span("m1", sent_at=first, stored_at=last, claimed_at=first, handled_at=last, size=2**63),
        a_span("m2", "m1", sent_at=last, claimed_at=first, expires_at=2**63, status="cur"),
    ]
    waterfall = Waterfall(spans)
    rows = SpanRows(waterfall, 80, NOW)
    assert [column.width for column in rows.columns()]
    for at, span in enumerate(spans):
        assert rows[at].key
        assert list(span_lines(span, waterfall, NOW))
