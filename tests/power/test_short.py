"""A few recorded power cuts, so that the gate runs what `python3 -m tests power` runs hundreds of times."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import get_args

import pytest

from tests.kit import ROOT
from tests.power.publisher import Sync

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        os.geteuid() != 0 or not os.path.exists("/dev/fuse") or shutil.which("mkfs.ext4") is None,
        reason="a recording disk needs root, /dev/fuse and mkfs.ext4",
    ),
]


def cut_power(*options: str) -> subprocess.CompletedProcess[str]:
    """Run the command, in a process that keeps its mounts to itself."""
    command = [sys.executable, "-m", "tests.power", "--cuts", "4", *options]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "OSError: [Errno 1] " in result.stderr:
        pytest.skip("this machine lets root mount nothing")
    return result


def test_no_cut_loses_an_acknowledged_message() -> None:
    result = cut_power()
    assert result.returncode == 0, result.stderr
    assert "4 cuts, " in result.stdout
    assert " 0 cuts with losses" in result.stdout


@pytest.mark.parametrize("without", get_args(Sync))
def test_a_sync_that_is_left_out_loses_some(without: Sync) -> None:
    result = cut_power("--without", without)
    assert result.returncode == 1, result.stderr
    assert "cuts lost acknowledged messages" in result.stderr
