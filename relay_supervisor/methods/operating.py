"""What operators look at and change: breakers, senders, adapters, rules, tokens, traces, jobs and reports."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from relay_core.breaker import CircuitState
from relay_core.errors import NotFound
from relay_core.metrics import MetricsSnapshot
from relay_core.operations import ConfiguredAdapter, JobRun
from relay_core.protocol import (
    AccessRules,
    AdapterParams,
    Adapters,
    AddRuleParams,
    AddTokenParams,
    Breakers,
    Done,
    ForceBreakerParams,
    IdParams,
    JobParams,
    Jobs,
    NewToken,
    Nothing,
    ReloadAdaptersParams,
    Removed,
    RemoveRuleParams,
    ReportContent,
    ReportParams,
    Reports,
    ResetBreakerParams,
    RunJobParams,
    Senders,
    Spans,
    Tokens,
    Traces,
    TracesParams,
)
from relay_core.trace_search import TraceSearch
from relay_supervisor.connection import Connection
from relay_supervisor.reports import find_reports, read_report
from relay_supervisor.services import Services


def list_breakers(services: Services, connection: Connection, params: Nothing) -> Breakers:
    """List the breakers."""
    return Breakers(breakers=services.relay.breakers())


def reset_breaker(services: Services, connection: Connection, params: ResetBreakerParams) -> Done:
    """Close a breaker."""
    services.relay.reset_breaker(params.target, params.reason)
    return Done()


def force_breaker(services: Services, connection: Connection, params: ForceBreakerParams) -> Done:
    """Hold a breaker open, or close it."""
    services.relay.force_breaker(params.target, CircuitState(params.state), params.reason)
    return Done()


def list_senders(services: Services, connection: Connection, params: Nothing) -> Senders:
    """Tell what each sender has used of its limit."""
    return Senders(senders=services.relay.senders())


def list_adapters(services: Services, connection: Connection, params: Nothing) -> Adapters:
    """List the adapters."""
    return Adapters(
        adapters=services.adapters.states(),
        bindings=services.relay.bindings(),
        problem=services.adapters.problem,
    )


async def enable_adapter(services: Services, connection: Connection, params: AdapterParams) -> ConfiguredAdapter:
    """Run an adapter from now on."""
    return await services.adapters.enable(params.id)


async def disable_adapter(services: Services, connection: Connection, params: AdapterParams) -> ConfiguredAdapter:
    """Run an adapter no longer; its mail waits."""
    return await services.adapters.disable(params.id)


async def test_adapter(services: Services, connection: Connection, params: AdapterParams) -> ConfiguredAdapter:
    """Ask an adapter whether it is well."""
    return await services.adapters.test(params.id)


async def reload_adapters(services: Services, connection: Connection, params: ReloadAdaptersParams) -> Adapters:
    """Read adapters.json again, or make one anew."""
    await services.adapters.reload(params.id)
    return list_adapters(services, connection, Nothing())


def list_rules(services: Services, connection: Connection, params: Nothing) -> AccessRules:
    """List the access rules."""
    access = services.relay.bus.access
    return AccessRules(rules=access.rules(), broken=access.broken)


async def add_rule(services: Services, connection: Connection, params: AddRuleParams) -> AccessRules:
    """Add an access rule."""
    await asyncio.to_thread(services.relay.bus.access.add_rule, params.rule)
    return list_rules(services, connection, Nothing())


async def remove_rule(services: Services, connection: Connection, params: RemoveRuleParams) -> Removed:
    """Remove access rules."""
    removed = await asyncio.to_thread(services.relay.bus.access.remove_rule, params.sender, params.to)
    return Removed(removed=removed)


def list_tokens(services: Services, connection: Connection, params: Nothing) -> Tokens:
    """List the tokens."""
    return Tokens(tokens=services.tokens.list(), broken=services.tokens.broken)


async def add_token(services: Services, connection: Connection, params: AddTokenParams) -> NewToken:
    """Make a token."""
    info, token = await asyncio.to_thread(services.tokens.add, params.pattern, params.note)
    return NewToken(token=token, info=info)


async def remove_token(services: Services, connection: Connection, params: IdParams) -> Done:
    """Make a token worthless, also on open connections."""
    await asyncio.to_thread(services.tokens.remove, params.id)
    services.disown()
    return Done()


async def trace(services: Services, connection: Connection, params: IdParams) -> Spans:
    """Tell what became of a message."""
    return Spans(spans=await services.relay.trace(params.id))


async def search_traces(services: Services, connection: Connection, params: TracesParams) -> Traces:
    """List messages and what became of them, newest first."""
    wanted = TraceSearch(
        params.id,
        params.subject,
        params.sender,
        params.status,
        params.since,
        params.until,
        limit=params.limit,
        after=params.cursor,
    )
    found = await services.relay.search_traces(wanted)
    return Traces(rows=found.rows, complete=found.complete, cursor=found.cursor)


async def conversation(services: Services, connection: Connection, params: IdParams) -> Spans:
    """Tell what became of every message that followed from one."""
    return Spans(spans=await services.relay.conversation(params.id))


def metrics(services: Services, connection: Connection, params: Nothing) -> MetricsSnapshot:
    """Return what has been counted since the start."""
    return services.relay.metrics()


def list_jobs(services: Services, connection: Connection, params: Nothing) -> Jobs:
    """List the jobs."""
    return Jobs(jobs=services.jobs.states())


def run_job(services: Services, connection: Connection, params: RunJobParams) -> Any:
    """Run a job now; the answer comes when it has ended, unless the client does not want to wait."""
    if params.wait:
        return services.jobs.run(params.name, params.arguments)
    return services.jobs.start(params.name, params.arguments)


async def cancel_job(services: Services, connection: Connection, params: JobParams) -> JobRun:
    """Break off the run that is under way; the answer comes when all its processes have ended."""
    return await services.jobs.cancel(params.name)


async def list_reports(services: Services, connection: Connection, params: Nothing) -> Reports:
    """List the nightly reports."""
    return Reports(reports=await asyncio.to_thread(find_reports, _reports_dir(services)))


async def get_report(services: Services, connection: Connection, params: ReportParams) -> ReportContent:
    """Return a nightly report."""
    return await asyncio.to_thread(read_report, _reports_dir(services), params.date)


def _reports_dir(services: Services) -> Path:
    bus = services.relay.bus
    nightly = bus.config.jobs.metrics
    directory = nightly.reports_dir(bus.data_dir.reports)
    if directory is None:
        where = nightly.output
        raise NotFound(f"the reports are not on this machine: jobs.metrics.output has them in {where}", what=where)
    return directory
