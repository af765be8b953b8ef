"""Dead letters and replay: an operator's work, which goes on when the operator's screen is gone."""

from __future__ import annotations

import asyncio

import orjson

from relay_core.deadletters import DeadLetter
from relay_core.errors import ProtocolError
from relay_core.frames import MAX_FRAME
from relay_core.protocol import (
    DeadLetterGroups,
    DeadLetterParams,
    DeadLetters,
    DeadLettersParams,
    DeadLetterSummaries,
    EditParams,
    Exported,
    ExportParams,
    Nothing,
    PlanIdParams,
    PlanItems,
    PlanItemsParams,
    PlanParams,
    Purged,
    PurgeParams,
    Replay,
    Replays,
    RunParams,
)
from relay_core.replay_plan import PlanHead
from relay_core.replay_run import ReplayRun
from relay_core.results import PublishResult
from relay_supervisor.connection import Connection
from relay_supervisor.services import Services

_ROOM = MAX_FRAME // 2


async def list_letters(services: Services, connection: Connection, params: DeadLettersParams) -> DeadLetters:
    """List dead letters, newest first, as many as fit into an answer."""
    letters, total, cursor = await services.relay.bus.dead_letters.browse(
        params.filter, after=params.cursor, limit=params.limit, room=_ROOM
    )
    return DeadLetters(dead_letters=letters, total=total, cursor=cursor)


async def summaries(services: Services, connection: Connection, params: DeadLettersParams) -> DeadLetterSummaries:
    """List dead letters without their messages, newest first."""
    rows, total, cursor = await services.relay.dead_letter_page(params.filter, after=params.cursor, limit=params.limit)
    return DeadLetterSummaries(rows=rows, total=total, cursor=cursor)


async def groups(services: Services, connection: Connection, params: Nothing) -> DeadLetterGroups:
    """Count dead letters by code and target."""
    return DeadLetterGroups(groups=await services.relay.dead_letter_groups())


async def get(services: Services, connection: Connection, params: DeadLetterParams) -> DeadLetter:
    """Return one dead letter."""
    _, letter = await asyncio.to_thread(services.relay.bus.dead_letters.find, params.id, params.endpoint)
    return letter


async def plan(services: Services, connection: Connection, params: PlanParams) -> PlanHead:
    """Freeze a selection and judge each message of it."""
    made = await services.relay.plan_replay(params.ids, filter=params.filter, fresh_budget=params.fresh_budget)
    return made.head()


def items(services: Services, connection: Connection, params: PlanItemsParams) -> PlanItems:
    """List a plan's messages and the verdict on each; a cursor is the number of those before it."""
    found = services.relay.replays.frozen(params.plan_id).items
    if params.cursor is not None and not params.cursor.isdecimal():
        raise ProtocolError("deadletters.items: cursor: not one of this method's", code="invalid_params")
    start = int(params.cursor or 0)
    end = start + params.limit
    return PlanItems(items=list(found[start:end]), cursor=str(end) if end < len(found) else None)


def run(services: Services, connection: Connection, params: RunParams) -> Replay:
    """Begin to carry out a plan; it goes on whatever becomes of the connection."""
    return _replay(services.relay.replays.start(params.plan_id, rate=params.rate, canary=params.canary))


async def wait(services: Services, connection: Connection, params: PlanIdParams) -> Replay:
    """Answer when a run has ended."""
    found = services.relay.replays.run(params.plan_id)
    await found.wait()
    return _replay(found)


def runs(services: Services, connection: Connection, params: Nothing) -> Replays:
    """List the newest runs."""
    return Replays(replays=[_replay(one) for one in services.relay.replays.runs()])


def pause(services: Services, connection: Connection, params: PlanIdParams) -> Replay:
    """Replay nothing more for now."""
    found = services.relay.replays.run(params.plan_id)
    found.pause()
    return _replay(found)


def resume(services: Services, connection: Connection, params: PlanIdParams) -> Replay:
    """Go on."""
    found = services.relay.replays.run(params.plan_id)
    found.resume()
    return _replay(found)


def cancel(services: Services, connection: Connection, params: PlanIdParams) -> Replay:
    """Leave the rest as dead letters."""
    found = services.relay.replays.run(params.plan_id)
    found.cancel()
    return _replay(found)


async def edit(services: Services, connection: Connection, params: EditParams) -> PublishResult:
    """Publish an edited copy in the place of a dead letter."""
    return await services.relay.replays.edit(
        params.id, params.payload, endpoint=params.endpoint, fresh_budget=params.fresh_budget
    )


async def purge(services: Services, connection: Connection, params: PurgeParams) -> Purged:
    """Remove dead letters."""
    removed = await services.relay.purge_dead_letters(
        params.older_than, params.ids, filter=params.filter, plan_id=params.plan_id
    )
    return Purged(purged=removed)


async def export(services: Services, connection: Connection, params: ExportParams) -> Exported:
    """Return dead letters as JSON lines, part by part, oldest first."""
    letters, cursor = await services.relay.export_dead_letters(
        params.filter, plan_id=params.plan_id, after=params.cursor, limit=params.limit, room=_ROOM
    )
    return Exported(lines=await asyncio.to_thread(_lines, letters), cursor=cursor)


def _lines(letters: list[DeadLetter]) -> list[str]:
    return [orjson.dumps(letter.to_wire()).decode() for letter in letters]


def _replay(run: ReplayRun) -> Replay:
    return Replay(plan_id=run.plan.id, outcome=run.progress())
