"""The adapters screen: real plugins on a real supervisor, switched, tested and reloaded by keys."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.adapters import DIARY_PLUGIN
from tests.kit.supervisor import a_client, a_supervisor
from tests.tui.driver import a_dashboard

SENDER = "relay.agent.a"


class Home:
    """A data directory with a plugin, and the files that lead it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "plugins").mkdir(mode=0o700)
        shutil.copyfile(DIARY_PLUGIN, path / "plugins" / "diary.py")
        (path / "plugins" / "diary.py").chmod(0o600)

    def write(self, *ids: str, text: str | None = None, **more: object) -> None:
        entries = [{"id": id, "path": "plugins/diary.py", "config": {"diary": str(self.path / "diary")}} for id in ids]
        # Through a rename, so that a reload never meets half a file.
        draft = self.path / "adapters.draft"
        draft.write_text(text if text is not None else json.dumps({"adapters": entries, **more}))
        draft.rename(self.path / "adapters.json")

    def mark(self, id: str, what: str) -> Path:
        path = self.path / f"{id}.{what}"
        path.touch()
        return path

    def saved(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / "adapters.json").read_text())
        return {entry["id"]: entry.get("enabled", True) for entry in found["adapters"]}


@pytest.fixture
def home(data_dir: Path) -> Iterator[Home]:
    yield Home(data_dir)
    for name in [name for name in sys.modules if name.startswith("relay_plugin")]:
        del sys.modules[name]


async def test_an_adapter_shows_its_counts_patterns_breaker_and_bindings(home: Home) -> None:
    home.write("diary", bindings=[{"chat": "relay.out.*", "agent": "relay.agent.b", "start": "both"}])
    async with a_supervisor(home.path) as supervisor, a_client(supervisor) as client:
        await client.publish("relay.out.x", 1, sender=SENDER)
        async with a_dashboard(supervisor) as tui:
            await tui.press("4")
            await tui.until(r"● connected +diary +plugins/diary.py +1 +0 +0 +\d+s +– unknown")
            await tui.until("patterns +relay.out.>  priority 0")
            await tui.until("breaker +● closed  0 failures in a row  relay.adapter.diary")
            await tui.until(r"binding +relay.out.\* → relay.agent.b  started by either")
            await tui.press("b")
            await tui.until(lambda: tui.view.NAME == "breakers")


async def test_an_adapter_is_disabled_after_a_question_and_enabled_again(home: Home) -> None:
    home.write("a", "b")
    async with a_supervisor(home.path) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("4")
        await tui.until("● connected +b")
        await tui.press("j", "D")
        await tui.until(r"Disable the adapter b\?")
        await tui.until(r"Its messages wait \(0 now\)")
        await tui.press("escape")
        await tui.until("● connected +b")
        assert home.saved() == {"a": True, "b": True}

        await tui.press("D")
        await tui.until("Type disable and press enter")
        await tui.confirm("disable")
        await tui.until("– disabled +b")
        await tui.until("disabled: its messages wait; E enables it")
        assert home.saved() == {"a": True, "b": False}

        await tui.press("E")
        await tui.until("b is connected")
        await tui.until("● connected +b")
        assert home.saved() == {"a": True, "b": True}


async def test_a_test_tells_in_words_what_it_found(home: Home) -> None:
    home.write("a")
    async with a_supervisor(home.path) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("4")
        await tui.until("● connected +a")
        await tui.press("T")
        await tui.until("a is healthy: connected")
        await tui.until("✓ healthy")

        home.mark("a", "sick")
        await tui.press("T")
        await tui.until("a is unhealthy: the health probe failed")
        await tui.until("✗ error +a .*✗ unhealthy")

        await tui.press("D")
        await tui.until("Type disable and press enter")
        await tui.confirm("disable")
        await tui.until("– disabled +a")
        await tui.press("T")
        await tui.until("a is not running: it is disabled")


async def test_one_that_does_not_start_says_why_and_when_it_is_tried_again(home: Home) -> None:
    home.write("a")
    refused = home.mark("a", "unstartable")
    async with a_supervisor(home.path) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("4")
        await tui.until("✗ not running +a")
        await tui.until("problem +.*was refused")
        await tui.until("next start +(in .*|now)")
        refused.unlink()
        await tui.press("L")
        await tui.until("● connected +a")
        await tui.until("a is connected")


async def test_what_is_wrong_with_the_file_stands_on_top_until_it_is_mended(home: Home) -> None:
    home.write("a")
    async with a_supervisor(home.path) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("4")
        await tui.until("● connected +a")
        home.write(text='{"adapters": [')
        await tui.press("colon")
        await tui.type("reload-adapters")
        await tui.press("enter")
        await tui.until("✗ .*adapters.json is not JSON")
        assert "● connected    a" in tui.text()

        home.write("a", "b")
        await tui.press("colon")
        await tui.type("reload-adapters")
        await tui.press("enter")
        await tui.until("adapters.json was read: 2 adapters")
        await tui.until(lambda: "✗" not in tui.text())
        await tui.until("● connected +b")


async def test_a_bad_entry_is_shown_and_costs_no_other(home: Home) -> None:
    hostile = {"id": "bad", "type": "\x1b[31mnone\u202e", "config": {}}
    entry = {"id": "a", "path": "plugins/diary.py", "config": {"diary": str(home.path / "diary")}}
    home.write(text=json.dumps({"adapters": [hostile, entry]}))
    async with a_supervisor(home.path) as supervisor, a_dashboard(supervisor, size=(80, 24)) as tui:
        await tui.press("4")
        await tui.until("✗ not running +bad")
        await tui.until("● connected +a")
        await tui.until(r"bad  ␛\[31mnone‹U\+202E›  relay.adapter.bad")
        assert tui.text().replace("\n", "").isprintable()


async def test_its_dead_letters_are_a_key_away(home: Home) -> None:
    home.write("a")
    async with a_supervisor(home.path) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("4")
        await tui.until("● connected +a")
        await tui.press("d")
        await tui.until(lambda: tui.view.NAME == "dead-letters")
        await tui.until("to~relay.adapter.a")


async def test_who_may_only_read_changes_nothing(home: Home) -> None:
    home.write("a")
    async with a_supervisor(home.path) as supervisor, a_dashboard(supervisor, read_only=True) as tui:
        await tui.press("4")
        await tui.until("● connected +a")
        await tui.press("D", "y", "L", "T", "E")
        await tui.until("sent to the terminal's clipboard")  # by y, which is a key of its own here
        for name in ("enable", "disable", "test", "reload", "reload-adapters"):
            assert not tui.app.registry.by_name("adapters", name)
        assert home.saved() == {"a": True}
        assert (home.path / "diary").read_text().splitlines() == ["a start - v1"]
