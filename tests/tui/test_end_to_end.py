"""An operator's first minutes: the demo, in a real tmux, from the first frame to a replay that empties a group."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex

import pytest

from tests.kit import ROOT

TMUX = shutil.which("tmux")
PATIENCE_SECS = 90.0


class Tmux:
    """One window of a tmux server of our own."""

    def __init__(self, server: str) -> None:
        self._server = server

    async def run(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            str(TMUX), "-L", self._server, "-f", os.devnull, *arguments, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
        return said.decode()

    async def type(self, text: str) -> None:
        await self.run("send-keys", "-l", text)

    async def press(self, *keys: str) -> None:
        await self.run("send-keys", *keys)

    async def until(self, found: str | Callable[[str], object]) -> str:
        """Return the screen once a pattern is on it, or a condition holds for it."""
        screen = ""
        try:
            async with asyncio.timeout(PATIENCE_SECS):
                while True:
                    screen = await self.run("capture-pane", "-p")
                    if found(screen) if callable(found) else re.search(found, screen):
                        return screen
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"never seen: {found}\n{screen}") from None


@asynccontextmanager
async def a_window(command: str, width: int, height: int) -> AsyncIterator[Tmux]:
    tmux = Tmux(f"relay-test-{token_hex(4)}")
    try:
        await tmux.run("new-session", "-d", "-x", str(width), "-y", str(height), command)
        yield tmux
    finally:
        await tmux.run("kill-server")


@pytest.mark.skipif(TMUX is None, reason="tmux is not installed here")
async def test_dead_letters_are_found_marked_planned_and_replayed(tmp_path: Path) -> None:
    command = f"cd {ROOT} && env XDG_CONFIG_HOME={tmp_path} {sys.executable} -m relay_tui --demo"
    async with a_window(command, 120, 36) as tmux:
        await tmux.until("● live")
        await tmux.type("6")
        await tmux.until(r"relay\.agent\.deploys +1[0-9] ")
        await tmux.type("/to=relay.agent.deploys")
        await tmux.press("Enter")
        screen = await tmux.until(r"/ to=relay\.agent\.deploys +[1-9]\d* match")
        count = int(re.search(r"(\d+) match", screen)[1])  # type: ignore[index]

        await tmux.type("a")
        await tmux.until("marked")
        await tmux.type("P")
        await tmux.until("will deliver")
        await tmux.press("Enter")
        await tmux.until(r"Replay \d+ dead letters?\?")
        await tmux.type("replay")
        await tmux.press("Enter")
        # New failures come in meanwhile, one or two at a time.
        await tmux.until(lambda screen: (left := re.search(r"(\d+) match", screen)) and int(left[1]) < count)
        await tmux.until("finished")

        await tmux.type("q")
