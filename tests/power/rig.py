"""Record a run on a disk, cut its power at points of the record, and look for what was acknowledged."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit import ROOT
from tests.power.check import TargetCopy, find, unnamed_segments, wanted
from tests.power.cut import states
from tests.power.disk import MIB, Disk, Entry, Mark
from tests.power.publisher import Life, Sync

LIVES = 3
NUMBERS = 200
SEGMENT_BYTES = (16 * 1024, 64 * 1024, 256 * 1024)


@dataclass
class State:
    """A disk without power."""

    content: bytes
    history: list[Entry] = field(default_factory=list)
    """The marks that were made on it."""
    next_number: int = 1


@dataclass
class Cut:
    """A power cut, and the copies it lost."""

    point: int
    state: State
    lost: set[TargetCopy]


class Rig:
    """Runs and cuts in one directory. Needs root and mkfs.ext4."""

    def __init__(self, directory: Path, seed: str, without: Sync | None = None) -> None:
        self._directory = directory
        self._chance = random.Random(seed)
        self._without = without

    def blank(self) -> State:
        """Return a disk with an empty file system."""
        image = self._directory / "blank.img"
        with image.open("wb") as file:
            file.truncate(96 * MIB)
        options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0"
        _call("mkfs.ext4", "-q", "-F", "-b", "4096", "-E", options, str(image))
        return State(image.read_bytes())

    def record(self, state: State) -> list[Entry]:
        """Let processes publish on a disk, one after the other, and return its log; some kill themselves."""
        chance = self._chance
        disk = Disk(self._directory / "disk", state.content)
        segment_bytes, kept_bytes = chance.choice(SEGMENT_BYTES), chance.choice((0, 64 * MIB))
        try:
            with self._mounted(disk.file) as root:
                for number in range(LIVES):
                    life = Life(
                        data_dir=str(root / "relay"),
                        disk=str(disk.file),
                        first=state.next_number + number * NUMBERS,
                        count=NUMBERS,
                        lanes=chance.choice((1, 4)),
                        seed=chance.randrange(1 << 32),
                        segment_bytes=segment_bytes,
                        kept_bytes=kept_bytes,
                        killed=number % 2 == 0,
                        without=self._without,
                    )
                    self._live(life)
        finally:
            disk.close()
        return disk.log

    def cut(self, state: State, log: list[Entry], count: int) -> Iterator[Cut]:
        """Cut the power at some points after the first acknowledgement."""
        first = next(at for at, entry in enumerate(log) if isinstance(entry, Mark) and entry.text.startswith("ack "))
        points = sorted(self._chance.sample(range(first + 1, len(log)), count))
        for point, content in zip(points, states(state.content, log, points, self._chance), strict=True):
            history = [*state.history, *(entry for entry in log[:point] if isinstance(entry, Mark))]
            lost = wanted(history) - self._find(content, unnamed_segments(history))
            yield Cut(point, State(content, history, state.next_number + LIVES * NUMBERS), lost)

    def _live(self, life: Life) -> None:
        command = [sys.executable, "-m", "tests.power.publisher", life.to_json()]
        status = subprocess.run(command, cwd=ROOT, check=False, timeout=120).returncode
        if status != (-9 if life.killed else 0):
            raise RuntimeError(f"a publisher ended with {status}")

    def _find(self, content: bytes, unnamed: set[str]) -> set[TargetCopy]:
        """Return the copies that a bus finds on a disk, which loses the names that it need not keep."""
        image = self._directory / "cut.img"
        image.unlink(missing_ok=True)  # the same file might still be in use by the loop device of the last cut
        image.write_bytes(content)
        with self._mounted(image) as root:
            for name in unnamed:
                (root / "relay" / "journal" / name).unlink(missing_ok=True)
            return find(root / "relay")

    @contextmanager
    def _mounted(self, image: Path) -> Iterator[Path]:
        """Mount a disk. The kernel commits nothing by itself every 5 s: only what is synced is on it."""
        root = self._directory / "root"
        root.mkdir(exist_ok=True)
        _call("mount", "-o", "loop,commit=300", str(image), str(root))
        try:
            root.chmod(0o700)
            yield root
        finally:
            _call("umount", str(root))


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)
