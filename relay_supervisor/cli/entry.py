"""From an outcome to an exit code: whatever a command does or raises, it ends here.

A command returns its exit code, or raises. An error becomes one line on stderr; a reader that has gone away
(``| head``) is not worth one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import typer


class ExitCode:
    """What the commands exit with."""

    OK = 0
    ERROR = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    TIMED_OUT = 5
    INTERRUPTED = 130


class UsageError(Exception):
    """The command was called wrongly, in a way that typer cannot know."""


class Failed(Exception):
    """It did not work, and the text says why and what to do."""

    def __init__(self, text: str, code: int = ExitCode.ERROR) -> None:
        super().__init__(text)
        self.code = code


def enter(app: typer.Typer, name: str) -> NoReturn:
    """Run a command line and exit."""
    # A name on a terminal of another encoding must not be a crash.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    raise SystemExit(guarded(name, lambda: app(prog_name=name, standalone_mode=False)))


def guarded(name: str, body: Callable[[], int | None]) -> int:
    """Return the exit code of a piece of work, having said on stderr what went wrong."""
    try:
        code = body() or ExitCode.OK
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        discard_stdout()
        return ExitCode.ERROR
    except Exception as error:
        if os.environ.get("RELAY_DEBUG"):
            raise
        from relay_core.storage.atomic_file import is_full

        code, text = explain(error)
        say(f"{name}: {text}")
        if isinstance(error, OSError) and is_full(error):  # it may be the disk behind stdout
            discard_stdout()
        return code


def discard_stdout() -> None:
    """Let what is still to be written go into nothing: Python writes it out as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Write a line to stderr, made safe for a terminal."""
    from relay_supervisor.cli.output import safe

    print(safe(text), file=sys.stderr, flush=True)  # noqa: T201


def explain(error: BaseException) -> tuple[int, str]:
    """Return the exit code of an error, and what to say about it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, UsageError):
        return ExitCode.USAGE, str(error)
    if isinstance(error, Failed):
        return error.code, str(error)
    if isinstance(error, TimeoutError):
        return ExitCode.TIMED_OUT, str(error) or "timed out"
    describe = getattr(error, "format_message", None)
    if describe is not None:  # typer's own: a wrong option, a missing argument
        path = getattr(getattr(error, "ctx", None), "command_path", "relay")
        return getattr(error, "exit_code", ExitCode.USAGE), f"{describe().rstrip('.')} (see '{path} --help')"
    if type(error).__name__ == "Abort":
        return ExitCode.INTERRUPTED, "aborted"
    return _explain_relay(error)


def _explain_relay(error: BaseException) -> tuple[int, str]:
    from relay_core.errors import AccessDenied, InvalidPayload, InvalidSubject, RelayError, SupervisorUnavailable

    if isinstance(error, SupervisorUnavailable):
        late = isinstance(error.__cause__, TimeoutError)
        return ExitCode.TIMED_OUT if late else ExitCode.UNREACHABLE, error.message
    if isinstance(error, AccessDenied) or (isinstance(error, RelayError) and error.code == "not_delivered"):
        return ExitCode.REFUSED, error.message
    if isinstance(error, InvalidSubject | InvalidPayload):
        return ExitCode.USAGE, error.message
    if isinstance(error, RelayError):
        return ExitCode.USAGE if error.code == "invalid_params" else ExitCode.ERROR, error.message
    if isinstance(error, OSError) and error.strerror:  # such as a full disk behind stdout
        where = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes) else ""
        return ExitCode.ERROR, f"{error.strerror}{where}"
    return ExitCode.ERROR, f"{type(error).__name__}: {error} (RELAY_DEBUG=1 shows where)"
