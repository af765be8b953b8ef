"""Every example runs, and says what it is meant to say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SAYS = {
    "two_agents.py": ["relay.agent.reviewer got 'the first draft'", "stopped: cycle detected: relay.agent.reviewer"],
    "worker.py": ["15 / 3 = 5.0", "dead letter: division by zero", "replayed with {'divide': 15, 'by': 1}"],
}


def run(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_the_example_runs(name: str, tmp_path: Path) -> None:
    printed = run(str(ROOT / "examples" / name), cwd=tmp_path)
    for words in SAYS[name]:
        assert words in printed


def test_the_readmes_program_runs(tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (program,) = [one for one in programs if "RelayCore" in one]  # the other needs a supervisor: test_readme.py
    printed = run("-c", program, cwd=tmp_path)
    assert printed.splitlines() == ["relay.agent.ci: the tests are green", "relay.agent.backend done"]
