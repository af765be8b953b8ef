"""``relay endpoints``: the subjects that have a mailbox, and how full it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_core.text.units import format_duration
from relay_supervisor.cli.arguments import Subject
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.groups import new_group
from relay_supervisor.cli.output import Painted, safe, table

if TYPE_CHECKING:
    from relay_core.protocol.state import MailboxState

app = new_group("Subjects with a mailbox that lasts.")


@command(app, "list", examples=["relay endpoints", "relay endpoints list --json", "relay endpoints list --all"])
async def list_endpoints(
    session: Session,
    every: Annotated[
        bool,
        typer.Option("--all", help="Also mailboxes of adapters, and of subjects that are not registered (any more)."),
    ] = False,
) -> None:
    """List the endpoints and how their mailboxes are doing; of removed endpoints and adapters, those that hold mail."""
    endpoints = await session.client.endpoints()
    mailboxes = {one.hash: one for one in await session.client.mailboxes()} if _is_operator(session) else {}
    registered = {one.hash for one in endpoints}
    documents: list[dict[str, Any]] = []
    for endpoint in endpoints:
        mailbox = mailboxes.get(endpoint.hash)
        documents.append(endpoint.to_wire() | ({"mailbox": mailbox.to_wire()} if mailbox else {}))
    others = [one for one in mailboxes.values() if one.hash not in registered and (every or _is_left_over(one))]
    for other in others:
        documents.append({"subject": other.subject, "hash": other.hash, "mailbox": other.to_wire()})
    rows = [(one.subject, mailboxes.get(one.hash)) for one in endpoints] + [(one.subject, one) for one in others]
    session.show(
        {"endpoints": documents},
        lambda: table(
            ["WAITING", "CLAIMED", "FAILED", "PRESSURE", "OLDEST", "READERS", "SUBJECT"],
            [_row(subject, mailbox) for subject, mailbox in rows],
            empty="no endpoints: 'relay endpoints add SUBJECT' makes one",
        ),
    )


@command(app, "add", examples=["relay endpoints add relay.agent.writer"])
async def add_endpoint(session: Session, subject: Annotated[str, typer.Argument(help="The new subject.")]) -> None:
    """Give a subject a mailbox."""
    made = await session.client.register_endpoint(subject)
    session.show(made.to_wire(), lambda: [f"{safe(made.subject)} keeps its mail in {safe(made.maildir_path)}"])


@command(app, "rm", examples=["relay endpoints rm relay.agent.writer"])
async def remove_endpoint(session: Session, subject: Subject) -> None:
    """Stop routing to a subject; its mail stays on disk."""
    await session.client.unregister_endpoint(subject)
    session.show({"removed": subject}, lambda: [f"{safe(subject)} is no endpoint any more; its mail stays on disk"])


def _is_operator(session: Session) -> bool:
    return session.client.hello is not None and session.client.hello.operator


def _is_left_over(mailbox: MailboxState) -> bool:
    """Return True if a mailbox holds mail of an endpoint or an adapter that was removed."""
    was_target = mailbox.kind in ("endpoint", "adapter") and not mailbox.registered
    return was_target and bool(mailbox.depth or mailbox.claimed or mailbox.failed)


def _row(subject: str, mailbox: MailboxState | None) -> list[Any]:
    if mailbox is None:
        return [None, None, None, None, None, None, subject]
    name = subject if mailbox.registered else f"{subject} (not registered)"
    return [
        mailbox.depth,
        mailbox.claimed,
        Painted(str(mailbox.failed), "red") if mailbox.failed else 0,
        pressure_text(mailbox.pressure),
        format_duration(mailbox.oldest_ms / 1000) if mailbox.oldest_ms is not None else None,
        mailbox.consumers,
        name,
    ]


def pressure_text(pressure: float) -> Painted | str:
    """Return how full a mailbox is."""
    text = f"{pressure:.0%}"
    return Painted(text, "red" if pressure >= 1 else "yellow") if pressure >= 0.8 else text
