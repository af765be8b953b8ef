"""Which tests run beside which others, where pytest-xdist runs them in parallel. A pytest plugin.

1. **Tests marked `serial` run alone.** They come last. A pair of locks, shared by the workers of a run, keeps
   everything else apart from them: every test passes the door; a serial one keeps it shut and waits until the room is
   empty. Waiting is done outside of the test, so that it does not count towards its timeout. (xdist's own groups would
   only keep them on one worker, beside the tests of the other.)
2. **With `--dist loadscope`, tests that share what is costly to start have one worker** (`TOGETHER`): it starts once,
   not once per worker. xdist deals these groups out first, the largest before the others. All other tests are dealt
   out one by one: those marked `slow` first, so that no worker is still busy with one when the others have finished.
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
    "tests/spark/test_cluster.py",  # processes of their own, not the session below, here and in the next two
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
"""Where the tests stand that share something: each line is one group; a test is of the first that fits."""

_locks = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Find the directory of the locks, which the run's first process makes and removes."""
    if hasattr(config, "workerinput"):
        config.stash[_locks] = Path(config.workerinput["serial_locks"])
    elif config.getoption("dist", "no") != "no":
        config.stash[_locks] = Path(tempfile.mkdtemp(prefix="relay-tests-"))
        config.add_cleanup(lambda: shutil.rmtree(config.stash[_locks]))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where the locks are."""
    node.workerinput["serial_locks"] = str(node.config.stash[_locks])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Deal the tests out, those in one of the groups to one worker."""
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
    """Run a test in company, or alone."""
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
    """Tell whether a test must run alone."""
    return item.get_closest_marker("serial") is not None
