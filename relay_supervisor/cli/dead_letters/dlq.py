"""``relay dlq``: dead letters, found, shown, exported and purged; what replays them is in replay.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from relay_core.text.units import ago
from relay_supervisor.cli.arguments import (
    FilterOptions,
    Ids,
    Limit,
    MessageId,
    duration,
)
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.dead_letters.replay import add_replay_commands
from relay_supervisor.cli.entry import ExitCode, UsageError
from relay_supervisor.cli.groups import new_group
from relay_supervisor.cli.output import code_of, paint, safe, table

if TYPE_CHECKING:
    from relay_core.messages.dead_letter import DeadLetter

app = new_group("Dead letters: what could not be delivered, and what to do about it.")


@command(
    app,
    "list",
    examples=["relay dlq", "relay dlq list --where 'reason~timeout !to=relay.agent.* age>1h'", "relay dlq --json"],
)
async def list_dead_letters(
    session: Session,
    options: FilterOptions,
    limit: Limit = 100,
) -> None:
    """List dead letters, newest first."""
    from relay_core.clock import SystemClock, parse_iso

    chosen = options.to_filter()
    page = await session.client.dead_letter_page(filter=chosen, limit=limit)
    now = SystemClock().now_ms()
    session.show(
        page.to_wire(),
        lambda: table(
            ["ID", "FAILED", "CODE", "FROM", "TO", "REASON"],
            [
                [one.message_id, ago(parse_iso(one.failed_at), now), code_of(one), *_route(one), one.reason]
                for one in page.dead_letters
            ],
            empty="no dead letters" + (" like that" if chosen else ""),
        ),
    )
    if page.total > len(page.dead_letters):
        session.note(f"{len(page.dead_letters):,} of {page.total:,}: --limit shows more, 'dlq export' all")


@command(app, "groups", examples=["relay dlq groups"])
async def list_groups(session: Session) -> None:
    """Count dead letters by code and target, largest group first."""
    from relay_core.clock import SystemClock

    groups = await session.client.dead_letter_groups()
    now = SystemClock().now_ms()
    session.show(
        {"groups": [one.to_wire() for one in groups]},
        lambda: table(
            ["COUNT", "CODE", "OLDEST", "NEWEST", "TARGET", "SAMPLE REASON"],
            [
                [
                    one.count,
                    code_of(one),
                    ago(one.oldest_at, now),
                    ago(one.newest_at, now),
                    one.endpoint_subject,
                    one.sample_reason,
                ]
                for one in groups
            ],
            empty="no dead letters",
        ),
    )


@command(app, "show", examples=["relay dlq show 01KA5Q..."])
async def show_dead_letter(
    session: Session, id: MessageId, endpoint: Annotated[str | None, typer.Option(help="Which target's.")] = None
) -> None:
    """Show one dead letter with its message."""
    letter = await session.client.dead_letter(id, endpoint=endpoint)
    session.show(letter.to_wire(), lambda: _letter_lines(letter))


@command(
    app,
    "purge",
    examples=[
        "relay dlq purge --code no_match --before 7d",
        "relay dlq purge --all --yes",
        "relay dlq purge 01KA5Q...",
    ],
)
async def purge(
    session: Session,
    ids: Ids = None,
    every: Annotated[bool, typer.Option("--all", help="Every dead letter.")] = False,
    older_than: Annotated[str | None, typer.Option(help="Those that failed so long ago: 30d.")] = None,
    *,
    options: FilterOptions,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> int:
    """Remove dead letters for good."""
    if older_than is not None:
        if options.before is not None:
            raise UsageError("--older-than and --before say the same: give one of them")
        duration(older_than, "--older-than")
        options.before = older_than
    chosen = options.to_filter(ids)
    if chosen is None and not every:
        raise UsageError("say which ones: by ID, by --where, --code, --endpoint, --older-than ..., or --all")
    # What fails, or grows old enough, while somebody thinks about the question is not part of it.
    plan = await session.client.freeze_replay(filter=chosen)
    if plan.total and not yes and not _confirmed(plan.total, _of_which(plan.partial)):
        session.note("nothing was purged")
        return ExitCode.ERROR
    purged = await session.client.purge_dead_letters(plan_id=plan.id) if plan.total else 0
    session.show({"purged": purged, "partial": plan.partial}, lambda: [f"{purged:,} purged{_of_which(plan.partial)}"])
    return ExitCode.OK


@command(app, "export", examples=["relay dlq export > letters.jsonl", "relay dlq export --code cycle | jq .reason"])
async def export(session: Session, options: FilterOptions) -> None:
    """Print dead letters as JSON lines, oldest first."""
    chosen = options.to_filter()
    count = 0
    async for line in session.client.export_dead_letters(filter=chosen):
        sys.stdout.write(line + "\n")
        count += 1
    sys.stdout.flush()
    session.note(f"{count:,} exported")


add_replay_commands(app)


def _of_which(partial: int) -> str:
    return f" ({partial:,} of them copies of partial deliveries)" if partial else ""


def _confirmed(count: int, of_which: str) -> bool:
    """Ask somebody at a terminal to type the number of dead letters that will be gone."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{count:,} dead letters{of_which} would be gone: add --yes to say that you mean it")
    sys.stderr.write(f"{count:,} dead letters{of_which} will be gone for good. Type {count} to go on: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip() == str(count)


def _route(letter: DeadLetter) -> tuple[str | None, str | None]:
    envelope = letter.envelope
    return (envelope.sender, envelope.subject) if envelope else (None, None)


def _letter_lines(letter: DeadLetter) -> Iterator[str]:
    import orjson

    yield f"{paint(safe(letter.message_id), 'bold')}  {paint(safe(letter.code), 'red')}"
    yield f"  reason    {safe(letter.reason)}"
    yield f"  failed    {safe(letter.failed_at)}" + (f", replayed {letter.replays} times" if letter.replays else "")
    yield f"  mailbox   {safe(letter.endpoint_hash)} (stage {letter.stage})"
    if letter.partial:
        yield "  partial   other targets took the message: this is the failed target's copy"
    envelope = letter.envelope
    if envelope is None:
        yield "  message   the file was no message; its bytes lie beside the record"
        return
    yield f"  message   {safe(envelope.sender)} → {safe(envelope.subject)}, sent {safe(envelope.created_at)}"
    if envelope.reply_to:
        yield f"  reply to  {safe(envelope.reply_to)}"
    budget = envelope.budget
    yield f"  budget    hop {budget.hop_count} of {budget.max_hops}, {budget.call_budget_remaining} calls left"
    yield "  payload"
    for line in orjson.dumps(envelope.payload, option=orjson.OPT_INDENT_2).decode().split("\n"):
        yield f"    {safe(line)}"
