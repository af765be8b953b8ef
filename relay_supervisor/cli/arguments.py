"""Arguments that several commands share: subjects (with shell completion), JSON, times and dead-letter filters.

Every function here raises `UsageError` for a value that it cannot read.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_core.text.units import parse_duration
from relay_supervisor.cli.entry import UsageError

if TYPE_CHECKING:
    from datetime import timedelta

    from relay_core.messages.dead_letter import DeadLetterFilter

_COMPLETION_SECS = 1.0


def complete_subject(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the endpoints that begin with a word; none if the supervisor does not answer."""
    import asyncio

    from relay_core.client.client import RelayClient

    async def ask() -> list[str]:
        async with (
            asyncio.timeout(_COMPLETION_SECS),
            RelayClient(ctx.params.get("socket"), data_dir=ctx.params.get("data_dir")) as client,
        ):
            return [endpoint.subject for endpoint in await client.endpoints()]

    try:
        return [subject for subject in asyncio.run(ask()) if subject.startswith(incomplete)]
    except Exception:  # a shell's prompt is no place for an error
        return []


Subject = Annotated[
    str, typer.Argument(help="Subject of the mailbox.", metavar="SUBJECT", autocompletion=complete_subject)
]
MessageId = Annotated[str, typer.Argument(help="Message id.", metavar="ID")]
Ids = Annotated[
    list[str] | None,
    typer.Argument(help="Message ids, or ID/HASH for the copy of one target.", metavar="ID", show_default=False),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Maximum number of rows.")]
Every = Annotated[bool, typer.Option("--all", help="Every dead letter.")]
Fresh = Annotated[bool, typer.Option("--fresh-budget", help="Reset hops, ancestor chain and calls.")]
Target = Annotated[str | None, typer.Option("--endpoint", help="The target, if several targets failed.")]


@dataclass
class FilterOptions:
    """The options that select dead letters."""

    where: Annotated[
        str | None,
        typer.Option(
            help="Filter, such as 'reason~timeout !to=relay.agent.* from~bot age>1h replays>0 \"in the body\"'.",
            metavar="FILTER",
        ),
    ] = None
    code: Annotated[str | None, typer.Option(help="Failed with this code, such as handler_failed.")] = None
    endpoint: Annotated[
        str | None, typer.Option(help="Target's subject, pattern or hash.", autocompletion=complete_subject)
    ] = None
    sender: Annotated[str | None, typer.Option(help="Sender's subject or pattern.")] = None
    reason: Annotated[str | None, typer.Option(help="Text in the reason.")] = None
    text: Annotated[str | None, typer.Option(help="Text in the payload.")] = None
    since: Annotated[str | None, typer.Option(help="Failed after: 2h (ago), 7d, or 2026-01-31T12:00Z.")] = None
    before: Annotated[str | None, typer.Option(help="Failed before: same format.")] = None

    def to_filter(self, ids: list[str] | None = None) -> DeadLetterFilter | None:
        """Return the filter, or None if no option was given."""
        from relay_core.messages.dead_letter import DeadLetterFilter
        from relay_core.messages.filter_language import FilterError, parse_filter

        try:
            where = self.where if self.where is not None and parse_filter(self.where) else None
        except FilterError as error:
            raise UsageError(f"--where: {error}") from None
        selected = DeadLetterFilter(
            where=where,
            ids=tuple(ids) if ids else None,
            code=self.code,
            endpoint=self.endpoint,
            sender=self.sender,
            reason=self.reason,
            text=self.text,
            failed_after=instant_ms(self.since, "--since"),
            failed_before=instant_ms(self.before, "--before"),
        )
        return selected if selected != DeadLetterFilter() else None


def parse_json(text: str | bytes, name: str) -> Any:
    """Return the value of a JSON text; `name` says where the text comes from."""
    import orjson

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"{name} is not valid JSON: {error.msg.split(': line')[0]} ({where})") from None


def read_payload(given: str) -> Any:
    """Return a payload given as JSON, or read from stdin (``-``)."""
    return parse_json(read_stdin(), "stdin") if given == "-" else parse_json(given, "the payload")


def duration(text: str, option: str) -> timedelta:
    """Return a duration such as ``90s``, ``10m``, ``2h`` or ``7d``."""
    from datetime import timedelta

    ms = parse_duration(text)
    if ms is None:
        raise UsageError(f"{option}: {text!r} is not a duration; write it like 90s, 10m, 2h or 7d")
    return timedelta(milliseconds=ms)


def instant_ms(text: str | None, option: str) -> int | None:
    """Return an instant in epoch milliseconds, given in ISO 8601 or as a duration before now."""
    if text is None:
        return None
    from relay_core.clock import SystemClock, parse_iso

    if (ms := parse_duration(text)) is not None:
        return SystemClock().now_ms() - ms
    try:
        return parse_iso(text)
    except (ValueError, OverflowError):
        raise UsageError(f"{option}: {text!r} is not a time; write it like 2h, 7d or 2026-01-31T12:00Z") from None


def read_stdin() -> bytes:
    """Return all of stdin."""
    return sys.stdin.buffer.read()
