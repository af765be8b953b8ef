"""The command `relay-supervisor`: run the daemon, look after it, and make it a service.

Exit codes are the same as those of `relay`: 0 ok, 1 error, 2 usage, 3 supervisor not reachable, 5 timed out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import ExitCode, Failed, enter
from relay_supervisor.cli.groups import Group

if TYPE_CHECKING:
    from relay_supervisor.service_unit import Installed

DataDirOption = Annotated[Path | None, typer.Option("--data-dir", envvar="RELAY_DATA_DIR", help="The data directory.")]
SocketOption = Annotated[Path | None, typer.Option("--socket", envvar="RELAY_SOCKET", help="Where clients connect.")]

app = typer.Typer(
    cls=Group,
    name="relay-supervisor",
    help="The Relay daemon: one bus, its adapters and its upkeep, on one Unix socket.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

POLL_SECS = 0.05
ANSWER_SECS = 5.0
"""How long a supervisor that is to stop may take to say that it will."""


@app.command()
def run(data_dir: DataDirOption = None, socket: SocketOption = None) -> None:
    """Run the supervisor in the foreground.

    SIGTERM or Ctrl-C stops it in good order, SIGHUP has it read the operator's files again.
    """
    import traceback

    from relay_supervisor.process import run as run_process

    try:
        run_process(data_dir, socket)
    except Exception as error:
        traceback.print_exc()  # a daemon that crashes must say where
        raise typer.Exit(ExitCode.ERROR) from error


@command(app, "status", examples=["relay-supervisor status", "relay-supervisor status --json"])
async def status(session: Session) -> None:
    """Show how everything is doing, as 'relay status' does."""
    from relay_supervisor.cli.operate.status import show_status

    await show_status(session)


@command(app, "stop", connect=False, examples=["relay-supervisor stop", "relay-supervisor stop --timeout 60"])
async def stop(
    session: Session, timeout: Annotated[float, typer.Option(help="Seconds to wait for its end.", min=0.1)] = 20.0
) -> None:
    """Stop the supervisor and return when it has ended.

    It finishes what is in flight. One that does not answer gets SIGTERM, if it holds the data directory; where a
    socket was named, the data directory must be, too.
    """
    import asyncio

    from relay_core.errors import SupervisorUnavailable
    from relay_core.paths import data_path
    from relay_supervisor.doctor.survey import is_alive

    client = session.new_client(ANSWER_SECS)
    try:
        async with client:
            pid = client.hello.pid if client.hello else 0
            await client.stop()
    except SupervisorUnavailable as error:
        # A socket that was named need not be that of the default data directory: its supervisor would be another one.
        if error.code == "outcome_unknown" or (session.socket is not None and session.data_dir is None):
            raise
        # It does not answer. Whoever holds the lock is it, and nobody else is.
        holder = _true_holder(data_path(session.data_dir) / "relay.lock")
        if holder is None:
            raise
        import signal

        session.note(f"{error.message}; sending SIGTERM to process {holder}, which holds the data directory")
        os.kill(holder, signal.SIGTERM)
        pid = holder
    try:
        async with asyncio.timeout(timeout):
            while is_alive(pid) and not _is_zombie(pid):  # noqa: ASYNC110 - nobody tells of a foreign process's end
                await asyncio.sleep(POLL_SECS)
    except TimeoutError:
        raise Failed(
            f"process {pid} has not ended within {timeout:g} s: it may still do so", ExitCode.TIMED_OUT
        ) from None
    session.show({"stopped": pid}, lambda: [f"process {pid} has stopped"])


@command(app, "doctor", connect=False, examples=["relay-supervisor doctor", "relay-supervisor doctor --json"])
async def doctor(session: Session) -> int:
    """Check what a supervisor needs, and how to repair it.

    Exit code 1 if something would keep it from working.
    """
    from relay_core.paths import data_path, socket_path
    from relay_supervisor.doctor.checks import examine, format_checks

    checks = examine(data_path(session.data_dir), socket_path(session.socket, session.data_dir))
    session.show({"checks": [check.to_wire() for check in checks]}, lambda: [format_checks(checks)])
    return ExitCode.ERROR if any(check.ok == "fail" for check in checks) else ExitCode.OK


@command(app, "rebuild-index", connect=False, examples=["relay-supervisor rebuild-index"])
async def rebuild_index(session: Session) -> None:
    """Build the index anew from the messages on disk.

    No supervisor may be running: stop it first.
    """
    from relay_core.core import RelayCore
    from relay_core.storage.data_dir import DataDir

    directory = DataDir(session.data_dir)
    if not directory.mailboxes.is_dir():
        raise Failed(f"{directory.path} is no data directory of Relay: choose it with --data-dir")
    async with RelayCore(directory.path) as relay:
        await relay.rebuild_index()
        mailboxes = relay.mailboxes()
    waiting, dead = sum(one.depth for one in mailboxes), sum(one.failed for one in mailboxes)
    session.show(
        {"mailboxes": len(mailboxes), "waiting": waiting, "failed": dead},
        lambda: [f"the index is rebuilt: {len(mailboxes)} mailboxes, {waiting} messages waiting, {dead} failed"],
    )


@command(
    app,
    "install-service",
    connect=False,
    examples=["relay-supervisor install-service", "relay-supervisor install-service --no-sandbox"],
)
async def install_service(
    session: Session,
    sandbox: Annotated[bool, typer.Option(help="Harden the service with a user namespace.")] = True,
) -> None:
    """Write a service's file and say what to run next.

    It is a systemd user unit, or a launchd agent on macOS.
    """
    from relay_core.paths import data_path
    from relay_supervisor.service_unit import install_service

    _show(session, "written", install_service(data_path(session.data_dir), session.socket, sandbox=sandbox))


@command(app, "uninstall-service", connect=False, examples=["relay-supervisor uninstall-service"])
async def uninstall_service(session: Session) -> None:
    """Remove that file and say what to run next."""
    from relay_supervisor.service_unit import is_ours, service_path, uninstall_service

    was_there = is_ours(service_path())
    _show(session, "removed" if was_there else "not there", uninstall_service())


def main() -> None:
    """Run the command line."""
    enter(app, "relay-supervisor")


def _show(session: Session, done: str, installed: Installed) -> None:
    session.show(
        {"path": str(installed.path), "nextSteps": installed.next_steps},
        lambda: [f"{installed.path} is {done}. Next:", *(f"  {step}" for step in installed.next_steps)],
    )


def _true_holder(lock_file: Path) -> int | None:
    """Return the process that holds the lock right now, if it is the one that says so in the file."""
    import fcntl

    from relay_core.storage.data_dir import DataDir
    from relay_supervisor.doctor.survey import lock_holder

    noted = DataDir(lock_file.parent).holder()
    if noted is None or noted != lock_holder(lock_file):
        return None
    with lock_file.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return noted
    return None


def _is_zombie(pid: int) -> bool:
    """Tell whether a process has ended and only waits for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False
