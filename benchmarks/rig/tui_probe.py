"""The dashboard with a probe in its event loop: ``python -m benchmarks.rig.tui_probe SOCKET FILE``.

The probe sleeps for 5 ms at a time and records how late it wakes up. The delays are written to the file at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from time import perf_counter

os.environ.setdefault("TEXTUAL_FPS", "240")
os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")

from relay_tui.app import Dashboard

EVERY_SECS = 0.005


class Probed(Dashboard):
    """The dashboard, and how late its loop was, in milliseconds."""

    def __init__(self, socket: str) -> None:
        super().__init__(socket=socket)
        self.late: list[float] = []

    def on_mount(self) -> None:
        self.run_worker(self._probe(), exit_on_error=False)

    async def _probe(self) -> None:
        while True:
            begin = perf_counter()
            await asyncio.sleep(EVERY_SECS)
            self.late.append((perf_counter() - begin - EVERY_SECS) * 1e3)


if __name__ == "__main__":
    app = Probed(sys.argv[1])
    app.run()
    Path(sys.argv[2]).write_text(json.dumps(app.late))
