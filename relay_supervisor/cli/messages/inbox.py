"""``relay inbox``, ``relay ack`` and ``relay fail``: pulling messages, by hand or from a shell script.

1. A claim outlives the command that made it: it is a lease, within which `ack` or `fail` must follow.
2. ``--wait`` is for shell loops: it returns when there is a message, and survives restarts of the supervisor. It claims
   only the messages that it prints.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from relay_core.text.units import ago
from relay_supervisor.cli.arguments import MessageId, Subject, duration
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import UsageError
from relay_supervisor.cli.groups import new_command
from relay_supervisor.cli.output import payload_text, safe

if TYPE_CHECKING:
    from relay_core.client.client import RelayClient
    from relay_core.messages.envelope import Envelope

app = new_command()
ack_app = new_command()
fail_app = new_command()


@command(
    app,
    examples=[
        "relay inbox relay.agent.writer",
        "relay inbox relay.agent.writer --claim --limit 5 --lease 10m --json",
        "while relay inbox relay.agent.writer --wait --claim --json > m.json; do ...; done",
    ],
    connect=False,
)
async def inbox(
    session: Session,
    subject: Subject,
    claim: Annotated[bool, typer.Option("--claim", help="Claim them: then ack or fail each one.")] = False,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, max=1000, help="Maximum number: 50, or 1 with --claim."),
    ] = None,
    lease: Annotated[str, typer.Option(help="How long a claim lasts.")] = "10m",
    after: Annotated[str | None, typer.Option(help="Only messages after this one.", metavar="ID")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for a message, and for the supervisor.")] = False,
    timeout: Annotated[
        str | None, typer.Option(help="Stop waiting, with exit code 5.", metavar="DURATION", show_default="never")
    ] = None,
) -> None:
    """Show the oldest waiting messages, or claim them."""
    from relay_core.clock import SystemClock, parse_iso

    if timeout is not None and not wait:
        raise UsageError("--timeout needs --wait")
    lease_time = duration(lease, "--lease")
    deadline = None
    if timeout is not None:
        deadline = asyncio.get_running_loop().time() + duration(timeout, "--timeout").total_seconds()
    limit = limit or (1 if claim else 50)
    async with _connected(session, wait, deadline) as client:

        async def fetch() -> list[Envelope]:
            if not claim:
                return await client.inbox(subject, limit, after=after)
            ids = None
            if after is not None:
                ids = [message.id for message in await client.inbox(subject, limit, after=after)]
            return await client.claim(subject, limit, lease=lease_time, ids=ids)

        messages = await _wait(client, subject, after, deadline, fetch) if wait else await fetch()
    now = SystemClock().now_ms()
    session.show_table(
        {"messages": [message.to_wire() for message in messages]},
        ["ID", "SENT", "FROM", "PAYLOAD"],
        [
            [message.id, ago(parse_iso(message.created_at), now), message.sender, payload_text(message.payload)]
            for message in messages
        ],
        empty=f"no messages waiting for {safe(subject)}",
    )
    if claim and messages:
        session.note(
            f"claimed for {lease}: finish each with 'relay ack {subject} ID' or 'relay fail {subject} ID REASON'"
        )


@asynccontextmanager
async def _connected(session: Session, wait: bool, deadline: float | None) -> AsyncIterator[RelayClient]:
    """Connect; with `wait`, a supervisor that is not running is no error."""
    from relay_core.errors import SupervisorUnavailable

    client = session.new_client()
    try:
        async with asyncio.timeout_at(deadline):
            await client.__aenter__()
    except SupervisorUnavailable as error:
        if not wait or error.code == "other_data_dir":
            raise
        session.note(f"{error.message}; waiting for it")
    except TimeoutError:
        raise TimeoutError(f"{client.path} did not answer in time") from None
    try:
        yield client
    finally:
        await client.close()


async def _wait(
    client: RelayClient,
    subject: str,
    after: str | None,
    deadline: float | None,
    fetch: Callable[[], Awaitable[list[Envelope]]],
) -> list[Envelope]:
    """Return messages once there are any; if another consumer takes them first, keep waiting.

    Raises:
        TimeoutError: if none arrived before the deadline.
    """
    from relay_core.errors import SupervisorUnavailable

    while True:
        try:
            async with asyncio.timeout_at(deadline):
                await client.wait_inbox(subject, 1, after=after)
        except TimeoutError:
            raise TimeoutError(f"no message for {subject} in time") from None
        with suppress(SupervisorUnavailable):  # wait for it again
            if messages := await fetch():  # outside the timeout: a claimed message must be printed
                return messages


@command(ack_app, examples=["relay ack relay.agent.writer 01KA5Q..."])
async def ack(session: Session, subject: Subject, id: MessageId) -> None:
    """Acknowledge a message; one that is still waiting is claimed first."""
    from relay_core.errors import NotFound

    try:
        await session.client.complete(subject, id)
    except NotFound:
        # A message that a hook has shown is not claimed yet.
        if not await session.client.claim(subject, ids=[id], lease=duration("1m", "lease")):
            raise
        await session.client.complete(subject, id)
    session.show({"id": id, "done": True}, lambda: [f"{safe(id)}: acknowledged"])


@command(fail_app, examples=["relay fail relay.agent.writer 01KA5Q... 'no such page'"])
async def fail(
    session: Session,
    subject: Subject,
    id: MessageId,
    reason: Annotated[str, typer.Argument(help="Why it failed, kept with the dead letter.", metavar="REASON")],
) -> None:
    """Turn a claimed message into a dead letter."""
    await session.client.fail(subject, id, reason)
    session.show(
        {"id": id, "failed": True}, lambda: [f"{safe(id)}: now a dead letter, see 'relay dlq show {safe(id)}'"]
    )
