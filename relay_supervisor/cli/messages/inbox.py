"""``relay inbox``, ``relay ack`` and ``relay fail``: pulling messages, by hand or from a shell script.

1. A claim outlives the command that made it: it is a lease, kept for a time, within which `ack` or `fail` must follow.
2. ``--wait`` is for shell loops: it returns when there is something to do and not before, through any number of
   restarts of the supervisor. It claims only what it prints.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_core.text.units import ago
from relay_supervisor.cli.arguments import MessageId, Subject, duration
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import UsageError
from relay_supervisor.cli.groups import new_command
from relay_supervisor.cli.output import payload_text, safe, table

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
    claim: Annotated[bool, typer.Option("--claim", help="Take them: each must be acked or failed.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, max=1000, help="At most so many: 50, or 1 to claim.")
    ] = None,
    lease: Annotated[str, typer.Option(help="How long a claim is kept.")] = "10m",
    after: Annotated[str | None, typer.Option(help="Only those that came after this message.", metavar="ID")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until there are any, also for a supervisor.")] = False,
    timeout: Annotated[
        str | None, typer.Option(help="Wait no longer; exit code 5.", metavar="DURATION", show_default="for ever")
    ] = None,
) -> None:
    """Look at the oldest waiting messages, or claim them."""
    from relay_core.clock import SystemClock, parse_iso

    if timeout is not None and not wait:
        raise UsageError("--timeout is for --wait")
    kept = duration(lease, "--lease")
    over = _deadline(timeout)
    async with _connected(session, wait, over) as client:
        mail = Mail(client, subject, after, limit or (1 if claim else 50), kept if claim else None)
        messages = await mail.wait(over) if wait else await mail.get()
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


def _deadline(timeout: str | None) -> float | None:
    """Return the loop's time at which nothing is waited for any more."""
    if timeout is None:
        return None
    return asyncio.get_running_loop().time() + duration(timeout, "--timeout").total_seconds()


@asynccontextmanager
async def _connected(session: Session, wait: bool, over: float | None) -> AsyncIterator[RelayClient]:
    """Connect; whoever is to wait for mail waits for a supervisor, too."""
    from relay_core.errors import SupervisorUnavailable

    client = session.new_client()
    try:
        async with asyncio.timeout_at(over):
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


class Mail:
    """The messages of a subject that a command asks for; with a lease they are claimed."""

    def __init__(
        self, client: RelayClient, subject: str, after: str | None, limit: int, lease: timedelta | None
    ) -> None:
        self._client = client
        self._subject = subject
        self._after = after
        self._limit = limit
        self._lease = lease

    async def get(self) -> list[Envelope]:
        """Return what is there."""
        if self._lease is None:
            return await self._client.inbox(self._subject, self._limit, after=self._after)
        ids: list[str] | None = None
        if self._after is not None:
            ids = [one.id for one in await self._client.inbox(self._subject, self._limit, after=self._after)]
        return await self._client.claim(self._subject, self._limit, lease=self._lease, ids=ids)

    async def wait(self, over: float | None) -> list[Envelope]:
        """Return what is there once something is; another consumer may be quicker, and then it waits on.

        Raises:
            TimeoutError: if nothing came in time.
        """
        from relay_core.errors import SupervisorUnavailable

        while True:
            try:
                async with asyncio.timeout_at(over):
                    await self._client.wait_inbox(self._subject, 1, after=self._after)
            except TimeoutError:
                raise TimeoutError(f"nothing came for {self._subject} in time") from None
            with suppress(SupervisorUnavailable):  # it is waited for as before
                if messages := await self.get():  # not within the time: what is claimed must be printed
                    return messages


@command(ack_app, examples=["relay ack relay.agent.writer 01KA5Q..."])
async def ack(session: Session, subject: Subject, id: MessageId) -> None:
    """Finish a claimed message, or one that waits: it is claimed first."""
    from relay_core.errors import NotFound

    try:
        await session.client.complete(subject, id)
    except NotFound:
        # A hook has shown it, and so nobody has claimed it.
        if not await session.client.claim(subject, ids=[id], lease=duration("1m", "lease")):
            raise
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
