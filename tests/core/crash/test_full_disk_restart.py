"""Full disk × dedupe × restart: the results of publishes agree with the disk, before and after."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from relay_core.core import RelayCore
from relay_core.messages.dead_letter import decode_dead_letter
from tests.core.crash.child import config
from tests.core.crash.filling import FAN_OUT, UNHEARD, publish, subject
from tests.core.crash.small_disk import Disk, Kind, mounted
from tests.core.crash.test_disk_full import Durability
from tests.kit import ROOT


def places(disk: Disk) -> Counter[tuple[int, str]]:
    """Return how often each number is in which state: waiting, or a dead letter."""
    found = Counter((envelope.payload["n"], "new") for envelope in disk.stored())
    for path in disk.files("failed"):
        letter = decode_dead_letter(path.stem, path.read_bytes())
        assert letter.envelope is not None
        found[letter.envelope.payload["n"], "failed"] += 1
    return found


def is_true(said: str, found: Counter[tuple[int, str]]) -> bool:
    """Return True if a result agrees with the disk."""
    kind, number, *rest = said.split()
    n = int(number)
    waiting, dead = found[n, "new"], found[n, "failed"]
    if kind == "refused":
        return rest == ["storage_full"] and (waiting, dead) == (0, 0)
    delivered = int(rest[0])
    if subject(n) == UNHEARD:
        return (delivered, rest[1], waiting, dead) == (0, "-", 0, 1)
    targets = 2 if subject(n) == FAN_OUT else 1
    return (delivered, rest[1], waiting, dead) == (targets, "-", targets, 0)


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("kind", ["tmpfs", "ext4-1k"])
def test_a_full_disk_kills_no_process_and_results_hold_after_a_restart(
    kind: Kind, durability: Durability, tmp_path: Path
) -> None:
    with mounted(kind, tmp_path) as disk:
        child = subprocess.run(
            [sys.executable, "-m", "tests.core.crash.filling", str(disk.root), durability],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        said = child.stdout.splitlines()
        assert (child.returncode, said[-1:]) == (-signal.SIGKILL, ["end"]), child.stderr
        said.pop()
        refused = {int(line.split()[1]) for line in said if line.startswith("refused")}
        assert len(refused) > 20
        assert not refused & {number for number, _ in places(disk)}
        disk.free()
        asyncio.run(_retry(disk, durability, said))


def check(said: list[str], disk: Disk) -> None:
    """Compare the results of publishes with the disk."""
    found = places(disk)
    untrue = [line for line in said if not is_true(line, found)]
    assert not untrue, [(line, {at: found[at] for at in found if at[0] == int(line.split()[1])}) for line in untrue]


async def _retry(disk: Disk, durability: Durability, said: list[str]) -> None:
    """Start again and ask again for everything, as a client does that lost its connection."""
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await asyncio.to_thread(check, said, disk)  # what was refused is not brought back
        again = [await publish(core, int(line.split()[1])) for line in said]
        await core.idle()
        await asyncio.to_thread(check, again, disk)
    for first, second in zip(said, again, strict=True):
        assert second.startswith("ack")
        assert second == first or first.startswith("refused")
