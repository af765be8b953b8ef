"""``relay breakers`` and ``relay senders``: who is held back, and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from relay_core.text.units import format_duration
from relay_supervisor.cli.arguments import complete_subject
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.groups import new_command, new_group
from relay_supervisor.cli.output import Painted, safe, table

if TYPE_CHECKING:
    from relay_core.protocol.state import TargetBreaker

app = new_group("Circuit breakers: they keep messages from targets that fail again and again.")
senders_app = new_command()

Target = Annotated[
    str, typer.Argument(help="Whose: a subject or a hash.", metavar="TARGET", autocompletion=complete_subject)
]


@command(app, "list", examples=["relay breakers", "relay breakers list --json"])
async def list_breakers(session: Session) -> None:
    """List the breakers, those that are not closed first."""
    breakers = sorted(await session.client.breakers(), key=lambda one: (one.state == "CLOSED", one.subject or ""))
    session.show(
        {"breakers": [one.to_wire() for one in breakers]},
        lambda: table(
            ["STATE", "NEXT PROBE", "FAILURES", "FORCED", "TARGET"],
            breaker_rows(breakers),
            empty="no breaker has had anything to do yet",
        ),
    )


@command(app, "reset", examples=["relay breakers reset relay.agent.writer --reason 'it is repaired'"])
async def reset_breaker(
    session: Session,
    target: Target,
    reason: Annotated[str, typer.Option(help="Why, for the records.")] = "reset by the operator",
) -> None:
    """Close a breaker: messages go through again."""
    await session.client.reset_breaker(target, reason)
    session.show({"target": target, "state": "CLOSED"}, lambda: [f"{safe(target)}: closed"])


@command(app, "force", examples=["relay breakers force relay.agent.writer OPEN --reason 'under repair'"])
async def force_breaker(
    session: Session,
    target: Target,
    state: Annotated[Literal["OPEN", "CLOSED"], typer.Argument(metavar="OPEN|CLOSED", case_sensitive=False)],
    reason: Annotated[str, typer.Option(help="Why, for the records.")] = "forced by the operator",
) -> None:
    """Hold a breaker open (nothing goes through) or closed, until it is reset."""
    await session.client.force_breaker(target, state, reason)
    session.show(
        {"target": target, "state": state, "forced": True},
        lambda: [f"{safe(target)}: held {state} until 'relay breakers reset {safe(target)}'"],
    )


@command(senders_app, examples=["relay senders", "relay senders --json"])
async def list_senders(session: Session) -> None:
    """Show what each sender has used of its rate limit, busiest first."""
    senders = await session.client.senders()
    session.show(
        {"senders": [one.to_wire() for one in senders]},
        lambda: table(
            ["USED", "LIMIT", "WINDOW", "ROOM IN", "SENDER"],
            [
                [
                    Painted(str(one.count), "red") if one.count >= one.limit else one.count,
                    one.limit,
                    f"{one.window_secs} s",
                    format_duration(one.resets_in_ms / 1000),
                    one.sender,
                ]
                for one in senders
            ],
            empty="nobody has published within the window",
        ),
    )


def breaker_rows(breakers: Iterable[TargetBreaker]) -> list[list[Any]]:
    """Return breakers as rows: state, next probe, failures, forced, target."""
    colours = {"OPEN": "red", "HALF_OPEN": "yellow", "CLOSED": "green"}
    return [
        [
            Painted(str(one.state), colours.get(str(one.state), "red")),
            f"in {format_duration(one.retry_in_ms / 1000)}"
            if one.retry_in_ms
            else "now"
            if one.state == "HALF_OPEN"
            else None,
            one.consecutive_failures,
            one.forced,
            one.subject or one.key,
        ]
        for one in breakers
    ]
