from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from relay_supervisor.cli.arguments import FilterOptions
from tests.kit.adapters import SampleAdapter, refuse
from tests.kit.servers.proxy import a_wire
from tests.kit.supervisor import a_client, a_supervisor
from tests.kit.terminal import Terminal
from tests.tui.driver import a_dashboard
from tests.tui.letters import FLAKY, astray, ids, refused


def an_editor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *texts: str | None) -> Path:
    """Make $EDITOR write these texts, one after the other (None leaves the file); return where it notes the file."""
    script, noted = tmp_path / "editor", tmp_path / "noted"
    queue = tmp_path / "texts.json"
    queue.write_text(json.dumps(texts))
    script.write_text(
        f"""#!{sys.executable}
import json, os, sys
queue, path = {str(queue)!r}, sys.argv[1]
texts = json.load(open(queue))
open({str(noted)!r}, "a").write(f"{{oct(os.stat(path).st_mode)}} {{path}}\\n")
if texts[0] is not None:
    open(path, "w").write(texts[0])
json.dump(texts[1:], open(queue, "w"))
"""
    )
    script.chmod(0o700)
    monkeypatch.setenv("VISUAL", "")
    monkeypatch.setenv("EDITOR", str(script))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return noted


def text_of(path: str) -> str:
    return Path(path).read_text()


def is_there(path: str) -> bool:
    return Path(path).exists()


def files_of(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != "data")


async def test_an_edit_is_shown_as_a_difference_and_then_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = an_editor(monkeypatch, tmp_path, '{"n": ', '{"n": 0, "colour": "red", "more": true}')
    async with a_supervisor(tmp_path / "data") as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, colour="blue")
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("1 match")
            await tui.press("j", "E")
            await tui.until("This is not a valid payload. Edit again")
            await tui.until("not JSON: .*line 1")
            await tui.confirm("edit")
            await tui.until('- +"colour": "blue"')
            await tui.until('\\+ +"colour": "red"')
            assert len(await ids(client)) == 1
            await tui.press("enter")
            await tui.until("Replay the edited copy\\?")
            await tui.confirm("replay")
            await tui.until("sent as")
            await tui.until("no dead letters")

            (envelope,) = await client.claim(FLAKY)
            assert envelope.payload == {"n": 0, "colour": "red", "more": True}
            await client.fail(FLAKY, envelope.id, "still not right")
            await tui.until("1 match")
            await tui.press("g", "j", "enter")
            await tui.until("Edited  a copy of")
            await tui.until('- +"colour": "blue"')
    mode, name = noted.read_text().split("\n")[0].split()
    assert stat.S_IMODE(int(mode, 8)) == 0o600
    assert not is_there(name)


async def test_an_edit_that_is_not_sent_is_kept_and_one_without_a_change_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = an_editor(monkeypatch, tmp_path, None, '{"n": 7}', "[1, NaN]")
    async with a_supervisor(tmp_path / "data") as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY)
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("1 match")
            await tui.press("j", "E")
            await tui.until("nothing was changed, so nothing was sent")
            await tui.press("E")
            await tui.until('\\+ +"n": 7')
            await tui.press("e")  # again
            await tui.until("NaN")
            await tui.press("f")
            await tui.until("Replay the edited copy with a fresh budget\\?")
            await tui.confirm("replay")
            await tui.until("The bus refused it. Edit again")
            await tui.press("escape")
            await tui.until("nothing was sent; your text is kept in")
        assert len(await ids(client)) == 1
    assert text_of(noted.read_text().split()[-1]) == "[1, NaN]"


@pytest.mark.parametrize(
    ("editor", "says"),
    [
        ("/no/such/editor", "the editor /no/such/editor cannot be started"),
        ("vi 'x", "EDITOR is not a command"),
        ("false", "the editor false exited with code 1"),
    ],
    ids=["missing", "a quote that is not closed", "one that fails"],
)
async def test_an_editor_that_does_not_work_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, editor: str, says: str
) -> None:
    an_editor(monkeypatch, tmp_path, None)
    monkeypatch.setenv("EDITOR", editor)
    async with a_supervisor(tmp_path / "data") as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY)
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("1 match")
            await tui.press("j", "E")
            await tui.until(says)
    assert not [name for name in files_of(tmp_path) if name.startswith("relay-dead-letter")]


async def test_an_edit_whose_answer_is_lost_says_that_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_editor(monkeypatch, tmp_path, '{"n": 7}')
    async with a_supervisor(tmp_path / "data") as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY)
        async with (
            losing_answers(supervisor.socket, b'"deadletters.edit"') as socket,
            a_dashboard(supervisor, socket=socket) as tui,
        ):
            await tui.press("6")
            await tui.until("1 match")
            await tui.press("j", "E")
            await tui.until(f"consumer_failed at {FLAKY}, from relay.agent.shop: no stock")
            await tui.press("enter")
            await tui.until("Replay the edited copy\\?")
            await tui.confirm("replay")
            await tui.until("it is unknown whether it was sent")
            assert "did not take it" not in tui.text()
    assert [name for name in files_of(tmp_path) if name.startswith("relay-dead-letter")]


@asynccontextmanager
async def losing_answers(real: Path, method: bytes) -> AsyncIterator[Path]:
    """Pass everything on to a supervisor, and hang up as soon as a method was asked for."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(real)

        async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while data := await source.read(1 << 20):
                    target.write(data)
                    if method in data:
                        break
            for stream in (writer, back):
                stream.close()

        async with asyncio.TaskGroup() as group:
            group.create_task(pass_on(reader, back))
            group.create_task(pass_on(there, writer))

    path = Path(tempfile.mkdtemp(prefix="relay-", dir=os.environ.get("TMPDIR", "/tmp"))) / "relay.sock"
    server = await asyncio.start_unix_server(serve, path)
    try:
        yield path
    finally:
        server.close()
        shutil.rmtree(path.parent)


async def test_the_editor_has_the_terminal_to_itself(tmp_path: Path) -> None:
    script, go_on = tmp_path / "editor", tmp_path / "go-on"
    script.write_text(
        '#!/bin/sh\necho THE EDITOR IS HERE\nread answer\necho "GOT $answer"\n'
        f'while [ ! -e {go_on} ]; do sleep 0.05; done\necho \'{{"n": "edited"}}\' > "$1"\n'
    )
    script.chmod(0o700)
    async with a_supervisor(tmp_path / "data") as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY)
        command = [sys.executable, "-m", "relay_tui", "--socket", str(supervisor.socket)]
        command += ["--data-dir", str(tmp_path / "data")]
        async with Terminal(command, env={"EDITOR": str(script), "VISUAL": ""}) as terminal:
            await terminal.until("live")
            terminal.send("6")
            await terminal.until("1 match")
            terminal.send("jE")
            await terminal.until("THE EDITOR IS HERE")
            before = terminal.send("j6?q\r")
            await terminal.until_raw(b"GOT j6?q", since=before)
            quiet = len(terminal.raw)
            updates = 0
            async for _ in client.watch():  # the bus goes on, and the dashboard paints nothing of it
                await astray(client)
                updates += 1
                if updates == 5:
                    break
            assert bytes(terminal.raw[quiet:]).strip() == b""
            go_on.touch()
            await terminal.until('"n": "edited"')
            terminal.send("\r")
            await terminal.until("Replay the edited copy?")
            terminal.send("replay\r")
            await terminal.until("sent as")
            await terminal.until("5 match")
            assert (await client.inbox(FLAKY))[0].payload == {"n": "edited"}


async def test_a_purge_needs_the_count_typed_and_takes_what_was_frozen(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await astray(client, 12)
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("12 match")
            await tui.press("a", "X")
            await tui.until("Purge 12 dead letters")
            await astray(client, 1)
            await tui.until(lambda: tui.app.store.state.dead_letters and "13" in tui.text())
            await tui.confirm("purge 13")
            await tui.until("that is not purge 12: nothing was done")
            assert len(await ids(client)) == 13
            await tui.press("backspace")
            await tui.confirm("2")
            await tui.until("12 dead letters purged")
            await tui.until("no filter  1 match")
            assert "marked" not in tui.text()


async def test_a_purge_says_how_many_are_partial_copies(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint("relay.both")
        await supervisor.context.relay.add_adapter(SampleAdapter(patterns=["relay.both"], platform=refuse))
        assert (await client.publish("relay.both", {}, sender="relay.desk.ada")).delivered_to == 1
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("1 match")
            await tui.press("j", "X")
            await tui.until("It is a partial copy: other targets received the message")
            await tui.press("escape")
            await astray(client, 1)
            await tui.until("2 match")
            await tui.press("a", "X")
            await tui.until("1 partial copy among them: other targets received")
            await tui.confirm("purge 2")
            await tui.until("2 dead letters purged")


async def test_a_purge_says_that_it_goes_on_and_leaves_the_marks_of_others(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path / "data") as supervisor, a_client(supervisor) as client:
        await astray(client, 2)
        await refused(client, FLAKY)
        async with a_wire(supervisor.socket) as (socket, wire), a_dashboard(supervisor, socket=socket) as tui:
            await tui.press("6")
            await tui.until("3 match")
            await tui.press("j", "space")
            await tui.until("1 marked")
            await tui.press("tab", "j", "X")
            await tui.until("Purge 2 dead letters")
            await tui.type("purge 2")
            wire.hold_answers_to.add("deadletters.purge")
            await tui.press("enter")
            await tui.until("purging 2 dead letters …")
            wire.hold_answers_to.clear()
            wire.held.set()
            await tui.until("2 dead letters purged")
            await tui.until("1 match · ● 1 marked")


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("~nosuchuser/x", "not a valid path"),
        ("/no/directory/x", "there is no directory /no/directory"),
        (".", "is a directory: add a file name"),
    ],
    ids=["nobody's home", "no directory", "a directory"],
)
async def test_what_can_be_no_file_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    async with a_supervisor(tmp_path / "data") as supervisor, a_client(supervisor) as client:
        await astray(client)
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("1 match")
            await tui.press("a", "W")
            await tui.until("to which file")
            await tui.press("ctrl+u")
            await tui.type(typed)
            await tui.press("enter")
            # However long the path of this directory makes it.
            await tui.until(lambda: says in " ".join(tui.text().replace("│", " ").split()))
            assert "to which file" in tui.text()
        assert files_of(tmp_path) == []


async def test_an_export_is_private_whole_and_never_written_over_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with a_supervisor(tmp_path / "data") as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 3)
        chosen = (await ids(client))[:2]
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("3 match")
            await tui.press("j", "space", "space", "W")
            await tui.until("Export 2 dead letters to which file")
            await tui.until("dead-letters-20")
            await tui.press("enter")
            await tui.until("2 dead letters exported to")
            (name,) = files_of(tmp_path)
            path = tmp_path / name
            assert {json.loads(record)["messageId"] for record in path.read_text().splitlines()} == set(chosen)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600

            mine = tmp_path / "mine"
            mine.write_text("precious")
            await tui.press("W")
            await tui.until("Export 2 dead letters to which file")
            await tui.press(*["backspace"] * 40)
            await tui.type("mine")
            await tui.press("enter")
            await tui.until("Overwrite the file")
            await tui.press("escape")
            assert mine.read_text() == "precious"
        assert files_of(tmp_path) == [name, "mine"]


async def test_what_is_meant_is_copied_as_a_command(tmp_path: Path, own_places: Path) -> None:
    async with a_supervisor(tmp_path / "data") as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY, 3)
        newest = (await client.dead_letters())[-1].cursor
        async with a_dashboard(supervisor) as tui:
            copied = own_places / "run" / "relay" / "clipboard.txt"
            await tui.press("6")
            await tui.until("3 match")
            await tui.press("j", "y")
            await tui.until("the id sent")
            assert newest.startswith(copied.read_text())
            command = ["relay", "dlq", "replay", "--socket", str(supervisor.socket)]
            await tui.press("Y")
            await tui.until("the command sent")
            assert shlex.split(copied.read_text()) == [*command, newest]

            await tui.app.goto("dead-letters", 'reason~"no stock" age<1h')
            await tui.until("age<1h  3 match")
            await tui.press("a", "space")
            await tui.until("marked but 1")
            await tui.press("Y")
            where = f'reason~"no stock" age<1h !id={newest}'
            await tui.until(lambda: shlex.split(copied.read_text()) == [*command, "--where", where])
            found = FilterOptions(where=where).to_filter()
            assert found is not None
            assert len(await client.dead_letters(filter=found)) == 2
