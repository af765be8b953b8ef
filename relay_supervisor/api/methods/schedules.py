"""Schedules: list, run by hand, pause and resume."""

from __future__ import annotations

from relay_core.protocol.base import Nothing
from relay_core.protocol.scheduling import ScheduleList, ScheduleParams, ScheduleRun, ScheduleState
from relay_supervisor.api.context import ApiContext
from relay_supervisor.api.methods.handlers import handles
from relay_supervisor.server.connection import Connection


@handles("schedules.list")
def list_schedules(context: ApiContext, connection: Connection, params: Nothing) -> ScheduleList:
    return ScheduleList(schedules=context.schedules.states(), problem=context.schedules.broken)


@handles("schedules.run")
async def run_schedule(context: ApiContext, connection: Connection, params: ScheduleParams) -> ScheduleRun:
    return await context.schedules.run(params.id)


@handles("schedules.pause")
async def pause_schedule(context: ApiContext, connection: Connection, params: ScheduleParams) -> ScheduleState:
    return await context.schedules.pause(params.id)


@handles("schedules.resume")
async def resume_schedule(context: ApiContext, connection: Connection, params: ScheduleParams) -> ScheduleState:
    return await context.schedules.resume(params.id)
