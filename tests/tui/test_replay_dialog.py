from __future__ import annotations

from pathlib import Path

from relay_tui.views.dead_letters.plan import VERDICTS, PlanScreen
from relay_tui.views.dead_letters.selection import LetterSelection
from tests.kit.supervisor import a_client, a_supervisor
from tests.tui.driver import a_dashboard
from tests.tui.letters import FLAKY, MAILROOM, astray, ids, refused


async def test_a_plan_is_frozen_judged_and_carried_out_as_it_was_shown(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 3)
        await astray(client, 2)
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("5 match")
            await tui.press("a", "j", "space", "P")  # all but the newest, which nobody could take anyway
            await tui.until("Replay 3 of 4 dead letters")
            await tui.until(r"3 ✓ will deliver +requeued at once")
            await tui.until(r"1 ✗ no target +stays: no target matches")
            await tui.until("nothing has changed yet")
            await tui.until("while a breaker is open")

            await refused(client, FLAKY, 2)  # too late for this plan
            await tui.press("d")
            await tui.until("dry run at .*: all verdicts are the same. Nothing has been changed.")
            assert await client.replays() == []

            await tui.press("enter")
            await tui.until("Replay 3 dead letters\\?")
            await tui.press("escape")
            await tui.until("Replay 3 of 4 dead letters")
            assert await client.replays() == []
            await tui.press("enter")
            await tui.until("Replay 3 dead letters\\?")
            await tui.confirm("replay")
            await tui.until(r"✓ finished +█+ +4 of 4 +3 +0 +1")
            await tui.until("4 match")
            assert "marked" not in tui.text()
        assert len(await client.inbox(FLAKY)) == 3
        assert len(await ids(client)) == 4


def test_every_verdict_is_told_whole_on_a_terminal_of_80_columns() -> None:
    room = 80 * 96 // 100 - 4 - len("verdicts   1,234 ✗ over budget   ")
    assert [meaning for _, meaning in VERDICTS.values() if len(meaning) > room] == []


async def test_options_are_rate_canary_and_a_fresh_budget(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(MAILROOM)
        await client.publish(MAILROOM, 1, sender="relay.agent.a", budget={"hopCount": 5, "maxHops": 5})
        async with a_dashboard(supervisor, size=(80, 24)) as tui:
            await tui.press("6")
            await tui.until("1 match")
            await tui.press("j", "P")
            await tui.until("Replay 0 of 1 dead letter")
            await tui.until("✗ over budget")
            await tui.press("enter")
            await tui.until("none of these can be replayed")

            await tui.press("f")
            await tui.until("Replay 1 of 1 dead letter")
            await tui.until("budget   fresh: hops, chain and calls are reset")
            await tui.press("c")
            await tui.until("canary   on: 1, then 10, then the rest")
            await tui.press("r")
            await tui.until("how many messages a second")
            await tui.type("soon")
            await tui.press("enter")
            await tui.until("enter a number, e.g. 20")
            await tui.press(*["backspace"] * 4)
            await tui.type("20")
            await tui.press("enter")
            await tui.until("rate     at most 20 a second")
            await tui.press("enter")
            await tui.until("at most 20 a second, with a canary")
            await tui.confirm("replay")
            await tui.until("✓ finished")
        assert await ids(client) == []


async def test_judging_again_means_the_same_letters_also_by_their_age(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 2)
        async with a_dashboard(supervisor) as tui:
            await tui.app.goto("dead-letters", "!age>30d")
            await tui.until("2 match")
            await tui.press("a", "P")
            await tui.until("Replay 2 of 2 dead letters")
            await tui.press("f")
            await tui.until("dry run at .*: all verdicts are the same")
            await tui.until("budget   fresh")
            await tui.press("d")
            await tui.until("Replay 2 of 2 dead letters")


async def test_judging_that_fails_says_so_and_leaves_the_plan(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 2)
        head = await client.freeze_replay()
        async with a_dashboard(supervisor) as tui:
            await tui.app.push_screen(PlanScreen(tui.app, LetterSelection(where="age>soon"), head))
            await tui.until("Replay 2 of 2 dead letters")
            await tui.press("d")
            await tui.until(lambda: tui.app.tasks.faults)
            await tui.until("nothing has changed yet: this is what a replay would do")
            assert "judging again:" not in "".join(tui.lines()[:20])
            tui.expected_faults = list(tui.app.tasks.faults)


async def test_a_replay_goes_on_without_the_dashboard_and_is_paused_and_cancelled_from_the_next(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 4)
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("4 match")
            await tui.press("Z")
            await tui.until("no replay is running")
            await tui.press("a", "P")
            await tui.until("Replay 4 of 4")
            await tui.press("r")
            await tui.until("how many messages a second")
            await tui.type("0.001")
            await tui.press("enter")
            await tui.until("at most 0.001 a second")
            await tui.press("enter")
            await tui.until("Replay 4 dead letters\\?")
            await tui.confirm("replay")
            await tui.until(r"▶ running +█+ +1 of 4")
        async with a_dashboard(supervisor, size=(80, 24)) as tui:
            await tui.press("6")
            await tui.until(r"▶ running")
            await tui.press("Z")
            await tui.until(r"❚❚ paused .*by the operator")
            await tui.press("Z")
            await tui.until(r"▶ running")
            await tui.press("C")
            await tui.until("4 messages: 1 delivered, 0 failed, 0 skipped, 3 to go")
            await tui.press("escape")
            await tui.until("▶ running")
            await tui.press("C")
            await tui.until("Cancel this replay\\?")
            await tui.confirm("cancel")
            await tui.until("○ cancelled")
            await tui.until("3 match")


async def test_a_replay_says_what_it_waits_for(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 2)
        await client.force_breaker(FLAKY, "OPEN", "maintenance")
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("2 match")
            await tui.press("tab", "j", "P")  # the group under the cursor
            await tui.until("all that match code=consumer_failed to=relay.agent.flaky")
            await tui.until("◐ breaker open +waits for")
            await tui.press("enter")
            await tui.until("Replay 2 dead letters\\?")
            await tui.confirm("replay")
            await tui.until(r"◐ waiting .*breaker of relay.agent.flaky is open")
            await client.reset_breaker(FLAKY)
            await tui.until(r"✓ finished +█+ +2 of 2")
            await tui.press("escape", "shift+tab", "shift+tab", "j", "enter")
            await tui.until("2 messages: 2 delivered, 0 failed, 0 skipped, 0 to go")
            await tui.until("◐ breaker open .*relay.agent.flaky")
