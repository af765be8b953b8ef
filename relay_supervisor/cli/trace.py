"""``relay trace``: what became of a message, at every target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_supervisor.cli.arguments import MessageId
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import Failed
from relay_supervisor.cli.groups import new_command
from relay_supervisor.cli.show import Painted, lasting, paint, safe, table

if TYPE_CHECKING:
    from relay_core.delivery import Span

app = new_command()

_COLOURS = {"done": "green", "failed": "red", "no_subscriber": "red", "refused": "red", "partial": "yellow"}


@command(app, examples=["relay trace 01KA5Q...", "relay trace 01KA5Q... --conversation --json"])
async def show_trace(
    session: Session,
    id: MessageId,
    conversation: Annotated[
        bool, typer.Option("--conversation", help="Every message that followed from the same first one.")
    ] = False,
) -> None:
    """Show what became of a message, one line per target."""
    spans = await session.client.trace(id)
    if conversation and spans:
        spans = await session.client.conversation(spans[0].trace_id)
    if not spans:
        raise Failed(f"nothing is known of {id}: it was never published, or its trace is older than traces are kept")
    session.show({"spans": [one.to_wire() for one in spans]}, lambda: _lines(spans))


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
    """Return how many messages of the listing led to each."""
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
        lasting((span.sent_at - start) / 1000),
        Painted(span.status, _COLOURS.get(span.status, "yellow")),
        lasting(queued / 1000) if queued is not None else None,
        lasting(handled / 1000) if handled is not None else None,
        f"{span.hops_after}/{span.max_hops}",
        span.message_id,
        f"{'  ' * depth}{span.sender} → {span.subject}{f' ({target})' if target else ''}",
    ]
