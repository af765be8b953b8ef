"""The project's one test command: `python3 -m tests [--setup | --quick] [-- pytest arguments]`.

`python3 -m tests NAME ...` runs the package `tests.NAME` instead, after the same set-up, if it has a `__main__`.

1. Only the standard library is imported: on a fresh checkout nothing else is there yet.
2. `.venv` is made from nothing, and made again only when pyproject.toml, Python or the checkout's place has
   changed. A set-up that was interrupted leaves no stamp, so the next run starts over.
3. Every static check runs, mypy beside the others, and all that failed are named; the tests run only once none has.
4. All of it runs in a child process (tests/kit/keeper.py). Whatever ends this command, no process and no temporary
   directory of it is left. pytest's closing line is the last one, and its exit code is ours.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.kit.keeper import keep

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
PYTHON = BIN / "python"
STAMP = VENV / "relay-stamp"
EXTRAS = "dev"

STATIC_CHECKS: dict[str, list[str | Path]] = {
    "mypy": [BIN / "mypy"],  # the longest, so the first
    "ruff format": [BIN / "ruff", "format", "--check", "--diff", "."],
    "ruff check": [BIN / "ruff", "check", "."],
    "import-linter": [BIN / "lint-imports"],
}

# The workers of the first run would each compile all tests; this does it for them, while mypy has the other core.
FIRST_CHECKS: dict[str, list[str | Path]] = {"collection": [PYTHON, "-m", "pytest", "--collect-only", "-q"]}


def main() -> None:
    """Do what the arguments ask for, and leave nothing behind."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this is what says so
        sys.exit(f"Relay needs Python 3.11 or newer; this is {sys.version.split()[0]} ({sys.executable})")
    program, arguments = sys.argv[1:2], sys.argv[2:]
    if program and program[0].isidentifier() and (ROOT / "tests" / program[0] / "__main__.py").exists():
        keep(lambda: run_program(program[0], arguments))
    others = sorted(path.parent.name for path in (ROOT / "tests").glob("*/__main__.py"))
    parser = argparse.ArgumentParser(
        prog="python3 -m tests",
        description="Set up .venv, then run every check.",
        epilog="".join(f"python3 -m tests {name} --help: another program. " for name in others),
    )
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--setup", action="store_true", help="set up .venv, and no more")
    parts.add_argument("--quick", action="store_true", help="static checks, and no test marked slow")
    parser.add_argument("pytest", nargs="*", metavar="-- ARGUMENT", help="arguments for pytest")
    options = parser.parse_args()
    keep(lambda: run_checks(options))


def run_checks(options: argparse.Namespace) -> None:
    """Set up, check, and become pytest."""
    is_new = set_up()
    if options.setup:
        say(f"{VENV} is ready")
        return
    checks = STATIC_CHECKS | FIRST_CHECKS if is_new else STATIC_CHECKS
    with ThreadPoolExecutor(max_workers=2) as pool:
        verdicts = dict(zip(checks, pool.map(passes, checks, checks.values()), strict=True))
    failed = [name for name, passed in verdicts.items() if not passed]
    if failed:
        sys.exit(f"failed: {', '.join(failed)} (pytest was not run)")
    # Three for each core: most of the time a test waits for the disk, a timer or the answer of another process.
    workers = min(8, 3 * (os.cpu_count() or 1))
    # tests/kit/serial.py says which runs beside which. The shorter the directory, the longer the names below it may be.
    spread = ["-n", str(workers), "--dist", "loadscope", f"--basetemp={tempfile.gettempdir()}/t"]
    quick = ["-m", "not slow"] if options.quick else []
    become("pytest", [*spread, *quick, *options.pytest])


def run_program(name: str, arguments: list[str]) -> None:
    """Set up, and become another program of the tests."""
    set_up()
    become(f"tests.{name}", arguments)


def set_up() -> bool:
    """Make .venv hold the project, editable, with its development tools; return whether there was anything to do."""
    os.chdir(ROOT)
    for name in ("PYTHONHOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
        os.environ.pop(name, None)
    with open(ROOT / "pyproject.toml", "rb") as project:
        fcntl.flock(project, fcntl.LOCK_EX)  # two runs in one checkout must not both build it
        facts = [project.read().decode(), sys.version, sys.base_prefix, str(ROOT), EXTRAS]
        wanted = hashlib.sha256("\0".join(facts).encode()).hexdigest()
        if STAMP.exists() and STAMP.read_text() == wanted:
            return False
        say(f"setting up {VENV} with Python {sys.version.split()[0]} (a minute or two) ...")
        if VENV.exists():
            shutil.rmtree(VENV)
        try:
            venv.create(VENV, symlinks=True, with_pip=True)
        except (ImportError, OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"cannot make {VENV}: {error}\nPython's venv is needed (on Debian: the package python3-venv)")
        pip = [str(PYTHON), "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]
        # Its wheel brings a program of 350 MB that the tests have one of their own for; its source does not.
        small = ["--no-binary", "claude-agent-sdk"]
        # Python compiles what it imports, and most of what is installed here never is. A wheel that is built only to
        # be unpacked (pyspark's holds 450 MB of Java) need not be compressed.
        fast = ["--no-compile", "--config-settings=--build-option=--compression=stored"]
        if subprocess.run([*pip, "install", *small, *fast, "--editable", f".[{EXTRAS}]"], check=False).returncode:
            sys.exit("pip could not install the project: see above")
        STAMP.write_text(wanted)
        return True


def passes(name: str, command: list[str | Path]) -> bool:
    """Run one check, and show its output if it fails."""
    started = time.monotonic()
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    verdict = "failed" if result.returncode else "ok"
    line = f"{name:15}{verdict:8}{time.monotonic() - started:.1f} s"
    say(f"{line}\n{result.stdout}" if result.returncode else line)
    return not result.returncode


def become(module: str, arguments: list[str]) -> None:
    """Replace this process by a module that is run with the environment's Python."""
    os.execv(PYTHON, [str(PYTHON), "-m", module, *arguments])


def say(text: str) -> None:
    """Print at once, so that lines keep their order among those of the programs we run."""
    print(text, flush=True)


if __name__ == "__main__":
    main()
