"""Register a coroutine as a command: common options, a connection, an exit code.

``@command(app, "list")`` over ``async def list_things(session: Session, ...)`` registers it. The arguments after the
session are typer's; an argument that is a dataclass stands for one option per field. --data-dir, --socket, --token and
--json are added to every command. The coroutine runs with a connected client and returns its exit code, or None for 0.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from relay_supervisor.cli.entry import say
from relay_supervisor.cli.output import table

if TYPE_CHECKING:
    from relay_core.client.client import RelayClient

TIMEOUT_SECS = 30.0
"""How long the supervisor may take to answer."""

Work = Callable[..., Awaitable[int | None]]


@dataclass
class CommonOptions:
    """The options of every command."""

    data_dir: Annotated[Path | None, typer.Option("--data-dir", envvar="RELAY_DATA_DIR", help="Data directory.")] = None
    socket: Annotated[Path | None, typer.Option("--socket", envvar="RELAY_SOCKET", help="Supervisor's socket.")] = None
    token: Annotated[
        str | None,
        typer.Option("--token", envvar="RELAY_TOKEN", help="Act as the agent with this token.", show_envvar=True),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False


class Session(CommonOptions):
    """A call of a command: its common options, its connection and its output."""

    client: RelayClient

    def new_client(self, timeout: float | None = None) -> RelayClient:
        """Return a client that is not connected yet."""
        from relay_core.client.client import RelayClient

        return RelayClient(
            self.socket, data_dir=self.data_dir, token=self.token, name="relay", timeout=timeout or TIMEOUT_SECS
        )

    def show(self, document: Any, lines: Callable[[], Iterable[str]]) -> None:
        """Print the result: the JSON document, or the lines."""
        if self.as_json:
            print_json(document)
        else:
            self.print(lines())

    def show_table(self, document: Any, headers: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
        """Print the result: the JSON document, or a table."""
        self.show(document, lambda: table(headers, rows, empty=empty))

    def print(self, lines: Iterable[str]) -> None:
        """Print lines for people and flush stdout."""
        for line in lines:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Print a line on stderr, beside the result."""
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
        def run(**given: Any) -> None:
            session = _pop_options(Session, given)
            arguments = {key: _pop_options(kind, given) for key, kind in grouped.items()}
            raise typer.Exit(_run(work, session, given | arguments, connect=connect) or 0)

        parameters: list[inspect.Parameter] = []
        grouped: dict[str, Any] = {}
        for parameter in list(inspect.signature(work, eval_str=True).parameters.values())[1:]:
            if is_dataclass(parameter.annotation):
                grouped[parameter.name] = parameter.annotation
                parameters += _options(parameter.annotation)
            else:
                parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
        parameters += _options(CommonOptions)
        signed: Any = run
        signed.__signature__ = inspect.Signature(parameters)
        signed.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name, help=_help(inspect.getdoc(work) or "", more, examples))(run)
        return work

    return register


def print_json(document: Any, *, indent: bool = True) -> None:
    """Print one JSON document and flush stdout."""
    import orjson

    options = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if indent else 0)
    sys.stdout.flush()
    sys.stdout.buffer.write(orjson.dumps(document, option=options))
    sys.stdout.buffer.flush()


def _options(kind: Any) -> list[inspect.Parameter]:
    """Return a dataclass's fields as parameters."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=hints[option.name]
        )
        for option in fields(kind)
    ]


def _pop_options(kind: Any, given: dict[str, Any]) -> Any:
    return kind(**{option.name: given.pop(option.name) for option in fields(kind)})


def _run(work: Work, session: Session, arguments: dict[str, Any], *, connect: bool) -> int | None:
    import asyncio

    async def connected() -> int | None:
        if not connect:
            return await work(session, **arguments)
        async with session.new_client() as session.client:
            return await work(session, **arguments)

    return asyncio.run(connected())


def _help(doc: str, more: str, examples: Sequence[str]) -> str:
    parts = [doc, more]
    if examples:
        # \b keeps the line breaks of a paragraph.
        parts.append("\b\nExamples:\n" + "\n".join(f"  {example}" for example in examples))
    return "\n\n".join(filter(None, parts))
