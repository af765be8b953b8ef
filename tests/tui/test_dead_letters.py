from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from relay_core.client.client import RelayClient
from relay_core.messages.dead_letter import DeadLetterFilter
from relay_core.protocol.deadletters import DeadLetterSummaries
from relay_tui.app import all_actions
from relay_tui.shell.actions import Registry
from relay_tui.views.dead_letters.letter_list import LetterList
from relay_tui.widgets.styled_lines import Line, Lines
from relay_tui.widgets.table import LiveTable
from tests.kit.daemon import a_daemon
from tests.kit.supervisor import a_client, a_supervisor
from tests.tui.driver import Driver, a_dashboard
from tests.tui.letters import FLAKY, MAILROOM, astray, ids, refused


def rows(tui: Driver) -> list[str]:
    """Return the lines of the list: those below the line that begins with AGE."""
    lines = tui.text().split("\n")
    start = next(at for at, text in enumerate(lines) if text.split()[:1] == ["AGE"])
    return [text for text in lines[start + 1 :] if "relay." in text and "→" not in text]


def letters(tui: Driver) -> LiveTable:
    return tui.view.query_one("#letters", LiveTable)


def groups(tui: Driver) -> LiveTable:
    return tui.view.query_one("#letters-groups", LiveTable)


def under_cursor(tui: Driver) -> str:
    """Return the id of the row under the cursor, as the line below the list has it."""
    return next(text.split()[0] for text in tui.text().split("\n") if "→" in text)


async def test_groups_say_reason_target_count_and_growth_and_lead_to_their_letters(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 3)
        await astray(client, 2)
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("5 dead letters in 2 groups")
            await tui.until(r"consumer_failed +relay.agent.flaky +3 +steady")
            await tui.until("5 match")
            assert len(rows(tui)) == 5

            await tui.until(lambda: len(tui.app.store.history.dead.series("", 9)) > 1)
            await astray(client, 4)
            await tui.until(r"no_match +relay.agent.nobody +6 +▲ 4 in")

            await tui.press("tab", "enter")
            await tui.until("nothing is selected: j picks a row")
            await tui.press("j")
            await tui.until("▶ no_match")  # it is the largest now
            await tui.press("j", "enter")
            await tui.until(r"/ code=consumer_failed to=relay.agent.flaky +3 match")
            assert [FLAKY in row for row in rows(tui)] == [True] * 3


async def test_a_filter_acts_with_every_key_and_one_that_is_wrong_leaves_the_list(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 2, reason="timeout after 3 s", colour="green")
        await refused(client, MAILROOM, 3, colour="blue")
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("5 match")
            await tui.press("/")
            await tui.type("to~mail")
            await tui.until("/ to~mail  3 match")
            await tui.type(" age<")
            await tui.until("✗ ")
            assert "to~mail  3 match" in tui.text()
            assert len(rows(tui)) == 3
            await tui.press("escape")
            await tui.until("no filter  5 match")
            assert "✗ " not in tui.text()

            for text, count in {
                "reason~TIMEOUT": "2 match",
                "!reason~timeout": "3 match",
                f"from~shop to={FLAKY}": "2 match",
                "green": "2 found",
                "!green": "3 found",
            }.items():
                await tui.app.goto("dead-letters", text)
                await tui.until(count)
                assert f"/ {text}" in tui.text()
            await tui.press("escape")
            await tui.until("no filter  5 match")


async def test_the_name_of_a_field_is_not_searched_for_before_it_is_typed_to_its_end(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await astray(client, 2)
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("2 match")
            await tui.press("/")
            await tui.type("reas")
            assert len(rows(tui)) == 2
            await tui.press("enter")
            await tui.until("/ reas  0 found")


async def test_the_cursor_stays_with_its_letter_and_newer_ones_are_counted(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await astray(client, 6)
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("6 match")
            await astray(client)
            await tui.until("7 match")
            newest = await ids(client)
            await tui.press("j", "j", "j", "j")  # the first picks the newest
            await tui.until(lambda: under_cursor(tui) == newest[3])
            await astray(client, 2)
            await tui.until("▲ 2 newer: g")
            assert under_cursor(tui) == newest[3]
            await client.purge_dead_letters(ids=[newest[2], newest[4]])
            await tui.until("7 match")
            assert under_cursor(tui) == newest[3]
            await client.purge_dead_letters(ids=[newest[3]])
            await tui.until(lambda: under_cursor(tui) == newest[5])  # the one that took its place

            await tui.press("g")
            await tui.until("following the newest: j picks a row")
            assert "newer:" not in tui.text()
            assert letters(tui).key is None


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
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("2 match")
            await astray(client)
            await tui.until("3 match")
            assert [text for text in told if "newer" in text] == []


async def test_nothing_is_selected_while_the_list_follows_and_a_row_that_was_picked_stays_it(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, reason="no stock\nat call()")
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("1 match")
            for key in ("P", "E", "X", "W", "t", "m", "y", "Y", "enter"):
                tui.app.clear_notifications()
                await tui.press(key)
                await tui.until("nothing is selected: j picks a row")
                assert tui.app.screen is tui.app.frame
                assert tui.view.NAME == "dead-letters"

            await tui.press("j")
            await astray(client, 3)
            await tui.until("▲ 3 newer: g")
            (letter,) = await client.dead_letters(filter=DeadLetterFilter(where=f"to={FLAKY}"))
            about = f"{letter.message_id}: consumer_failed at {FLAKY}, from relay.agent.shop: no stock"
            for key in ("X", "P"):
                await tui.press(key)
                await tui.until(lambda: about in " ".join(tui.text().split()).replace("│ ", ""))
                await tui.press("escape")
                await tui.until(lambda: tui.app.screen is tui.app.frame)


async def test_the_largest_groups_stay_in_sight_until_somebody_moves_among_them(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await astray(client, 2, "relay.agent.first")
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("no_match +relay.agent.first")
            for number in range(9):
                await astray(client, 3 + number, f"relay.agent.later{number}")
            await tui.until("65 dead letters in 10 groups")
            assert re.search(r"no_match +relay.agent.later8 ", tui.text())
            assert not re.search(r"no_match +relay.agent.first ", tui.text().partition(" / ")[0])
            await tui.press("tab", "j")
            await tui.until("▶ no_match +relay.agent.later8")
            await astray(client, 15, "relay.agent.larger")
            await tui.until("80 dead letters in 11 groups")
            assert groups(tui).key == groups(tui).keys[1]  # it has stayed with its group
            await tui.press("g")
            await tui.until(r"CODE.*\n +no_match +relay.agent.larger")


async def test_a_search_in_bodies_keeps_what_it_has_found_when_another_letter_comes(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 2, needle="haystack")
        await astray(client, 2500)
        listing = LetterList(lambda: client, lambda: None)
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
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("1 match")
            await tui.press("n", "enter")
            await tui.until("n k: move · f9 plan · E edit · t trace · m mailbox · y copy · esc close")
            await tui.press("X", "P")
            await tui.until("Body")
            await tui.press("f9")
            await tui.until("Replay 1 of 1 dead letter")


async def test_of_a_long_body_only_the_beginning_is_laid_out(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, reason="漢" * 200_000, text="漢" * 200_000, list=list(range(20_000)))
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("1 match")
            await tui.press("j", "enter")
            await tui.until("Why it failed")
            lines = tui.app.screen.query_one(Lines)
            await tui.until(lambda: any("only the start is shown" in text for line in lines.lines for text, _ in line))
            assert len(lines.lines) < 1000


async def test_a_replay_that_ended_with_its_supervisor_is_told_of(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, a_dashboard(None, socket=daemon.socket, data_dir=daemon.data_dir) as tui:
        async with daemon.client() as client:
            await refused(client, FLAKY, 3)
            plan = await client.freeze_replay()
            await client.start_replay(plan.id, rate=0.001)
        await tui.until("● live")
        await tui.press("6")
        await tui.until("▶ running +█+ +1 of 3")
        await daemon.kill()
        await daemon.start()
        await tui.until("✗ a replay of 3 was interrupted at 1: P plans the rest")
        await tui.press("escape")
        await tui.until(lambda: "interrupted" not in tui.text())


async def test_marks_outlive_filters_and_all_in_a_filter_ends_with_it(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 2)
        await astray(client, 3)
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("5 match")
            await tui.press("space")  # picks the first
            assert "marked" not in tui.text()
            await tui.press("space", "j", "space")
            await tui.until("● 2 marked")
            assert [" ●" in row or "▶●" in row for row in rows(tui)] == [True, False, True, False, False]
            await tui.app.goto("dead-letters", "code=consumer_failed")
            await tui.until("2 match · ● 2 marked, 2 not in this list")
            await tui.press("escape", "escape")
            await tui.until("no filter  5 match")
            assert "marked" not in tui.text()

            await tui.press("a")
            await tui.until("● all 5 in this filter marked")
            await tui.press("g", "j", "space")
            await tui.until("● all 5 in this filter marked but 1")
            assert ["●" in row for row in rows(tui)] == [False, True, True, True, True]
            await tui.app.goto("dead-letters", "code=no_match")
            await tui.until("3 match")
            assert "marked" not in tui.text()


async def test_cursor_marks_and_filter_survive_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, a_dashboard(None, socket=daemon.socket, data_dir=daemon.data_dir) as tui:
        async with daemon.client() as client:
            await astray(client, 4)
            every = await ids(client)
        await tui.until("● live")
        await tui.app.goto("dead-letters", "code=no_match")
        await tui.until("code=no_match  4 match")
        await tui.press("j", "space", "j")
        await tui.until(lambda: under_cursor(tui) == every[2])
        await daemon.kill()
        await tui.until("STALE")
        assert "code=no_match  4 match · ● 1 marked" in tui.text()
        await daemon.start()
        async with daemon.client() as client:
            await client.purge_dead_letters(ids=[every[1]])
        await tui.until("code=no_match  3 match · ● 1 marked")
        assert under_cursor(tui) == every[2]


async def test_a_long_list_is_held_as_far_as_it_was_scrolled_to(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await astray(client, 900)
        every = await ids(client)
        async with a_dashboard(supervisor, size=(80, 24)) as tui:
            await tui.press("6")
            await tui.until("900 match")
            held = tui.view.query_one("#letters")._rows  # type: ignore[attr-defined]
            assert len(held) == 100
            await tui.press("G")
            await tui.until(lambda: under_cursor(tui) == every[-1])
            assert len(held) == 900
            await client.purge_dead_letters(ids=every[890:899])  # far from the top, and in sight
            await tui.until("891 match")
            await tui.until(lambda: len(held) == 891)
            assert under_cursor(tui) == every[-1]


async def test_the_detail_has_error_headers_body_and_trace_and_is_safe(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, reason="first line\n\x1b[31m at call()", content="[b]order[/b] \x1b[2J")
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("1 match")
            await tui.press("j", "enter")
            await tui.until("Trace")
            text = tui.text()
            for part in (
                "consumer_failed at relay.agent.flaky",
                "  first line",
                "␛[31m at call()",
                f"from       {'relay.agent.shop'}",
                f"to         {FLAKY}",
                "hop 1 of",
                "the copy of this target: a replay requeues it there",
                '"content": "[b]order[/b] \\u001b[2J"',
                "failed         relay.agent.flaky",
            ):
                assert part in text, part
            assert "\x1b" not in text
            await tui.press("escape")
            await tui.until(lambda: "Trace" not in tui.text())


async def test_a_letter_that_is_gone_meanwhile_says_so(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await astray(client, 2)
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("2 match")
            await tui.press("j")
            await tui.until(lambda: "→" in tui.text())
            await tui.press("p")  # the display stands still, so the row stays
            await client.purge_dead_letters(ids=[under_cursor(tui)])
            await tui.press("enter")
            await tui.until("it was replayed or purged meanwhile")


@pytest.mark.parametrize("key", ["E", "X", "W", "Z", "C"])
def test_nothing_that_changes_exists_when_only_reading(key: str) -> None:
    assert Registry(all_actions()).by_key("dead-letters", key) is not None
    assert Registry(all_actions(), read_only=True).by_key("dead-letters", key) is None


async def test_only_reading_a_plan_can_be_made_and_not_started(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY)
        async with a_dashboard(supervisor, read_only=True) as tui:
            await tui.press("6")
            await tui.until("1 match")
            await tui.press("j", "enter")
            await tui.until("Body")
            assert "edit" not in tui.text()
            await tui.press("E", "X", "P")
            await tui.until("read-only: cannot be started")
            await tui.press("enter", "R", "escape")
            await tui.until(lambda: "read-only: it" not in tui.text())
        assert await client.replays() == []
        assert len(await ids(client)) == 1


@pytest.mark.parametrize(
    ("at", "at_top"), [(0, True), (0, False), (2, False)], ids=["following", "at the top", "further down"]
)
async def test_however_many_are_newer_none_is_missing(tmp_path: Path, at: int, at_top: bool) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await astray(client, 4)
        listing = LetterList(lambda: client, lambda: None)
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
        listing = LetterList(lambda: client, lambda: None)
        async with asyncio.TaskGroup() as group:
            group.create_task(listing.ask("code=expired"))
            await asyncio.sleep(0)
            await listing.ask("code=no_match")
            client.released.set()
        assert (listing.text, listing.total, len(listing.rows)) == ("code=no_match", 3, 3)
        assert not listing.is_asking
