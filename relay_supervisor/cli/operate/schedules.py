"""``relay schedules``: messages that are published at set times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_core.text.units import ago, format_duration
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import ExitCode
from relay_supervisor.cli.groups import new_group
from relay_supervisor.cli.output import Painted, safe

if TYPE_CHECKING:
    from relay_core.protocol.scheduling import ScheduleRun, ScheduleState

app = new_group("Messages that are published at set times: 'schedules' in config.json.")

HEADERS = ["ID", "TO", "WHEN", "NEXT", "LAST", "OUTCOME"]

Id = Annotated[str, typer.Argument(help="Schedule's id, from 'relay schedules'.", metavar="ID")]


@command(app, "list", examples=["relay schedules", "relay schedules list --json"])
async def list_schedules(session: Session) -> None:
    """List the schedules with their next run and last outcome."""
    from relay_core.clock import SystemClock

    found = await session.client.schedules()
    if found.problem is not None:
        session.note(f"relay: schedules run only by hand: {safe(found.problem)}")
    now = SystemClock().now_ms()
    session.show_table(
        found.to_wire(),
        HEADERS,
        [_row(schedule, now) for schedule in found.schedules],
        empty="no schedules: add some to 'schedules' in config.json",
    )


@command(app, "run", examples=["relay schedules run morning", "relay schedules run morning --json"])
async def run_schedule(session: Session, id: Id) -> int:
    """Publish a schedule's message now, even if it is paused."""
    run = await session.client.run_schedule(id)
    session.show(run.to_wire(), lambda: _run_lines(id, run))
    codes = {"published": ExitCode.OK, "refused": ExitCode.REFUSED}
    return codes.get(run.outcome, ExitCode.ERROR)


@command(app, "pause", examples=["relay schedules pause morning"])
async def pause_schedule(session: Session, id: Id) -> None:
    """Pause a schedule until it is resumed, also across restarts."""
    state = await session.client.pause_schedule(id)
    session.show(state.to_wire(), lambda: [f"{safe(id)}: paused"])


@command(app, "resume", examples=["relay schedules resume morning"])
async def resume_schedule(session: Session, id: Id) -> None:
    """Resume a paused schedule; the times that it missed are skipped."""
    from relay_core.clock import SystemClock

    state = await session.client.resume_schedule(id)
    session.show(state.to_wire(), lambda: [f"{safe(id)}: next {_next(state, SystemClock().now_ms())}"])


def _row(schedule: ScheduleState, now_ms: int) -> list[Any]:
    return [
        schedule.id,
        schedule.to,
        schedule.timing,
        _next(schedule, now_ms),
        ago(schedule.last.at, now_ms) if schedule.last else None,
        _outcome(schedule.last) if schedule.last else None,
    ]


def _next(schedule: ScheduleState, now_ms: int) -> str:
    if not schedule.enabled:
        return "off"
    if schedule.paused:
        return "paused"
    if schedule.next_run is None:
        return "manual"
    return f"in {format_duration(max(schedule.next_run - now_ms, 0) / 1000)}"


def _outcome(run: ScheduleRun) -> Painted | str:
    if run.outcome == "published":
        return f"published {run.message_id}"
    return Painted(f"{run.outcome}: {run.detail or ''}", "yellow" if run.outcome == "skipped" else "red")


def _run_lines(id: str, run: ScheduleRun) -> Iterator[str]:
    if run.outcome == "published":
        yield f"{safe(id)}: published {run.message_id}, delivered to {run.delivered_to}"
    else:
        yield f"{safe(id)}: {run.outcome}: {safe(run.detail or '')}"
        if run.message_id is not None:
            yield f"  relay trace {run.message_id}"
