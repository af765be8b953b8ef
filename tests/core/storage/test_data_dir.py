"""The data directory: private, writable, and one process's at a time; whatever is wrong has a clear error."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relay_core import RelayConfig, RelayCore
from relay_core.errors import StorageError
from relay_core.storage.data_dir import DataDir
from tests.kit.waiting import PATIENCE_SECS

NOBODY_UID = 65534

HOLD = """
import sys
from relay_core.storage.data_dir import DataDir
place = DataDir(sys.argv[1])
place.acquire()
print("held", flush=True)
sys.stdin.read()
"""

# The imports come first: an unprivileged user may not be allowed to read the interpreter's own files.
AS_NOBODY = f"""
import os, sys
from relay_core.storage.data_dir import DataDir
from relay_core.errors import StorageError
if os.geteuid() == 0:
    os.setgid({NOBODY_UID})
    os.setuid({NOBODY_UID})
try:
    DataDir(sys.argv[1]).acquire()
except StorageError as error:
    print(error.code, error.message)
else:
    print("acquired")
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Hold a data directory from another process."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "held\n"
        yield child
    finally:
        child.kill()
        child.wait(PATIENCE_SECS)
        child.stdin.close()
        child.stdout.close()


@pytest.fixture
def open_place() -> Iterator[Path]:
    """Return a directory that any user can enter."""
    with tempfile.TemporaryDirectory(prefix="relay-datadir-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def as_nobody(path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, path], capture_output=True, text=True, timeout=PATIENCE_SECS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes_below(path: Path) -> dict[Path, int]:
    return {found: found.stat().st_mode for found in path.rglob("*")}


def refused(path: Path) -> StorageError:
    with pytest.raises(StorageError) as caught:
        DataDir(path).acquire()
    return caught.value


def test_a_directory_is_made_private_with_its_lock_and_pid(tmp_path: Path) -> None:
    place = DataDir(tmp_path / "not" / "there" / "yet")
    place.acquire()
    assert (mode(place.path), mode(place.lock_file)) == (0o700, 0o600)
    assert place.lock_file.read_text() == f"{os.getpid()}\n"
    assert place.holder() == os.getpid()
    place.release()


def test_every_directory_that_is_made_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noting_fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    for _ in range(2):
        place = DataDir(tmp_path / "one" / "two" / "relay")
        place.acquire()
        place.release()
    assert sorted(synced) == [str(tmp_path / above) for above in ("", "one", "one/two")]


def test_after_release_it_can_be_taken_again(data_dir: Path) -> None:
    for _ in range(2):
        place = DataDir(data_dir)
        place.acquire()
        place.release()
        place.release()


def test_a_pid_file_that_was_longer_is_cut(data_dir: Path) -> None:
    (data_dir / "relay.lock").write_text("1234567890123\n and more")
    place = DataDir(data_dir)
    place.acquire()
    assert place.lock_file.read_text() == f"{os.getpid()}\n"
    place.release()


@pytest.mark.parametrize("content", [b"", b"abc\n", b"\xff\xfe"], ids=["empty", "text", "binary"])
def test_a_lock_file_without_a_pid_names_no_holder(data_dir: Path, content: bytes) -> None:
    (data_dir / "relay.lock").write_bytes(content)
    assert DataDir(data_dir).holder() is None


def test_no_lock_file_names_no_holder(data_dir: Path) -> None:
    assert DataDir(data_dir).holder() is None


def test_in_use_by_another_process_the_error_names_its_pid_as_often_as_it_is_asked(data_dir: Path) -> None:
    with holder(data_dir) as child:
        for _ in range(2):
            error = refused(data_dir)
            assert (error.code, error.pid, error.path) == ("data_dir_in_use", child.pid, str(data_dir))
            assert f"in use by process {child.pid}" in error.message
        assert DataDir(data_dir).holder() == child.pid


async def test_a_second_bus_is_refused_and_disturbs_nothing(data_dir: Path) -> None:
    config = RelayConfig(durability="os")
    async with RelayCore(data_dir, config) as relay:
        await relay.register_endpoint("relay.agent.a")
        with pytest.raises(StorageError, match=f"process {os.getpid()}"):
            await RelayCore(data_dir, config).__aenter__()
        assert (await relay.publish("relay.agent.a", 1, sender="relay.agent.s")).delivered_to == 1
    async with RelayCore(data_dir, config) as relay:
        assert len(await relay.inbox("relay.agent.a")) == 1


def test_the_kernel_releases_the_lock_of_a_killed_holder(data_dir: Path) -> None:
    with holder(data_dir) as child:
        assert refused(data_dir).pid == child.pid
        child.send_signal(signal.SIGKILL)
        assert child.wait(PATIENCE_SECS) == -signal.SIGKILL
        place = DataDir(data_dir)
        place.acquire()
        assert place.holder() == os.getpid()
        place.release()


def test_a_file_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    error = refused(path)
    assert error.code == "insecure_data_dir"
    assert error.message == f"{path} is not a directory"
    assert path.read_text() == "precious"


def test_a_file_in_the_way_to_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    error = refused(tmp_path / "file" / "relay")
    assert error.code == "storage_error"
    assert "Not a directory" in error.message


def test_a_dangling_link_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "link is a symbolic link" in refused(tmp_path / "link").message


def test_a_directory_in_the_place_of_the_lock(data_dir: Path) -> None:
    (data_dir / "relay.lock").mkdir()
    assert refused(data_dir).code == "storage_error"


@pytest.mark.parametrize("open_mode", [0o755, 0o750, 0o701, 0o777], ids=oct)
def test_world_readable_with_mail_in_it(data_dir: Path, open_mode: int) -> None:
    (data_dir / "mailboxes").mkdir(mode=0o700)
    data_dir.chmod(open_mode)
    error = refused(data_dir)
    assert error.code == "insecure_data_dir"
    assert f"chmod 700 {data_dir}" in error.message
    assert f"{open_mode:04o}" in error.message
    assert mode(data_dir) == open_mode  # who may have read it is for the operator to find out


def test_world_readable_with_nothing_in_it_is_closed(data_dir: Path) -> None:
    data_dir.chmod(0o755)
    place = DataDir(data_dir)
    place.acquire()
    assert mode(data_dir) == 0o700
    place.release()


def test_unwritable(open_place: Path) -> None:
    path = open_place / "relay"
    path.mkdir()
    if os.geteuid() == 0:
        os.chown(path, NOBODY_UID, NOBODY_UID)
    path.chmod(0o500)
    answer = as_nobody(path)
    path.chmod(0o700)
    assert answer == f"storage_error cannot use {path}: Permission denied"


def test_in_a_read_only_place(open_place: Path) -> None:
    open_place.chmod(0o555)
    answer = as_nobody(open_place / "relay")
    open_place.chmod(0o755)
    assert answer == f"storage_error cannot use {open_place / 'relay'}: Permission denied"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_owned_by_another_user(data_dir: Path, open_place: Path) -> None:
    os.chown(data_dir, NOBODY_UID, NOBODY_UID)
    error = refused(data_dir)
    assert error.code == "insecure_data_dir"
    assert f"belongs to uid {NOBODY_UID}, not to uid 0" in error.message
    theirs = open_place / "roots"
    theirs.mkdir(mode=0o777)
    theirs.chmod(0o777)
    assert as_nobody(theirs).startswith(f"insecure_data_dir {theirs} belongs to uid 0, not to uid {NOBODY_UID}")


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        ("/given", "/env", "/given"),
        (None, "/env", "/env"),
        (None, "", "/home/someone/.dork/relay"),
        (None, None, "/home/someone/.dork/relay"),
        (None, "~/mine", "/home/someone/mine"),
        ("~/mine", None, "/home/someone/mine"),
        ("relative", None, "{cwd}/relative"),
    ],
)
def test_which_directory_is_meant(
    given: str | None,
    environment: str | None,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.chdir(tmp_path)
    if environment is None:
        monkeypatch.delenv("RELAY_DATA_DIR", raising=False)
    else:
        monkeypatch.setenv("RELAY_DATA_DIR", environment)
    assert str(DataDir(given).path) == expected.replace("{cwd}", str(tmp_path))


def test_the_layout_is_the_designs(data_dir: Path) -> None:
    place = DataDir(data_dir)
    names: list[tuple[Callable[[DataDir], Path], str]] = [
        (lambda it: it.config, "config.json"),
        (lambda it: it.access_rules, "access-rules.json"),
        (lambda it: it.adapters, "adapters.json"),
        (lambda it: it.mailboxes, "mailboxes"),
        (lambda it: it.index, "index.db"),
        (lambda it: it.events, "events"),
        (lambda it: it.reports, "reports"),
        (lambda it: it.lock_file, "relay.lock"),
    ]
    for path_of, name in names:
        assert path_of(place) == data_dir / name


@pytest.mark.parametrize("part", ["journal", "mailboxes"])
async def test_a_file_in_the_place_of_a_part_is_named_and_the_directory_can_be_taken_again(
    data_dir: Path, part: str
) -> None:
    (data_dir / part).touch()
    with pytest.raises(StorageError, match=f"^cannot use {data_dir / part}: ") as caught:
        await RelayCore(data_dir).__aenter__()
    assert (caught.value.code, caught.value.path) == ("storage_error", str(data_dir / part))
    (data_dir / part).unlink()
    async with RelayCore(data_dir) as relay:
        assert relay.endpoints() == []


async def test_everything_a_bus_makes_is_private(data_dir: Path) -> None:
    async with RelayCore(data_dir, RelayConfig(durability="os")) as relay:
        await relay.register_endpoint("relay.agent.a")
        await relay.publish("relay.agent.a", 1, sender="relay.agent.s")
        await relay.publish("relay.agent.nobody", 1, sender="relay.agent.s")
        await relay.rebuild_index()
        await relay.trace("01")
        found = await asyncio.to_thread(modes_below, data_dir)
    assert data_dir / "index.db-wal" in found
    assert {path: number for path, number in found.items() if number not in (0o40700, 0o100600)} == {}
