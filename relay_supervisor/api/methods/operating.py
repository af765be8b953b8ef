"""Observing and operating: breakers, senders, adapters, rules, tokens, traces, jobs and reports."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from relay_core.errors import NotFound
from relay_core.messages.delivery import TracePage
from relay_core.messages.operator_views import ConfiguredAdapter, JobRun
from relay_core.protocol import operating as wire
from relay_core.protocol import reporting
from relay_core.protocol.base import IdParams, Nothing
from relay_core.records.metrics import MetricsSnapshot
from relay_core.rules.breaker import CircuitState
from relay_supervisor.api.context import ApiContext
from relay_supervisor.api.methods.handlers import handles
from relay_supervisor.jobs.report_files import find_reports, read_report
from relay_supervisor.server.connection import Connection


@handles("breakers.list")
def list_breakers(context: ApiContext, connection: Connection, params: Nothing) -> wire.BreakerList:
    return wire.BreakerList(breakers=context.relay.breakers())


@handles("breakers.reset")
def reset_breaker(context: ApiContext, connection: Connection, params: wire.ResetBreakerParams) -> None:
    context.relay.reset_breaker(params.target, params.reason)


@handles("breakers.force")
def force_breaker(context: ApiContext, connection: Connection, params: wire.ForceBreakerParams) -> None:
    context.relay.force_breaker(params.target, CircuitState(params.state), params.reason)


@handles("senders.list")
def list_senders(context: ApiContext, connection: Connection, params: Nothing) -> wire.SenderList:
    return wire.SenderList(senders=context.relay.senders())


@handles("adapters.list")
def list_adapters(context: ApiContext, connection: Connection, params: Nothing) -> wire.AdapterList:
    return wire.AdapterList(
        adapters=context.adapters.states(),
        bindings=context.relay.bindings(),
        problem=context.adapters.problem,
    )


@handles("adapters.enable")
async def enable_adapter(context: ApiContext, connection: Connection, params: wire.AdapterParams) -> ConfiguredAdapter:
    return await context.adapters.enable(params.id)


@handles("adapters.disable")
async def disable_adapter(context: ApiContext, connection: Connection, params: wire.AdapterParams) -> ConfiguredAdapter:
    return await context.adapters.disable(params.id)


@handles("adapters.test")
async def test_adapter(context: ApiContext, connection: Connection, params: wire.AdapterParams) -> ConfiguredAdapter:
    return await context.adapters.test(params.id)


@handles("adapters.reload")
async def reload_adapters(
    context: ApiContext, connection: Connection, params: wire.ReloadAdaptersParams
) -> wire.AdapterList:
    await context.adapters.reload(params.id)
    return list_adapters(context, connection, Nothing())


@handles("access.list")
def list_rules(context: ApiContext, connection: Connection, params: Nothing) -> wire.AccessRules:
    return wire.AccessRules(rules=context.relay.access_rules(), broken=context.relay.access_problem)


@handles("access.add")
async def add_rule(context: ApiContext, connection: Connection, params: wire.AddRuleParams) -> wire.AccessRules:
    await context.relay.add_access_rule(params.rule)
    return list_rules(context, connection, Nothing())


@handles("access.remove")
async def remove_rule(context: ApiContext, connection: Connection, params: wire.RemoveRuleParams) -> wire.Removed:
    return wire.Removed(removed=await context.relay.remove_access_rule(params.sender, params.to))


@handles("tokens.list")
def list_tokens(context: ApiContext, connection: Connection, params: Nothing) -> wire.TokenList:
    return wire.TokenList(tokens=context.tokens.list(), broken=context.tokens.broken)


@handles("tokens.add")
async def add_token(context: ApiContext, connection: Connection, params: wire.AddTokenParams) -> wire.NewToken:
    info, token = await asyncio.to_thread(context.tokens.add, params.pattern, params.note)
    return wire.NewToken(token=token, info=info)


@handles("tokens.remove")
async def remove_token(context: ApiContext, connection: Connection, params: IdParams) -> None:
    await asyncio.to_thread(context.tokens.remove, params.id)
    context.drop_revoked()


@handles("traces.get")
async def trace(context: ApiContext, connection: Connection, params: IdParams) -> reporting.Spans:
    return reporting.Spans(spans=await context.relay.trace(params.id))


@handles("traces.search")
async def search_traces(context: ApiContext, connection: Connection, params: reporting.TracesParams) -> TracePage:
    return await context.relay.search_traces(params)


@handles("traces.conversation")
async def conversation(context: ApiContext, connection: Connection, params: IdParams) -> reporting.Spans:
    return reporting.Spans(spans=await context.relay.conversation(params.id))


@handles("metrics")
def metrics(context: ApiContext, connection: Connection, params: Nothing) -> MetricsSnapshot:
    return context.relay.metrics()


@handles("jobs.list")
def list_jobs(context: ApiContext, connection: Connection, params: Nothing) -> reporting.JobList:
    return reporting.JobList(jobs=context.jobs.states())


@handles("jobs.run")
def run_job(context: ApiContext, connection: Connection, params: reporting.RunJobParams) -> Any:
    """Run a job now; answer when it has ended, or without `wait` when it has started."""
    if params.wait:
        return context.jobs.run(params.name, params.arguments)
    return context.jobs.start(params.name, params.arguments)


@handles("jobs.cancel")
async def cancel_job(context: ApiContext, connection: Connection, params: reporting.JobParams) -> JobRun:
    """Cancel the current run of a job; answer when all its processes have ended."""
    return await context.jobs.cancel(params.name)


@handles("reports.list")
async def list_reports(context: ApiContext, connection: Connection, params: Nothing) -> reporting.ReportList:
    return reporting.ReportList(reports=await asyncio.to_thread(find_reports, _reports_dir(context)))


@handles("reports.get")
async def get_report(
    context: ApiContext, connection: Connection, params: reporting.ReportParams
) -> reporting.ReportContent:
    return await asyncio.to_thread(read_report, _reports_dir(context), params.date)


def _reports_dir(context: ApiContext) -> Path:
    nightly = context.relay.config.jobs.metrics
    directory = nightly.reports_dir(context.relay.data_dir.reports)
    if directory is None:
        where = nightly.output
        raise NotFound(f"the reports are not on this machine: jobs.metrics.output is {where}", what=where)
    return directory
