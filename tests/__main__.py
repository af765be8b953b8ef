"""The project's one test command: `python3 -m tests [--quick] [-- pytest arguments]`.

1. Only the standard library is imported: on a fresh checkout nothing else is there yet.
2. `.venv` is made from nothing, and made again only when pyproject.toml, Python or the checkout's place has
   changed. A set-up that was interrupted leaves no stamp, so the next run starts over.
3. Every static check runs, and all that failed are named; the tests run only once none has.
4. pytest takes this process over, so that its closing line is the last one and its exit code is ours.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
PYTHON = BIN / "python"
STAMP = VENV / "relay-stamp"
EXTRAS = "dev"

STATIC_CHECKS: dict[str, list[str | Path]] = {
    "ruff format": [BIN / "ruff", "format", "--check", "--diff", "."],
    "ruff check": [BIN / "ruff", "check", "."],
    "mypy": [BIN / "mypy"],
    "import-linter": [BIN / "lint-imports"],
}


def main() -> None:
    """Set up, check, and become pytest."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this is what says so
        sys.exit(f"Relay needs Python 3.11 or newer; this is {sys.version.split()[0]} ({sys.executable})")
    parser = argparse.ArgumentParser(prog="python3 -m tests", description="Set up .venv, then run every check.")
    parser.add_argument("--quick", action="store_true", help="static checks, and no test marked slow")
    parser.add_argument("pytest", nargs="*", metavar="-- ARGUMENT", help="arguments for pytest")
    options = parser.parse_args()

    os.chdir(ROOT)
    for name in ("PYTHONHOME", "PYTHONPATH"):
        os.environ.pop(name, None)
    set_up()
    failed = [name for name, command in STATIC_CHECKS.items() if not passes(name, command)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)} (pytest was not run)")
    become_pytest((["-m", "not slow"] if options.quick else []) + options.pytest)


def set_up() -> None:
    """Make .venv hold the project, editable, with its development tools."""
    with open(ROOT / "pyproject.toml", "rb") as project:
        fcntl.flock(project, fcntl.LOCK_EX)  # two runs in one checkout must not both build it
        facts = [project.read().decode(), sys.version, sys.base_prefix, str(ROOT), EXTRAS]
        wanted = hashlib.sha256("\0".join(facts).encode()).hexdigest()
        if STAMP.exists() and STAMP.read_text() == wanted:
            return
        say(f"setting up {VENV} with Python {sys.version.split()[0]} (less than a minute) ...")
        if VENV.exists():
            shutil.rmtree(VENV)
        try:
            venv.create(VENV, symlinks=True, with_pip=True)
        except (ImportError, OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"cannot make {VENV}: {error}\nPython's venv is needed (on Debian: the package python3-venv)")
        pip = [str(PYTHON), "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]
        # Its wheel brings a program of 350 MB that the tests have one of their own for; its source does not.
        small = ["--no-binary", "claude-agent-sdk"]
        if subprocess.run([*pip, "install", *small, "--editable", f".[{EXTRAS}]"], check=False).returncode:
            sys.exit("pip could not install the project: see above")
        STAMP.write_text(wanted)


def passes(name: str, command: list[str | Path]) -> bool:
    """Run one check, and show its output if it fails."""
    started = time.monotonic()
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    verdict = "failed" if result.returncode else "ok"
    say(f"{name:15}{verdict:8}{time.monotonic() - started:.1f} s")
    if result.returncode:
        say(result.stdout)
    return not result.returncode


def become_pytest(arguments: list[str]) -> None:
    """Replace this process by pytest, on every core but no more than four."""
    workers = max(2, min(4, os.cpu_count() or 1))
    # Spread one by one, in order: those marked serial come last, and each of them alone (tests/serial.py).
    spread = ["-n", str(workers), "--dist", "load", "--maxschedchunk", "1"]
    os.execv(PYTHON, [str(PYTHON), "-m", "pytest", *spread, *arguments])


def say(text: str) -> None:
    """Print at once, so that lines keep their order among those of the programs we run."""
    print(text, flush=True)


if __name__ == "__main__":
    main()
