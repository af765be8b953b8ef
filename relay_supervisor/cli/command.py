"""Make a command of a coroutine: common options, a connection, an exit code.

``@command(app, "list")`` over ``async def list_things(session: Session, ...)`` registers it. The arguments after the
session are typer's, and one that is a dataclass stands for an option of each of its fields; --data-dir, --socket,
--token and --json are added to each. The coroutine runs with a connected client and returns its exit code, or nothing
for 0.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from relay_supervisor.cli.entry import say

if TYPE_CHECKING:
    from relay_core.client.client import RelayClient

TIMEOUT_SECS = 30.0
"""How long the supervisor may take for an answer."""

Work = Callable[..., Awaitable[int | None]]

_COMMON: dict[str, tuple[Any, Any]] = {
    "data_dir": (
        Annotated[Path | None, typer.Option("--data-dir", envvar="RELAY_DATA_DIR", help="The data directory.")],
        None,
    ),
    "socket": (
        Annotated[Path | None, typer.Option("--socket", envvar="RELAY_SOCKET", help="The supervisor's socket.")],
        None,
    ),
    "token": (
        Annotated[
            str | None,
            typer.Option("--token", envvar="RELAY_TOKEN", help="Be the agent that has this token.", show_envvar=True),
        ],
        None,
    ),
    "as_json": (Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")], False),
}


class Session:
    """What a command works with: the places it was given, the way it is to answer, and a connection."""

    client: RelayClient

    def __init__(self, data_dir: Path | None, socket: Path | None, token: str | None, as_json: bool) -> None:
        self.data_dir = data_dir
        self.socket = socket
        self.token = token
        self.as_json = as_json

    def new_client(self, timeout: float | None = None) -> RelayClient:
        """Return a client that is not connected yet."""
        from relay_core.client.client import RelayClient

        return RelayClient(
            self.socket, data_dir=self.data_dir, token=self.token, name="relay", timeout=timeout or TIMEOUT_SECS
        )

    def show(self, document: Any, lines: Callable[[], Iterable[str]]) -> None:
        """Print the answer: the JSON document, or the lines."""
        if self.as_json:
            print_json(document)
        else:
            self.print(lines())

    def print(self, lines: Iterable[str]) -> None:
        """Print lines for people, and pass them on at once."""
        for line in lines:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Say something beside the answer."""
        say(text)


def command(
    app: typer.Typer,
    name: str | None = None,
    *,
    examples: Sequence[str] = (),
    more: str = "",
    connect: bool = True,
) -> Callable[[Work], Work]:
    """Register a coroutine as a command of an app."""

    def register(work: Work) -> Work:
        def run(data_dir: Path | None, socket: Path | None, token: str | None, as_json: bool, **given: Any) -> None:
            session = Session(data_dir, socket, token, as_json)
            for key, kind in grouped.items():
                given[key] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            raise typer.Exit(_run(work, session, given, connect=connect) or 0)

        parameters: list[inspect.Parameter] = []
        grouped: dict[str, Any] = {}
        for one in list(inspect.signature(work, eval_str=True).parameters.values())[1:]:
            if is_dataclass(one.annotation):
                grouped[one.name] = one.annotation
                hints = get_type_hints(one.annotation, include_extras=True)
                parameters += [
                    _option(field.name, hints[field.name], field.default) for field in fields(one.annotation)
                ]
            else:
                parameters.append(one.replace(kind=one.KEYWORD_ONLY))
        parameters += [_option(name, annotation, default) for name, (annotation, default) in _COMMON.items()]
        signed: Any = run
        signed.__signature__ = inspect.Signature(parameters)
        signed.__annotations__ = {one.name: one.annotation for one in parameters}
        app.command(name, help=_help(inspect.getdoc(work) or "", more, examples))(run)
        return work

    return register


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def print_json(document: Any, *, indent: bool = True) -> None:
    """Print one JSON document and pass it on at once."""
    import orjson

    options = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if indent else 0)
    sys.stdout.flush()
    sys.stdout.buffer.write(orjson.dumps(document, option=options))
    sys.stdout.buffer.flush()


def _run(work: Work, session: Session, given: dict[str, Any], *, connect: bool) -> int | None:
    import asyncio

    async def connected() -> int | None:
        async with session.new_client() as client:
            session.client = client
            return await work(session, **given)

    async def alone() -> int | None:
        return await work(session, **given)

    return asyncio.run(connected() if connect else alone())


def _help(doc: str, more: str, examples: Sequence[str]) -> str:
    parts = [doc, more]
    if examples:
        # \b keeps the lines of a paragraph as they are.
        parts.append("\b\nExamples:\n" + "\n".join(f"  {example}" for example in examples))
    return "\n\n".join(filter(None, parts))
