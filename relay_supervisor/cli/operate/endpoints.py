"""``relay endpoints`` and ``relay subscriptions``: the subjects that have a mailbox, and the live subscribers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_core.text.units import ago, format_duration
from relay_supervisor.cli.arguments import Subject
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.groups import new_command, new_group
from relay_supervisor.cli.output import Painted, safe

if TYPE_CHECKING:
    from relay_core.protocol.state import MailboxState

app = new_group("Endpoints: subjects with a durable mailbox.")
subscriptions_app = new_command()


@command(app, "list", examples=["relay endpoints", "relay endpoints list --json", "relay endpoints list --all"])
async def list_endpoints(
    session: Session,
    every: Annotated[
        bool,
        typer.Option("--all", help="Include mailboxes of adapters and of unregistered subjects."),
    ] = False,
) -> None:
    """List the endpoints with their mailboxes, and removed ones that still hold messages."""
    endpoints = await session.client.endpoints()
    mailboxes: dict[str, MailboxState] = {}
    if session.client.hello is not None and session.client.hello.operator:
        mailboxes = {mailbox.hash: mailbox for mailbox in await session.client.mailboxes()}
    registered = {endpoint.hash for endpoint in endpoints}
    documents: list[dict[str, Any]] = []
    for endpoint in endpoints:
        found = mailboxes.get(endpoint.hash)
        documents.append(endpoint.to_wire() | ({"mailbox": found.to_wire()} if found else {}))
    rows = [_row(endpoint.subject, mailboxes.get(endpoint.hash)) for endpoint in endpoints]
    for mailbox in mailboxes.values():
        if mailbox.hash not in registered and (every or _is_left_over(mailbox)):
            documents.append({"subject": mailbox.subject, "hash": mailbox.hash, "mailbox": mailbox.to_wire()})
            rows.append(_row(mailbox.subject, mailbox))
    session.show_table(
        {"endpoints": documents},
        ["WAITING", "CLAIMED", "FAILED", "PRESSURE", "OLDEST", "READERS", "SUBJECT"],
        rows,
        empty="no endpoints: create one with 'relay endpoints add SUBJECT'",
    )


@command(app, "add", examples=["relay endpoints add relay.agent.writer"])
async def add_endpoint(
    session: Session, subject: Annotated[str, typer.Argument(help="Subject of the new mailbox.", metavar="SUBJECT")]
) -> None:
    """Create a mailbox for a subject."""
    added = await session.client.register_endpoint(subject)
    session.show(added.to_wire(), lambda: [f"added {safe(added.subject)}, stored in {safe(added.maildir_path)}"])


@command(app, "rm", examples=["relay endpoints rm relay.agent.writer"])
async def remove_endpoint(session: Session, subject: Subject) -> None:
    """Remove an endpoint; its messages stay on disk."""
    await session.client.unregister_endpoint(subject)
    session.show({"removed": subject}, lambda: [f"removed {safe(subject)}; its messages stay on disk"])


@command(subscriptions_app, examples=["relay subscriptions", "relay subscriptions --json"])
async def list_subscriptions(session: Session) -> None:
    """Show who is subscribed to what, oldest first: with a token, only the token's own subscriptions."""
    from relay_core.clock import SystemClock

    subscriptions = await session.client.subscriptions()
    now = SystemClock().now_ms()
    session.show_table(
        {"subscriptions": [subscription.to_wire() for subscription in subscriptions]},
        ["SINCE", "PID", "CLIENT", "WHO", "IN FLIGHT", "QUEUE", "TO", "PATTERN"],
        [
            [
                ago(subscription.since, now),
                str(subscription.pid) if subscription.pid is not None else None,
                subscription.client,
                subscription.agent or subscription.identity,
                subscription.in_flight,
                subscription.queue,
                subscription.kind,
                subscription.pattern,
            ]
            for subscription in subscriptions
        ],
        empty="no subscriptions",
    )


def _is_left_over(mailbox: MailboxState) -> bool:
    """Return True if a mailbox holds messages of a removed endpoint or adapter."""
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
        _pressure(mailbox.pressure),
        format_duration(mailbox.oldest_ms / 1000) if mailbox.oldest_ms is not None else None,
        mailbox.consumers,
        name,
    ]


def _pressure(pressure: float) -> Painted | str:
    text = f"{pressure:.0%}"
    return Painted(text, "red" if pressure >= 1 else "yellow") if pressure >= 0.8 else text
