"""What every test is held to, whatever it tests. A pytest plugin.

1. **Nothing blocks the event loop.** A test fails if one callback or one step of a task kept a loop for longer than
   `LIMIT`: by computing (its thread's CPU time says so) or by blocking (a witness thread saw it stand still).
2. **Nothing is left behind**: no thread, and no asyncio task for the closing of its loop to cancel.

Wall time alone would blame a busy machine's pauses on the test. So blocked time is counted in ticks of the witness:
a frozen process or machine makes no ticks, and a tick does not count if the kernel says that the loop's thread was
ready and only waited for a processor, nor while a new process is on its way: its parent stands still until the kernel
has given the child a processor to begin on. Nor does one in which a plain file operation waits for a disk that other
tests keep busy; a sync does count. The witness also notes where the loop stood, for the message.

Loops in C (uvloop) run no Python handles: rule 1 does not see them.
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
"""Of the ten that fit into `LIMIT`: the first only starts the count, and another may come late."""

GRACE = 2.0
"""Seconds for a thread that was told to stop."""

LIBRARY_THREADS = ("Dummy-", "execnet", "hypothesis", "pytest_timeout", "pydevd")
"""Beginnings of the names of threads that belong to the test tools."""

SYNC_CALLS = {"x86_64": (b"74", b"75", b"162", b"306"), "aarch64": (b"82", b"83", b"81", b"267")}.get(machine(), ())
"""The kernel's numbers of fsync, fdatasync, sync and syncfs."""

_threads_before = pytest.StashKey[set[threading.Thread]]()
_failed = pytest.StashKey[bool]()


@dataclass(slots=True)
class Step:
    """One callback that a loop is running now."""

    ticks: int = 0
    waited: float | None = None
    stood_at: str = ""


@dataclass(slots=True)
class LoopGuard:
    """Times every callback of every loop written in Python."""

    offences: list[str] = field(default_factory=list)
    running: dict[int, Step] = field(default_factory=dict)
    """The step under way, by thread."""
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self, original: Any, handle: asyncio.Handle) -> None:
        """Run a callback, and judge it if it took long."""
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
                    where = step.stood_at or f"in {handle!r}\n"
                    self.offences.append(f"the event loop was held for {wall:.2f} s ({cpu:.2f} s computing)\n{where}")

    def watch(self) -> None:
        """Be the witness, until told to stop."""
        while not self.stopping.wait(TICK):
            for thread, step in list(self.running.items()):
                waited = processor_wait(thread)
                is_idle = step.waited is not None and waited - step.waited < TICK / 2
                if is_idle and not is_forking(thread) and not is_waiting_for_disk(thread):
                    step.ticks += 1
                    if step.ticks == ENOUGH_TICKS:
                        step.stood_at = stack_of(thread)
                step.waited = waited


def processor_wait(ident: int) -> float:
    """Return how long a thread was ready but had no processor, in seconds; 0 where no kernel tells."""
    try:
        return int(_of_thread(ident, "schedstat").split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def is_waiting_for_disk(ident: int) -> bool:
    """Return True if a thread waits for a disk in a call that does not ask for it, such as open or rename."""
    try:
        state = _of_thread(ident, "stat").rpartition(b")")[2].split()[0]
        return state == b"D" and _of_thread(ident, "syscall").split()[0] not in SYNC_CALLS
    except (OSError, IndexError):
        return False


def _of_thread(ident: int, name: str) -> bytes:
    native = next((thread.native_id for thread in threading.enumerate() if thread.ident == ident), 0)
    return Path(f"/proc/self/task/{native}/{name}").read_bytes()


def is_forking(ident: int) -> bool:
    """Tell whether a thread waits for a process that it starts to begin."""
    frame = sys._current_frames().get(ident)
    return frame is not None and frame.f_code is subprocess.Popen._execute_child.__code__  # type: ignore[attr-defined]


def stack_of(ident: int) -> str:
    """Return the stack of a thread, from where its loop called the callback."""
    frame = sys._current_frames().get(ident)
    stack = traceback.extract_stack(frame) if frame else []
    inner = [at for at, entry in enumerate(stack) if entry.filename == __file__]
    return "".join(traceback.format_list(stack[inner[-1] + 1 if inner else 0 :][-12:]))


loop_guard = LoopGuard()
left_tasks: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Time every handle, and look at every loop before its closing cancels what is left."""
    run_handle = asyncio.Handle._run
    cancel_all_tasks = asyncio.runners._cancel_all_tasks  # type: ignore[attr-defined]

    def guarded_run(handle: asyncio.Handle) -> None:
        loop_guard.run(run_handle, handle)

    def guarded_cancel_all_tasks(loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(3):  # a task that has just been cancelled may still take its leave
            if asyncio.all_tasks(loop):
                loop.run_until_complete(asyncio.sleep(0))
        left_tasks.extend(map(repr, asyncio.all_tasks(loop)))
        cancel_all_tasks(loop)

    patch = pytest.MonkeyPatch()
    patch.setattr(asyncio.Handle, "_run", guarded_run)
    patch.setattr(asyncio.runners, "_cancel_all_tasks", guarded_cancel_all_tasks)
    config.add_cleanup(patch.undo)
    threading.Thread(target=loop_guard.watch, name="event-loop-witness", daemon=True).start()
    config.add_cleanup(loop_guard.stopping.set)


@pytest.fixture(autouse=True)
def _know_threads(request: pytest.FixtureRequest) -> None:
    """Note the threads there are once the fixtures of wider scope stand."""
    request.node.stash[_threads_before] = set(threading.enumerate())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Take what has gathered so far out of the collector's hands.

    After thousands of tests the process holds millions of objects that stay. A collection that looks at all of them
    takes most of a second, and would be held against whichever test it falls into.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that blocked a loop in its set-up or in its body."""
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
    """Remember a failure: what a failed test leaves behind is not another one."""
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
    before = item.stash.get(_threads_before, None) or set(now)  # none if the set-up was skipped
    for thread in now:
        if thread not in before and not thread.name.startswith(LIBRARY_THREADS):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                left.append(f"{thread!r}\n{stack_of(thread.ident or 0)}")
    if left:
        pytest.fail("threads were left behind:\n" + "\n".join(left), pytrace=False)
