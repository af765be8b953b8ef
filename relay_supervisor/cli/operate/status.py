"""``relay status``: the state of the bus at a glance, problems first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from relay_core.text.units import ago, format_count, format_duration, plural
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.groups import new_command
from relay_supervisor.cli.operate.breakers import BREAKER_HEADERS, breaker_rows
from relay_supervisor.cli.operate.jobs import JOB_HEADERS, job_rows
from relay_supervisor.cli.output import code_of, paint, safe, table

if TYPE_CHECKING:
    from relay_core.messages.operator_views import ConfiguredAdapter
    from relay_core.protocol.serving import ServerStatus

app = new_command()


@command(app, examples=["relay status", "relay status --json | jq .rates"])
async def show_status(session: Session) -> None:
    """Show the state of the bus, problems first."""
    from relay_core.clock import SystemClock

    status = await session.client.status()
    session.show(status.to_wire(), lambda: status_lines(status, SystemClock().now_ms()))


def status_lines(status: ServerStatus, now_ms: int) -> Iterator[str]:
    """Yield the status as lines for people."""
    server, rates = status.server, status.rates
    yield (
        f"{paint(f'relay {server.version}', 'bold')}  pid {server.pid}, up {format_duration(server.uptime_secs)}, "
        f"socket {safe(server.socket)}"
    )
    yield f"  promise     {server.promise} (durability {server.durability})"
    yield f"  data        {safe(server.data_dir)}"
    problems = list(find_problems(status))
    if problems:
        yield ""
        yield paint("Problems", "red")
        for problem in problems:
            yield f"  ! {safe(problem)}"
    yield ""
    yield (
        f"  traffic     {format_count(rates.rate_10s)}/s over 10 s, {format_count(rates.rate_60s)}/s over 60 s; "
        f"{rates.publishes:,} published, {rates.no_subscriber:,} without a consumer"
    )
    refused = {**rates.refusals, **{code: count for code, count in rates.budget_rejections.items() if count}}
    if refused:
        yield f"  refused     {', '.join(f'{count:,} {safe(code)}' for code, count in refused.items())}"
    if rates.total_us.p50 is not None and rates.total_us.p99 is not None:
        yield (
            f"  latency     p50 {format_duration(rates.total_us.p50 / 1e6)}, "
            f"p99 {format_duration(rates.total_us.p99 / 1e6)} from publish to handled"
        )
    yield (
        f"  mailboxes   {plural(status.endpoints, 'endpoint')}, {plural(status.waiting, 'message')} waiting; "
        f"{plural(status.subscriptions, 'subscription')}, {plural(status.connections, 'connection')}"
    )
    yield f"  journal     {status.journal.describe(now_ms)}"
    yield from _tables(status, now_ms)


def _tables(status: ServerStatus, now_ms: int) -> Iterator[str]:
    if status.pressure:
        yield from _titled("Pressure")
        yield from table(
            ["PRESSURE", "WAITING", "READERS", "SUBJECT"],
            [
                [f"{mailbox.pressure:.0%}", mailbox.depth, mailbox.consumers, mailbox.subject]
                for mailbox in status.pressure
            ],
        )
    if status.breakers:
        yield from _titled("Open breakers")
        yield from table(BREAKER_HEADERS, breaker_rows(status.breakers))
    if status.dead_letters:
        yield from _titled("Dead letters (see 'relay dlq')")
        yield from table(
            ["COUNT", "CODE", "NEWEST", "TARGET", "SAMPLE REASON"],
            [
                [group.count, code_of(group), ago(group.newest_at, now_ms), group.endpoint_subject, group.sample_reason]
                for group in status.dead_letters[:10]
            ],
        )
    if status.adapters:
        yield from _titled("Adapters")
        yield from table(
            ["ID", "TYPE", "STATE", "WAITING", "PROBLEM"],
            map(_adapter_row, status.adapters),
        )
    yield from _titled("Jobs")
    yield from table(JOB_HEADERS, job_rows(status.jobs, now_ms), empty="no jobs")


def find_problems(status: ServerStatus) -> Iterator[str]:
    """Yield the problems that an operator should look at."""
    yield from status.problems
    for breaker in status.breakers:
        yield f"the breaker of {breaker.subject or breaker.key} is {breaker.state}: see 'relay breakers'"
    for mailbox in status.pressure:
        yield f"{mailbox.subject} is {mailbox.pressure:.0%} full"
    for adapter in status.adapters:
        if adapter.problem is not None and adapter.problem not in " ".join(status.problems):
            yield f"adapter {adapter.id}: {adapter.problem}"
    for job in status.jobs:
        if job.last is not None and job.last.outcome in ("failed", "timed_out"):
            yield f"job {job.name} {job.last.outcome.replace('_', ' ')}: {job.last.error or 'see its output'}"
    from relay_core.messages.dead_letter import count_dead

    count = count_dead(status.dead_letters)
    if count:
        yield f"{plural(count, 'dead letter')}: see 'relay dlq'"


def _adapter_row(adapter: ConfiguredAdapter) -> list[Any]:
    state = adapter.state
    if state is None:
        return [adapter.id, adapter.type, "off" if adapter.enabled else "disabled", None, adapter.problem]
    return [adapter.id, adapter.type, state.state, state.depth, adapter.problem or state.detail]


def _titled(title: str) -> Iterator[str]:
    yield ""
    yield paint(title, "bold")
