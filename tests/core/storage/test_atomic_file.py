"""atomic_write: the old bytes or the new ones, and nothing left lying about."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from relay_core.errors import StorageError
from relay_core.storage.atomic_file import atomic_write
from tests.kit.waiting import PATIENCE_SECS


def test_it_writes_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    before = os.umask(0)
    try:
        atomic_write(path, b"new")
    finally:
        os.umask(before)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["rules.json"]


def test_it_replaces_a_file_whatever_its_length(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    for data in (b"a" * 100_000, b"", b"short"):
        atomic_write(path, data)
        assert path.read_bytes() == data


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"precious")
    path = tmp_path / "rules.json"
    path.symlink_to(elsewhere)
    atomic_write(path, b"new")
    assert not path.is_symlink()
    assert elsewhere.read_bytes() == b"precious"


def test_a_reader_sees_one_version_or_the_other(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    versions = [bytes([letter]) * 50_000 for letter in b"ab"]
    atomic_write(path, versions[0])
    done = threading.Event()
    seen: set[bytes] = set()

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(50):
        atomic_write(path, versions[turn % 2])
    done.set()
    reader.join(PATIENCE_SECS)
    assert seen <= set(versions)


def test_a_directory_in_the_way_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.mkdir()
    with pytest.raises(StorageError) as caught:
        atomic_write(path, b"new")
    assert not caught.value.retryable
    assert os.listdir(tmp_path) == ["rules.json"]


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        atomic_write(tmp_path / "gone" / "rules.json", b"new")


FULL_DISK = """
import os, subprocess, sys
from pathlib import Path
from relay_core.errors import StorageError
from relay_core.storage.atomic_file import atomic_write

disk = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
path = disk / "rules.json"
atomic_write(path, b"old")
try:
    atomic_write(path, b"x" * 200_000)
except StorageError as error:
    print(error.code, error.retryable)
print(path.read_bytes().decode(), os.listdir(disk))
atomic_write(path, b"healed")
print(path.read_bytes().decode())
"""


def test_a_full_disk_keeps_the_old_file_and_heals(tmp_path: Path) -> None:
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine allows no private mounts")
    child = subprocess.run(
        [*unshare, sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECS,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines() == ["storage_full True", "old ['rules.json']", "healed"]


KILLED = """
import sys
from itertools import cycle
from pathlib import Path
from relay_core.storage.atomic_file import atomic_write

path = Path(sys.argv[1])
for letter in cycle(b"ab"):
    atomic_write(path, bytes([letter]) * 50_000)
    print(flush=True)
"""


def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for _ in range(3):
                child.stdout.readline()
            child.send_signal(signal.SIGKILL)
        data = path.read_bytes()
        assert data == data[:1] * 50_000
