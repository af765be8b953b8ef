"""No byte of a stranger reaches the terminal as more than text, and none of it does anything: on a real terminal."""

from __future__ import annotations

import asyncio
import re
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from relay_core.client.client import RelayClient
from relay_supervisor.supervisor import Supervisor
from tests.kit.supervisor import a_client, a_supervisor
from tests.kit.terminal import ENTER, ESC, SIZE, Terminal
from tests.tui.escapes import foreign
from tests.tui.hostile import CORPUS, TOGETHER, config_with_job, dead_letter, plant, random_texts


class Step(NamedTuple):
    """A screen, and how many rows there are to go down."""

    key: str
    title: str
    rows: int


WALK = (
    Step("1", "Overview", 0),
    Step("2", "Breakers", 12),
    Step("3", "Mailboxes", 3),
    Step("4", "Adapters", 20),
    Step("5", "Traces", 12),
    Step("R", "Reports", 0),
    Step("J", "Jobs", 5),
    Step("6", "Dead letters", 15),
)


def dashboard(supervisor: Supervisor) -> Terminal:
    data_dir = supervisor.context.relay.data_dir.path
    command = [sys.executable, "-m", "relay_tui", "--socket", str(supervisor.socket), "--data-dir", str(data_dir)]
    return Terminal(command)


async def what_there_is(client: RelayClient) -> tuple[int, int, int]:
    """Return what an action that ran would have changed."""
    letters = await client.dead_letter_page(limit=1)
    return letters.total, len(await client.replays()), len(await client.endpoints())


async def handled(terminal: Terminal) -> None:
    """Return once every key that was typed has been taken: the display is paused and goes on again."""
    terminal.send("p")
    await terminal.until(lambda: "paused" in terminal.screen()[0])
    terminal.send("p")
    await terminal.until(lambda: "paused" not in terminal.screen()[0])


async def go_down(terminal: Terminal, rows: int) -> None:
    """Move the cursor row by row, so that each is painted as the chosen one."""
    for _ in range(rows):
        await terminal.bytes_after(terminal.send("j"))


async def read_the_crowd(terminal: Terminal, letters: int) -> None:
    """Open the dead letters that hold many texts each, one after another, and read them to the end."""
    terminal.send("/")
    await terminal.until(lambda: terminal.screen()[-1].startswith("/"))
    terminal.send("from~crowd" + ENTER)
    await terminal.until(f"from~crowd  {letters} match")
    for _ in range(letters):
        terminal.send("j" + ENTER)
        await terminal.until(partial(is_dialog, terminal))
        for keys in ("\x06", "\x06", "G"):
            await terminal.bytes_after(terminal.send(keys))
        terminal.send(ESC)
        await terminal.until(lambda: not is_dialog(terminal))
    await handled(terminal)


async def go_to(terminal: Terminal, key: str, title: str) -> None:
    """Look at a screen, whatever earlier keys have opened or are still about to open."""
    while not is_titled(terminal, title):
        if is_dialog(terminal):
            terminal.send(ESC)
            await terminal.until(lambda: not is_dialog(terminal))
        terminal.send(key)
        await terminal.until(lambda: is_titled(terminal, title) or is_dialog(terminal))


def is_dialog(terminal: Terminal) -> bool:
    return re.search("esc:? close", terminal.text()) is not None


def is_titled(terminal: Terminal, title: str) -> bool:
    return title in terminal.screen()[0] and not is_dialog(terminal)


def clicks(terminal: Terminal) -> str:
    """Return a click on each row between the header and the last two lines."""
    return "".join(f"\x1b[<0;20;{row}M\x1b[<0;20;{row}m" for row in range(3, len(terminal.screen()) - 1))


async def assert_clean(terminal: Terminal) -> None:
    """Nothing foreign has come, and hostile text was there to be seen: the picture of an escape."""
    raw = bytes(terminal.raw)
    assert "␛".encode() in raw
    assert await asyncio.to_thread(foreign, raw, SIZE) == []


@pytest.mark.slow
async def test_hostile_texts_everywhere_are_shown_as_text_and_do_nothing(data_dir: Path) -> None:
    texts = list(CORPUS.values())
    async with a_supervisor(data_dir, config_with_job(texts)) as supervisor, a_client(supervisor) as client:
        await plant(client, data_dir, texts)
        before = await what_there_is(client)
        async with dashboard(supervisor) as terminal:
            await terminal.until(partial(is_titled, terminal, "Overview"))
            for step in WALK:
                await go_to(terminal, step.key, step.title)
                await handled(terminal)
                await go_down(terminal, step.rows)
                if step.key == "6":
                    await read_the_crowd(terminal, -(-len(texts) // TOGETHER))
                for keys in ("G", "g", ENTER, "jj", "v"):
                    terminal.send(keys)
                await go_to(terminal, step.key, step.title)
                terminal.send(clicks(terminal))
            await go_to(terminal, "1", "Overview")
            terminal.send("!")
            await terminal.until(partial(is_dialog, terminal))
            await go_to(terminal, "7", "Publish")
            assert terminal.alive
            assert await what_there_is(client) == before
            await assert_clean(terminal)


async def test_random_texts_are_shown_as_text_and_do_nothing(data_dir: Path) -> None:
    texts = random_texts(300, seed=5)
    async with a_supervisor(data_dir) as supervisor, a_client(supervisor) as client:
        await dead_letter(client, texts)
        before = await what_there_is(client)
        async with dashboard(supervisor) as terminal:
            await terminal.until(partial(is_titled, terminal, "Overview"))
            await go_to(terminal, "6", "Dead letters")
            await terminal.until("315 match")
            await go_down(terminal, 60)
            await read_the_crowd(terminal, len(texts) // TOGETHER)
            assert terminal.alive
            assert await what_there_is(client) == before
            await assert_clean(terminal)


@pytest.mark.parametrize("name", CORPUS)
def test_every_text_of_the_corpus_is_known_to_be_bad_if_it_came_through(name: str) -> None:
    text = CORPUS[name]
    opened = b"\x1b[?1049h\x1b[?2026h\x1b[1;1H"
    raw = opened + b"x" + text.encode(errors="surrogatepass") + b"x\x1b[?2026l"
    assert bool(foreign(raw, SIZE)) is not text.isprintable()
