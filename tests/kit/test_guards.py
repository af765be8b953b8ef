"""The guards see what they are there to see, and let pass what is innocent.

Each case is a test in an inner pytest run, which has the guards but none of this project's configuration.
"""

from __future__ import annotations

import pytest

from tests.kit import ROOT

pytest_plugins = ["pytester"]


INI = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
markers = may_block(reason)
"""

HEADER = """
import asyncio, threading, time
import pytest
"""

BLOCKING = """
async def test_sleeps_in_a_task():
    time.sleep(1)

async def test_sleeps_in_a_callback():
    done = asyncio.Event()
    asyncio.get_running_loop().call_soon(lambda: (time.sleep(1), done.set()))
    await done.wait()

async def test_computes():
    end = time.thread_time() + 1
    while time.thread_time() < end:
        pass

async def test_computes_without_letting_any_other_thread_run():
    end = time.thread_time() + 1
    while time.thread_time() < end:
        sum(range(30_000_000))

def test_blocks_a_loop_of_its_own():
    async def sleep():
        time.sleep(1)
    asyncio.run(sleep())

@pytest.fixture
async def slow_fixture():
    time.sleep(1)

async def test_blocks_in_a_fixture(slow_fixture):
    pass
"""

PATIENT = """
async def test_waits_on_the_loop():
    await asyncio.sleep(0.7)

async def test_blocks_another_thread():
    await asyncio.to_thread(time.sleep, 0.7)

async def test_takes_many_short_steps():
    for _ in range(30):
        time.sleep(0.03)
        await asyncio.sleep(0)

def test_has_no_loop():
    time.sleep(0.7)

@pytest.mark.may_block("it says why")
async def test_may_block():
    time.sleep(0.7)
"""

LEAVING = """
async def test_leaves_a_task():
    asyncio.get_running_loop().create_task(asyncio.sleep(60), name="forgotten")

def test_leaves_a_task_to_asyncio_run():
    async def main():
        asyncio.get_running_loop().create_task(asyncio.sleep(60), name="forgotten")
    asyncio.run(main())

def test_leaves_a_thread():
    threading.Thread(target=time.sleep, args=[4], name="forgotten", daemon=True).start()
"""

TIDY = """
@pytest.fixture
async def worker():
    async with asyncio.TaskGroup() as group:
        task = group.create_task(asyncio.sleep(60))
        yield task
        task.cancel()

async def test_has_a_fixture_with_a_task(worker):
    await asyncio.sleep(0)

async def test_cancels_without_waiting():
    asyncio.get_running_loop().create_task(asyncio.sleep(60)).cancel()

async def test_uses_the_default_executor():
    await asyncio.to_thread(int)

def test_leaves_a_thread_that_is_about_to_end():
    threading.Thread(target=time.sleep, args=[0.3]).start()

@pytest.fixture(scope="module")
def server():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    yield
    stop.set()
    thread.join()

def test_has_a_thread_of_its_module(server):
    pass
"""


def outcomes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, cases: str) -> tuple[dict[str, int], str]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_ADDOPTS", "")
    monkeypatch.delenv("PYTEST_XDIST_TESTRUNUID", raising=False)
    pytester.makefile(".ini", pytest=INI)
    pytester.makepyfile(HEADER + cases)
    result = pytester.runpytest_subprocess("-p", "tests.kit.guards", "-p", "no:xdist", "-rN")
    return result.parseoutcomes(), result.stdout.str()


@pytest.mark.serial  # a processor that others have taken is not held against a loop
def test_a_blocked_loop_fails_the_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, output = outcomes(pytester, monkeypatch, BLOCKING)
    assert counts == {"failed": BLOCKING.count("def test_")}
    assert output.count("the event loop was held for") >= BLOCKING.count("def test_")
    assert "in test_sleeps_in_a_task\n    time.sleep(1)" in output, "the message shows where the loop stood"


def test_a_loop_that_only_waits_passes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, _ = outcomes(pytester, monkeypatch, PATIENT)
    assert counts == {"passed": PATIENT.count("def test_")}


def test_what_is_left_behind_fails_the_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, output = outcomes(pytester, monkeypatch, LEAVING)
    assert counts == {"passed": 3, "errors": 3}
    assert output.count("tasks were left behind:") == 2
    assert output.count("threads were left behind:") == 1


def test_what_is_cleaned_up_passes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, _ = outcomes(pytester, monkeypatch, TIDY)
    assert counts == {"passed": TIDY.count("def test_")}
