from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from relay_core.client import RelayClient
from relay_core.deadletters import DeadLetterFilter
from relay_core.protocol import DeadLetterSummaries
from relay_tui.actions import Registry
from relay_tui.app import all_actions
from relay_tui.lines import Line, Lines
from relay_tui.table import LiveTable
from relay_tui.views.dead_letters.list import Listing
from tests.supervisor.daemon import a_daemon
from tests.supervisor.inside import a_client, a_supervisor
from tests.tui.desk import Desk, a_dashboard
from tests.tui.letters import FLAKY, MAILROOM, astray, ids, refused


def rows(desk: Desk) -> list[str]:
    """Return the lines of the list: those below the line that begins with AGE."""
    lines = desk.text().split("\n")
    start = next(at for at, one in enumerate(lines) if one.split()[:1] == ["AGE"])
    return [one for one in lines[start + 1 :] if "relay." in one and "→" not in one]


def letters(desk: Desk) -> LiveTable:
    return desk.view.query_one("#letters", LiveTable)


def groups(desk: Desk) -> LiveTable:
    return desk.view.query_one("#letters-groups", LiveTable)


def under_cursor(desk: Desk) -> str:
    """Return the id of the row under the cursor, as the line below the list has it."""
    return next(one.split()[0] for one in desk.text().split("\n") if "→" in one)


async def test_groups_say_reason_target_count_and_growth_and_lead_to_their_letters(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 3)
        await astray(client, 2)
        async with a_dashboard(supervisor) as desk:
            await desk.press("6")
            await desk.until("5 dead letters in 2 groups")
            await desk.until(r"consumer_failed +relay.agent.flaky +3 +steady")
            await desk.until("5 match")
            assert len(rows(desk)) == 5

            await desk.until(lambda: len(desk.app.store.history.dead.series("", 9)) > 1)
            await astray(client, 4)
            await desk.until(r"no_match +relay.agent.nobody +6 +▲ 4 in")

            await desk.press("tab", "enter")
            await desk.until("nothing is selected: j picks a row")
            await desk.press("j")
            await desk.until("▶ no_match")  # it is the largest now
            await desk.press("j", "enter")
            await desk.until(r"/ code=consumer_failed to=relay.agent.flaky +3 match")
            assert [FLAKY in one for one in rows(desk)] == [True] * 3


async def test_a_filter_acts_with_every_key_and_one_that_is_wrong_leaves_the_list(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 2, reason="timeout after 3 s", colour="green")
        await refused(client, MAILROOM, 3, colour="blue")
        async with a_dashboard(supervisor) as desk:
            await desk.press("6")
            await desk.until("5 match")
            await desk.press("/")
            await desk.type("to~mail")
            await desk.until("/ to~mail  3 match")
            await desk.type(" age<")
            await desk.until("✗ ")
            assert "to~mail  3 match" in desk.text()
            assert len(rows(desk)) == 3
            await desk.press("escape")
            await desk.until("no filter  5 match")
            assert "✗ " not in desk.text()

            for text, count in {
                "reason~TIMEOUT": "2 match",
                "!reason~timeout": "3 match",
                f"from~shop to={FLAKY}": "2 match",
                "green": "2 found",
                "!green": "3 found",
            }.items():
                await desk.app.goto("dead-letters", text)
                await desk.until(count)
                assert f"/ {text}" in desk.text()
            await desk.press("escape")
            await desk.until("no filter  5 match")


async def test_the_name_of_a_field_is_not_searched_for_before_it_is_typed_to_its_end(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await astray(client, 2)
        async with a_dashboard(supervisor) as desk:
            await desk.press("6")
            await desk.until("2 match")
            await desk.press("/")
            await desk.type("reas")
            assert len(rows(desk)) == 2
            await desk.press("enter")
            await desk.until("/ reas  0 found")


async def test_the_cursor_stays_with_its_letter_and_newer_ones_are_counted(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await astray(client, 6)
        async with a_dashboard(supervisor) as desk:
            await desk.press("6")
            await desk.until("6 match")
            await astray(client)
            await desk.until("7 match")
            newest = await ids(client)
            await desk.press("j", "j", "j", "j")  # the first picks the newest
            await desk.until(lambda: under_cursor(desk) == newest[3])
            await astray(client, 2)
            await desk.until("▲ 2 newer: g")
            assert under_cursor(desk) == newest[3]
            await client.purge_dead_letters(ids=[newest[2], newest[4]])
            await desk.until("7 match")
            assert under_cursor(desk) == newest[3]
            await client.purge_dead_letters(ids=[newest[3]])
            await desk.until(lambda: under_cursor(desk) == newest[5])  # the one that took its place

            await desk.press("g")
            await desk.until("following the newest: j picks a row")
            assert "newer:" not in desk.text()
            assert letters(desk).key is None


async def test_while_the_list_follows_nothing_is_called_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    show = Lines.show

    def noted(self: Lines, lines: Iterable[Line]) -> None:
        lines = list(lines)
        told.extend("".join(text for text, _ in line) for line in lines if self.id == "letters-filter")
        show(self, lines)

    monkeypatch.setattr(Lines, "show", noted)
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await astray(client, 2)
        async with a_dashboard(supervisor) as desk:
            await desk.press("6")
            await desk.until("2 match")
            await astray(client)
            await desk.until("3 match")
            assert [one for one in told if "newer" in one] == []


async def test_nothing_is_selected_while_the_list_follows_and_a_row_that_was_picked_stays_it(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, reason="no stock\nat call()")
        async with a_dashboard(supervisor) as desk:
            await desk.press("6")
            await desk.until("1 match")
            for key in ("P", "E", "X", "W", "t", "m", "y", "Y", "enter"):
                desk.app.clear_notifications()
                await desk.press(key)
                await desk.until("nothing is selected: j picks a row")
                assert desk.app.screen is desk.app.desk
                assert desk.view.NAME == "dead-letters"

            await desk.press("j")
            await astray(client, 3)
            await desk.until("▲ 3 newer: g")
            (one,) = await client.dead_letters(filter=DeadLetterFilter(where=f"to={FLAKY}"))
            about = f"{one.message_id}: consumer_failed at {FLAKY}, from relay.agent.shop: no stock"
            for key in ("X", "P"):
                await desk.press(key)
                await desk.until(lambda: about in " ".join(desk.text().split()).replace("│ ", ""))
                await desk.press("escape")
                await desk.until(lambda: desk.app.screen is desk.app.desk)


async def test_the_largest_groups_stay_in_sight_until_somebody_moves_among_them(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await astray(client, 2, "relay.agent.first")
        async with a_dashboard(supervisor) as desk:
            await desk.press("6")
            await desk.until("no_match +relay.agent.first")
            for number in range(9):
                await astray(client, 3 + number, f"relay.agent.later{number}")
            await desk.until("65 dead letters in 10 groups")
            assert re.search(r"no_match +relay.agent.later8 ", desk.text())
            assert not re.search(r"no_match +relay.agent.first ", desk.text().partition(" / ")[0])
            await desk.press("tab", "j")
            await desk.until("▶ no_match +relay.agent.later8")
            await astray(client, 15, "relay.agent.larger")
            await desk.until("80 dead letters in 11 groups")
            assert groups(desk).key == groups(desk).keys[1]  # it has stayed with its group
            await desk.press("g")
            await desk.until(r"CODE.*\n +no_match +relay.agent.larger")


async def test_a_search_in_bodies_keeps_what_it_has_found_when_another_letter_comes(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 2, needle="haystack")
        await astray(client, 2500)
        listing = Listing(lambda: client, lambda: None)
        await listing.ask("haystack")
        assert len(listing.rows) == 2
        await astray(client)
        await listing.renew(0, 10, at_top=True)
        assert len(listing.rows) == 2
        await refused(client, MAILROOM, 1, needle="haystack")
        await listing.renew(0, 10, at_top=True)
        assert len(listing.rows) == 3


async def test_the_operators_own_keys_hold_in_the_letter_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('purge = ""\nplan = "f9"\ndown = "n"\n')
    monkeypatch.setenv("RELAY_KEYS", str(keys))
    async with a_supervisor(tmp_path / "data") as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY)
        async with a_dashboard(supervisor) as desk:
            await desk.press("6")
            await desk.until("1 match")
            await desk.press("n", "enter")
            await desk.until("n k: move · f9 plan · E edit · t trace · m mailbox · y copy · esc close")
            await desk.press("X", "P")
            await desk.until("Body")
            await desk.press("f9")
            await desk.until("Replay 1 of 1 dead letter")


async def test_of_a_long_body_only_the_beginning_is_laid_out(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, reason="漢" * 200_000, text="漢" * 200_000, list=list(range(20_000)))
        async with a_dashboard(supervisor) as desk:
            await desk.press("6")
            await desk.until("1 match")
            await desk.press("j", "enter")
            await desk.until("Why it failed")
            lines = desk.app.screen.query_one(Lines)
            await desk.until(lambda: any("it goes on" in text for line in lines.lines for text, _ in line))
            assert len(lines.lines) < 1000


async def test_a_replay_that_ended_with_its_supervisor_is_told_of(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, a_dashboard(None, socket=daemon.socket, data_dir=daemon.data_dir) as desk:
        async with daemon.client() as client:
            await refused(client, FLAKY, 3)
            plan = await client.freeze_replay()
            await client.start_replay(plan.id, rate=0.001)
        await desk.until("● live")
        await desk.press("6")
        await desk.until("▶ running +█+ +1 of 3")
        await daemon.kill()
        await daemon.start()
        await desk.until("✗ a replay of 3 was interrupted at 1: P plans the rest")
        await desk.press("escape")
        await desk.until(lambda: "interrupted" not in desk.text())


async def test_marks_outlive_filters_and_all_in_a_filter_ends_with_it(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 2)
        await astray(client, 3)
        async with a_dashboard(supervisor) as desk:
            await desk.press("6")
            await desk.until("5 match")
            await desk.press("space")  # picks the first
            assert "marked" not in desk.text()
            await desk.press("space", "j", "space")
            await desk.until("● 2 marked")
            assert [" ●" in one or "▶●" in one for one in rows(desk)] == [True, False, True, False, False]
            await desk.app.goto("dead-letters", "code=consumer_failed")
            await desk.until("2 match · ● 2 marked, 2 not in this list")
            await desk.press("escape", "escape")
            await desk.until("no filter  5 match")
            assert "marked" not in desk.text()

            await desk.press("a")
            await desk.until("● all 5 in this filter marked")
            await desk.press("g", "j", "space")
            await desk.until("● all 5 in this filter marked but 1")
            assert ["●" in one for one in rows(desk)] == [False, True, True, True, True]
            await desk.app.goto("dead-letters", "code=no_match")
            await desk.until("3 match")
            assert "marked" not in desk.text()


async def test_cursor_marks_and_filter_survive_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, a_dashboard(None, socket=daemon.socket, data_dir=daemon.data_dir) as desk:
        async with daemon.client() as client:
            await astray(client, 4)
            every = await ids(client)
        await desk.until("● live")
        await desk.app.goto("dead-letters", "code=no_match")
        await desk.until("code=no_match  4 match")
        await desk.press("j", "space", "j")
        await desk.until(lambda: under_cursor(desk) == every[2])
        await daemon.kill()
        await desk.until("STALE")
        assert "code=no_match  4 match · ● 1 marked" in desk.text()
        await daemon.start()
        async with daemon.client() as client:
            await client.purge_dead_letters(ids=[every[1]])
        await desk.until("code=no_match  3 match · ● 1 marked")
        assert under_cursor(desk) == every[2]


async def test_a_long_list_is_held_as_far_as_it_was_scrolled_to(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await astray(client, 900)
        every = await ids(client)
        async with a_dashboard(supervisor, size=(80, 24)) as desk:
            await desk.press("6")
            await desk.until("900 match")
            held = desk.view.query_one("#letters")._rows  # type: ignore[attr-defined]
            assert len(held) == 100
            await desk.press("G")
            await desk.until(lambda: under_cursor(desk) == every[-1])
            assert len(held) == 900
            await client.purge_dead_letters(ids=every[890:899])  # far from the top, and in sight
            await desk.until("891 match")
            await desk.until(lambda: len(held) == 891)
            assert under_cursor(desk) == every[-1]


async def test_the_detail_has_error_headers_body_and_trace_and_is_safe(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, reason="first line\n\x1b[31m at call()", content="[b]order[/b] \x1b[2J")
        async with a_dashboard(supervisor) as desk:
            await desk.press("6")
            await desk.until("1 match")
            await desk.press("j", "enter")
            await desk.until("Trace")
            text = desk.text()
            for part in (
                "consumer_failed at relay.agent.flaky",
                "  first line",
                "␛[31m at call()",
                f"from      {'relay.agent.shop'}",
                f"to        {FLAKY}",
                "hop 1 of",
                "its own copy: a replay goes back to it",
                '"content": "[b]order[/b] \\u001b[2J"',
                "failed         relay.agent.flaky",
            ):
                assert part in text, part
            assert "\x1b" not in text
            await desk.press("escape")
            await desk.until(lambda: "Trace" not in desk.text())


async def test_a_letter_that_is_gone_meanwhile_says_so(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await astray(client, 2)
        async with a_dashboard(supervisor) as desk:
            await desk.press("6")
            await desk.until("2 match")
            await desk.press("j")
            await desk.until(lambda: "→" in desk.text())
            await desk.press("p")  # the display stands still, so the row stays
            await client.purge_dead_letters(ids=[under_cursor(desk)])
            await desk.press("enter")
            await desk.until("it was replayed or purged meanwhile")


@pytest.mark.parametrize("key", ["E", "X", "W", "Z", "C"])
def test_nothing_that_changes_exists_when_only_reading(key: str) -> None:
    assert Registry(all_actions()).by_key("dead-letters", key) is not None
    assert Registry(all_actions(), read_only=True).by_key("dead-letters", key) is None


async def test_only_reading_a_plan_can_be_made_and_not_started(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY)
        async with a_dashboard(supervisor, read_only=True) as desk:
            await desk.press("6")
            await desk.until("1 match")
            await desk.press("j", "enter")
            await desk.until("Body")
            assert "edit" not in desk.text()
            await desk.press("E", "X", "P")
            await desk.until("read-only: it cannot be started")
            await desk.press("enter", "R", "escape")
            await desk.until(lambda: "read-only: it" not in desk.text())
        assert await client.replays() == []
        assert len(await ids(client)) == 1


@pytest.mark.parametrize(
    ("at", "at_top"), [(0, True), (0, False), (2, False)], ids=["following", "at the top", "further down"]
)
async def test_however_many_are_newer_none_is_missing(tmp_path: Path, at: int, at_top: bool) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await astray(client, 4)
        listing = Listing(lambda: client, lambda: None)
        await listing.ask("")
        key = listing.rows[at].key
        await astray(client, 1300)
        await listing.renew(at, 10, at_top=at_top)
        assert listing.total == 1304
        every = [letter.cursor for letter in await client.dead_letters()][::-1]
        assert [listing.rows[at].key for at in range(len(listing.rows))] == every[: len(listing.rows)]
        assert at_top or listing.rows.find(key) == 1300 + at
        listing.wants_all = True
        await listing.more()
        assert [listing.rows[at].key for at in range(len(listing.rows))] == every


class LateClient(RelayClient):
    """A client that gets the answer about one filter late."""

    def __init__(self, *where: Any, **options: Any) -> None:
        super().__init__(*where, **options)
        self.released = asyncio.Event()

    async def dead_letter_summaries(
        self, *, filter: DeadLetterFilter | None = None, cursor: str | None = None, limit: int = 100
    ) -> DeadLetterSummaries:
        answer = await super().dead_letter_summaries(filter=filter, cursor=cursor, limit=limit)
        if filter is not None and filter.where == "code=expired":
            await self.released.wait()
        return answer


async def test_the_newest_question_wins_however_long_the_older_takes(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, LateClient(supervisor.socket, data_dir=tmp_path) as client:
        await astray(client, 3)
        listing = Listing(lambda: client, lambda: None)
        async with asyncio.TaskGroup() as group:
            group.create_task(listing.ask("code=expired"))
            await asyncio.sleep(0)
            await listing.ask("code=no_match")
            client.released.set()
        assert (listing.text, listing.total, len(listing.rows)) == ("code=no_match", 3, 3)
        assert not listing.is_asking
