"""The ``claude`` program: found, checked and launched.

1. A program that is too old to take a prompt verbatim is refused at the start: it would read the files that an
   untrusted message names with an ``@``.
2. Its version is checked once per start, not by every probe; a probe checks only that it can still be run.
3. The SDK runs a script in the adapter's directory, which runs `launcher` with our Python. A script in the package
   would depend on the mode that the installer gave it, and on the python3 on the PATH.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from relay_core.storage.atomic_file import atomic_write
from relay_supervisor.adapters.claude_code import launcher
from relay_supervisor.jobs.subprocess import run_child

OLDEST_VERSION = (2, 1, 248)
"""The first version that takes a prompt verbatim."""
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR")
"""Variables of ours that it gets, in addition to LC_*."""
SET_BY_SDK = ("CLAUDE_CODE_ENTRYPOINT", "CLAUDE_AGENT_SDK_VERSION", "CLAUDE_CODE_SDK_READS_SESSION_STATE", "PWD")

_VERSION_SECS = 20.0
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")


class ProgramProblem(Exception):
    """The program cannot be used; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class Program:
    """The program, and the script that launches it."""

    path: Path
    script: Path

    def check(self) -> None:
        """Check that it can be run; raises ProgramProblem."""
        if not self.path.is_file():
            raise ProgramProblem(f"there is no Claude Code program at {self.path}: install it, or correct cliPath")
        if not os.access(self.path, os.X_OK):
            raise ProgramProblem(f"{self.path} cannot be run: run 'chmod +x {self.path}', or correct cliPath")

    def environment(self, own: dict[str, str]) -> dict[str, str]:
        """Return the variables that the SDK must add to our environment so that the program gets those in `own`."""
        passed_on = [name for name in os.environ if name in PASSED_ON or name.startswith("LC_")]
        keep = sorted({*passed_on, *SET_BY_SDK, *own})
        return {**own, launcher.PLAN_VARIABLE: f"{' '.join(keep)}\n{self.path}"}


async def find_program(cli_path: Path | None, directory: Path) -> Program:
    """Find the program, check its version, and write the script that launches it.

    Raises:
        ProgramProblem: if there is no usable program.
        StorageError: if the script cannot be written.
    """
    path = await asyncio.to_thread(_find, cli_path)
    program = Program(path, directory / "launch-claude")
    program.check()
    await _check_version(path)
    await asyncio.to_thread(_write_script, program.script)
    return program


def _find(cli_path: Path | None) -> Path:
    if cli_path is not None:
        return cli_path
    sdk = find_spec("claude_agent_sdk")
    if sdk is not None and sdk.origin is not None:
        bundled = Path(sdk.origin).parent / "_bundled" / "claude"
        if bundled.is_file():
            return bundled
    on_path = shutil.which("claude")
    if on_path is None:
        raise ProgramProblem(
            "Claude Code is not installed: run 'npm install -g @anthropic-ai/claude-code', or set cliPath"
        )
    return Path(on_path).absolute()


async def _check_version(path: Path) -> None:
    own = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    try:
        result = await run_child([str(path), "--version"], env=own, timeout=_VERSION_SECS)
    except OSError as error:
        raise ProgramProblem(
            f"{path} cannot be run: {error.strerror}; install Claude Code, or correct cliPath"
        ) from None
    found = _VERSION.search(result.output)
    if result.timed_out or result.returncode != 0 or found is None:
        how = f"no response within {_VERSION_SECS:g} s" if result.timed_out else f"exit code {result.returncode}"
        raise ProgramProblem(f"'{path} --version' prints no version ({how}): is it Claude Code?")
    if tuple(map(int, found.groups())) < OLDEST_VERSION:
        oldest = ".".join(map(str, OLDEST_VERSION))
        raise ProgramProblem(
            f"Claude Code {found[0]} at {path} is too old to take messages verbatim: run 'claude update' "
            f"({oldest} or later), or set cliPath to a newer one"
        )


def _write_script(path: Path) -> None:
    command = shlex.join([sys.executable, "-I", "-S", os.fspath(Path(launcher.__file__).absolute())])
    atomic_write(path, f'#!/bin/sh\nexec {command} "$@"\n'.encode(), mode=0o700)
