"""Dead letters and replay; a replay continues when the client that started it disconnects."""

from __future__ import annotations

import asyncio

import orjson

from relay_core.deadletters.replay_run import ReplayRun
from relay_core.errors import ProtocolError
from relay_core.messages.dead_letter import DeadLetter
from relay_core.messages.replay_plan import PlanHead
from relay_core.messages.results import PublishResult
from relay_core.protocol.base import Nothing
from relay_core.protocol.deadletters import (
    DeadLetterGroups,
    DeadLetterPage,
    DeadLetterParams,
    DeadLettersParams,
    DeadLetterSummaries,
    EditParams,
    Exported,
    ExportParams,
    PlanIdParams,
    PlanItems,
    PlanItemsParams,
    PlanParams,
    Purged,
    PurgeParams,
    Replay,
    ReplayList,
    RunParams,
)
from relay_core.protocol.frames import MAX_FRAME
from relay_supervisor.api.context import ApiContext
from relay_supervisor.api.methods.handlers import handles
from relay_supervisor.server.connection import Connection

_ROOM = MAX_FRAME // 2


@handles("deadletters.list")
async def list_letters(context: ApiContext, connection: Connection, params: DeadLettersParams) -> DeadLetterPage:
    """List dead letters, newest first, as many as fit into an answer."""
    letters, total, cursor = await context.relay.browse_dead_letters(
        params.filter, after=params.cursor, limit=params.limit, room=_ROOM
    )
    return DeadLetterPage(dead_letters=letters, total=total, cursor=cursor)


@handles("deadletters.summaries")
async def summaries(context: ApiContext, connection: Connection, params: DeadLettersParams) -> DeadLetterSummaries:
    """List dead letters without their messages, newest first."""
    rows, total, cursor = await context.relay.dead_letter_page(params.filter, after=params.cursor, limit=params.limit)
    return DeadLetterSummaries(rows=rows, total=total, cursor=cursor)


@handles("deadletters.groups")
async def groups(context: ApiContext, connection: Connection, params: Nothing) -> DeadLetterGroups:
    """Count dead letters by code and target."""
    return DeadLetterGroups(groups=await context.relay.dead_letter_groups())


@handles("deadletters.get")
async def get(context: ApiContext, connection: Connection, params: DeadLetterParams) -> DeadLetter:
    """Return one dead letter."""
    return await context.relay.dead_letter(params.id, params.endpoint)


@handles("deadletters.plan")
async def plan(context: ApiContext, connection: Connection, params: PlanParams) -> PlanHead:
    """Freeze a selection and predict the outcome for each message."""
    frozen = await context.relay.plan_replay(params.ids, filter=params.filter, fresh_budget=params.fresh_budget)
    return frozen.head()


@handles("deadletters.items")
def items(context: ApiContext, connection: Connection, params: PlanItemsParams) -> PlanItems:
    """List a plan's messages, each with its verdict; a cursor is a position in the plan."""
    frozen = context.relay.replays.frozen(params.plan_id).items
    if params.cursor is not None and not params.cursor.isdecimal():
        raise ProtocolError("deadletters.items: cursor: not from this method", code="invalid_params")
    start = int(params.cursor or 0)
    end = start + params.limit
    return PlanItems(items=list(frozen[start:end]), cursor=str(end) if end < len(frozen) else None)


@handles("deadletters.run")
def run(context: ApiContext, connection: Connection, params: RunParams) -> Replay:
    """Start a replay; it continues without the connection."""
    return _replay(context.relay.replays.start(params.plan_id, rate=params.rate, canary=params.canary))


@handles("deadletters.wait")
async def wait(context: ApiContext, connection: Connection, params: PlanIdParams) -> Replay:
    """Answer when a replay has ended."""
    replay = context.relay.replays.run(params.plan_id)
    await replay.wait()
    return _replay(replay)


@handles("deadletters.runs")
def runs(context: ApiContext, connection: Connection, params: Nothing) -> ReplayList:
    """List the newest replays."""
    return ReplayList(replays=[_replay(run) for run in context.relay.replays.runs()])


@handles("deadletters.pause")
def pause(context: ApiContext, connection: Connection, params: PlanIdParams) -> Replay:
    """Pause a replay."""
    replay = context.relay.replays.run(params.plan_id)
    replay.pause()
    return _replay(replay)


@handles("deadletters.resume")
def resume(context: ApiContext, connection: Connection, params: PlanIdParams) -> Replay:
    """Resume a replay."""
    replay = context.relay.replays.run(params.plan_id)
    replay.resume()
    return _replay(replay)


@handles("deadletters.cancel")
def cancel(context: ApiContext, connection: Connection, params: PlanIdParams) -> Replay:
    """Cancel a replay; the rest stay dead letters."""
    replay = context.relay.replays.run(params.plan_id)
    replay.cancel()
    return _replay(replay)


@handles("deadletters.edit")
async def edit(context: ApiContext, connection: Connection, params: EditParams) -> PublishResult:
    """Publish an edited copy in place of a dead letter."""
    return await context.relay.replays.edit(
        params.id, params.payload, endpoint=params.endpoint, fresh_budget=params.fresh_budget
    )


@handles("deadletters.purge")
async def purge(context: ApiContext, connection: Connection, params: PurgeParams) -> Purged:
    """Remove dead letters."""
    removed = await context.relay.purge_dead_letters(
        params.older_than, params.ids, filter=params.filter, plan_id=params.plan_id
    )
    return Purged(purged=removed)


@handles("deadletters.export")
async def export(context: ApiContext, connection: Connection, params: ExportParams) -> Exported:
    """Return dead letters as JSON lines, page by page, oldest first."""
    letters, cursor = await context.relay.export_dead_letters(
        params.filter, plan_id=params.plan_id, after=params.cursor, limit=params.limit, room=_ROOM
    )
    return Exported(lines=await asyncio.to_thread(_lines, letters), cursor=cursor)


def _lines(letters: list[DeadLetter]) -> list[str]:
    return [orjson.dumps(letter.to_wire()).decode() for letter in letters]


def _replay(run: ReplayRun) -> Replay:
    return Replay(plan_id=run.plan.id, outcome=run.progress())
