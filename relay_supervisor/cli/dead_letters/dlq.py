"""``relay dlq``: list, show, export and purge dead letters; replay.py adds the commands that replay them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from relay_core.text.units import ago, plural
from relay_supervisor.cli.arguments import Every, FilterOptions, Ids, Limit, MessageId, Target, duration
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import ExitCode, UsageError
from relay_supervisor.cli.groups import new_group
from relay_supervisor.cli.output import code_of, paint, safe

if TYPE_CHECKING:
    from relay_core.messages.dead_letter import DeadLetter

app = new_group("Dead letters: messages that could not be delivered.")


@command(
    app,
    "list",
    examples=["relay dlq", "relay dlq list --where 'reason~timeout !to=relay.agent.* age>1h'", "relay dlq --json"],
)
async def list_dead_letters(session: Session, options: FilterOptions, limit: Limit = 100) -> None:
    """List dead letters, newest first."""
    from relay_core.clock import SystemClock, parse_iso

    chosen = options.to_filter()
    page = await session.client.dead_letter_page(filter=chosen, limit=limit)
    now = SystemClock().now_ms()
    session.show_table(
        page.to_wire(),
        ["ID", "FAILED", "CODE", "FROM", "TO", "REASON"],
        [
            [letter.message_id, ago(parse_iso(letter.failed_at), now), code_of(letter), *_route(letter), letter.reason]
            for letter in page.dead_letters
        ],
        empty="no matching dead letters" if chosen else "no dead letters",
    )
    if page.total > len(page.dead_letters):
        session.note(f"{len(page.dead_letters):,} of {page.total:,} shown: use --limit for more, 'dlq export' for all")


@command(app, "groups", examples=["relay dlq groups"])
async def list_groups(session: Session) -> None:
    """Count dead letters by code and target, largest group first."""
    from relay_core.clock import SystemClock

    groups = await session.client.dead_letter_groups()
    now = SystemClock().now_ms()
    session.show_table(
        {"groups": [group.to_wire() for group in groups]},
        ["COUNT", "CODE", "OLDEST", "NEWEST", "TARGET", "SAMPLE REASON"],
        [
            [
                group.count,
                code_of(group),
                ago(group.oldest_at, now),
                ago(group.newest_at, now),
                group.endpoint_subject,
                group.sample_reason,
            ]
            for group in groups
        ],
        empty="no dead letters",
    )


@command(app, "show", examples=["relay dlq show 01KA5Q..."])
async def show_dead_letter(session: Session, id: MessageId, endpoint: Target = None) -> None:
    """Show a dead letter with its message."""
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
    every: Every = False,
    older_than: Annotated[str | None, typer.Option(help="Failed longer ago than this, such as 30d.")] = None,
    *,
    options: FilterOptions,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> int:
    """Delete dead letters permanently."""
    if older_than is not None:
        if options.before is not None:
            raise UsageError("--older-than and --before mean the same: give only one")
        duration(older_than, "--older-than")
        options.before = older_than
    chosen = options.to_filter(ids)
    if chosen is None and not every:
        raise UsageError(
            "select dead letters: by ID, with --where, --code, --endpoint, --older-than ..., or with --all"
        )
    # A frozen selection: messages that fail while the question is on the screen are not purged.
    plan = await session.client.freeze_replay(filter=chosen)
    partial = f" ({plan.partial:,} of them copies from partial deliveries)" if plan.partial else ""
    if plan.total and not yes and not _confirmed(plan.total, partial):
        session.note("nothing was purged")
        return ExitCode.ERROR
    purged = await session.client.purge_dead_letters(plan_id=plan.id) if plan.total else 0
    session.show({"purged": purged, "partial": plan.partial}, lambda: [f"{purged:,} purged{partial}"])
    return ExitCode.OK


@command(app, "export", examples=["relay dlq export > letters.jsonl", "relay dlq export --code cycle | jq .reason"])
async def export(session: Session, options: FilterOptions) -> None:
    """Print dead letters as JSON lines, oldest first."""
    count = 0
    async for line in session.client.export_dead_letters(filter=options.to_filter()):
        sys.stdout.write(line + "\n")
        count += 1
    sys.stdout.flush()
    session.note(f"{count:,} exported")


def _confirmed(count: int, partial: str) -> bool:
    """Ask the user to type the number of dead letters that will be deleted."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"this would delete {plural(count, 'dead letter')}{partial}: add --yes to confirm")
    sys.stderr.write(f"This deletes {plural(count, 'dead letter')}{partial} permanently. Type {count} to continue: ")
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
        yield "  partial   other targets received the message: this is the failed target's copy"
    envelope = letter.envelope
    if envelope is None:
        yield "  message   the file was not a valid message; its bytes are stored beside the record"
        return
    yield f"  message   {safe(envelope.sender)} → {safe(envelope.subject)}, sent {safe(envelope.created_at)}"
    if envelope.reply_to:
        yield f"  reply to  {safe(envelope.reply_to)}"
    budget = envelope.budget
    yield f"  budget    hop {budget.hop_count} of {budget.max_hops}, {budget.call_budget_remaining} calls left"
    yield "  payload"
    for line in orjson.dumps(envelope.payload, option=orjson.OPT_INDENT_2).decode().split("\n"):
        yield f"    {safe(line)}"
