"""``relay breakers`` and ``relay senders``: circuit breakers and rate limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from relay_core.text.units import format_duration
from relay_supervisor.cli.arguments import complete_subject
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.groups import new_command, new_group
from relay_supervisor.cli.output import Painted, safe

if TYPE_CHECKING:
    from relay_core.protocol.state import TargetBreaker

app = new_group("Circuit breakers: they stop deliveries to a target that keeps failing.")
senders_app = new_command()

BREAKER_HEADERS = ["STATE", "NEXT PROBE", "FAILURES", "FORCED", "TARGET"]

Target = Annotated[
    str, typer.Argument(help="Target's subject or hash.", metavar="TARGET", autocompletion=complete_subject)
]


@command(app, "list", examples=["relay breakers", "relay breakers list --json"])
async def list_breakers(session: Session) -> None:
    """List the breakers, open ones first."""
    breakers = await session.client.breakers()
    breakers.sort(key=lambda breaker: (breaker.state == "CLOSED", breaker.subject or ""))
    session.show_table(
        {"breakers": [breaker.to_wire() for breaker in breakers]},
        BREAKER_HEADERS,
        breaker_rows(breakers),
        empty="no breakers: no target has failed yet",
    )


@command(app, "reset", examples=["relay breakers reset relay.agent.writer --reason 'it is repaired'"])
async def reset_breaker(
    session: Session,
    target: Target,
    reason: Annotated[str, typer.Option(help="Reason, for the event log.")] = "reset by the operator",
) -> None:
    """Close a breaker, so that messages are delivered again."""
    await session.client.reset_breaker(target, reason)
    session.show({"target": target, "state": "CLOSED"}, lambda: [f"{safe(target)}: closed"])


@command(app, "force", examples=["relay breakers force relay.agent.writer OPEN --reason 'under repair'"])
async def force_breaker(
    session: Session,
    target: Target,
    state: Annotated[
        Literal["OPEN", "CLOSED"], typer.Argument(metavar="OPEN|CLOSED", help="State to hold.", case_sensitive=False)
    ],
    reason: Annotated[str, typer.Option(help="Reason, for the event log.")] = "forced by the operator",
) -> None:
    """Hold a breaker open (no deliveries) or closed until it is reset."""
    await session.client.force_breaker(target, state, reason)
    session.show(
        {"target": target, "state": state, "forced": True},
        lambda: [f"{safe(target)}: held {state} until 'relay breakers reset {safe(target)}'"],
    )


@command(senders_app, examples=["relay senders", "relay senders --json"])
async def list_senders(session: Session) -> None:
    """Show how much of its rate limit each sender has used, busiest first."""
    senders = await session.client.senders()
    session.show_table(
        {"senders": [sender.to_wire() for sender in senders]},
        ["USED", "LIMIT", "WINDOW", "RESETS IN", "SENDER"],
        [
            [
                Painted(str(sender.count), "red") if sender.count >= sender.limit else sender.count,
                sender.limit,
                f"{sender.window_secs} s",
                format_duration(sender.resets_in_ms / 1000),
                sender.sender,
            ]
            for sender in senders
        ],
        empty="no messages within the window",
    )


def breaker_rows(breakers: Iterable[TargetBreaker]) -> list[list[Any]]:
    """Return a row for each breaker, as in `BREAKER_HEADERS`."""
    colours = {"OPEN": "red", "HALF_OPEN": "yellow", "CLOSED": "green"}
    return [
        [
            Painted(str(breaker.state), colours.get(str(breaker.state), "red")),
            _next_probe(breaker),
            breaker.consecutive_failures,
            breaker.forced,
            breaker.subject or breaker.key,
        ]
        for breaker in breakers
    ]


def _next_probe(breaker: TargetBreaker) -> str | None:
    if breaker.retry_in_ms:
        return f"in {format_duration(breaker.retry_in_ms / 1000)}"
    return "now" if breaker.state == "HALF_OPEN" else None
