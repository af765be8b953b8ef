"""Relay as others get it: built, and installed where there is no checkout.

1. `python -m build` runs with the build tools of the test environment, so nothing is fetched.
2. The wheel goes into its own environment, which sees the packages that the wheel says it needs, theirs, and
   nothing else: not the extras, not the test tools. Each is a link to what the test environment has of it.
3. What runs there has an empty home, its own directory, and none of our variables.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PathDistribution, distribution
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

from tests.kit import ROOT
from tests.kit.waiting import PATIENCE_SECS

PACKAGES = ("relay_core", "relay_supervisor", "relay_tui", "spark")


class Built(NamedTuple):
    """What was built."""

    wheel: Path
    sdist: Path


def build(directory: Path, *options: str) -> Built:
    """Run `python -m build`: the wheel is made from the sdist, or with ``--sdist --wheel`` from the checkout."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(directory), *options, str(ROOT)]
    _run(command, cwd=directory)
    (wheel,), (sdist,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    return Built(wheel, sdist)


class Installed:
    """The wheel in its own environment."""

    def __init__(self, place: Path, wheel: Path) -> None:
        self.directory = place / "somewhere"
        self.home = place / "home"
        self.site = Path(sysconfig.get_path("purelib", "venv", {"base": str(place / "venv")}))
        self.python = place / "venv" / "bin" / "python"
        self.environment = {
            "HOME": str(self.home),
            "LC_ALL": "C.UTF-8",
            "PATH": f"{self.python.parent}:/usr/bin:/bin",
            "TERM": "xterm-256color",
            "XDG_CONFIG_HOME": str(place / "config"),
        }
        self.directory.mkdir()
        self.home.mkdir()
        venv.create(place / "venv", symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--quiet", "--disable-pip-version-check"]
        _run([*pip, "install", "--no-deps", "--no-index", "--no-compile", str(wheel)], cwd=place)
        (self.info,) = self.site.glob("relay_bus-*.dist-info")
        for name in needed(PathDistribution(self.info).requires or []):
            for file in distribution(name).files or []:
                link = self.site / file.parts[0]
                if file.parts[0] not in ("..", "__pycache__") and not link.exists():
                    link.symlink_to(Path(str(distribution(name).locate_file(file.parts[0]))))

    def command(self, *command: str, **more: str) -> list[str]:
        """Return what runs a command there, with nothing but its environment."""
        variables = [f"{name}={value}" for name, value in {**self.environment, **more}.items()]
        return ["/bin/sh", "-c", 'cd "$0" && exec env -i "$@"', str(self.directory), *variables, *command]

    def __call__(self, *command: str, code: int = 0, **more: str) -> str:
        """Run a command there, check its exit code, and return what it says."""
        return _run(self.command(*command, **more), code=code)


def needed(requirements: Sequence[str]) -> set[str]:
    """Return the names of the packages that these requirements bring along, extras only where they ask for them."""
    found: set[tuple[str, str]] = set()
    waiting = [(requirements, "")]
    while waiting:
        wanted, extra = waiting.pop()
        for requirement in map(Requirement, wanted):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                new = {(requirement.name, asked) for asked in ("", *requirement.extras)} - found
                found |= new
                waiting += [(distribution(name).requires or [], asked) for name, asked in new]
    return {name for name, _ in found}


@contextmanager
def installed(wheel: Path) -> Iterator[Installed]:
    """Install a wheel for a while; the path is short, since a socket's must be."""
    place = Path(tempfile.mkdtemp(prefix="relay-"))
    try:
        yield Installed(place, wheel)
    finally:
        shutil.rmtree(place)


def _run(command: list[str], *, cwd: Path | None = None, code: int = 0) -> str:
    ran = subprocess.run(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECS,
        check=False,
    )
    assert ran.returncode == code, f"{command} ended with {ran.returncode}, not {code}:\n{ran.stdout}"
    return ran.stdout
