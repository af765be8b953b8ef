"""Look at everything a supervisor needs, and say how to repair what is wrong.

1. Nothing is changed, and a supervisor that runs is not disturbed; none is needed, either.
2. Nothing is raised: a check that crashes is a `warn` that says so.
3. `fail` means that the bus would not start, or loses or shows messages; `warn`, that something will
   be slow, missing or surprising. Both come with one sentence or command that repairs it.

`CHECKS` is the whole list, in the order an operator wants to read it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from relay_core.clock import Clock, SystemClock
from relay_core.messages.base import WireModel
from relay_core.storage.data_dir import DataDir
from relay_supervisor.doctor import data, machine
from relay_supervisor.doctor.survey import Finding, Level, Place, Survey, lock_holder, look_around

CHECKS: dict[str, Callable[[Place], Finding]] = {
    "supervisor": data.check_supervisor,
    "data directory": data.check_data_directory,
    "files": data.check_files,
    "file system": machine.check_file_system,
    "disk space": machine.check_disk_space,
    "inodes": machine.check_inodes,
    "file watches": machine.check_file_watches,
    "open files": machine.check_open_files,
    "socket": data.check_socket,
    "lock": data.check_lock,
    "config.json": data.check_config,
    "access-rules.json": data.check_access_rules,
    "tokens.json": data.check_tokens,
    "agents.json": data.check_agents,
    "adapters.json": data.check_adapters,
    "java and spark": machine.check_java_and_spark,
    "clock": machine.check_clock,
    "index": data.check_index,
    "leftovers": data.check_leftovers,
    "python": machine.check_python,
    "uvloop": machine.check_uvloop,
    "service": machine.check_service,
}


class Check(WireModel):
    """What was looked at, how it stands, and what repairs it."""

    name: str
    ok: Level
    found: str
    repair: str | None = None


def examine(data_dir: Path, socket: Path, *, clock: Clock | None = None) -> list[Check]:
    """Make every check; blocks for a second or so."""
    directory, now_ms = DataDir(data_dir), (clock or SystemClock()).now_ms()
    survey = Survey()
    place = Place(directory, Path(socket).expanduser().absolute(), now_ms, survey, lock_holder(directory.lock_file))
    look_around(directory.path, survey, now_ms)
    return [_make(name, check, place) for name, check in CHECKS.items()]


def format_checks(checks: list[Check]) -> str:
    """Return the checks as lines for people."""
    marks = {"ok": "✓", "warn": "!", "fail": "✗"}
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        lines.append(f"{marks[check.ok]} {check.name:<{width}}  {check.found}")
        if check.repair:
            lines.append(f"  {'':<{width}}  → {check.repair}")
    return "\n".join(lines)


def _make(name: str, check: Callable[[Place], Finding], place: Place) -> Check:
    try:
        level, found, repair = check(place)
    except Exception as error:  # rule 2
        level, found = "warn", f"could not be checked: {type(error).__name__}: {error}"
        repair = "Report this as a bug if it stays after the other repairs."
    return Check(name=name, ok=level, found=found, repair=repair)
