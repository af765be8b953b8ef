"""Dead letters and replay; a replay continues when the client that started it disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import orjson

from relay_core.deadletters.replay_run import ReplayRun
from relay_core.errors import ProtocolError
from relay_core.messages.dead_letter import DeadLetter
from relay_core.messages.replay_plan import PlanHead
from relay_core.messages.results import PublishResult
from relay_core.protocol import deadletters as wire
from relay_core.protocol.base import Nothing
from relay_core.protocol.frames import MAX_FRAME
from relay_supervisor.api.context import ApiContext
from relay_supervisor.api.methods.handlers import handles
from relay_supervisor.server.connection import Connection

_ROOM = MAX_FRAME // 2


@handles("deadletters.list")
async def list_letters(
    context: ApiContext, connection: Connection, params: wire.DeadLettersParams
) -> wire.DeadLetterPage:
    """List dead letters, newest first, as many as fit into an answer."""
    letters, total, cursor = await context.relay.browse_dead_letters(
        params.filter, after=params.cursor, limit=params.limit, room=_ROOM
    )
    return wire.DeadLetterPage(dead_letters=letters, total=total, cursor=cursor)


@handles("deadletters.summaries")
async def summaries(
    context: ApiContext, connection: Connection, params: wire.DeadLettersParams
) -> wire.DeadLetterSummaries:
    rows, total, cursor = await context.relay.dead_letter_page(params.filter, after=params.cursor, limit=params.limit)
    return wire.DeadLetterSummaries(rows=rows, total=total, cursor=cursor)


@handles("deadletters.groups")
async def groups(context: ApiContext, connection: Connection, params: Nothing) -> wire.DeadLetterGroups:
    return wire.DeadLetterGroups(groups=await context.relay.dead_letter_groups())


@handles("deadletters.get")
async def get(context: ApiContext, connection: Connection, params: wire.DeadLetterParams) -> DeadLetter:
    return await context.relay.dead_letter(params.id, params.endpoint)


@handles("deadletters.plan")
async def plan(context: ApiContext, connection: Connection, params: wire.PlanParams) -> PlanHead:
    frozen = await context.relay.plan_replay(params.ids, filter=params.filter, fresh_budget=params.fresh_budget)
    return frozen.head()


@handles("deadletters.items")
def items(context: ApiContext, connection: Connection, params: wire.PlanItemsParams) -> wire.PlanItems:
    """List a plan's messages, each with its verdict; a cursor is a position in the plan."""
    frozen = context.relay.replays.frozen(params.plan_id).items
    if params.cursor is not None and not params.cursor.isdecimal():
        raise ProtocolError("deadletters.items: cursor: not from this method", code="invalid_params")
    start = int(params.cursor or 0)
    end = start + params.limit
    return wire.PlanItems(items=list(frozen[start:end]), cursor=str(end) if end < len(frozen) else None)


@handles("deadletters.run")
def run(context: ApiContext, connection: Connection, params: wire.RunParams) -> wire.Replay:
    return _replay(context.relay.replays.start(params.plan_id, rate=params.rate, canary=params.canary))


@handles("deadletters.wait")
async def wait(context: ApiContext, connection: Connection, params: wire.PlanIdParams) -> wire.Replay:
    replay = context.relay.replays.run(params.plan_id)
    await replay.wait()
    return _replay(replay)


@handles("deadletters.runs")
def runs(context: ApiContext, connection: Connection, params: Nothing) -> wire.ReplayList:
    return wire.ReplayList(replays=[_replay(run) for run in context.relay.replays.runs()])


def _register_control(method: str, control: Callable[[ReplayRun], None]) -> None:
    @handles(method)
    def handler(context: ApiContext, connection: Connection, params: wire.PlanIdParams) -> wire.Replay:
        replay = context.relay.replays.run(params.plan_id)
        control(replay)
        return _replay(replay)


_register_control("deadletters.pause", ReplayRun.pause)
_register_control("deadletters.resume", ReplayRun.resume)
_register_control("deadletters.cancel", ReplayRun.cancel)


@handles("deadletters.edit")
async def edit(context: ApiContext, connection: Connection, params: wire.EditParams) -> PublishResult:
    return await context.relay.replays.edit(
        params.id, params.payload, endpoint=params.endpoint, fresh_budget=params.fresh_budget
    )


@handles("deadletters.purge")
async def purge(context: ApiContext, connection: Connection, params: wire.PurgeParams) -> wire.Purged:
    removed = await context.relay.purge_dead_letters(
        params.older_than, params.ids, filter=params.filter, plan_id=params.plan_id
    )
    return wire.Purged(purged=removed)


@handles("deadletters.export")
async def export(context: ApiContext, connection: Connection, params: wire.ExportParams) -> wire.Exported:
    letters, cursor = await context.relay.export_dead_letters(
        params.filter, plan_id=params.plan_id, after=params.cursor, limit=params.limit, room=_ROOM
    )
    return wire.Exported(lines=await asyncio.to_thread(_lines, letters), cursor=cursor)


def _lines(letters: list[DeadLetter]) -> list[str]:
    return [orjson.dumps(letter.to_wire()).decode() for letter in letters]


def _replay(run: ReplayRun) -> wire.Replay:
    return wire.Replay(plan_id=run.plan.id, outcome=run.progress())
