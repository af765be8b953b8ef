"""docs/protocol.md says what the protocol is, and its examples work."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from relay_core.messages.dead_letter import Code
from relay_core.messages.delivery import Status
from relay_core.messages.replay_plan import Verdict
from relay_core.messages.results import Reason
from relay_core.protocol.frames import ERROR_CLASSES, PROTOCOL_NUMBERS
from relay_core.protocol.methods import METHODS, NOTIFICATIONS, Method
from relay_supervisor.server.connection import IN_FLIGHT
from relay_supervisor.server.line_deadline import LINE_SECS
from relay_supervisor.server.socket_server import MAX_CONNECTIONS
from tests.kit import ROOT
from tests.kit.daemon import a_daemon
from tests.kit.waiting import PATIENCE_SECS
from tools.docs.protocol import COMMAND, protocol_markdown

PAGE = ROOT / "docs" / "protocol.md"
STAND_IN = ROOT / "tests" / "kit" / "nc.py"
EXAMPLES = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.fixture
def path_with_nc(tmp_path: Path) -> str:
    """Return a PATH with an `nc` that knows -N and -U: the machine's own, or else our stand-in."""
    own = shutil.which("nc")
    if own is not None:
        told = subprocess.run([own, "-h"], capture_output=True, text=True, check=False, timeout=PATIENCE_SECS)
        if re.search(r"-\w*N", told.stdout + told.stderr) and re.search(r"-\w*U", told.stdout + told.stderr):
            return os.environ["PATH"]
    # This machine has no netcat, or one of another kind: tests/kit/nc.py takes its place.
    directory = tmp_path / "bin"
    directory.mkdir()
    script = directory / "nc"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(STAND_IN))} "$@"\n')
    script.chmod(0o755)
    return f"{directory}{os.pathsep}{os.environ['PATH']}"


async def run_example(example: str, socket: Path, path: str) -> list[dict[str, Any]]:
    """Run an example as it stands, and return the frames that it prints."""
    bash = await asyncio.create_subprocess_exec(
        "bash",
        "-euo",
        "pipefail",
        "-c",
        example,
        env={**os.environ, "PATH": path, "RELAY_SOCKET": str(socket)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE_SECS):
        out, err = await bash.communicate()
    assert (bash.returncode, err) == (0, b"")
    return [json.loads(line) for line in out.splitlines()]


def test_the_page_is_what_the_models_say() -> None:
    assert PAGE.read_text() == protocol_markdown(), f"docs/protocol.md is old: run {COMMAND}"


async def test_the_command_prints_the_page() -> None:
    command, _, _ = COMMAND.partition(" > ")
    program = await asyncio.create_subprocess_exec(
        sys.executable, *shlex.split(command)[1:], stdout=asyncio.subprocess.PIPE
    )
    out, _ = await program.communicate()
    assert program.returncode == 0
    assert out.decode() == PAGE.read_text()


def test_it_has_every_method_notification_and_error() -> None:
    rows = re.findall(r"^\| `([\w.]+)` ", PAGE.read_text(), re.MULTILINE)
    assert [name for name in rows if name in METHODS] == list(METHODS)
    assert {*NOTIFICATIONS, *ERROR_CLASSES, *PROTOCOL_NUMBERS} <= set(rows)


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: str(method.name))
def test_a_method_has_its_traits_and_its_types_have_a_section(method: Method) -> None:
    page = PAGE.read_text()
    row = re.search(rf"^\| `{re.escape(method.name)}` .*$", page, re.MULTILINE)
    assert row is not None
    *_, params, result, traits, _ = (cell.strip() for cell in row.group().split("|"))
    assert set(traits.split(", ")) - {""} == {trait.value for trait in method.traits}
    for cell, model in ((params, method.params), (result, method.result)):
        fields = [field.alias for field in model.model_fields.values()]
        if cell.startswith("`"):  # a type with one self-explanatory field stands in the table itself
            assert re.match(rf"`{fields[0]}\??`: ", cell)
        else:
            assert cell == (f"[{model.__name__}]" if fields else "")
        assert len(fields) <= 1 or f"\n### {model.__name__}\n" in page


@pytest.mark.parametrize(
    ("row", "words"),
    [("code", Code), ("verdict", Verdict), ("reason", Reason), ("status", Status)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_word_that_a_field_may_have_is_on_the_page(row: str, words: type[Any]) -> None:
    known = {value for name, value in vars(words).items() if name.isupper()}
    said = re.findall(rf"^- `{row}`: string[.] (.*(?:\n  .*)*)$", PAGE.read_text(), re.MULTILINE)
    assert known
    assert any({f"`{word}`" for word in known} <= set(re.findall("`[a-z_]+`", text)) for text in said)


def test_every_link_leads_somewhere_and_nothing_is_described_twice() -> None:
    page = re.sub(r"^```.*?^```", "", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    anchors = Counter(slug(heading) for heading in re.findall(r"^#+ (.*)$", page, re.MULTILINE))
    assert [anchor for anchor, times in anchors.items() if times > 1] == []
    targets = dict(re.findall(r"^\[(\w+)\]: #(.*)$", page, re.MULTILINE))
    assert set(targets.values()) <= set(anchors)
    assert set(re.findall(r"(?<![`\w])\[(\w+)\]", page)) == set(targets)


def test_every_table_has_as_many_cells_in_each_row_as_in_its_head() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table


@pytest.mark.parametrize(
    "said",
    [
        f"At most {IN_FLIGHT} requests",
        f"complete within {LINE_SECS:g} seconds",
        f"at most {MAX_CONNECTIONS:,} connections",
        "at most 4,194,304 bytes (4 MiB)",
        "at most 1,000 messages, a page at most 1,000 rows",
    ],
)
def test_the_limits_in_its_text_are_the_servers(said: str) -> None:
    assert said in PAGE.read_text()


def test_types_are_said_in_the_words_of_json() -> None:
    page = PAGE.read_text()
    for line in (
        "- `from`: string. ",
        "- `limit?`: integer, 1 to 1000, default `50`. ",
        "- `dedupeId?`: string, at most 200 characters. A retry",
        '- `state`: `"OPEN"` or `"CLOSED"`. ',
        "`messages`: array of [Envelope]",
        "- `counts?`: object of integer. ",
    ):
        assert line in page, line


def test_there_is_an_example_of_each_kind() -> None:
    asked = set(re.findall(r'(?:"method":"|\b(?:ask|say) \d )([\w.]+)', "".join(EXAMPLES)))
    assert {"server.info", "endpoints.register", "publish", "inbox.peek", "publish.batch"} <= asked
    assert {"subscribe", "ack", "deadletters.list"} <= asked


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=lambda number: f"example-{number + 1}")
async def test_an_example_works_as_it_stands(number: int, tmp_path: Path, path_with_nc: str) -> None:
    example = EXAMPLES[number]
    async with a_daemon(tmp_path) as daemon:
        frames = await run_example(example, daemon.socket, path_with_nc)
    answers = [frame for frame in frames if "id" in frame]
    assert answers
    assert [answer["id"] for answer in answers] == list(range(1, len(answers) + 1))
    assert all("result" in answer for answer in answers), frames
    assert "relay" in answers[0]
    # The published messages arrive: in a mailbox, in a notification or among the dead letters.
    payloads = re.findall(r'"payload":("[^"]*"|\{[^}]*\})', example)
    seen = [envelope["payload"] for frame in frames for envelope in envelopes(frame)]
    expected = [json.loads(payload) for payload in payloads if "second of a batch" not in payload]
    assert seen == expected


def envelopes(frame: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages that a frame holds."""
    if frame.get("method") == "message":
        return [frame["params"]["envelope"]]
    result = frame["result"]
    letters = [letter["envelope"] for letter in result.get("deadLetters", [])]
    return [*result.get("messages", []), *letters]
