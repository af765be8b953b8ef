"""The terminal the tests look through, and the reader of what was written to it."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.terminal import DOWN, SIZE, Terminal
from tests.kit.waiting import until
from tests.tui.escapes import foreign

APP = """
from textual.app import App
from textual.widgets import Input, Label, ListItem, ListView, Static

class Small(App):
    BINDINGS = [("q", "quit"), ("y", "copy"), ("h", "hostile")]
    def compose(self):
        yield Static("a small app", markup=False)
        yield Input()
        yield ListView(*[ListItem(Label(f"row {n}")) for n in range(50)])
        yield Static("", id="out", markup=False)
    def on_mount(self):
        self.query_one(ListView).focus()
    def on_resize(self, event):
        self.query_one("#out").update(f"{event.size.width} by {event.size.height}")
    def action_copy(self):
        self.copy_to_clipboard("hello")
    def action_hostile(self):
        self.query_one("#out").update("bad \\x1b]0;pwned\\x07\\x1b[?1049l\\x9b2J thing")

Small().run()
"""


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Terminal]:
    program = tmp_path / "small.py"
    program.write_text(APP)
    async with Terminal([sys.executable, str(program)]) as terminal:
        await terminal.until("row 9")
        yield terminal


async def test_a_program_is_seen_driven_resized_and_ends_and_textual_sends_nothing_unknown(app: Terminal) -> None:
    assert app.screen()[0].startswith("a small app")
    await app.until("120 by 36")
    assert await app.bytes_after(app.send(DOWN)) > app.started
    for keys in ("\t", "abc", "\x1b[Z"):
        await app.bytes_after(app.send(keys))
    app.resize(80, 24)
    await app.until("80 by 24")
    assert len(app.screen()) == 24
    app.send("q")
    assert await app.exit_code() == 0
    assert not app.alive
    assert foreign(bytes(app.raw), SIZE) == []


async def test_what_textual_lets_through_is_found_and_a_copy_if_nobody_asked_for_it(app: Terminal) -> None:
    copy = "\x1b]52;c;aGVsbG8=\x07"
    app.send("y")
    await app.until_raw(copy.encode())
    assert [escape.what for escape in foreign(bytes(app.raw), SIZE)] == [copy]
    assert foreign(bytes(app.raw), SIZE, copies=1) == []
    app.send("h")
    await app.until_raw(b" thing")
    found = [escape.what for escape in foreign(bytes(app.raw), SIZE, copies=1)]
    assert {"\x1b]0;pwned", "\x1b[?1049l", "\x9b2J"} <= set(found)  # Textual drops the bell alone


async def test_a_program_that_ends_early_is_reported_with_its_screen() -> None:
    async with Terminal(["/bin/sh", "-c", "echo so long; exit 3"]) as terminal:
        with pytest.raises(AssertionError, match="so long"):
            await terminal.until("something else")
        assert await terminal.exit_code() == 3


async def test_nothing_is_left_of_the_program() -> None:
    async with Terminal(["/bin/sh", "-c", "trap '' HUP; sleep 1000 & echo child $!; wait"]) as terminal:
        await terminal.until("child ")
        child = int(terminal.text().split()[1])
        assert running(child)
    await until(lambda: not running(child))


def running(pid: int) -> bool:
    """Say whether a process runs: one that is killed but not yet reaped by its new parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


OPENED = b"\x1b[?1049h\x1b[?2026$p\x1b[?2026h\x1b[1;1H"


@pytest.mark.parametrize(
    "own",
    [
        pytest.param("naïve 你好 🎉 │ e\u0301".encode(), id="text"),
        pytest.param(b"\x1b[1;3;38;2;1;2;3;48;2;0;0;255mx\x1b[0m", id="colours"),
        pytest.param(b"\x1b[36;120Hx\r\n\x1b[2;1Hy", id="positions and line breaks"),
        pytest.param(b"\x1b[?2026l\x1b[?2026h", id="frames"),
        pytest.param(b"\x1b[?2026l\x1b]22;pointer\x07\x1b]22;ns-resize\x07", id="pointer"),
        pytest.param(b"\x1b[?2026l\x1b[?2004l\x1b[?7h\x1b[?1000l\x1b[<u\x1b[?1049l\x1b[?25h", id="the end"),
    ],
)
def test_own_sequences(own: bytes) -> None:
    assert foreign(OPENED + own, SIZE) == []


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("\x1b]0;title\x07", id="title"),
        pytest.param("\x1b]2;title\x1b\\", id="title with ST"),
        pytest.param("\x1b]8;;http://a\x1b\\", id="link"),
        pytest.param("\x1b]52;c;eA==\x07", id="clipboard"),
        pytest.param("\x1b]22;wait\x07", id="pointer inside a frame"),
        pytest.param("\x1b[?2026h", id="a frame inside a frame"),
        pytest.param("\x1b[?25h", id="show the cursor"),
        pytest.param("\x1bP$qm\x1b\\", id="DCS"),
        pytest.param("\x1b_Gx\x1b\\", id="APC"),
        pytest.param("\x1b^x\x1b\\", id="PM"),
        pytest.param("\x1b[c", id="device attributes"),
        pytest.param("\x1b[6n", id="cursor report"),
        pytest.param("\x1b[?2026$p", id="a question in the middle"),
        pytest.param("\x1b[2J", id="clear"),
        pytest.param("\x1b[31m", id="a colour of the sixteen"),
        pytest.param("\x1b[01;01H", id="leading zeros"),
        pytest.param("\x1b[37;1H", id="below the screen"),
        pytest.param("\x1b[1;121H", id="beside the screen"),
        pytest.param("\x1b[?1049l", id="leave the alternate screen"),
        pytest.param("\x1b[?1000l", id="mouse off"),
        pytest.param("\x1b[?7h", id="line wrap on"),
        pytest.param("\x1b[5A", id="cursor up"),
        pytest.param("\x1bc", id="full reset"),
        pytest.param("\x1b(0", id="character set"),
        pytest.param("\x07", id="bell"),
        pytest.param("\x08", id="backspace"),
        pytest.param("\r", id="carriage return"),
        pytest.param("\n", id="newline"),
        pytest.param("\t", id="tab"),
        pytest.param("\x00", id="NUL"),
        pytest.param("\x7f", id="DEL"),
        pytest.param("\x9b2J", id="C1 CSI"),
        pytest.param("\x9d0;t\x9c", id="C1 OSC"),
        pytest.param("\u202e", id="bidi"),
        pytest.param("\u200b", id="zero width"),
        pytest.param("\U000e0041", id="tag"),
        pytest.param("\ue000", id="private use"),
    ],
)
def test_foreign_sequences_are_reported_whole(what: str) -> None:
    found = foreign(OPENED + b"before" + what.encode() + b" after", SIZE)
    assert [escape.what for escape in found] == [what]
    assert found[0].before.endswith("before")


@pytest.mark.parametrize(
    ("raw", "count"),
    [
        pytest.param(b"\x9b2J", 1, id="a C1 byte that is no UTF-8"),
        pytest.param(b"\x1b[?2026l\x1b]22;evil\x07", 1, id="an unknown pointer"),
        pytest.param(b"\x1b[?2026l\x1b[?2026l", 1, id="a frame that ends twice"),
        pytest.param(b"\x1b", 1, id="a lone escape"),
        pytest.param(b"\x1b[38;2;1", 1, id="a sequence cut short"),
        pytest.param(b"one\r\ntwo", 2, id="a line break inside text"),
    ],
)
def test_other_foreign_bytes(raw: bytes, count: int) -> None:
    assert len(foreign(OPENED + raw, SIZE)) == count


async def test_the_dashboard_takes_the_size_of_the_terminal_that_it_paints_on(tmp_path: Path) -> None:
    # Those of another terminal: readline exports them to everything that a Python program in a terminal starts.
    wrong = {"COLUMNS": "180", "LINES": "50"}
    command = [sys.executable, "-m", "relay_tui", "--socket", str(tmp_path / "s"), "--data-dir", str(tmp_path)]
    async with Terminal(command, env=wrong) as terminal:
        await terminal.until("No supervisor is running")
        await terminal.until(lambda: re.search(r"\d\d:\d\d:\d\dZ $", terminal.screen()[0]))
        assert "screens" in terminal.screen()[-1]
