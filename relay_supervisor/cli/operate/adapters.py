"""``relay adapters``: list, enable, disable, test and reload the adapters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import ExitCode
from relay_supervisor.cli.groups import new_group
from relay_supervisor.cli.output import Painted, paint, safe, table

if TYPE_CHECKING:
    from relay_core.messages.operator_views import ConfiguredAdapter
    from relay_core.protocol.operating import AdapterList

app = new_group("Adapters: bridges to other systems, configured in adapters.json.")

AdapterId = Annotated[str, typer.Argument(help="Adapter's id in adapters.json.", metavar="ID")]


@command(app, "list", examples=["relay adapters", "relay adapters list --json"])
async def list_adapters(session: Session) -> None:
    """List the adapters."""
    adapters = await session.client.adapters()
    session.show(adapters.to_wire(), lambda: _lines(adapters))


@command(app, "enable", examples=["relay adapters enable telegram"])
async def enable_adapter(session: Session, id: AdapterId) -> int:
    """Enable and start an adapter."""
    return await _change(session, id, "enable")


@command(app, "disable", examples=["relay adapters disable telegram"])
async def disable_adapter(session: Session, id: AdapterId) -> int:
    """Stop and disable an adapter; its messages wait."""
    return await _change(session, id, "disable")


@command(app, "test", examples=["relay adapters test telegram && echo ok"])
async def test_adapter(session: Session, id: AdapterId) -> int:
    """Test an adapter's connection; exit code 1 if it fails."""
    return await _change(session, id, "test")


@command(app, "reload", examples=["relay adapters reload", "relay adapters reload telegram"])
async def reload_adapters(
    session: Session, id: Annotated[str | None, typer.Argument(help="Recreate this adapter.", metavar="ID")] = None
) -> int:
    """Reload adapters.json and apply the changes, or recreate one adapter."""
    adapters = await session.client.reload_adapters(id)
    session.show(adapters.to_wire(), lambda: _lines(adapters))
    return ExitCode.ERROR if adapters.problem else ExitCode.OK


async def _change(session: Session, id: str, verb: str) -> int:
    adapter = await session.client.change_adapter(id, verb)
    session.show(adapter.to_wire(), lambda: table(_HEADERS, [_row(adapter)]))
    failed = adapter.problem is not None or (adapter.state is not None and adapter.state.healthy is False)
    return ExitCode.ERROR if failed and verb != "disable" else ExitCode.OK


_HEADERS = ["ID", "TYPE", "STATE", "WAITING", "DELIVERED", "FAILED", "PUBLISHED", "REFUSED", "RESTARTS", "ABOUT"]


def _lines(adapters: AdapterList) -> Iterator[str]:
    if adapters.problem:
        yield paint(f"! {safe(adapters.problem)}", "red")
    yield from table(_HEADERS, map(_row, adapters.adapters), empty="no adapters: add them to adapters.json")
    if adapters.bindings:
        yield ""
        rows = [[binding.chat, binding.agent, binding.start] for binding in adapters.bindings]
        yield from table(["CHAT", "AGENT", "STARTED BY"], rows)


def _row(adapter: ConfiguredAdapter) -> list[Any]:
    state = adapter.state
    colours = {"connected": "green", "error": "red"}
    shown = Painted(state.state, colours.get(state.state, "yellow")) if state else "off"
    if not adapter.enabled:
        shown = "disabled"
    about = adapter.problem or (state.detail or state.last_error if state else None) or adapter.warning
    if about is None and state is not None:
        about = ", ".join(state.patterns)
    counts = [state.depth, state.delivered, state.failed, state.published, state.refused] if state else [None] * 5
    return [adapter.id, adapter.type, shown, *counts, adapter.restarts, about]
