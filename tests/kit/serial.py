"""Which tests may run at the same time under pytest-xdist, as a pytest plugin.

1. **Tests marked `serial` run alone**, at the end. A reader-writer lock shared by the workers of a run ensures it: a
   serial test holds it exclusively, every other test holds it shared. It is made of two file locks. `room` is the
   reader-writer lock. `door` is a turnstile: every test takes it before `room`, a serial test keeps it. Without the
   turnstile, other tests could keep entering and a serial test might wait forever, because flock is not fair.
   Tests wait outside of their own protocol, so waiting does not count towards a timeout, and the kernel releases the
   locks of a worker that dies.

   pytest has no means for this. xdist's groups (`xdist_group`, `--dist loadgroup`) only put tests on the same worker,
   where they still run at the same time as the tests of other workers; a second, sequential run of pytest would start
   the shared processes of rule 2 again.
2. **With `--dist loadscope`, tests that share an expensive resource run on one worker** (`TOGETHER`), so that it is
   started once. xdist schedules these groups first, the largest first. All other tests are scheduled one by one, those
   marked `slow` first, so that no worker is still busy with a slow test when the others have finished.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

TOGETHER = (
    "tests/core/crash/test_kill.py",  # one process to fork from
    "tests/spark/test_cluster.py",  # own processes instead of the session below, also in the next two
    "tests/spark/test_end_to_end.py",
    "tests/spark/test_session.py",
    "tests/spark/",  # one Spark session
    "tests/supervisor/agents/test_hook.py",  # one supervisor, here and below
    "tests/supervisor/agents/test_mcp.py",
    "tests/supervisor/cli/test_commands.py",
    "tests/supervisor/cli/test_agents.py",
    "tests/supervisor/cli/test_dlq.py",
    "tests/supervisor/cli/test_subscribe_exec.py",
    "tests/supervisor/cli/test_help.py",
    "tests/supervisor/cli/test_messages.py",
    "tests/supervisor/cli/test_reports.py",
    "tests/supervisor/cli/test_wait.py",
    "tests/tui/test_demo.py",
    "tests/test_installed.py",  # one wheel, here and below
    "tests/test_packaging.py",
)
"""Groups of tests that share a resource, by path prefix; a test belongs to the first that matches."""

_locks = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Find the directory of the locks, which the controller makes and removes."""
    if hasattr(config, "workerinput"):
        config.stash[_locks] = Path(config.workerinput["serial_locks"])
    elif config.getoption("dist", "no") != "no":
        config.stash[_locks] = Path(tempfile.mkdtemp(prefix="relay-tests-"))
        config.add_cleanup(lambda: shutil.rmtree(config.stash[_locks]))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the directory of the locks to a worker."""
    node.workerinput["serial_locks"] = str(node.config.stash[_locks])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Schedule the tests of a group on one worker."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc] # it is Any to mypy
        def _split_scope(self, nodeid: str) -> str:
            return next((place for place in TOGETHER if nodeid.startswith(place)), nodeid)

    return Scheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slow tests first and the serial ones last."""
    items.sort(key=lambda item: (is_serial(item), item.get_closest_marker("slow") is None))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test while holding the lock, shared or exclusively."""
    with ExitStack() as held:
        if _locks in item.config.stash:
            door = held.enter_context(open(item.config.stash[_locks] / "door", "wb"))
            room = held.enter_context(open(item.config.stash[_locks] / "room", "wb"))
            fcntl.flock(door, fcntl.LOCK_EX)
            if is_serial(item):
                fcntl.flock(room, fcntl.LOCK_EX)
            else:
                fcntl.flock(room, fcntl.LOCK_SH)
                fcntl.flock(door, fcntl.LOCK_UN)
        return (yield)


def is_serial(item: pytest.Item) -> bool:
    """Return True if a test must run alone."""
    return item.get_closest_marker("serial") is not None
