"""Check everything that a supervisor needs, and suggest repairs.

1. Nothing is changed. A running supervisor is neither disturbed nor needed.
2. Nothing is raised: a check that crashes becomes a `warn`.
3. `fail` means that the bus would not start, or would lose or expose messages; `warn` means that something is slow,
   missing or surprising. Both come with a sentence or a command that repairs it.

`CHECKS` lists all checks in the order of the output.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from relay_core.clock import Clock, SystemClock
from relay_core.messages.base import WireModel
from relay_core.protocol.state import JournalState
from relay_core.storage.data_dir import DataDir
from relay_supervisor.doctor import data, machine
from relay_supervisor.doctor.survey import Finding, Level, Place, Survey, lock_holder, walk

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
    "journal": data.check_journal,
    "index": data.check_index,
    "leftovers": data.check_leftovers,
    "python": machine.check_python,
    "uvloop": machine.check_uvloop,
    "service": machine.check_service,
}


class Check(WireModel):
    """The result of a check."""

    name: str
    ok: Level
    found: str
    repair: str | None = None


def examine(
    data_dir: Path, socket: Path, *, clock: Clock | None = None, journal: JournalState | None = None
) -> list[Check]:
    """Run every check; blocks for about a second. `journal` is what a running supervisor reports."""
    directory, now_ms = DataDir(data_dir), (clock or SystemClock()).now_ms()
    survey = Survey()
    holder = lock_holder(directory.lock_file)
    place = Place(directory, Path(socket).expanduser().absolute(), now_ms, survey, holder, journal)
    walk(directory.path, survey, now_ms)
    return [_run(name, check, place) for name, check in CHECKS.items()]


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


def _run(name: str, check: Callable[[Place], Finding], place: Place) -> Check:
    try:
        level, found, repair = check(place)
    except Exception as error:  # rule 2
        level, found = "warn", f"could not be checked: {type(error).__name__}: {error}"
        repair = "Report a bug if this remains after the other repairs."
    return Check(name=name, ok=level, found=found, repair=repair)
