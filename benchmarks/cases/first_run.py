"""The case of the first run: README's run command in a fresh clone.

1. A clone of the committed state, an empty home, a PATH with only the system and Python. pip's settings are kept,
   because they say where packages come from.
2. pip's cache is warm: a first round, which is reported but does not count, fills a private cache.
3. The time ends when the dashboard shows that it is live.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks.harness import Bench, Cases, Goal, Result
from benchmarks.rig.servers import ROOT


def first_run(bench: Bench, name: str, *, most: float) -> Iterable[Result]:
    """Clone, then run README's run command until the dashboard is live."""
    command = re.search(r"```sh\n(.*--demo)\n", (ROOT / "README.md").read_text())
    if command is None:
        raise RuntimeError("README has no run command")
    install, _, start = command[1].rpartition(" && ")
    cache = bench.fresh()
    cold = _once(bench, cache, install, start)
    rounds = [_once(bench, cache, install, start) for _ in range(min(bench.rounds, 3))]
    yield Goal(name, "live", "s", "most", most).result([sum(times) for times in rounds], cold_s=sum(cold))
    yield Goal(name, "install", "s", "most", most).result([installed for installed, _ in rounds])


def _once(bench: Bench, cache: Path, install: str, start: str) -> tuple[float, float]:
    """Return the seconds until it was installed, and then until the dashboard was live."""
    place = bench.fresh()
    home = place / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", ROOT, place / "relay"], check=True)
    environment = {
        **{key: value for key, value in os.environ.items() if key.startswith(("PIP_", "SSL_"))},
        "HOME": str(home),
        "PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin",
        "PIP_CACHE_DIR": str(cache),
    }
    try:
        begin = perf_counter()
        subprocess.run(["/bin/sh", "-c", install], cwd=place / "relay", env=environment, check=True)
        installed = perf_counter() - begin
        return installed, bench.run(_until_live(place / "relay", start, environment))
    finally:
        shutil.rmtree(place)


async def _until_live(checkout: Path, command: str, environment: dict[str, str]) -> float:
    from tests.kit.terminal import Terminal  # which needs the extra `dev`

    variables = [f"{key}={value}" for key, value in {**environment, "TERM": "xterm-256color"}.items()]
    run = ["/bin/sh", "-c", f'cd "$0" && exec {command}', str(checkout)]
    async with Terminal(["/usr/bin/env", "-i", *variables, *run]) as terminal:
        await terminal.until("● live")
        took = perf_counter() - terminal.started
        terminal.send("q")
        await terminal.exit_code()
        return took


FIRST_RUN_CASES: Cases = {
    "first_run": partial(first_run, most=60),
}
