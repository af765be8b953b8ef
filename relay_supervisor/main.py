"""The command `relay-supervisor`: run, inspect and stop the daemon, and install it as a service.

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
    from relay_core.protocol.state import JournalState
    from relay_supervisor.service_unit import Installed

DataDirOption = Annotated[Path | None, typer.Option("--data-dir", envvar="RELAY_DATA_DIR", help="The data directory.")]
SocketOption = Annotated[Path | None, typer.Option("--socket", envvar="RELAY_SOCKET", help="The socket for clients.")]

app = typer.Typer(
    cls=Group,
    name="relay-supervisor",
    help="The Relay daemon: one bus, its adapters and its jobs, on one Unix socket.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

POLL_SECS = 0.05
ANSWER_SECS = 5.0
"""How long a supervisor may take to answer."""


@app.command()
def run(data_dir: DataDirOption = None, socket: SocketOption = None) -> None:
    """Run the supervisor in the foreground.

    SIGTERM or Ctrl-C shuts it down gracefully, SIGHUP reloads the operator's files.
    """
    import traceback

    from relay_supervisor.process import run as run_process

    try:
        run_process(data_dir, socket)
    except Exception as error:
        traceback.print_exc()  # a crash of the daemon needs its traceback
        raise typer.Exit(ExitCode.ERROR) from error


@command(app, "status", examples=["relay-supervisor status", "relay-supervisor status --json"])
async def status(session: Session) -> None:
    """Show the state of the supervisor, as 'relay status' does."""
    from relay_supervisor.cli.operate.status import show_status

    await show_status(session)


@command(app, "stop", connect=False, examples=["relay-supervisor stop", "relay-supervisor stop --timeout 60"])
async def stop(
    session: Session,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until it has ended.", min=0.1)] = 20.0,
) -> None:
    """Stop the supervisor and return when it has ended.

    It finishes the messages in flight. If it does not answer, the process that holds the data directory gets SIGTERM;
    with --socket, that needs --data-dir too.
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
        # The supervisor of a named socket may not be the one that holds the default data directory.
        if error.code == "outcome_unknown" or (session.socket is not None and session.data_dir is None):
            raise
        holder = _confirmed_holder(data_path(session.data_dir) / "relay.lock")
        if holder is None:
            raise
        import signal

        session.note(f"{error.message}; sending SIGTERM to process {holder}, which holds the data directory")
        os.kill(holder, signal.SIGTERM)
        pid = holder
    try:
        async with asyncio.timeout(timeout):
            while is_alive(pid):  # noqa: ASYNC110 - no event reports the end of a foreign process
                await asyncio.sleep(POLL_SECS)
    except TimeoutError:
        raise Failed(f"process {pid} is still stopping after {timeout:g} s", ExitCode.TIMED_OUT) from None
    session.show({"stopped": pid}, lambda: [f"process {pid} has stopped"])


@command(app, "doctor", connect=False, examples=["relay-supervisor doctor", "relay-supervisor doctor --json"])
async def doctor(session: Session) -> int:
    """Check the data directory and the machine, and suggest repairs.

    The exit code is 1 if a check fails.
    """
    from relay_core.paths import data_path, socket_path
    from relay_supervisor.doctor.checks import examine, format_checks

    data_dir, socket = data_path(session.data_dir), socket_path(session.socket, session.data_dir)
    checks = examine(data_dir, socket, journal=await _ask_for_journal(session))
    session.show({"checks": [check.to_wire() for check in checks]}, lambda: [format_checks(checks)])
    return ExitCode.ERROR if any(check.ok == "fail" for check in checks) else ExitCode.OK


async def _ask_for_journal(session: Session) -> JournalState | None:
    """Return the journal's state as a running supervisor reports it; None if none answers."""
    import asyncio

    from relay_core.errors import RelayError

    try:
        async with asyncio.timeout(ANSWER_SECS), session.new_client(ANSWER_SECS) as client:
            return (await client.status()).journal
    except (RelayError, OSError):
        return None


@command(app, "rebuild-index", connect=False, examples=["relay-supervisor rebuild-index"])
async def rebuild_index(session: Session) -> None:
    """Rebuild the index from the messages on disk.

    Stop the supervisor first.
    """
    from relay_core.core import RelayCore
    from relay_core.storage.data_dir import DataDir
    from relay_core.text.units import plural

    directory = DataDir(session.data_dir)
    if not directory.mailboxes.is_dir():
        raise Failed(f"{directory.path} is not a data directory of Relay: name one with --data-dir")
    async with RelayCore(directory.path) as relay:
        await relay.rebuild_index()
        mailboxes = relay.mailboxes()
    waiting, dead = sum(mailbox.depth for mailbox in mailboxes), sum(mailbox.failed for mailbox in mailboxes)
    found = f"{plural(len(mailboxes), 'mailbox', 'mailboxes')}, {plural(waiting, 'message')} waiting, {dead:,} failed"
    session.show(
        {"mailboxes": len(mailboxes), "waiting": waiting, "failed": dead}, lambda: [f"the index is rebuilt: {found}"]
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
    """Write the service file and print the commands that start the service.

    It is a systemd user unit, or a launchd agent on macOS.
    """
    from relay_core.paths import data_path
    from relay_supervisor.service_unit import install_service

    _show(session, "written", install_service(data_path(session.data_dir), session.socket, sandbox=sandbox))


@command(app, "uninstall-service", connect=False, examples=["relay-supervisor uninstall-service"])
async def uninstall_service(session: Session) -> None:
    """Remove the service file and print the commands that stop the service."""
    from relay_supervisor.service_unit import is_ours, service_path, uninstall_service

    existed = is_ours(service_path())
    _show(session, "removed" if existed else "not installed", uninstall_service())


def main() -> None:
    """Run the command line."""
    enter(app, "relay-supervisor")


def _show(session: Session, done: str, installed: Installed) -> None:
    session.show(
        {"path": str(installed.path), "nextSteps": installed.next_steps},
        lambda: [f"{installed.path} is {done}. Next:", *(f"  {step}" for step in installed.next_steps)],
    )


def _confirmed_holder(lock_file: Path) -> int | None:
    """Return the process named in the lock file, if it holds the lock now: any other must not be killed."""
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
