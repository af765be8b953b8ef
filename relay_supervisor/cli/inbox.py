"""``relay inbox``, ``relay ack`` and ``relay fail``: pulling messages, by hand or from a shell script.

A claim outlives the command that made it: it is a lease, kept for a time, within which `ack` or `fail` must follow.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from relay_supervisor.cli.arguments import MessageId, Subject, duration
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.groups import new_command
from relay_supervisor.cli.show import ago, payload_text, safe, table

app = new_command()
ack_app = new_command()
fail_app = new_command()


@command(
    app,
    examples=[
        "relay inbox relay.agent.writer",
        "relay inbox relay.agent.writer --claim --limit 5 --lease 10m --json",
    ],
)
async def inbox(
    session: Session,
    subject: Subject,
    claim: Annotated[bool, typer.Option("--claim", help="Take them: each must be acked or failed.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, max=1000, help="At most so many: 50, or 1 to claim.")
    ] = None,
    lease: Annotated[str, typer.Option(help="How long a claim is kept.")] = "10m",
) -> None:
    """Look at the oldest waiting messages, or claim them."""
    from relay_core.clock import SystemClock, parse_iso

    kept = duration(lease, "--lease")
    if claim:
        messages = await session.client.claim(subject, limit or 1, lease=kept)
    else:
        messages = await session.client.inbox(subject, limit or 50)
    now = SystemClock().now_ms()
    rows: list[list[Any]] = [
        [one.id, ago(parse_iso(one.created_at), now), one.sender, payload_text(one.payload)] for one in messages
    ]
    session.show(
        {"messages": [one.to_wire() for one in messages]},
        lambda: table(["ID", "SENT", "FROM", "PAYLOAD"], rows, empty=f"nothing waits for {safe(subject)}"),
    )
    if claim and messages:
        session.note(f"claimed for {lease}: finish each with 'relay ack {subject} ID' or 'relay fail {subject} ID WHY'")


@command(ack_app, examples=["relay ack relay.agent.writer 01KA5Q..."])
async def ack(session: Session, subject: Subject, id: MessageId) -> None:
    """Finish a claimed message."""
    await session.client.complete(subject, id)
    session.show({"id": id, "done": True}, lambda: [f"{safe(id)}: done"])


@command(fail_app, examples=["relay fail relay.agent.writer 01KA5Q... 'no such page'"])
async def fail(
    session: Session,
    subject: Subject,
    id: MessageId,
    reason: Annotated[str, typer.Argument(help="Why, for whoever looks at the dead letter.")],
) -> None:
    """Make a dead letter of a claimed message."""
    await session.client.fail(subject, id, reason)
    session.show({"id": id, "failed": True}, lambda: [f"{safe(id)}: a dead letter now ('relay dlq show {safe(id)}')"])
