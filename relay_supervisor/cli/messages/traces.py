"""``relay trace``: the path of one message; ``relay traces``: find messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_core.text.units import ago, format_duration
from relay_supervisor.cli.arguments import Limit, MessageId, instant_ms
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import Failed, UsageError
from relay_supervisor.cli.groups import new_command
from relay_supervisor.cli.output import Painted, paint, safe, table

if TYPE_CHECKING:
    from relay_core.messages.delivery import Span, TraceSummary

app = new_command()
list_app = new_command()

_COLOURS = {"done": "green", "failed": "red", "no_subscriber": "red", "refused": "red", "partial": "yellow"}


@command(app, examples=["relay trace 01KA5Q...", "relay trace 01KA5Q... --conversation --json"])
async def show_trace(
    session: Session,
    id: MessageId,
    conversation: Annotated[
        bool, typer.Option("--conversation", help="Show every message of the same conversation.")
    ] = False,
) -> None:
    """Show what happened to a message, one line per target."""
    spans = await session.client.trace(id)
    if conversation and spans:
        spans = await session.client.conversation(spans[0].trace_id)
    if not spans:
        raise Failed(f"no trace of {id}: it was never published, or its trace has expired")
    session.show({"spans": [span.to_wire() for span in spans]}, lambda: _lines(spans))


@command(
    list_app,
    examples=[
        "relay traces",
        "relay traces --status failed --since 1h",
        "relay traces --subject 'relay.agent.*' --json",
    ],
)
async def list_traces(
    session: Session,
    id: Annotated[str | None, typer.Option("--id", help="Beginning of the message id.")] = None,
    subject: Annotated[str | None, typer.Option(help="Part of the subject, or a pattern.")] = None,
    sender: Annotated[str | None, typer.Option("--from", help="Part of the sender, or a pattern.")] = None,
    status: Annotated[str | None, typer.Option(help="Status: failed, refused, done ...")] = None,
    since: Annotated[str | None, typer.Option(help="Sent after: 2h (ago), 7d, or 2026-01-31T12:00Z.")] = None,
    before: Annotated[str | None, typer.Option(help="Sent before: same format.")] = None,
    limit: Limit = 50,
) -> None:
    """List messages and their status, newest first."""
    from relay_core.clock import SystemClock
    from relay_core.messages.delivery import TracePage, TraceSearch
    from relay_core.records.trace_search import MESSAGE_STATUSES

    if status is not None and status not in MESSAGE_STATUSES:
        raise UsageError(f"--status: {status!r} is not a status; choose from {', '.join(MESSAGE_STATUSES)}")
    rows: list[TraceSummary] = []
    cursor = None
    while True:
        search = TraceSearch(
            id=id,
            subject=subject,
            sender=sender,
            status=status,
            since=instant_ms(since, "--since"),
            until=instant_ms(before, "--before"),
            cursor=cursor,
            limit=limit - len(rows),
        )
        page = await session.client.search_traces(search)
        rows += page.rows
        cursor = page.cursor
        if cursor is None or len(rows) >= limit:
            break
    now = SystemClock().now_ms()
    session.show_table(
        TracePage(rows=rows, complete=True, cursor=cursor).to_wire(),
        ["ID", "SENT", "STATUS", "TOOK", "TARGETS", "FROM → TO"],
        [_summary_row(row, now) for row in rows],
        empty="no matching messages, or their traces have expired",
    )


def _summary_row(row: TraceSummary, now: int) -> list[Any]:
    return [
        row.message_id,
        ago(row.sent_at, now),
        Painted(f"{row.status} ({row.code})" if row.code else row.status, _COLOURS.get(row.status, "yellow")),
        format_duration(row.total_us / 1_000_000) if row.total_us is not None else None,
        row.targets,
        f"{row.sender} → {row.subject}",
    ]


def _lines(spans: list[Span]) -> Iterator[str]:
    yield paint(f"conversation {safe(spans[0].trace_id)}", "bold")
    start = min(span.sent_at for span in spans)
    depths = _depths(spans)
    yield from table(
        ["AFTER", "STATUS", "QUEUED", "HANDLED", "HOPS", "MESSAGE", "FROM → TO"],
        [_row(span, start, depths[span.message_id]) for span in spans],
    )
    for span in spans:
        if span.reason:
            yield f"  {safe(span.message_id)}  {safe(span.code or span.status)}: {safe(span.reason, 300)}"


def _depths(spans: list[Span]) -> dict[str, int]:
    """Return how many of the listed messages precede each message in its chain."""
    parents = {span.message_id: span.parent_id for span in spans}

    def depth(id: str | None) -> int:
        seen: set[str] = set()
        while id in parents and id not in seen:
            seen.add(id)
            id = parents[id]
        return len(seen) - 1

    return {id: depth(id) for id in parents}


def _row(span: Span, start: float, depth: int) -> list[Any]:
    queued = span.claimed_at - span.stored_at if span.claimed_at and span.stored_at else None
    handled = span.handled_at - span.claimed_at if span.handled_at and span.claimed_at else None
    target = span.target_subject if span.target_subject != span.subject else ""
    return [
        format_duration((span.sent_at - start) / 1000),
        Painted(span.status, _COLOURS.get(span.status, "yellow")),
        format_duration(queued / 1000) if queued is not None else None,
        format_duration(handled / 1000) if handled is not None else None,
        f"{span.hops_after}/{span.max_hops}",
        span.message_id,
        f"{'  ' * depth}{span.sender} → {span.subject}{f' ({target})' if target else ''}",
    ]
