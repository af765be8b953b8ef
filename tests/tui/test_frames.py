"""Every screen as it looks, at both sizes and in three looks; see frames.py for how the pictures are kept."""

from __future__ import annotations

import asyncio

import pytest

from tests.tui.driver import Driver, a_dashboard, strips_of
from tests.tui.frames import are_written, check_frame, frame_of, keep_frame, new_place
from tests.tui.scene import a_scene

SIZES = [(80, 24), (120, 36)]
LOOKS = ["dark", "light", "no-color"]
_STILL_SECS = 5.0

WALK = [
    ("overview", ["1"], "² Breakers"),
    ("help", ["question_mark"], "Help: "),
    ("breakers", ["escape", "2"], "it is being mended"),
    ("mailboxes", ["3"], "relay.agent.full"),
    ("mailbox", ["enter"], "budget +hop"),
    ("adapters", ["escape", "4"], "problem"),
    ("traces", ["5"], "relay.out.letter"),
    ("trace", ["G", "enter"], "its conversation"),
    ("dead-letters", ["escape", "6"], "5 match"),
    ("dead-letter", ["j", "enter"], "Why it failed"),
    ("plan", ["escape", "a", "P"], "Replay . of 5"),
    ("publish", ["escape", "7"], "ctrl\\+s sends it"),
    ("reports", ["escape", "R"], "2036-11-12"),
    ("report", ["enter", "j", "j"], "relay.agent.builder"),
    ("jobs", ["escape", "J"], "expire"),
]


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_every_screen_looks_as_it_did(size: tuple[int, int], look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theme = "light" if look == "light" else "dark"
    told: list[str] = []
    _wish(look, monkeypatch)
    async with a_scene() as (supervisor, clock), a_dashboard(supervisor, size=size, clock=clock, theme=theme) as tui:
        for name, keys, awaited in WALK:
            await tui.press(*keys)
            told += await picture(tui, name, size, look, awaited)
        await tui.resize(50, 12)
        told += await picture(tui, "too-small", size, look, "needs a larger terminal")
    _wish(look, monkeypatch)
    nowhere = new_place()
    nowhere.rmdir()
    async with a_dashboard(None, size=size, clock=clock, theme=theme, socket=f"{nowhere}/s") as tui:
        told += await picture(tui, "no-supervisor", size, look, "No supervisor is running")
    assert not told, "\n\n".join(told)


def _wish(look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say whether colours are wanted; Textual takes the word out of the environment as it reads it."""
    if look == "no-color":
        monkeypatch.setenv("NO_COLOR", "1")


async def picture(tui: Driver, name: str, size: tuple[int, int], look: str, awaited: str) -> list[str]:
    """Return how the screen differs from its picture, once it has come to rest."""
    await tui.until(awaited)
    tui.app.clear_notifications()  # they go after a time, and time is not frozen for them
    kept_as = f"{name}-{size[0]}x{size[1]}"
    before, now = None, frame_of(strips_of(tui.app), look)
    differs = check_frame(kept_as, now)
    try:
        async with asyncio.timeout(_STILL_SECS):
            # A picture that is there is waited for; one that is to be made is taken when nothing changes any more.
            while differs is not None and not (are_written() and now == before):
                await asyncio.sleep(0.05)
                await tui.press()  # no key: what is pending is done
                before, now = now, frame_of(strips_of(tui.app), look)
                differs = check_frame(kept_as, now)
    except TimeoutError:
        pass
    if differs is not None and are_written():
        keep_frame(kept_as, now)
        return []
    return [differs] if differs is not None else []
