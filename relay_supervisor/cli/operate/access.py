"""``relay access`` and ``relay token``: access rules, and the tokens that identify agents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import typer

from relay_core.text.units import plural
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import Failed, UsageError
from relay_supervisor.cli.groups import new_group
from relay_supervisor.cli.output import Painted, paint, safe, table

app = new_group("Access rules: the matching rule with the highest priority decides; without a match, allow.")
token_app = new_group("Tokens: a holder can publish and read only as subjects of the token's pattern.")

From = Annotated[str, typer.Argument(help="Sender or pattern.", metavar="FROM")]
To = Annotated[str, typer.Argument(help="Subject or pattern.", metavar="TO")]


@command(app, "list", examples=["relay access", "relay access list --json"])
async def list_rules(session: Session) -> None:
    """List the access rules, in file order."""
    rules = await session.client.access_rules()

    def lines() -> Iterator[str]:
        if rules.broken:
            yield paint(f"! all publishing is denied: {safe(rules.broken)}", "red")
        yield from table(
            ["ACTION", "PRIORITY", "FROM", "TO"],
            [
                [Painted(rule.action, "red" if rule.action == "deny" else "green"), rule.priority, rule.sender, rule.to]
                for rule in rules.rules
            ],
            empty="no rules: every sender may publish to every subject",
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
    action: Annotated[Literal["allow", "deny"], typer.Argument(help="Effect of the rule.")],
    sender: From,
    to: To,
    priority: Annotated[int, typer.Option(help="The highest matching priority decides.")] = 0,
) -> None:
    """Add an access rule; it takes effect immediately."""
    from pydantic import ValidationError

    from relay_core.rules.access import AccessRule

    try:
        rule = AccessRule(sender=sender, to=to, action=action, priority=priority)
    except ValidationError as error:
        raise UsageError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
    rules = await session.client.add_access_rule(rule)
    session.show(
        rules.to_wire(), lambda: [f"added: {action} {safe(sender)} → {safe(to)} ({plural(len(rules.rules), 'rule')})"]
    )


@command(app, "rm", examples=["relay access rm 'relay.agent.guest.>' 'relay.agent.>'"])
async def remove_rule(session: Session, sender: From, to: To) -> None:
    """Remove every rule with exactly these patterns."""
    removed = await session.client.remove_access_rule(sender, to)
    if not removed:
        raise Failed(f"no rule from {sender} to {to}: see 'relay access list'")
    session.show({"removed": removed}, lambda: [f"{removed} removed"])


@command(token_app, "list", examples=["relay token", "relay token list --json"])
async def list_tokens(session: Session) -> None:
    """List the tokens, without their secrets."""
    tokens = await session.client.tokens()
    session.show_table(
        {"tokens": [token.to_wire() for token in tokens]},
        ["ID", "CREATED", "PATTERN", "NOTE"],
        [[token.id, token.created_at[:19].replace("T", " "), token.pattern, token.note] for token in tokens],
        empty="no tokens: create one with 'relay token add PATTERN'",
    )


@command(token_app, "add", examples=["relay token add 'relay.agent.writer.>' --note 'the writer on my laptop'"])
async def add_token(
    session: Session,
    pattern: Annotated[
        str, typer.Argument(help="Subjects that the holder may publish as and read.", metavar="PATTERN")
    ],
    note: Annotated[str | None, typer.Option(help="What it is for.")] = None,
) -> None:
    """Create a token and print it; it is not shown again."""
    added = await session.client.add_token(pattern, note)
    session.show(added.to_wire(), lambda: [added.token])
    session.note(f"token {added.info.id} for {pattern} is not shown again: set it as RELAY_TOKEN")


@command(token_app, "rm", examples=["relay token rm ID"])
async def remove_token(
    session: Session, id: Annotated[str, typer.Argument(help="Id, from 'relay token list'.", metavar="ID")]
) -> None:
    """Revoke a token, also on open connections."""
    await session.client.remove_token(id)
    session.show({"removed": id}, lambda: [f"token {safe(id)} is revoked"])
