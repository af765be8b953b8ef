"""Turn the outcome of a command into an exit code.

A command returns its exit code or raises. An error becomes one line on stderr; a closed pipe (``| head``) is silent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import typer


class ExitCode:
    """The exit codes of every command."""

    OK = 0
    ERROR = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    TIMED_OUT = 5
    INTERRUPTED = 130


class UsageError(Exception):
    """Invalid arguments that typer cannot detect."""


class Failed(Exception):
    """The command failed; the message says why and what to do."""

    def __init__(self, text: str, code: int = ExitCode.ERROR) -> None:
        super().__init__(text)
        self.code = code


def enter(app: typer.Typer, name: str) -> NoReturn:
    """Run a command line and exit."""
    # A name that the terminal's encoding lacks must not crash the command.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    raise SystemExit(guarded(name, lambda: app(prog_name=name, standalone_mode=False)))


def guarded(name: str, body: Callable[[], int | None]) -> int:
    """Run a function and return its exit code; errors are reported on stderr."""
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
        if isinstance(error, OSError) and is_full(error):  # stdout may be a file on that disk
            discard_stdout()
        return code


def discard_stdout() -> None:
    """Discard buffered output: Python would flush it, and fail again, at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Print a line on stderr, sanitized."""
    from relay_supervisor.cli.output import safe

    print(safe(text), file=sys.stderr, flush=True)  # noqa: T201


def explain(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the message for an error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, UsageError):
        return ExitCode.USAGE, str(error)
    if isinstance(error, Failed):
        return error.code, str(error)
    if isinstance(error, TimeoutError):
        return ExitCode.TIMED_OUT, str(error) or "timed out"
    describe = getattr(error, "format_message", None)
    if describe is not None:  # raised by typer: a wrong option, a missing argument
        path = getattr(getattr(error, "ctx", None), "command_path", "relay")
        return getattr(error, "exit_code", ExitCode.USAGE), f"{describe().rstrip('.')}; see '{path} --help'"
    if type(error).__name__ == "Abort":
        return ExitCode.INTERRUPTED, "aborted"
    return _explain_relay(error)


def _explain_relay(error: BaseException) -> tuple[int, str]:
    from relay_core.errors import AccessDenied, InvalidPayload, InvalidSubject, RelayError, SupervisorUnavailable

    if isinstance(error, SupervisorUnavailable):
        is_timeout = isinstance(error.__cause__, TimeoutError)
        return ExitCode.TIMED_OUT if is_timeout else ExitCode.UNREACHABLE, error.message
    if isinstance(error, AccessDenied) or (isinstance(error, RelayError) and error.code == "not_delivered"):
        return ExitCode.REFUSED, error.message
    if isinstance(error, InvalidSubject | InvalidPayload):
        return ExitCode.USAGE, error.message
    if isinstance(error, RelayError):
        return ExitCode.USAGE if error.code == "invalid_params" else ExitCode.ERROR, error.message
    if isinstance(error, OSError) and error.strerror:  # such as a full disk
        where = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes) else ""
        return ExitCode.ERROR, f"{error.strerror}{where}"
    return ExitCode.ERROR, f"{type(error).__name__}: {error} (this is a bug; RELAY_DEBUG=1 shows the traceback)"
