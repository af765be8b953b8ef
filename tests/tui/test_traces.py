from __future__ import annotations

from pathlib import Path

import pytest

from relay_core.client.client import RelayClient
from relay_core.messages.delivery import TracePage as TracesPage
from relay_core.messages.delivery import TraceSummary
from relay_core.messages.filter_language import FilterError
from relay_tui.views.traces.query import TraceQuery, parse_query
from relay_tui.views.traces.trace_list import TraceList
from relay_tui.views.traces.view import Traces
from tests.kit.supervisor import a_client, a_supervisor
from tests.tui.driver import Driver, a_dashboard

A, B, C = "relay.agent.a", "relay.agent.b", "relay.agent.c"


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("", TraceQuery()),
        ("01ka5q", TraceQuery(id="01KA5Q")),
        ("id=01K", TraceQuery(id="01K")),
        ("relay.agent.*", TraceQuery(subject="relay.agent.*")),
        ("subject~Agent from~b", TraceQuery(subject="Agent", sender="b")),
        ("subject=relay.a.b", TraceQuery(subject="relay.a.b", whole=frozenset({"subject"}))),
        ("from=relay.>", TraceQuery(sender="relay.>")),
        ("status=Failed since=10m", TraceQuery(status="failed", max_age_ms=600_000)),
        ("age<10m age>1m", TraceQuery(max_age_ms=600_000, min_age_ms=60_000)),
        ("subject=relay.a.b subject~c", TraceQuery(subject="c")),
        ("status=waiting", TraceQuery(status="new")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_search_is_a_few_words(text: str, query: TraceQuery) -> None:
    assert parse_query(text) == query


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bang!", "subject~bang!"),
        ("status=bad", "there are cur, done"),
        ("status~fail", "write status="),
        ("since=soon", "write it like 90s"),
        ("colour=red", "no field"),
        ("from=", "nothing follows from="),
        ("!from=a", "cannot exclude anything"),
        ("subject~a reason~b", "the fields are id, subject, from, status, age, since"),
        ("id=xyz!", "is not the prefix of a message id"),
    ],
    ids=lambda value: value,
)
def test_what_is_no_search_says_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(FilterError, match=says):
        parse_query(text)


def a_row(id: str, status: str = "done", subject: str = A) -> TraceSummary:
    return TraceSummary(
        message_id=id, subject=subject, sender=B, sent_at=0.0, trace_id=id, status=status, targets=1, size=1
    )


def a_page(*ids: str, complete: bool = True, cursor: str | None = None, status: str = "done") -> TracesPage:
    return TracesPage(rows=[a_row(id, status) for id in ids], complete=complete, cursor=cursor)


def shown(found: TraceList) -> list[str]:
    return [found[at].key for at in range(len(found))]


def test_a_list_that_stands_still_counts_what_is_newer_and_keeps_its_rows_up_to_date() -> None:
    found = TraceList(TraceQuery())
    found.follow(a_page("5", "4", cursor="4", status="new"))
    found.extend(a_page("3", "2"))
    found.stand_still(a_page("7", "6", "5", "4"))
    assert (shown(found), found.newer) == (["5", "4", "3", "2"], 2)
    assert [row.status for row in (found.get("5"), found.get("3")) if row] == ["done", "done"]
    found.stand_still(a_page("9", "8", cursor="8"))
    assert (found.newer, found.more_newer) == (2, True)
    found.follow(a_page("9", "8", cursor="8"))
    assert (shown(found), found.newer, found.cursor) == (["9", "8"], 0, "8")


def test_a_search_that_the_bus_cuts_short_keeps_what_was_found_further_back() -> None:
    found = TraceList(TraceQuery())
    found.follow(a_page("5", complete=False, cursor="5"))
    found.extend(a_page("2", cursor="1"))
    found.follow(a_page("6", "5", complete=False, cursor="4"))
    assert (shown(found), found.cursor) == (["6", "5", "2"], "1")


def test_the_whole_of_a_subject_is_no_part_of_another() -> None:
    found = TraceList(parse_query(f"subject={A}"))
    found.follow(TracesPage(rows=[a_row("2", subject=f"{A}.more"), a_row("1")], complete=True))
    assert shown(found) == ["1"]


async def a_conversation(client: RelayClient) -> list[str]:
    """Let A ask B, who asks C and a subject with nobody behind it; return the ids."""
    for subject in (A, B, C):
        await client.register_endpoint(subject)
    first = await client.publish(B, {"content": "build it"}, sender=A)
    await client.claim(B)
    second = await client.publish(C, {"content": "test it"}, sender=B, parent_id=first.message_id)
    third = await client.publish("relay.agent.lost", 1, sender=B, parent_id=first.message_id)
    await client.complete(B, first.message_id)
    return [first.message_id, second.message_id, third.message_id]


async def look_at_traces(tui: Driver) -> Traces:
    await tui.press("5")
    assert isinstance(tui.view, Traces)
    return tui.view


async def search_for(tui: Driver, text: str) -> None:
    await tui.press("/")
    await tui.press("ctrl+u")
    await tui.type(text)
    await tui.press("enter")


async def test_a_conversation_is_a_waterfall_with_parent_and_children(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        first, second, third = await a_conversation(client)
        async with a_dashboard(supervisor) as tui:
            traces = await look_at_traces(tui)
            await tui.until("● following")
            await tui.until(lambda: traces._messages.keys == [third, second, first])
            await search_for(tui, first)
            await tui.until(lambda: traces._messages.keys == [first])
            await tui.press("enter")
            await tui.until("nothing is selected: j picks a row")
            await tui.press("j", "enter")
            await tui.until("3 spans of 3 messages")
            text = tui.text()
            assert "├ relay.agent.c" in text
            assert "└ relay.agent.lost" in text
            assert "█" in text
            assert "hops 0 → 1 of 5" in text
            assert f"children 2  {second}  {third}" in text

            await tui.press("G")
            await tui.until("no matching endpoints or adapters")
            assert f"parent     {first}" in tui.text()
            await tui.press("u")
            await tui.until("calls left 10 → 9")
            await tui.press("enter")
            await tui.until("its descendants")
            await tui.press("escape")
            await tui.until("its conversation")
            await tui.press("escape")
            await tui.until("messages, newest first")


async def test_another_screen_leads_to_a_trace_and_a_trace_to_its_dead_letter(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        *_, third = await a_conversation(client)
        async with a_dashboard(supervisor) as tui:
            await tui.app.goto("traces", third)
            await tui.until("3 spans of 3 messages")
            await tui.until(rf"message    {third}")
            await tui.press("d")
            await tui.until(lambda: tui.view.NAME == "dead-letters")


async def test_messages_are_found_by_id_subject_sender_and_status(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        first, second, third = await a_conversation(client)
        async with a_dashboard(supervisor) as tui:
            for search, found in (
                (first, []),  # it opens
                (first[:24], [id for id in (third, second, first) if id.startswith(first[:24])]),  # of one millisecond
                ("status=no_subscriber", [third]),
                (f"subject={C}", [second]),
                ("subject~AGENT.C", [second]),
                (f"from={B}", [third, second]),
                ("from=relay.*.a since=1h", [first]),
                ("relay.agent.*", [third, second, first]),
                ("subject~nothing", []),
            ):
                await tui.app.goto("traces", search)
                traces = tui.view
                assert isinstance(traces, Traces)
                if search == first:
                    await tui.until("its conversation")
                elif found:
                    await tui.until(lambda wanted=found, traces=traces: traces._messages.keys == wanted)  # type: ignore[misc]
                else:
                    await tui.until("no match: esc clears the search")


async def test_the_list_follows_until_the_operator_moves(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        ids = [(await client.publish(A, n, sender=B)).message_id for n in range(5)]
        async with a_dashboard(supervisor) as tui:
            traces = await look_at_traces(tui)
            await tui.until(lambda: traces._messages.keys == ids[::-1])
            ids.append((await client.publish(A, 5, sender=B)).message_id)
            await tui.until(lambda: traces._messages.keys == ids[::-1])
            assert traces._messages.is_following  # what is on top changes: nothing is selected before it is picked

            await tui.press("j", "j")
            ids += [(await client.publish(A, n, sender=B)).message_id for n in (6, 7)]
            await tui.until("2 newer: press g")
            assert traces._messages.key == ids[4]
            assert ids[7] not in traces._messages.keys

            await tui.press("g")
            await tui.until(lambda: traces._messages.keys == ids[::-1])
            await tui.until("● following")
            assert traces._messages.key is None


async def test_more_is_asked_for_as_the_end_comes_near(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        results = await client.publish_many([{"subject": A, "payload": n, "sender": B} for n in range(250)])
        async with a_dashboard(supervisor) as tui:
            traces = await look_at_traces(tui)
            await tui.until(lambda: len(traces._messages.keys) == 100)
            await tui.press("G")
            await tui.until(lambda: len(traces._messages.keys) == 200)
            await tui.press("G")
            await tui.until(lambda: len(traces._messages.keys) == len(results))


async def test_a_wrong_search_changes_nothing_and_says_what_would_be_right(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        ids = await a_conversation(client)
        async with a_dashboard(supervisor) as tui:
            traces = await look_at_traces(tui)
            await search_for(tui, "since=soon")
            await tui.until("write it like 90s, 10m")
            await tui.until(lambda: traces._messages.keys == ids[::-1])


async def test_the_id_is_copied_and_so_is_the_command(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        *_, newest = await a_conversation(client)
        async with a_dashboard(supervisor) as tui:
            traces = await look_at_traces(tui)
            await tui.until(lambda: newest in traces._messages.keys)
            await tui.press("j", "y")
            await tui.until(lambda: tui.app.clipboard == newest)
            await tui.press("Y")
            await tui.until(lambda: tui.app.clipboard == f"relay trace {newest}")
