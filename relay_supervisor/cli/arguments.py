"""What several commands take: subjects (completed by the shell), JSON, times, and which dead letters are meant."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_supervisor.cli.entry import UsageError

if TYPE_CHECKING:
    from datetime import timedelta

    from relay_core.messages.dead_letter import DeadLetterFilter

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_COMPLETION_SECS = 1.0


def complete_subject(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the endpoints that a word may become; none if nobody can be asked."""
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


Subject = Annotated[str, typer.Argument(help="The subject.", metavar="SUBJECT", autocompletion=complete_subject)]
MessageId = Annotated[str, typer.Argument(help="The message's id.", metavar="ID")]
Ids = Annotated[
    list[str] | None,
    typer.Argument(help="Messages, by id, or one target's copy as ID/HASH.", metavar="ID", show_default=False),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="At most so many.")]
Fresh = Annotated[bool, typer.Option("--fresh-budget", help="Hops, chain and calls begin anew.")]
Where = Annotated[
    str | None,
    typer.Option(
        help="Those that a filter means: 'reason~timeout !to=relay.agent.* from~bot age>1h replays>0 \"in the body\"'.",
        metavar="FILTER",
    ),
]


@dataclass
class FilterOptions:
    """The options by which a command is told which dead letters are meant."""

    where: Where = None
    code: Annotated[str | None, typer.Option(help="Those with this code, such as handler_failed.")] = None
    endpoint: Annotated[
        str | None, typer.Option(help="Those of this subject, pattern or hash.", autocompletion=complete_subject)
    ] = None
    sender: Annotated[str | None, typer.Option(help="Those from this sender, or a pattern over senders.")] = None
    reason: Annotated[str | None, typer.Option(help="Those with this in their reason.")] = None
    text: Annotated[str | None, typer.Option(help="Those with this in their payload.")] = None
    since: Annotated[str | None, typer.Option(help="Failed after: 2h (ago), 7d, or 2026-01-31T12:00Z.")] = None
    before: Annotated[str | None, typer.Option(help="Failed before: the same.")] = None

    def to_filter(self, ids: list[str] | None = None) -> DeadLetterFilter | None:
        """Return the filter that the options make, or None if none was given; raises as `dead_letter_filter`."""
        return dead_letter_filter(ids=ids, **vars(self))


def dead_letter_filter(
    *,
    where: str | None = None,
    ids: list[str] | None = None,
    code: str | None = None,
    endpoint: str | None = None,
    sender: str | None = None,
    reason: str | None = None,
    text: str | None = None,
    since: str | None = None,
    before: str | None = None,
) -> DeadLetterFilter | None:
    """Return the filter that the options make, or None if none was given.

    Raises:
        UsageError: if one of them cannot be read.
    """
    from relay_core.messages.dead_letter import DeadLetterFilter
    from relay_core.messages.filter_language import FilterError, parse_filter

    if where is not None:
        try:
            where = where if parse_filter(where) else None
        except FilterError as error:
            raise UsageError(f"--where: {error}") from None
    made = DeadLetterFilter(
        where=where,
        ids=tuple(ids) if ids else None,
        code=code,
        endpoint=endpoint,
        sender=sender,
        reason=reason,
        text=text,
        failed_after=instant_ms(since, "--since"),
        failed_before=instant_ms(before, "--before"),
    )
    return made if made != DeadLetterFilter() else None


def parse_json(text: str | bytes, what: str) -> Any:
    """Return what a JSON text says.

    Raises:
        UsageError: if it is none; the text says where.
    """
    import orjson

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"{what} is not JSON: {error.msg.split(': line')[0]} ({where})") from None


def duration(text: str, what: str) -> timedelta:
    """Return a duration such as ``90s``, ``10m``, ``2h`` or ``7d``.

    Raises:
        UsageError: if it is none.
    """
    from datetime import timedelta

    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{what}: {text!r} is no duration; write it like 90s, 10m, 2h or 7d")
    try:
        return timedelta(milliseconds=float(found[1]) * _UNIT_MS[found[2]])
    except OverflowError:
        raise UsageError(f"{what}: {text!r} is too long") from None


def instant_ms(text: str | None, what: str) -> int | None:
    """Return an instant in epoch milliseconds: an ISO one, or a duration before now.

    Raises:
        UsageError: if it is neither.
    """
    if text is None:
        return None
    from relay_core.clock import SystemClock, parse_iso

    if _DURATION.fullmatch(text.strip()):
        return SystemClock().now_ms() - int(duration(text, what).total_seconds() * 1000)
    try:
        return parse_iso(text)
    except (ValueError, OverflowError):
        raise UsageError(f"{what}: {text!r} is no time; write it like 2h, 7d or 2026-01-31T12:00Z") from None


def read_stdin() -> bytes:
    """Return all of stdin."""
    return sys.stdin.buffer.read()
