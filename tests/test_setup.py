"""`python3 -m tests --setup` makes the development environment, once. Here, that of a project that needs nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import ROOT

PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""

# The least that pip takes for an editable install.
BACKEND = """
from zipfile import ZipFile

INFO = "toy-1.0.dist-info"
WHEEL = "Wheel-Version: 1.0\\nGenerator: toy\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
METADATA = "Metadata-Version: 2.1\\nName: toy\\nVersion: 1.0\\nProvides-Extra: dev\\n"

def build_editable(directory, settings=None, metadata=None):
    name = "toy-1.0-py3-none-any.whl"
    with ZipFile(f"{directory}/{name}", "w") as wheel:
        wheel.writestr("toy.py", "")
        wheel.writestr(f"{INFO}/WHEEL", WHEEL)
        wheel.writestr(f"{INFO}/METADATA", METADATA)
        wheel.writestr(f"{INFO}/RECORD", f"toy.py,,\\n{INFO}/WHEEL,,\\n{INFO}/METADATA,,\\n{INFO}/RECORD,,\\n")
    return name
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "tests" / "kit").mkdir(parents=True)
    for name in ("__init__.py", "__main__.py", "kit/__init__.py", "kit/keeper.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests" / name)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "backend.py").write_text(BACKEND)
    return tmp_path


def run(checkout: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "tests", *arguments]
    environment = {**os.environ, "PIP_NO_INDEX": "1"}
    ran = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_the_environment_is_made_once(checkout: Path) -> None:
    made = checkout / ".venv"
    setting_up, ready = run(checkout, "--setup").splitlines()
    assert setting_up.startswith(f"setting up {made}")
    assert ready == f"{made} is ready"
    assert subprocess.run([made / "bin/python", "-c", "import toy"], cwd="/", timeout=60).returncode == 0
    assert run(checkout, "--setup").splitlines() == [ready]

    (checkout / "tests" / "other").mkdir()
    (checkout / "tests" / "other" / "__main__.py").write_text("import sys; print(sys.prefix, sys.argv[1:])")
    assert run(checkout, "other", "--help", "--", "x") == f"{made} ['--help', '--', 'x']\n"
    assert "python3 -m tests other --help" in run(checkout, "--help")
