"""Rules for every test, as a pytest plugin.

1. **No test blocks the event loop.** A test fails if one callback or one step of a task held a loop for longer than
   `LIMIT`: by computing (according to its thread's CPU time) or by blocking (according to a watching thread).
2. **No test leaves anything behind**: no thread, and no asyncio task that is still pending when its loop is closed.

Two private functions of asyncio are patched for the whole run, because it has no public hook for either rule:

- `asyncio.Handle._run` runs every callback and every step of a task. asyncio's debug mode (`slow_callback_duration`)
  also reports slow callbacks, but it only logs them, measures wall time, and makes every task slower.
- `asyncio.runners._cancel_all_tasks` is what `asyncio.Runner`, and so pytest-asyncio, calls before it closes a loop. It
  is the last place that knows the pending tasks: afterwards they are cancelled, and a leak is invisible.

Both wrappers call the original, and both are undone at the end of the run. A Python version without these names fails
at once, in `pytest_configure`, and test_guards.py checks that both rules are enforced.

Wall time alone would blame the test for a busy machine. So blocked time is counted in ticks of the watching thread. A
frozen process or machine makes no ticks. A tick does not count if, according to the kernel, the loop's thread was
runnable and only waited for a processor; while the thread starts a process, because it is suspended until the child
runs; or while a plain file operation waits for a disk that other tests keep busy (a sync does count). The watching
thread also records the loop's stack for the message.

Loops in C (uvloop) do not run Python handles, so rule 1 does not cover them.
"""

from __future__ import annotations

import asyncio
import asyncio.runners
import gc
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from platform import machine
from typing import Any

import pytest

LIMIT = 0.5
TICK = 0.05
ENOUGH_TICKS = 8
"""Of the ten in `LIMIT`: the first only starts the count, and another may be late."""

GRACE = 2.0
"""Seconds that a stopping thread may take."""

LIBRARY_THREADS = ("Dummy-", "execnet", "hypothesis", "pytest_timeout", "pydevd")
"""Prefixes of the names of threads that belong to the test tools."""

SYNC_CALLS = {"x86_64": (b"74", b"75", b"162", b"306"), "aarch64": (b"82", b"83", b"81", b"267")}.get(machine(), ())
"""The system call numbers of fsync, fdatasync, sync and syncfs."""

_threads_before = pytest.StashKey[set[threading.Thread]]()
_failed = pytest.StashKey[bool]()


@dataclass(slots=True)
class Step:
    """A callback that a loop is running."""

    ticks: int = 0
    waited: float | None = None
    blocked_at: str = ""


@dataclass(slots=True)
class LoopGuard:
    """Times every callback of every loop implemented in Python."""

    offences: list[str] = field(default_factory=list)
    running: dict[int, Step] = field(default_factory=dict)
    """The current step of each thread."""
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self, original: Any, handle: asyncio.Handle) -> None:
        """Run a callback, and record an offence if it blocked the loop."""
        thread = threading.get_ident()
        step = self.running[thread] = Step()
        cpu, start = time.thread_time(), time.perf_counter()
        try:
            original(handle)
        finally:
            wall = time.perf_counter() - start
            self.running.pop(thread, None)
            if wall > LIMIT:
                cpu = time.thread_time() - cpu
                if cpu > LIMIT or step.ticks >= ENOUGH_TICKS:
                    where = step.blocked_at or f"in {handle!r}\n"
                    self.offences.append(f"the event loop was held for {wall:.2f} s ({cpu:.2f} s computing)\n{where}")

    def watch(self) -> None:
        """Count ticks in which a loop stands still, until stopped."""
        while not self.stopping.wait(TICK):
            for thread, step in list(self.running.items()):
                waited = processor_wait(thread)
                is_idle = step.waited is not None and waited - step.waited < TICK / 2
                if is_idle and not is_forking(thread) and not is_waiting_for_disk(thread):
                    step.ticks += 1
                    if step.ticks == ENOUGH_TICKS:
                        step.blocked_at = stack_of(thread)
                step.waited = waited


def processor_wait(ident: int) -> float:
    """Return how long a thread was runnable without a processor, in seconds; 0 if the kernel does not say."""
    try:
        return int(_of_thread(ident, "schedstat").split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def is_waiting_for_disk(ident: int) -> bool:
    """Return True if a thread waits for a disk in a call other than a sync, such as open or rename."""
    try:
        state = _of_thread(ident, "stat").rpartition(b")")[2].split()[0]
        return state == b"D" and _of_thread(ident, "syscall").split()[0] not in SYNC_CALLS
    except (OSError, IndexError):
        return False


def _of_thread(ident: int, name: str) -> bytes:
    native = next((thread.native_id for thread in threading.enumerate() if thread.ident == ident), 0)
    return Path(f"/proc/self/task/{native}/{name}").read_bytes()


def is_forking(ident: int) -> bool:
    """Return True if a thread is starting a process."""
    frame = sys._current_frames().get(ident)
    return frame is not None and frame.f_code is subprocess.Popen._execute_child.__code__  # type: ignore[attr-defined]


def stack_of(ident: int) -> str:
    """Return the stack of a thread below the callback of its loop."""
    frame = sys._current_frames().get(ident)
    stack = traceback.extract_stack(frame) if frame else []
    inner = [at for at, entry in enumerate(stack) if entry.filename == __file__]
    return "".join(traceback.format_list(stack[inner[-1] + 1 if inner else 0 :][-12:]))


loop_guard = LoopGuard()
left_tasks: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Install both guards."""
    run_handle = asyncio.Handle._run
    cancel_all_tasks = asyncio.runners._cancel_all_tasks  # type: ignore[attr-defined]

    def guarded_run(handle: asyncio.Handle) -> None:
        loop_guard.run(run_handle, handle)

    def guarded_cancel_all_tasks(loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(3):  # a task that was just cancelled may need another step to end
            if asyncio.all_tasks(loop):
                loop.run_until_complete(asyncio.sleep(0))
        left_tasks.extend(map(repr, asyncio.all_tasks(loop)))
        cancel_all_tasks(loop)

    patch = pytest.MonkeyPatch()
    patch.setattr(asyncio.Handle, "_run", guarded_run)
    patch.setattr(asyncio.runners, "_cancel_all_tasks", guarded_cancel_all_tasks)
    config.add_cleanup(patch.undo)
    threading.Thread(target=loop_guard.watch, name="event-loop-watch", daemon=True).start()
    config.add_cleanup(loop_guard.stopping.set)


@pytest.fixture(autouse=True)
def _know_threads(request: pytest.FixtureRequest) -> None:
    """Record the threads that exist after the fixtures of wider scope."""
    request.node.stash[_threads_before] = set(threading.enumerate())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Exclude all existing objects from garbage collection.

    After thousands of tests the process holds millions of permanent objects. A full collection takes most of a second,
    and rule 1 would blame the test in which it happens.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that blocked a loop in its set-up or body."""
    result = yield
    _judge_blocking(item)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that blocked a loop in its teardown, or that left threads or tasks behind."""
    try:
        result = yield
        _judge_blocking(item)
        if not item.stash.get(_failed, False):
            _judge_leftovers(item)
        return result
    finally:
        loop_guard.offences.clear()
        left_tasks.clear()
        item.stash.setdefault(_threads_before, set())
        del item.stash[_threads_before]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record a failure: the leftovers of a failed test are not a second failure."""
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


def _judge_blocking(item: pytest.Item) -> None:
    offences = "\n".join(loop_guard.offences)
    loop_guard.offences.clear()
    if offences and not item.get_closest_marker("may_block"):
        pytest.fail(offences, pytrace=False)


def _judge_leftovers(item: pytest.Item) -> None:
    if left_tasks:
        pytest.fail("tasks were left behind:\n" + "\n".join(left_tasks), pytrace=False)
    deadline = time.monotonic() + GRACE
    left = []
    now = threading.enumerate()
    before = item.stash.get(_threads_before, None) or set(now)  # missing if the set-up was skipped
    for thread in now:
        if thread not in before and not thread.name.startswith(LIBRARY_THREADS):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                left.append(f"{thread!r}\n{stack_of(thread.ident or 0)}")
    if left:
        pytest.fail("threads were left behind:\n" + "\n".join(left), pytrace=False)
