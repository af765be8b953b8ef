"""``relay access`` and ``relay token``: who may publish to what, and as whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import typer

from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import Failed, UsageError
from relay_supervisor.cli.groups import new_group
from relay_supervisor.cli.output import Painted, paint, safe, table

app = new_group("Access rules: the highest priority that matches decides; no match allows.")
token_app = new_group("Tokens: their holders publish only as subjects of their pattern.")

From = Annotated[str, typer.Argument(help="The sender, or a pattern.", metavar="FROM")]
To = Annotated[str, typer.Argument(help="The subject, or a pattern.", metavar="TO")]


@command(app, "list", examples=["relay access", "relay access list --json"])
async def list_rules(session: Session) -> None:
    """List the access rules, in the order of the file."""
    rules = await session.client.access_rules()

    def lines() -> Iterator[str]:
        if rules.broken:
            yield paint(f"! everything is denied: {safe(rules.broken)}", "red")
        yield from table(
            ["ACTION", "PRIORITY", "FROM", "TO"],
            [
                [Painted(one.action, "red" if one.action == "deny" else "green"), one.priority, one.sender, one.to]
                for one in rules.rules
            ],
            empty="no rules: everybody may publish to everything",
        )

    session.show(rules.to_wire(), lines)


@command(
    app,
    "add",
    examples=[
        "relay access add deny 'relay.agent.guest.>' 'relay.agent.>'",
        "relay access add allow 'relay.agent.>' relay.agent.desk --priority 10",
    ],
)
async def add_rule(
    session: Session,
    action: Annotated[Literal["allow", "deny"], typer.Argument()],
    sender: From,
    to: To,
    priority: Annotated[int, typer.Option(help="Higher decides first.")] = 0,
) -> None:
    """Add an access rule; it holds at once."""
    from pydantic import ValidationError

    from relay_core.rules.access import AccessRule

    try:
        rule = AccessRule(sender=sender, to=to, action=action, priority=priority)
    except ValidationError as error:
        raise UsageError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
    rules = await session.client.add_access_rule(rule)
    session.show(rules.to_wire(), lambda: [f"{action} {safe(sender)} → {safe(to)}; there are {len(rules.rules)} rules"])


@command(app, "rm", examples=["relay access rm 'relay.agent.guest.>' 'relay.agent.>'"])
async def remove_rule(session: Session, sender: From, to: To) -> None:
    """Remove every rule with exactly these patterns."""
    removed = await session.client.remove_access_rule(sender, to)
    if not removed:
        raise Failed(f"no rule from {sender} to {to}: 'relay access list' shows those there are")
    session.show({"removed": removed}, lambda: [f"{removed} removed"])


@command(token_app, "list", examples=["relay token", "relay token list --json"])
async def list_tokens(session: Session) -> None:
    """List the tokens, without their secrets."""
    tokens = await session.client.tokens()
    session.show(
        {"tokens": [one.to_wire() for one in tokens]},
        lambda: table(
            ["ID", "CREATED", "PATTERN", "NOTE"],
            [[one.id, one.created_at[:19].replace("T", " "), one.pattern, one.note] for one in tokens],
            empty="no tokens: 'relay token add PATTERN' makes one",
        ),
    )


@command(token_app, "add", examples=["relay token add 'relay.agent.writer.>' --note 'the writer on my laptop'"])
async def add_token(
    session: Session,
    pattern: Annotated[str, typer.Argument(help="What its holder may publish as and read.")],
    note: Annotated[str | None, typer.Option(help="What it is for.")] = None,
) -> None:
    """Make a token and print it, this once."""
    made = await session.client.add_token(pattern, note)
    session.show(made.to_wire(), lambda: [made.token])
    session.note(f"token {made.info.id} for {pattern}: it is shown this once; set it as RELAY_TOKEN")


@command(token_app, "rm", examples=["relay token rm ID"])
async def remove_token(session: Session, id: Annotated[str, typer.Argument(help="As in 'relay token list'.")]) -> None:
    """Make a token worthless, also on open connections."""
    await session.client.remove_token(id)
    session.show({"removed": id}, lambda: [f"token {safe(id)} is worthless now"])
