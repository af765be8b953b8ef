"""A serial test overlaps no other, slow tests start first, and tests that share something have one worker."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.kit import ROOT
from tests.kit.serial import TOGETHER

pytest_plugins = ["pytester"]


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

@pytest.mark.slow
def test_long():
    run("slow")
"""


@pytest.mark.parametrize("spread", [("load", "--maxschedchunk", "1"), ("loadscope",)], ids=" ".join)
def test_slow_tests_run_first_and_serial_ones_last_and_alone(
    spread: tuple[str, ...], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\nmarkers =\n  serial\n  slow\n")
    module = pytester.makepyfile(CASES)
    result = pytester.runpytest_subprocess("-p", "tests.kit.serial", "-n2", "--dist", *spread, "-p", "no:asyncio")
    assert result.parseoutcomes() == {"passed": 14}

    runs = [line.split() for line in module.with_name("log").read_text().splitlines()]
    spans = sorted((float(start), float(end), kind) for kind, start, end in runs)
    for (_, end, kind), (start, _, next_kind) in pairwise(spans):
        assert start >= end or "serial" not in (kind, next_kind)
    assert "slow" in (spans[0][2], spans[1][2])  # one of the first of the two workers
    assert spans[-1][2] == "serial"
    assert any(later[0] < earlier[1] for earlier, later in pairwise(spans)), "nothing ran in parallel"


SHARING = """
import os
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(12))
def test_it(number):
    with Path(__file__).with_suffix(".log").open("a") as log:
        log.write(f"{os.getpid()}\\n")
"""


def test_a_group_has_one_worker_and_the_others_are_spread(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\nmarkers =\n  serial\n  slow\n")
    together, single = pytester.path / TOGETHER[0], pytester.path / "tests/test_single.py"
    for module in (together, single):
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(SHARING)
    result = pytester.runpytest_subprocess("-p", "tests.kit.serial", "-n3", "--dist", "loadscope", "-p", "no:asyncio")
    assert result.parseoutcomes() == {"passed": 24}
    assert len(set(together.with_suffix(".log").read_text().split())) == 1
    assert len(set(single.with_suffix(".log").read_text().split())) > 1


def test_each_group_is_there() -> None:
    assert [place for place in TOGETHER if not (ROOT / place).exists()] == []
