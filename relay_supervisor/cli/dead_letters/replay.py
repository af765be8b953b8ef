"""``relay dlq plan | replay | runs | pause | resume | cancel | edit``: deliver dead letters again.

Every replay starts with a plan: a frozen selection with a verdict on each message. `plan` stops there. A run belongs
to the supervisor and continues if the command is interrupted; `runs` shows it, `pause` and `cancel` stop it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_supervisor.cli.arguments import Every, FilterOptions, Fresh, Ids, MessageId, Target, read_payload
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.dead_letters.dlq import app
from relay_supervisor.cli.entry import ExitCode, UsageError
from relay_supervisor.cli.messages.publish import refusal
from relay_supervisor.cli.output import Painted, StatusLine, safe, table

if TYPE_CHECKING:
    from relay_core.messages.replay_plan import PlanItem, ReplayPlan
    from relay_core.protocol.deadletters import Replay

PlanId = Annotated[str, typer.Argument(help="Plan id, from 'dlq plan' or 'dlq runs'.", metavar="PLAN")]
_SHOWN = 20
_POLL_SECS = 0.5


@command(app, "plan", examples=["relay dlq plan --all", "relay dlq plan --where 'code=handler_failed to~agent'"])
async def make_plan(
    session: Session, ids: Ids = None, every: Every = False, *, options: FilterOptions, fresh_budget: Fresh = False
) -> None:
    """Show what a replay would do with each message, without changing anything."""
    plan = await _plan(session, options, ids, every, fresh_budget)
    session.show(plan.to_wire(), lambda: _plan_lines(plan))
    if plan.items:
        session.note(f"run it with 'relay dlq replay --plan {plan.id}'")


@command(
    app,
    "replay",
    examples=["relay dlq replay 01KA5Q...", "relay dlq replay --all --canary --rate 20", "relay dlq replay --plan P"],
)
async def replay(
    session: Session,
    ids: Ids = None,
    every: Every = False,
    *,
    options: FilterOptions,
    fresh_budget: Fresh = False,
    plan_id: Annotated[str | None, typer.Option("--plan", help="Run this plan.", metavar="PLAN")] = None,
    rate: Annotated[float | None, typer.Option(help="Maximum messages per second.", min=0.001)] = None,
    canary: Annotated[
        bool,
        typer.Option(
            "--canary",
            help="Replay 1, then 10, then the rest, each after the last was handled; stop if one fails.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Start it and return immediately.")] = False,
) -> int:
    """Plan a replay, show the verdicts, and run it."""
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
        raise UsageError("--plan already selects: leave out ids, --all, filters, --fresh-budget and --dry-run")
    run = await session.client.start_replay(plan_id, rate=rate, canary=canary)
    if not no_wait:
        run = await _watch(session, run)
    document["replay"] = run.to_wire()
    session.show(document, lambda: [_run_line(run)])
    return _exit_code(run, started=no_wait)


@command(app, "runs", examples=["relay dlq runs"])
async def list_runs(session: Session) -> None:
    """List recent replays, oldest first."""
    runs = await session.client.replays()
    outcomes = [(run.plan_id, run.outcome) for run in runs]
    session.show_table(
        {"replays": [run.to_wire() for run in runs]},
        ["PLAN", "STATE", "DELIVERED", "FAILED", "SKIPPED", "OF", "DETAIL"],
        [
            [plan_id, run.state, run.delivered, run.failed, run.skipped, run.total, run.detail]
            for plan_id, run in outcomes
        ],
        empty="no replays since the supervisor started",
    )


@command(app, "pause", examples=["relay dlq pause P"])
async def pause(session: Session, plan: PlanId) -> None:
    """Pause a replay."""
    await _steer(session, plan, "pause")


@command(app, "resume", examples=["relay dlq resume P"])
async def resume(session: Session, plan: PlanId) -> None:
    """Resume a paused replay; a canary stops waiting for an acknowledgement."""
    await _steer(session, plan, "resume")


@command(app, "cancel", examples=["relay dlq cancel P"])
async def cancel(session: Session, plan: PlanId) -> None:
    """Cancel a replay; the rest stay dead letters."""
    await _steer(session, plan, "cancel")


@command(app, "edit", examples=["""relay dlq edit 01KA5Q... '{"content": "hi"}'"""])
async def edit(
    session: Session,
    id: MessageId,
    payload: Annotated[str, typer.Argument(help="New payload as JSON, or - for stdin.", metavar="JSON|-")],
    endpoint: Target = None,
    fresh_budget: Fresh = False,
) -> int:
    """Replace a dead letter by an edited copy and publish it."""
    value = read_payload(payload)
    result = await session.client.edit_replay(id, value, endpoint=endpoint, fresh_budget=fresh_budget)
    session.show(result.to_wire(), lambda: [f"replaced by {result.message_id}, delivered to {result.delivered_to}"])
    if not result.delivered_to:
        session.note(f"relay: the copy was not delivered: {refusal(result)}")
        return ExitCode.REFUSED
    return ExitCode.OK


async def _plan(
    session: Session, options: FilterOptions, ids: list[str] | None, every: bool, fresh_budget: bool
) -> ReplayPlan:
    chosen = options.to_filter()
    if not ids and chosen is None and not every:
        raise UsageError("select dead letters: by ID, with --where, --code, --endpoint, --since ..., or with --all")
    return await session.client.plan_replay(ids or None, filter=chosen, fresh_budget=fresh_budget)


async def _watch(session: Session, run: Replay) -> Replay:
    """Return a run when it has ended; meanwhile show its progress, or without a terminal what it waits for."""
    import asyncio

    line = StatusLine()
    noted: str | None = None
    async with asyncio.TaskGroup() as group:
        ended = group.create_task(session.client.wait_replay(run.plan_id))
        while not ended.done():
            await asyncio.wait([ended], timeout=_POLL_SECS)
            current = await _find(session, run)
            if line.visible:
                line.draw(_run_line(current))
            elif not ended.done() and (detail := current.outcome.detail) not in (None, noted):
                noted = detail
                session.note(_run_line(current))
    line.clear()
    return ended.result()


async def _find(session: Session, run: Replay) -> Replay:
    """Return the current state of a run."""
    return next((found for found in reversed(await session.client.replays()) if found.plan_id == run.plan_id), run)


async def _steer(session: Session, plan_id: str, verb: str) -> None:
    # A run reacts with a delay, so the answer may be its previous state: ask again.
    run = await _find(session, await session.client.steer_replay(plan_id, verb))
    session.show(run.to_wire(), lambda: [_run_line(run)])


def _exit_code(run: Replay, *, started: bool) -> int:
    outcome = run.outcome
    if outcome.failed or outcome.state == "stopped":
        return ExitCode.ERROR
    if not started and outcome.skipped and not outcome.delivered:
        return ExitCode.REFUSED
    return ExitCode.OK


def _run_line(run: Replay) -> str:
    outcome = run.outcome
    detail = f": {safe(outcome.detail)}" if outcome.detail else ""
    skips = ", ".join(f"{count:,} {safe(verdict)}" for verdict, count in outcome.skips.items())
    return (
        f"replay {run.plan_id} {outcome.state}: {outcome.delivered:,} delivered, {outcome.failed:,} failed, "
        f"{outcome.skipped:,} skipped{f' ({skips})' if skips else ''}, of {outcome.total:,}{detail}"
    )


def _verdict(verdict: str) -> Painted:
    return Painted(verdict, "green" if verdict == "will_deliver" else "yellow")


def _detail(item: PlanItem) -> str | None:
    """Return the reason for a verdict, marked if it is the copy kept from a partial delivery."""
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
        yield f"... and {len(plan.items) - _SHOWN:,} more (--json shows all)"
