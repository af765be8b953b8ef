from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relay_core.protocol.live_state import LiveMailbox
from relay_tui.views.excerpt import SHOWN, excerpt
from relay_tui.views.mailboxes.ranking import Ranking
from relay_tui.widgets.table import LiveTable, Row
from tests.kit.supervisor import a_client, a_supervisor
from tests.kit.waiting import until
from tests.tui.driver import Driver, a_dashboard

SMALL_BOXES = {"reliability": {"backpressure": {"maxMailboxSize": 10}, "rateLimit": {"maxPerWindow": 20}}}


def subjects(tui: Driver) -> list[str]:
    """Return the mailboxes in the order in which they are shown."""
    boxes = tui.app.store.state.mailboxes
    return [boxes[key].subject.rpartition(".")[2] for key in tui.view.query_one("#boxes", LiveTable).keys]


async def test_mailboxes_and_senders_say_how_they_are(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path, SMALL_BOXES) as supervisor, a_client(supervisor) as client:
        for name in ("calm", "full"):
            await client.register_endpoint(f"relay.agent.{name}")
        for _ in range(10):
            await client.publish("relay.agent.full", "work", sender="relay.desk.a")
        await client.claim("relay.agent.full")
        async with a_dashboard(supervisor) as tui:
            await tui.press("3")
            await tui.until(r"relay.agent.full +▲ warning +█+ +90% +9 . +\d+s +– +1 +0 +0 endpoint")
            await tui.until(r"relay.agent.calm +● ok +0% +0 · +– +– +0 +0 +0 endpoint")
            await tui.until(r"relay.desk.a +● ok +█+ +50% +10 +20 +\d+s +in \d+s")


async def test_o_goes_through_the_orders(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path, SMALL_BOXES) as supervisor, a_client(supervisor) as client:
        for name, count in (("c", 1), ("a", 0), ("b", 3)):
            await client.register_endpoint(f"relay.agent.{name}")
            for _ in range(count):
                await client.publish(f"relay.agent.{name}", 1, sender="relay.desk.a")
        async with a_dashboard(supervisor) as tui:
            await tui.press("3")
            await tui.until("by pressure")
            await tui.until(lambda: subjects(tui) == ["b", "c", "a"])
            await tui.press("o")
            await tui.until("by depth")
            assert subjects(tui) == ["b", "c", "a"]
            await tui.press("o")
            await tui.until("by oldest")
            assert subjects(tui) == ["c", "b", "a"]
            await tui.press("o")
            await tui.until("by name")
            assert subjects(tui) == ["a", "b", "c"]


async def test_a_filter_shows_what_has_it_in_its_subject_and_escape_takes_it_away(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        for name in ("alpha", "beta", "alphabet"):
            await client.register_endpoint(f"relay.agent.{name}")
        async with a_dashboard(supervisor) as tui:
            await tui.press("3")
            await tui.until("relay.agent.beta")
            await tui.press("/")
            await tui.type("ALPHA")
            await tui.until("2 of 3")  # as it is typed
            await tui.press("enter")
            assert subjects(tui) == ["alpha", "alphabet"]
            await tui.press("j")
            await tui.until("▶ relay.agent.alphabet")
            await tui.press("escape")
            await tui.until("relay.agent.beta")
            assert "▶ relay.agent.alphabet" in tui.text()


async def test_an_open_mailbox_shows_its_mail_and_takes_none(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint("relay.agent.a")
        first = await client.publish(
            "relay.agent.a", {"content": "the first\x1b[31m"}, sender="relay.desk.x", reply_to="relay.desk.y"
        )
        async with a_dashboard(supervisor) as tui:
            await tui.press("3")
            await tui.until("relay.agent.a")
            await tui.press("enter")
            await tui.until(rf"id +{first.message_id}")
            await tui.until(r"reply to +relay.desk.y")
            await tui.until("created .*; expires in")
            await tui.until(r"budget +hop \d of 5, \d+ calls left")
            await tui.until(r"the first\\u001b\[31m")

            await client.publish("relay.agent.a", {"content": "the second"}, sender="relay.desk.z")
            await tui.until("relay.desk.z")  # it follows the mailbox
            assert rf"id         {first.message_id}" in tui.text()
            await tui.press("j")
            await tui.until(r"from +relay.desk.z")

            await tui.press("escape")
            await tui.until("Senders")
        assert len(await client.claim("relay.agent.a", 5)) == 2


async def test_a_message_leads_to_its_trace(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint("relay.agent.a")
        await client.publish("relay.agent.a", 1, sender="relay.desk.x")
        async with a_dashboard(supervisor) as tui:
            await tui.press("3")
            await tui.until("relay.agent.a")
            await tui.press("t")  # there is no message yet
            assert tui.view.NAME == "mailboxes"
            await tui.press("enter")
            await tui.until("relay.desk.x")
            await tui.press("t")
            await tui.until(lambda: tui.view.NAME == "traces")


async def test_y_copies_what_the_cursor_is_on_and_capital_y_a_command(tmp_path: Path, own_places: Path) -> None:
    copied = own_places / "run" / "relay" / "clipboard.txt"
    async with a_supervisor(tmp_path / "data") as supervisor, a_client(supervisor) as client:
        await client.register_endpoint("relay.agent.a")
        sent = await client.publish("relay.agent.a", 1, sender="relay.desk.x")
        async with a_dashboard(supervisor) as tui:
            await tui.press("3")
            await tui.until("relay.agent.a")
            found = {}
            for key in ("y", "Y"):
                await tui.press(key)
                found[key] = copied.read_text()
            assert found == {"y": "relay.agent.a", "Y": "relay inbox relay.agent.a"}
            await tui.press("enter")
            await tui.until("relay.desk.x")
            await tui.press("y")
            assert copied.read_text() == sent.message_id


async def test_a_long_message_is_wrapped_and_can_be_scrolled(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint("relay.agent.a")
        await client.publish("relay.agent.a", {"long": "x" * 3000 + "the end"}, sender="relay.desk.x")
        async with a_dashboard(supervisor, size=(80, 24)) as tui:
            await tui.press("3")
            await tui.until("relay.agent.a")
            await tui.press("enter")
            await tui.until("Message tab to scroll it")
            await tui.press("tab")
            await tui.until("▶ Message")
            await tui.press("G")
            await tui.until("the end")


async def test_an_endpoint_is_registered_and_unregistered(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint("relay.agent.a")
        async with a_dashboard(supervisor) as tui:
            await tui.press("3")
            await tui.until("relay.agent.a")
            await tui.press("N")
            await tui.until("Which subject")
            await tui.type("relay.agent.new")
            await tui.press("enter")
            await tui.until("▶ relay.agent.new")

            await tui.press("U")
            await tui.until("Unregister relay.agent.new?")
            await tui.press("escape")
            assert len(await client.endpoints()) == 2
            await tui.press("U")
            await tui.until("Type unregister and press enter")
            await tui.confirm("unregister")
            await until(lambda: _names(client, ["relay.agent.a"]))


async def _names(client: object, expected: list[str]) -> bool:
    return [endpoint.subject for endpoint in await client.endpoints()] == expected  # type: ignore[attr-defined]


async def test_what_is_no_subject_is_told_and_nothing_ends(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("3")
        await tui.until("no endpoint is registered yet")
        await tui.press("N")
        await tui.until("Which subject")
        await tui.type("not..one")
        await tui.press("enter")
        await tui.until(r"Register an endpoint: .*not\.\.one")


async def test_another_screen_leads_to_a_mailbox_or_a_sender(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path, SMALL_BOXES) as supervisor, a_client(supervisor) as client:
        for name in ("a", "b"):
            await client.register_endpoint(f"relay.agent.{name}")
            await client.publish("relay.agent.a", 1, sender=f"relay.desk.{name}")
        async with a_dashboard(supervisor) as tui:
            await tui.until(lambda: len(tui.app.store.state.senders) == 2)
            await tui.app.goto("mailboxes", "relay.agent.b")
            await tui.until("▶ relay.agent.b")
            await tui.app.goto("mailboxes", "sender:relay.desk.b")
            await tui.until("▶ relay.desk.b")


def box(subject: str, depth: int = 0) -> LiveMailbox:
    return LiveMailbox(
        subject=subject, kind="endpoint", registered=True, depth=depth, claimed=0, failed=0, pressure=0, consumers=0
    )


class Counted:
    """A rank that counts how often it was asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, mailbox: LiveMailbox) -> int:
        self.asked += 1
        return -mailbox.depth


def test_nothing_is_sorted_while_no_row_has_changed() -> None:
    rank = Counted()
    boxes = {name: box(name) for name in "abc"}
    ranking = Ranking[LiveMailbox](lambda _, mailbox: mailbox.subject, lambda key: Row(key, ()))
    assert ranking.rows(boxes, rank, "", 0.0).keys == ["a", "b", "c"]
    assert ranking.rows(boxes, rank, "", 5.0).keys == ["a", "b", "c"]
    assert rank.asked == 3
    boxes["c"] = box("c", 7)
    assert ranking.rows(boxes, rank, "", 9.0).keys == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("change", "now", "is_sorted"),
    [
        pytest.param("depth", 0.9, False, id="a depth, at once"),
        pytest.param("depth", 1.0, True, id="a depth, a second later"),
        pytest.param("gone", 0.1, True, id="one is gone"),
        pytest.param("filter", 0.1, True, id="another filter"),
    ],
)
def test_rows_are_sorted_once_a_second(change: str, now: float, is_sorted: bool) -> None:
    rank = Counted()
    boxes = {f"{at:04}": box(f"{at:04}") for at in range(500)}
    ranking = Ranking[LiveMailbox](lambda _, mailbox: mailbox.subject, lambda key: Row(key, ()))
    ranking.rows(boxes, rank, "", 0.0)
    asked = rank.asked
    boxes["0400"] = box("0400", 7)
    if change == "gone":
        del boxes["0001"]
    order = ranking.rows(boxes, rank, "0" if change == "filter" else "", now).keys
    assert (order[0] == "0400") is is_sorted
    assert (rank.asked > asked) is is_sorted
    assert change != "gone" or "0001" not in order


async def test_the_cursor_is_on_this_screen_when_one_comes_from_another_table(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint("relay.agent.a")
        async with a_dashboard(supervisor) as tui:
            await tui.press("2", "3")
            await tui.until("▶ relay.agent.a")
            await tui.press("enter")
            await tui.until("no messages are waiting")
            await tui.press("2", "3")
            assert tui.app.focused is tui.view.query_one("#mail", LiveTable)


def nested(depth: int) -> Any:
    """Return lists in lists."""
    return [nested(depth - 1)] if depth else 1


BIG = 1 << 20
BODIES: dict[str, Any] = {
    "wide characters": "你" * (BIG // 3),
    "combining marks": "a\u0301\u0320" * (BIG // 5),
    "signs that turn the text around": "\u202e" * (BIG // 3),
    "line feeds": "\n" * (BIG // 2),
    "many numbers": [1] * 150_000,
    "many names": {f"{at}": at for at in range(70_000)},
    "one list in another": nested(250),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_of_a_large_body_only_the_beginning_is_written_out(body: Any) -> None:
    shown = excerpt(body)
    assert "only the start is shown" in shown[-1]
    assert len(shown) <= 1001
    # What costs time is each character; an escape has six for one.
    assert sum(map(len, shown)) <= 6 * SHOWN + 100 * len(shown)


def test_a_body_that_is_not_large_is_shown_whole() -> None:
    body = {"content": "x" * 5000, "list": list(range(300))}
    assert json.loads("\n".join(excerpt(body))) == body
