"""The watchers, with real inotify: other processes' files are seen, our own writes are not."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from relay_core.storage.atomic_file import atomic_write
from relay_core.storage.dropped_files import IN_MOVED_TO, DropWatch
from relay_core.storage.file_watch import FileWatch
from tests.kit.waiting import PATIENCE_SECS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")

IN_MODIFY = 0x00000002

RENAME_IN = """
import os, sys
source, *targets = sys.argv[1:]
for number, target in enumerate(targets):
    dropped = os.path.join(source, str(number))
    open(dropped, "w").close()
    os.rename(dropped, target)
"""


class Drops:
    """Collects what a DropWatch reports, and can be waited for."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.overflows = 0
        self._changed = asyncio.Event()

    def on_drop(self, key: str, name: str) -> None:
        self.seen.append((key, name))
        self._changed.set()

    def on_overflow(self) -> None:
        self.overflows += 1
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    return path


@pytest.fixture
def new(tmp_path: Path) -> Path:
    path = tmp_path / "new"
    path.mkdir()
    return path


async def rename_in(source: Path, *targets: Path) -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", RENAME_IN, source, *targets)
    assert await child.wait() == 0


def inotify_masks(directory: Path) -> list[int]:
    """Return what the kernel watches a directory for, over all of this process's inotify instances."""
    inode = directory.stat().st_ino
    masks = []
    for info in Path("/proc/self/fdinfo").iterdir():
        try:
            text = info.read_text()
        except OSError:
            continue
        masks += [
            int(mask, 16)
            for found, mask in re.findall(r"^inotify wd:\w+ ino:(\w+) .*? mask:(\w+)", text, re.MULTILINE)
            if int(found, 16) == inode
        ]
    return masks


def queue_limit() -> int:
    return int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


async def test_a_file_that_another_process_renames_in_is_reported(source: Path, new: Path) -> None:
    drops = Drops()
    async with DropWatch(drops.on_drop, drops.on_overflow) as watch:
        watch.add("box", new)
        await rename_in(source, new / "one.json", new / "zwei-ü.json")
        await drops.until(lambda: len(drops.seen) >= 2)
    assert drops.seen == [("box", "one.json"), ("box", "zwei-ü.json")]
    assert watch.polled == []


async def test_our_own_deliveries_and_claims_are_not_echoed(source: Path, new: Path) -> None:
    drops = Drops()
    async with DropWatch(drops.on_drop, drops.on_overflow) as watch:
        watch.add("box", new)
        for number in range(100):
            stored = source / f"{number}.json"
            stored.write_bytes(b"{}")
            os.link(stored, new / stored.name)  # deliver
            os.rename(new / stored.name, source / f"{number}.cur")  # claim
            (source / f"{number}.cur").unlink()
            (new / "direct").write_bytes(b"{}")
            (new / "direct").unlink()
        # The kernel's queue is in order: anything of ours would come before this.
        await rename_in(source, new / "foreign.json")
        await drops.until(lambda: ("box", "foreign.json") in drops.seen)
    assert drops.seen == [("box", "foreign.json")]


async def test_the_kernel_is_asked_for_renames_into_the_directory_only(new: Path) -> None:
    drops = Drops()
    async with DropWatch(drops.on_drop, drops.on_overflow) as watch:
        watch.add("box", new)
        (mask,) = inotify_masks(new)
    assert mask & 0xFFF == IN_MOVED_TO


async def test_each_directory_is_known_by_its_key(tmp_path: Path, source: Path) -> None:
    drops = Drops()
    boxes = [tmp_path / f"box{number}" for number in range(50)]
    async with DropWatch(drops.on_drop, drops.on_overflow) as watch:
        for box in boxes:
            box.mkdir()
            watch.add(box.name, box)
        await rename_in(source, *[box / f"for-{box.name}" for box in boxes])
        await drops.until(lambda: len(drops.seen) >= 50)
    assert drops.seen == [(box.name, f"for-{box.name}") for box in boxes]


async def test_a_removed_key_is_silent_and_can_come_back(tmp_path: Path, source: Path, new: Path) -> None:
    drops = Drops()
    other = tmp_path / "other"
    other.mkdir()
    async with DropWatch(drops.on_drop, drops.on_overflow) as watch:
        watch.add("other", other)
        watch.add("box", new)
        watch.remove("box")
        watch.remove("box")
        await rename_in(source, new / "unseen", other / "first")
        await drops.until(lambda: len(drops.seen) >= 1)
        watch.add("box", new)
        await rename_in(source, new / "seen")
        await drops.until(lambda: len(drops.seen) >= 2)
        assert watch.polled == []
    assert drops.seen == [("other", "first"), ("box", "seen")]


async def test_a_path_that_is_no_directory_is_refused(tmp_path: Path, source: Path) -> None:
    drops = Drops()
    async with DropWatch(drops.on_drop, drops.on_overflow) as watch:
        (tmp_path / "file").touch()
        with pytest.raises(FileNotFoundError):
            watch.add("box", tmp_path / "missing")
        with pytest.raises(NotADirectoryError):
            watch.add("box", tmp_path / "file")
        watch.add("box", source)
        with pytest.raises(ValueError, match="already watched as 'box'"):
            watch.add("again", source)


async def test_a_callback_that_raises_costs_no_other_drop(source: Path, new: Path) -> None:
    drops = Drops()

    def on_drop(key: str, name: str) -> None:
        if name == "bad":
            raise RuntimeError("no")
        drops.on_drop(key, name)

    async with DropWatch(on_drop, drops.on_overflow) as watch:
        watch.add("box", new)
        for name in ("bad", "good"):  # without a pause for the loop, so that one read brings both
            os.mknod(source / name)
            os.rename(source / name, new / name)
        await drops.until(lambda: len(drops.seen) >= 1)
    assert drops.seen == [("box", "good")]


async def test_a_directory_that_is_removed_and_comes_back_is_seen_again(
    tmp_path: Path, source: Path, new: Path
) -> None:
    drops = Drops()
    other = tmp_path / "other"
    os.mkdir(other)
    async with DropWatch(drops.on_drop, drops.on_overflow, poll_secs=0.01) as watch:
        watch.add("other", other)
        watch.add("box", new)
        os.rmdir(new)
        await rename_in(source, other / "meanwhile")
        await drops.until(lambda: ("other", "meanwhile") in drops.seen)
        assert watch.polled == ["box"]
        os.mkdir(new)
        for name in ("first", "second"):
            await rename_in(source, new / name)
            await drops.until(lambda name=name: ("box", name) in drops.seen)  # type: ignore[misc]


@pytest.mark.may_block("the loop must not read while the kernel's queue overflows")
async def test_an_overflow_of_the_kernels_queue_is_reported(source: Path, new: Path) -> None:
    drops = Drops()
    limit = queue_limit()
    names = ["x", "y"]  # the kernel merges an event with an equal one before it
    for name in names:
        os.mknod(source / name)
    async with DropWatch(drops.on_drop, drops.on_overflow) as watch:
        watch.add("box", new)
        for number in range(limit + 10):
            name = names[number % 2]
            os.rename(source / name, new / name)
            os.rename(new / name, source / name)
        await drops.until(lambda: drops.overflows > 0)
        assert len(drops.seen) == limit
        await rename_in(source, new / "later")
        await drops.until(lambda: ("box", "later") in drops.seen)
    assert drops.overflows == 1


LIMITED = """
import asyncio, os, sys
from pathlib import Path
from relay_core.storage.dropped_files import DropWatch
from relay_core.storage.file_watch import FileWatch

limit, count, source = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
Path("/proc/sys/user/" + limit).write_text(sys.argv[4])
boxes = [source / f"box{number}" for number in range(count)]

async def main():
    seen, changed = set(), asyncio.Event()

    def on_drop(key, name):
        seen.add((key, name))
        changed.set()

    def on_change(name):
        on_drop("file", name)

    async def until(size):
        while len(seen) < size:
            changed.clear()
            await changed.wait()

    async with asyncio.timeout(30):
        async with DropWatch(on_drop, lambda: None, poll_secs=0.01) as watch:
            for box in boxes:
                box.mkdir()
                watch.add(box.name, box)
            print("polled", len(watch.polled))
            for box in boxes:
                (source / "x").touch()
                os.rename(source / "x", box / "dropped")
            await until(count)
            for box in boxes[: count // 2]:
                watch.remove(box.name)
            while watch.polled and limit == "max_inotify_watches":
                await asyncio.sleep(0.001)
            print("then", len(watch.polled), sorted(seen) == [(box.name, "dropped") for box in boxes])
            (source / "config.json").write_text("old")
            async with FileWatch(source, {"config.json"}, on_change):
                (source / "config.json").write_text("changed")
                await until(count + 1)
                print("file seen")

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("limit", "value", "polled", "then"),
    [
        pytest.param("max_inotify_watches", 4, 4, 0, id="too-few-watches"),
        pytest.param("max_inotify_instances", 0, 8, 4, id="no-inotify"),
    ],
)
def test_what_cannot_be_watched_is_polled(tmp_path: Path, limit: str, value: int, polled: int, then: int) -> None:
    unshare = ["unshare", "--user", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine allows no user namespaces, which have limits of their own")
    child = subprocess.run(
        [*unshare, sys.executable, "-c", LIMITED, limit, "8", str(tmp_path), str(value)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_SECS,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines() == [f"polled {polled}", f"then {then} True", "file seen"]


# The operator's files


class Changes:
    """Collects what a FileWatch reports, and on which thread."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.threads: set[int] = set()
        self._changed = asyncio.Event()

    def on_change(self, name: str) -> None:
        self.seen.append(name)
        self.threads.add(threading.get_ident())
        self._changed.set()

    async def next(self) -> str:
        async with asyncio.timeout(PATIENCE_SECS):
            while not self.seen:
                self._changed.clear()
                await self._changed.wait()
        return self.seen.pop(0)


NAMES = {"config.json", "access-rules.json"}

WRITES = {
    "rename-into-place": "open(d + '/tmp', 'w').write('x'); os.rename(d + '/tmp', d + '/config.json')",
    "rename-from-outside": "open(d + '/../tmp', 'w').write('x'); os.rename(d + '/../tmp', d + '/config.json')",
    "write-in-place": "open(d + '/config.json', 'w').write('x')",
    "append": "open(d + '/config.json', 'a').write('x')",
    "delete": "os.unlink(d + '/config.json')",
    "rename-away": "os.rename(d + '/config.json', d + '/config.json.bak')",
    "move-out": "os.rename(d + '/config.json', d + '/../config.json')",
}


@pytest.mark.parametrize("script", WRITES.values(), ids=WRITES.keys())
async def test_a_change_by_another_process_is_reported_on_the_loop(data_dir: Path, script: str) -> None:
    (data_dir / "config.json").write_bytes(b"{}")
    changes = Changes()
    async with FileWatch(data_dir, NAMES, changes.on_change):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", f"import os, sys; d = sys.argv[1]; {script}", data_dir
        )
        assert await child.wait() == 0
        assert await changes.next() == "config.json"
    assert changes.threads == {threading.get_ident()}


async def test_our_own_atomic_write_is_reported_too(data_dir: Path) -> None:
    changes = Changes()
    async with FileWatch(data_dir, NAMES, changes.on_change):
        await asyncio.to_thread(atomic_write, data_dir / "access-rules.json", b"[]")
        assert await changes.next() == "access-rules.json"


async def test_other_files_are_not_reported(data_dir: Path) -> None:
    changes = Changes()
    async with FileWatch(data_dir, NAMES, changes.on_change):
        for name in ("index.db-wal", "config.json.bak", "relay.lock"):
            (data_dir / name).write_bytes(b"x")
        (data_dir / "mailboxes").mkdir()
        (data_dir / "config.json").write_bytes(b"{}")
        assert await changes.next() == "config.json"
        assert changes.seen == []


async def test_modifications_do_not_wake_python(data_dir: Path) -> None:
    """SQLite writes to its -wal at every commit, in this directory."""
    async with FileWatch(data_dir, NAMES, Changes().on_change):
        (mask,) = inotify_masks(data_dir)
    assert not mask & IN_MODIFY


async def test_many_changes_at_once_are_few_reports_and_the_last_is_not_missed(data_dir: Path) -> None:
    path = data_dir / "config.json"
    read: list[bytes] = []
    last = asyncio.Event()

    def on_change(name: str) -> None:
        read.append(path.read_bytes())
        if read[-1] == b"199":
            last.set()

    def write() -> None:
        for number in range(200):
            path.write_bytes(b"%d" % number)

    async with FileWatch(data_dir, NAMES, on_change):
        await asyncio.to_thread(write)
        await asyncio.wait_for(last.wait(), PATIENCE_SECS)
    assert len(read) < 100


async def test_a_directory_that_does_not_exist_is_an_error_and_leaves_no_thread(data_dir: Path) -> None:
    with pytest.raises(FileNotFoundError):
        async with FileWatch(data_dir / "missing", NAMES, Changes().on_change):
            pass


async def test_after_the_watch_nothing_is_left(data_dir: Path, new: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    drops = Drops()
    async with (
        FileWatch(data_dir, NAMES, Changes().on_change),
        DropWatch(drops.on_drop, drops.on_overflow) as watch,
    ):
        watch.add("box", new)
        assert inotify_masks(new)
    assert inotify_masks(new) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors
