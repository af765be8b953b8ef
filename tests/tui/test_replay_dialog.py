from __future__ import annotations

from pathlib import Path

from relay_tui.views.dead_letters.choice import Choice
from relay_tui.views.dead_letters.plan import VERDICTS, PlanScreen
from tests.supervisor.inside import a_client, a_supervisor
from tests.tui.desk import a_dashboard
from tests.tui.letters import FLAKY, MAILROOM, astray, ids, refused


async def test_a_plan_is_frozen_judged_and_carried_out_as_it_was_shown(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 3)
        await astray(client, 2)
        async with a_dashboard(supervisor) as desk:
            await desk.press("6")
            await desk.until("5 match")
            await desk.press("a", "j", "space", "P")  # all but the newest, which nobody could take anyway
            await desk.until("Replay 3 of 4 dead letters")
            await desk.until(r"3 ✓ will deliver +is put back at once")
            await desk.until(r"1 ✗ no target +stays: nobody is there")
            await desk.until("nothing has been changed")
            await desk.until("while a breaker is open")

            await refused(client, FLAKY, 2)  # too late for this plan
            await desk.press("d")
            await desk.until("dry run, judged again at .*: every verdict is the same. Nothing has been changed.")
            assert await client.replays() == []

            await desk.press("enter")
            await desk.until("Replay 3 dead letters\\?")
            await desk.press("escape")
            await desk.until("Replay 3 of 4 dead letters")
            assert await client.replays() == []
            await desk.press("enter")
            await desk.until("Replay 3 dead letters\\?")
            await desk.confirm("replay")
            await desk.until(r"✓ finished +█+ +4 of 4 +3 +0 +1")
            await desk.until("4 match")
            assert "marked" not in desk.text()
        assert len(await client.inbox(FLAKY)) == 3
        assert len(await ids(client)) == 4


def test_every_verdict_is_told_whole_on_a_terminal_of_80_columns() -> None:
    room = 80 * 96 // 100 - 4 - len("verdicts   1,234 ✗ over budget   ")
    assert [meaning for _, meaning in VERDICTS.values() if len(meaning) > room] == []


async def test_options_are_rate_canary_and_a_fresh_budget(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(MAILROOM)
        await client.publish(MAILROOM, 1, sender="relay.agent.a", budget={"hopCount": 5, "maxHops": 5})
        async with a_dashboard(supervisor, size=(80, 24)) as desk:
            await desk.press("6")
            await desk.until("1 match")
            await desk.press("j", "P")
            await desk.until("Replay 0 of 1 dead letter")
            await desk.until("✗ over budget")
            await desk.press("enter")
            await desk.until("there is nothing to start")

            await desk.press("f")
            await desk.until("Replay 1 of 1 dead letter")
            await desk.until("budget   fresh: hops, chain and calls begin anew")
            await desk.press("c")
            await desk.until("canary   on: 1, then 10, then the rest")
            await desk.press("r")
            await desk.until("how many messages a second")
            await desk.type("soon")
            await desk.press("enter")
            await desk.until("a number, such as 20")
            await desk.press(*["backspace"] * 4)
            await desk.type("20")
            await desk.press("enter")
            await desk.until("rate     at most 20 a second")
            await desk.press("enter")
            await desk.until("at most 20 a second, with a canary")
            await desk.confirm("replay")
            await desk.until("✓ finished")
        assert await ids(client) == []


async def test_judging_again_means_the_same_letters_also_by_their_age(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 2)
        async with a_dashboard(supervisor) as desk:
            await desk.app.goto("dead-letters", "!age>30d")
            await desk.until("2 match")
            await desk.press("a", "P")
            await desk.until("Replay 2 of 2 dead letters")
            await desk.press("f")
            await desk.until("dry run, judged again at .*: every verdict is the same")
            await desk.until("budget   fresh")
            await desk.press("d")
            await desk.until("Replay 2 of 2 dead letters")


async def test_judging_that_fails_says_so_and_leaves_the_plan(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 2)
        head = await client.freeze_replay()
        async with a_dashboard(supervisor) as desk:
            await desk.app.push_screen(PlanScreen(Choice(where="age>soon"), head))
            await desk.until("Replay 2 of 2 dead letters")
            await desk.press("d")
            await desk.until(lambda: desk.app.faults)
            await desk.until("nothing has been changed: this is what a replay would do")
            assert "judging again:" not in "".join(desk.lines()[:20])
            desk.expected_faults = list(desk.app.faults)


async def test_a_replay_goes_on_without_the_dashboard_and_is_paused_and_cancelled_from_the_next(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 4)
        async with a_dashboard(supervisor) as desk:
            await desk.press("6")
            await desk.until("4 match")
            await desk.press("Z")
            await desk.until("no replay is under way")
            await desk.press("a", "P")
            await desk.until("Replay 4 of 4")
            await desk.press("r")
            await desk.until("how many messages a second")
            await desk.type("0.001")
            await desk.press("enter")
            await desk.until("at most 0.001 a second")
            await desk.press("enter")
            await desk.until("Replay 4 dead letters\\?")
            await desk.confirm("replay")
            await desk.until(r"▶ running +█+ +1 of 4")
        async with a_dashboard(supervisor, size=(80, 24)) as desk:
            await desk.press("6")
            await desk.until(r"▶ running")
            await desk.press("Z")
            await desk.until(r"❚❚ paused .*by the operator")
            await desk.press("Z")
            await desk.until(r"▶ running")
            await desk.press("C")
            await desk.until("4 messages: 1 delivered, 0 failed, 0 skipped, 3 to go")
            await desk.press("escape")
            await desk.until("▶ running")
            await desk.press("C")
            await desk.until("Cancel this replay\\?")
            await desk.confirm("cancel")
            await desk.until("○ cancelled")
            await desk.until("3 match")


async def test_a_replay_says_what_it_waits_for(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 2)
        await client.force_breaker(FLAKY, "OPEN", "maintenance")
        async with a_dashboard(supervisor) as desk:
            await desk.press("6")
            await desk.until("2 match")
            await desk.press("tab", "j", "P")  # the group under the cursor
            await desk.until("all that match code=consumer_failed to=relay.agent.flaky")
            await desk.until("◐ breaker open +waits for")
            await desk.press("enter")
            await desk.until("Replay 2 dead letters\\?")
            await desk.confirm("replay")
            await desk.until(r"◐ waiting .*breaker of relay.agent.flaky is open")
            await client.reset_breaker(FLAKY)
            await desk.until(r"✓ finished +█+ +2 of 2")
            await desk.press("escape", "shift+tab", "shift+tab", "j", "enter")
            await desk.until("2 messages: 2 delivered, 0 failed, 0 skipped, 0 to go")
            await desk.until("◐ breaker open .*relay.agent.flaky")
