"""``relay dlq plan | replay | runs | pause | resume | cancel | edit``: giving dead letters another chance.

A replay is always a plan first: a frozen selection with a verdict on each message. `plan` stops there. A run belongs
to the supervisor and goes on if the command is interrupted; `runs` shows it, `pause` and `cancel` stop it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_supervisor.cli.arguments import (
    FilterOptions,
    Fresh,
    Ids,
    MessageId,
    parse_json,
    read_stdin,
)
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import ExitCode, UsageError
from relay_supervisor.cli.messages.publish import refusal
from relay_supervisor.cli.output import Painted, safe, table

if TYPE_CHECKING:
    from relay_core.messages.replay_plan import PlanItem, ReplayPlan
    from relay_core.protocol.deadletters import Replay

PlanId = Annotated[str, typer.Argument(help="As 'dlq plan' or 'dlq runs' says.", metavar="PLAN")]
Every = Annotated[bool, typer.Option("--all", help="Every dead letter.")]
_SHOWN = 20
_POLL_SECS = 0.5


async def make_plan(
    session: Session,
    ids: Ids = None,
    every: Every = False,
    *,
    options: FilterOptions,
    fresh_budget: Fresh = False,
) -> None:
    """Say what a replay would do with each message; nothing is changed."""
    plan = await _plan(session, options, ids, every, fresh_budget)
    session.show(plan.to_wire(), lambda: _plan_lines(plan))
    if plan.items:
        session.note(f"'relay dlq replay --plan {plan.id}' carries it out")


async def replay(
    session: Session,
    ids: Ids = None,
    every: Every = False,
    *,
    options: FilterOptions,
    fresh_budget: Fresh = False,
    plan_id: Annotated[str | None, typer.Option("--plan", help="Carry out this plan.", metavar="PLAN")] = None,
    rate: Annotated[float | None, typer.Option(help="Messages a second, at most.", min=0.001)] = None,
    canary: Annotated[
        bool,
        typer.Option(
            "--canary",
            help="Try 1, then 10, then the rest, each when the last was handled or acknowledged; stop if one fails.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Start it and return at once.")] = False,
) -> int:
    """Plan a replay, show the verdicts, and carry it out."""
    document: dict[str, Any] = {}
    if plan_id is None:
        plan = await _plan(session, options, ids, every, fresh_budget)
        document["plan"] = plan.to_wire()
        if dry_run or not plan.items:
            session.show(document, lambda: _plan_lines(plan))
            return ExitCode.OK
        plan_id = plan.id
        if not session.as_json:
            session.print(_plan_lines(plan))
    elif dry_run or ids or every or fresh_budget or options != FilterOptions():
        raise UsageError("--plan is a selection already: give no ids, --all, filter, budget or --dry-run with it")
    run = await session.client.start_replay(plan_id, rate=rate, canary=canary)
    if not no_wait:
        run = await _watch(session, run)
    document["replay"] = run.to_wire()
    session.show(document, lambda: [_run_line(run)])
    return _exit_code(run, started=no_wait)


async def list_runs(session: Session) -> None:
    """List the newest replays, oldest first."""
    runs = await session.client.replays()
    session.show(
        {"replays": [one.to_wire() for one in runs]},
        lambda: table(
            ["PLAN", "STATE", "DELIVERED", "FAILED", "SKIPPED", "OF", "DETAIL"],
            [_run_row(one) for one in runs],
            empty="nothing was replayed since the supervisor's start",
        ),
    )


async def pause(session: Session, plan: PlanId) -> None:
    """Replay nothing more for now."""
    await _steer(session, plan, "pause")


async def resume(session: Session, plan: PlanId) -> None:
    """Resume a paused replay; a canary that waits for an acknowledgement goes on without it."""
    await _steer(session, plan, "resume")


async def cancel(session: Session, plan: PlanId) -> None:
    """Leave the rest as dead letters."""
    await _steer(session, plan, "cancel")


async def edit(
    session: Session,
    id: MessageId,
    payload: Annotated[str, typer.Argument(help="The new payload: JSON, or - for stdin.", metavar="JSON|-")],
    endpoint: Annotated[str | None, typer.Option(help="Which target's.")] = None,
    fresh_budget: Fresh = False,
) -> int:
    """Publish an edited copy in the place of a dead letter."""
    value = parse_json(read_stdin(), "stdin") if payload == "-" else parse_json(payload, "the payload")
    result = await session.client.edit_replay(id, value, endpoint=endpoint, fresh_budget=fresh_budget)
    session.show(result.to_wire(), lambda: [f"{result.message_id} takes its place, delivered to {result.delivered_to}"])
    if not result.delivered_to:
        session.note(f"relay: nobody got the copy: {refusal(result)}")
        return ExitCode.REFUSED
    return ExitCode.OK


def add_replay_commands(app: typer.Typer) -> None:
    """Register these commands in the group `dlq`."""
    command(app, "plan", examples=["relay dlq plan --all", "relay dlq plan --where 'code=handler_failed to~agent'"])(
        make_plan
    )
    command(
        app,
        "replay",
        examples=[
            "relay dlq replay 01KA5Q...",
            "relay dlq replay --all --canary --rate 20",
            "relay dlq replay --plan P",
        ],
    )(replay)
    command(app, "runs", examples=["relay dlq runs"])(list_runs)
    command(app, "pause")(pause)
    command(app, "resume")(resume)
    command(app, "cancel")(cancel)
    command(app, "edit", examples=["""relay dlq edit 01KA5Q... '{"content": "hi"}'"""])(edit)


async def _plan(
    session: Session, options: FilterOptions, ids: list[str] | None, every: bool, fresh_budget: bool
) -> ReplayPlan:
    chosen = options.to_filter()
    if not ids and chosen is None and not every:
        raise UsageError("say which ones: by ID, by --where, --code, --endpoint, --since ..., or --all")
    return await session.client.plan_replay(ids or None, filter=chosen, fresh_budget=fresh_budget)


async def _watch(session: Session, run: Replay) -> Replay:
    """Return a run when it has ended, drawing its progress on a terminal; elsewhere it says what the run waits for."""
    import asyncio

    drawn = sys.stderr.isatty()
    said: str | None = None
    async with asyncio.TaskGroup() as group:
        ended = group.create_task(session.client.wait_replay(run.plan_id))
        while not ended.done():
            await asyncio.wait([ended], timeout=_POLL_SECS)
            found = [one for one in await session.client.replays() if one.plan_id == run.plan_id]
            if drawn:
                sys.stderr.write(f"\r{_run_line(found[-1]) if found else ''}\x1b[K")
                sys.stderr.flush()
            elif found and not ended.done() and (detail := found[-1].outcome.detail) not in (None, said):
                said = detail
                session.note(_run_line(found[-1]))
    if drawn:
        sys.stderr.write("\r\x1b[K")
    return ended.result()


async def _steer(session: Session, plan_id: str, what: str) -> None:
    run = await session.client.steer_replay(plan_id, what)
    # The run heeds it a moment after it was told: asked again, it says what it does now.
    run = next((one for one in await session.client.replays() if one.plan_id == plan_id), run)
    session.show(run.to_wire(), lambda: [_run_line(run)])


def _exit_code(run: Replay, *, started: bool) -> int:
    outcome = run.outcome
    if outcome.failed or outcome.state == "stopped":
        return ExitCode.ERROR
    if not started and outcome.skipped and not outcome.delivered:
        return ExitCode.REFUSED
    return ExitCode.OK


def _run_line(run: Replay) -> str:
    one = run.outcome
    detail = f": {safe(one.detail)}" if one.detail else ""
    return (
        f"replay {run.plan_id} {one.state}: {one.delivered:,} delivered, {one.failed:,} failed, "
        f"{one.skipped:,} left alone{_skips(one.skips)}, of {one.total:,}{detail}"
    )


def _skips(skips: dict[str, int]) -> str:
    return f" ({', '.join(f'{count:,} {safe(verdict)}' for verdict, count in skips.items())})" if skips else ""


def _run_row(run: Replay) -> list[Any]:
    one = run.outcome
    return [run.plan_id, one.state, one.delivered, one.failed, one.skipped, one.total, one.detail]


def _verdict(verdict: str) -> Painted:
    return Painted(verdict, "green" if verdict == "will_deliver" else "yellow")


def _detail(item: PlanItem) -> str | None:
    """Return what the verdict rests on, marked if it is the kept copy of a partial delivery."""
    if not item.partial:
        return item.detail
    return f"partial: {item.detail}" if item.detail else "partial"


def _plan_lines(plan: ReplayPlan) -> Iterator[str]:
    if not plan.items:
        yield "nothing to replay"
        return
    verdicts = Counter(item.verdict for item in plan.items)
    yield f"plan {plan.id}: {', '.join(f'{count:,} {verdict}' for verdict, count in verdicts.most_common())}"
    yield from table(
        ["ID", "VERDICT", "TARGET", "DETAIL"],
        [
            [item.message_id, _verdict(item.verdict), item.endpoint_subject, _detail(item)]
            for item in plan.items[:_SHOWN]
        ],
    )
    if len(plan.items) > _SHOWN:
        yield f"... and {len(plan.items) - _SHOWN:,} more (--json has all)"
