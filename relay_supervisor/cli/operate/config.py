"""``relay config``: show the configuration in force, and reload it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import ExitCode
from relay_supervisor.cli.groups import new_group
from relay_supervisor.cli.output import paint, safe

app = new_group("The configuration in force.", default="show")


@command(app, "show", examples=["relay config", "relay config show --json | jq .config.reliability"])
async def show_config(session: Session) -> None:
    """Show every key, including defaults."""
    state = await session.client.config()

    def lines() -> Iterator[str]:
        yield f"defaults and {safe(state.path)}"
        if state.problem:
            yield paint(f"! the file is invalid and not in force: {safe(state.problem)}", "red")
        yield from _flat(state.config, "")

    session.show(state.to_wire(), lines)


@command(app, "reload", examples=["relay config reload"])
async def reload_config(session: Session) -> int:
    """Reload config.json, access-rules.json, adapters.json and tokens.json, as SIGHUP does."""
    problems = await session.client.reload()
    session.show(
        {"problems": problems}, lambda: [f"! {safe(problem)}" for problem in problems] or ["reloaded without problems"]
    )
    return ExitCode.ERROR if problems else ExitCode.OK


def _flat(value: dict[str, Any], prefix: str) -> Iterator[str]:
    import orjson

    for key, part in value.items():
        if isinstance(part, dict) and part:
            yield from _flat(part, f"{prefix}{key}.")
        else:
            yield f"  {safe(prefix + key)} = {safe(orjson.dumps(part).decode())}"
