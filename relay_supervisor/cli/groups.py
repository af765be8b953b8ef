"""Groups of commands: lazy imports, default commands, and common options in any position.

1. The root knows its commands by name and imports one when it is called.
2. A group without a command runs its default: ``relay dlq`` is ``relay dlq list``.
3. Common options may precede the command: a group passes them on, so ``relay --socket S dlq --json list`` works.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup

from relay_supervisor.cli import COMMANDS
from relay_supervisor.cli.entry import UsageError

COMMON_VALUES = ("--data-dir", "--socket", "--token")
COMMON_FLAGS = ("--json",)

_EVERYWHERE = "--data-dir, --socket, --token and --json work with every command, before or after it."

# Typer's context class is in a private module: hence `Any`.


class Group(TyperGroup):
    """A group that passes common options on and may have a default command."""

    default: ClassVar[str | None] = None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the common options behind the command, and insert the default command."""
        common, rest = split_common(args)
        if not ctx.resilient_parsing:
            if common and common[-1] in COMMON_VALUES:
                raise UsageError(f"Option '{common[-1]}' requires an argument; see '{ctx.command_path} --help'")
            if self.default is not None and _lacks_command(rest):
                rest = [self.default, *rest]
            rest = rest or ["--help"]
        if rest and not rest[0].startswith("-"):
            rest = [rest[0], *common, *rest[1:]]
        return super().parse_args(ctx, rest)


class Root(Group):
    """The command `relay`: imports a command when it is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._listed = {name: command for section in COMMANDS.values() for name, command in section.items()}
        self.commands = dict.fromkeys(self._listed)  # type: ignore[assignment]  # only names, for suggestions

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command."""
        if cmd_name not in self._listed:
            return None
        module, _, attribute = self._listed[cmd_name][0].partition(":")
        command = typer.main.get_command(getattr(import_module(f"relay_supervisor.cli.{module}"), attribute))
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under their headings, without importing any."""
        for heading, section in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, help) for name, (_, help) in section.items()])


def split_common(args: list[str]) -> tuple[list[str], list[str]]:
    """Split the leading common options from the rest."""
    at = 0
    while at < len(args):
        name, has_value, _ = args[at].partition("=")
        if args[at] in COMMON_FLAGS:
            at += 1
        elif name in COMMON_VALUES:
            at += 1 if has_value else 2
        else:
            break
    return args[:at], args[at:]


def root_app() -> typer.Typer:
    """Return the command `relay`."""
    app = typer.Typer(
        cls=Root,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        epilog=_EVERYWHERE,
        subcommand_metavar="COMMAND",
    )

    @app.callback()
    def relay(
        version: Annotated[
            bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
        ] = False,
    ) -> None:
        """Talk to the Relay supervisor: publish, subscribe, inspect and repair."""

    return app


def new_group(help: str, *, default: str = "list") -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(
        cls=type("DefaultGroup", (Group,), {"default": default}),
        help=f"{help} The default command is {default}.",
        epilog=_EVERYWHERE,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
    )


def new_command() -> typer.Typer:
    """Return an app for a single command."""
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


def _lacks_command(args: list[str]) -> bool:
    return not args or (args[0].startswith("-") and args[0] != "--help")


def _show_version(wanted: bool) -> None:
    if wanted:
        from relay_core import __version__

        typer.echo(f"relay {__version__}")
        raise typer.Exit
