"""Files that another user has placed, and a supervisor that really runs: nothing in them is run or applied."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.kit.daemon import OS, Daemon, a_daemon

STRANGER = 12345

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def with_command(marker: Path) -> dict[str, Any]:
    """Return a config whose nightly job makes a file."""
    return OS | {"jobs": {"metrics": {"enabled": False, "command": ["/bin/sh", "-c", f"echo run >> {marker}"]}}}


def plant(path: Path, text: str) -> None:
    """Put a file of another user in place, in one step: the supervisor watches."""
    draft = path.parent.parent / "draft"
    draft.write_text(text)
    os.chown(draft, STRANGER, STRANGER)
    draft.rename(path)


def a_plugin(directory: Path, marker: Path) -> dict[str, Any]:
    """Write a plugin that makes a file when it is run, and return an adapters.json that names it."""
    directory.mkdir(mode=0o755)
    path = directory / "plugin.py"
    path.write_text(f"open({str(marker)!r}, 'w').close()\n")
    return {"adapters": [{"id": directory.name, "path": str(path), "config": {}}]}


async def test_nothing_that_another_user_has_placed_is_run(tmp_path: Path) -> None:
    stolen, own, loaded = tmp_path / "stolen", tmp_path / "own", tmp_path / "loaded"
    async with a_daemon(tmp_path, started=False) as daemon:
        plant(daemon.data_dir / "config.json", json.dumps(with_command(stolen)))
        daemon.data_dir.chmod(0o777)
        await _does_not_start(daemon)
        daemon.data_dir.chmod(0o700)
        await _does_not_start(daemon)

        (daemon.data_dir / "config.json").unlink()
        daemon.write_config(with_command(own))
        await daemon.start()
        async with daemon.client() as client:
            assert (await client.run_job("metrics")).outcome == "ok"
            assert own.read_text() == "run\n"  # so a planted command would have run, too

            adapters = daemon.data_dir / "adapters.json"
            plant(daemon.data_dir / "config.json", json.dumps(with_command(stolen)))
            plant(adapters, json.dumps(a_plugin(tmp_path / "ours", loaded)))
            problems = "\n".join(await client.reload())
            assert f"{daemon.data_dir}/config.json belongs to another user (uid {STRANGER}" in problems
            assert f"{adapters} belongs to another user (uid {STRANGER}" in problems
            assert (await client.adapters()).adapters == []
            assert (await client.run_job("metrics")).outcome == "ok"
            assert own.read_text() == "run\nrun\n"

            assert not loaded.exists()

            os.chown(adapters, os.geteuid(), os.getegid())
            await client.reload()
            assert loaded.exists()  # so a planted file would have had it run, too

            theirs = json.dumps(a_plugin(tmp_path / "theirs", stolen))
            os.chown(tmp_path / "theirs", STRANGER, STRANGER)
            adapters.write_text(theirs)
            await client.reload()
            (state,) = (await client.adapters()).adapters
            assert f"{tmp_path}/theirs belongs to uid {STRANGER}" in str(state.problem)
        assert await daemon.stop() == 0
    assert not stolen.exists()


async def _does_not_start(daemon: Daemon) -> None:
    daemon.log.unlink(missing_ok=True)
    await daemon.launch()
    assert await daemon.process.wait() == 1, daemon.output()
    assert f"{daemon.data_dir}/config.json belongs to another user (uid {STRANGER}" in daemon.output()
