"""A serial test overlaps no other, although two workers run them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parent.parent

CASES = """
import time
from pathlib import Path
import pytest

def run(kind):
    start = time.monotonic()
    time.sleep(0.1)
    with Path(__file__).with_name("log").open("a") as log:
        log.write(f"{kind} {start} {time.monotonic()}\\n")

@pytest.mark.serial
@pytest.mark.parametrize("number", range(4))
def test_alone(number):
    run("serial")

@pytest.mark.parametrize("number", range(9))
def test_in_company(number):
    run("parallel")
"""


def test_serial_tests_run_last_and_alone(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\nmarkers = serial\n")
    module = pytester.makepyfile(CASES)
    result = pytester.runpytest_subprocess("-p", "tests.serial", "-n2", "--maxschedchunk", "1", "-p", "no:asyncio")
    assert result.parseoutcomes() == {"passed": 13}

    runs = [line.split() for line in module.with_name("log").read_text().splitlines()]
    spans = sorted((float(start), float(end), kind) for kind, start, end in runs)
    for (_, end, kind), (start, _, next_kind) in pairwise(spans):
        assert start >= end or kind == next_kind == "parallel"
    assert spans[-1][2] == "serial"
    assert any(later[0] < earlier[1] for earlier, later in pairwise(spans)), "nothing ran in parallel"
