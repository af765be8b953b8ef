"""docs/operations.md works as it stands: its commands are run as a tired operator would, and print what it says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from relay_core.client.client import RelayClient
from relay_core.config import RelayConfig
from relay_core.core import RelayCore
from relay_core.errors import AccessDenied
from relay_core.messages.dead_letter import Code
from relay_core.messages.subjects import subject_hash
from tests.kit import ROOT
from tests.kit.daemon import UNLIMITED, Daemon
from tests.kit.raw_client import Raw
from tests.kit.waiting import PATIENCE_SECS, until

PAGE = (ROOT / "docs" / "operations.md").read_text()
WAIT = 2 * PATIENCE_SECS

pytestmark = pytest.mark.bus({})

BACKEND, NIGHTLY, CI = "relay.agent.backend", "relay.agent.nightly", "relay.agent.ci"
RATE = RelayConfig().reliability.rate_limit.model_dump(by_alias=True)
PING, PONG = "relay.agent.ping", "relay.agent.pong"


class Recipe(NamedTuple):
    """A section of the page."""

    title: str
    script: str
    """Its commands, as one script."""
    printed: list[str]
    """Lines that it says they print."""


def recipes() -> Iterator[Recipe]:
    for section in re.split(r"^#{1,2} ", PAGE, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        blocks = re.findall(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        script = "\n".join(text for language, text in blocks if language == "sh")
        printed = [line for language, text in blocks if language == "text" for line in text.splitlines()]
        assert script or not printed
        if script:
            yield Recipe(title, script, printed)


RECIPES = {recipe.title: recipe for recipe in recipes()}


def plain(line: str) -> str:
    """Return a line without what differs from run to run: ids, times, paths, sizes and the width of columns."""
    line = re.sub(r"\b[0-9A-HJKMNP-TV-Z]{26}\b", "ID", line)
    line = re.sub(r"(?<![\w.])/[\w./-]+", "PATH", line)
    line = re.sub(r"\b\d+(\.\d+)? ?(ms|s|m|h)\b( \d+s)?", "TIME", line)
    return " ".join(re.sub(r"\b\d+(\.\d+)? ([KMG]i)?M?B\b", "SIZE", line).split())


class Shell:
    """A home directory and a shell for an operator."""

    def __init__(self, home: Path, data_dir: Path, socket: Path) -> None:
        self.home = home
        commands = Path(sys.executable).parent  # where pip has put `relay`
        self.environment = {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "HOME": str(home),
            "RELAY_SOCKET": str(socket),
            "RELAY_DATA_DIR": str(data_dir),
        }

    async def run(self, script: str) -> str:
        """Run a script, end whatever it has left running, and return all that it has printed."""
        bash = await asyncio.create_subprocess_exec(
            "bash",
            "-euo",
            "pipefail",
            "-c",
            script,
            env=self.environment,
            cwd=self.home,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(WAIT):
                printed = (await bash.communicate())[0].decode()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(bash.pid, signal.SIGKILL)
        assert bash.returncode == 0, printed
        return printed


@pytest.fixture
def shell(daemon: Daemon) -> Iterator[Shell]:
    home = Path(tempfile.mkdtemp(prefix="relay-"))  # short: sockets lie in it
    yield Shell(home, daemon.data_dir, daemon.socket)
    shutil.rmtree(home, ignore_errors=True)


# What the sections are about


async def mail(client: RelayClient, subject: str, count: int) -> None:
    await client.register_endpoint(subject)
    for number in range(count):
        await client.publish(subject, {"n": number}, sender=CI)


async def some_mail(daemon: Daemon, stack: AsyncExitStack) -> None:
    async with daemon.client() as client:
        await mail(client, BACKEND, 3)


async def much_mail(daemon: Daemon, stack: AsyncExitStack) -> None:
    async with daemon.client() as client:
        await mail(client, BACKEND, 43)
        await mail(client, NIGHTLY, 0)
        (first,) = await client.claim(BACKEND)
        await client.fail(BACKEND, first.id, "no")


async def a_reader_that_fails(daemon: Daemon, stack: AsyncExitStack) -> None:
    async with daemon.client() as client:
        await mail(client, BACKEND, 8)
        await client.claim(BACKEND, lease=timedelta(minutes=10))
    raw = await stack.enter_async_context(Raw(daemon.socket))
    await raw.call("server.hello", client="bad-agent")
    await raw.call("subscribe", pattern=BACKEND)
    for _ in range(5):
        delivery_id = await next_delivery(raw)
        await raw.call("fail", deliveryId=delivery_id, reason="no connection to the database")

    async def work() -> None:
        while True:
            await raw.call("ack", deliveryId=await next_delivery(raw))

    # The breaker is open. What comes once it is closed finds the reader mended.
    group = await stack.enter_async_context(asyncio.TaskGroup())
    working = group.create_task(work())
    stack.callback(working.cancel)


async def next_delivery(raw: Raw) -> str:
    note = raw.notes.popleft() if raw.notes else await raw.frame()
    assert note is not None
    return str(note["params"]["deliveryId"])


async def dead_letters(daemon: Daemon, stack: AsyncExitStack) -> None:
    async with daemon.client() as client:
        for subject in [NIGHTLY] * 15 + ["relay.agent.typo"]:
            await client.publish(subject, "hello", sender=CI)


async def a_loop(daemon: Daemon, stack: AsyncExitStack) -> None:
    async with daemon.client() as client:
        await mail(client, PING, 0)
        await mail(client, PONG, 0)
        last = await client.publish(PING, "go", sender=CI)
        for me, other in ((PING, PONG), (PONG, PING)):
            (got,) = await client.claim(me)
            last = await client.publish(other, "thanks", sender=me, parent_id=got.id)
            await client.complete(me, got.id)
        assert last.rejected


async def a_kill(daemon: Daemon, stack: AsyncExitStack) -> None:
    async with daemon.client() as client:
        await mail(client, BACKEND, 2)
        await client.claim(BACKEND, lease=timedelta(minutes=10))
    await daemon.kill()
    await daemon.start()


async def schedules(daemon: Daemon, stack: AsyncExitStack) -> None:
    section = PAGE.partition("\n## Scheduled messages\n")[2]
    daemon.write_config(json.loads(section.partition("```json\n")[2].partition("```")[0]))
    async with daemon.client() as client:
        await mail(client, BACKEND, 0)
        assert await client.reload() == []


async def nothing(daemon: Daemon, stack: AsyncExitStack) -> None:
    """Leave the supervisor as it is."""


PREPARED: dict[str, Callable[[Daemon, AsyncExitStack], Awaitable[None]]] = {
    "Operations": some_mail,
    "Backup and restore": much_mail,
    "Disk full": dead_letters,
    "Lost or broken index": some_mail,
    "A stuck mailbox": a_reader_that_fails,
    "A flood of dead letters": dead_letters,
    "A runaway loop": a_loop,
    "The supervisor was killed": a_kill,
    "Scheduled messages": schedules,
    "Moving the data directory": some_mail,
    "As a service, and its logs": nothing,
    "Several buses": nothing,
    "Uninstalling": nothing,
}
"""What is there when the commands of a section are run."""


@pytest.mark.slow
@pytest.mark.parametrize("title", PREPARED)
async def test_a_recipe_works_and_prints_what_the_page_says(title: str, daemon: Daemon, shell: Shell) -> None:
    async with AsyncExitStack() as stack:
        await PREPARED[title](daemon, stack)
        printed = await shell.run(RECIPES[title].script)
    lines = [plain(line) for line in printed.splitlines()]
    for line in RECIPES[title].printed:
        assert any(plain(line) in other for other in lines), f"{line!r} is not in:\n{printed}"


def test_every_section_with_commands_is_run() -> None:
    assert set(RECIPES) == set(PREPARED)


def blocks_of_recipe(title: str, *containing: str) -> str:
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return "\n".join(block for block in found if any(words in block for words in containing))


async def test_a_copy_of_a_running_bus_has_all_that_was_acknowledged_and_not_handled(
    shell: Shell, daemon: Daemon
) -> None:
    handled: set[str] = set()
    acknowledged: dict[str, set[str]] = {BACKEND: set(), NIGHTLY: set()}
    """By mailbox; only the first one has a reader."""
    async with daemon.client() as client:
        await mail(client, NIGHTLY, 20)
        acknowledged[NIGHTLY].update(envelope.id for envelope in await client.inbox(NIGHTLY))
    await daemon.stop()
    await daemon.start()  # what was there before it is no longer in the journal
    async with daemon.client() as client, daemon.client() as reader:
        daemon.write_config({"reliability": UNLIMITED["reliability"]})
        await until(lambda: is_set(client, "reliability", "rateLimit", {**RATE, "enabled": False}))

        async def read() -> None:
            async for envelope in reader.subscribe(BACKEND):
                handled.add(envelope.id)

        async def write(subject: str) -> None:
            await mail(client, subject, 0)
            while True:
                sent = (client.publish(subject, {"n": number}, sender=CI) for number in range(20))
                acknowledged[subject].update(result.message_id for result in await asyncio.gather(*sent))

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in (read(), write(BACKEND), write(NIGHTLY))]
            await until(lambda: all(len(ids) >= 200 for ids in (handled, *acknowledged.values())))
            before = {subject: set(ids) for subject, ids in acknowledged.items()}
            script = blocks_of_recipe("Backup and restore", "--exclude=./mailboxes")
            await shell.run('data="$RELAY_DATA_DIR"; umask 077\n' + script)
            gone = set(handled)
            for task in tasks:
                task.cancel()
    await shell.run("umask 077\n" + blocks_of_recipe("Backup and restore", 'mkdir -m 700 "$HOME/restored"'))
    async with RelayCore(shell.home / "restored") as restored:
        waiting = {subject: await restored.inbox(subject, limit=1_000_000) for subject in before}
        failed = {letter.message_id for letter in await restored.dead_letters()}
    assert before[NIGHTLY] <= {envelope.id for envelope in waiting[NIGHTLY]}
    assert before[BACKEND] <= {envelope.id for envelope in waiting[BACKEND]} | failed | gone


TAR = """#!/bin/sh
PATH=${PATH#*:} tar "$@"
code=$?
touch "$HOME/copied"
while [ -e "$HOME/copied" ]; do sleep 0.01; done
exit $code
"""
"""A `tar` that waits after each step of the copy until the test goes on."""


@pytest.mark.parametrize("step", range(6))
async def test_a_copy_of_a_running_bus_has_a_message_that_becomes_a_file_and_leaves_the_journal_meanwhile(
    step: int, tmp_path: Path, data_dir: Path
) -> None:
    script = blocks_of_recipe("Backup and restore", "--exclude=./mailboxes")
    assert script.count("\nadd ") == 6
    shell = Shell(tmp_path, data_dir, tmp_path / "none")
    copied = tmp_path / "copied"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tar").write_text(TAR)
    (tmp_path / "bin" / "tar").chmod(0o700)
    path = shell.environment["PATH"]
    shell.environment["PATH"] = f"{tmp_path / 'bin'}:{path}"
    async with RelayCore(data_dir) as relay, asyncio.TaskGroup() as group:
        await relay.register_endpoint(BACKEND)
        writing = relay.bus.commits.files._writing
        writing.acquire()  # so that no file is made
        sent = await relay.publish(BACKEND, {}, sender=CI)
        group.create_task(shell.run('data="$RELAY_DATA_DIR"; umask 077\n' + script))
        for number in range(6):
            await until(copied.exists)
            if number == step:
                writing.release()
                await relay.idle()
                relay.bus.journal.rotate()
                await asyncio.to_thread(relay.bus.commits.checkpoints.run)
                assert relay.journal().pending == 0
            copied.unlink()
    shell.environment["PATH"] = path
    await shell.run("umask 077\n" + blocks_of_recipe("Backup and restore", 'mkdir -m 700 "$HOME/restored"'))
    async with RelayCore(tmp_path / "restored") as restored:
        assert [envelope.id for envelope in await restored.inbox(BACKEND)] == [sent.message_id]


# What configuration.md and security.md say of a running supervisor


async def test_the_log_follows_sighup_and_not_the_file_alone(daemon: Daemon) -> None:
    async with daemon.client() as client:

        async def has_problem() -> bool:
            return (await client.config()).problem is not None

        daemon.write_config({"logs": {"format": "human"}})
        await until(lambda: is_set(client, "logs", "format", "human"))
        await client.reload()
        daemon.write_config({"logs": {"format": "nonsense"}})  # so that it has something to say
        await until(has_problem)
        assert daemon.output().splitlines()[-1].startswith("{")
        daemon.write_config({"logs": {"format": "human"}})
        await until(lambda: is_set(client, "logs", "format", "human"))
        daemon.send(signal.SIGHUP)
        await until(lambda: daemon.output().splitlines()[-1].endswith("logger=relay_supervisor.process"))


async def test_tokens_are_required_of_new_connections_alone(daemon: Daemon) -> None:
    async with daemon.client() as old, Raw(daemon.socket) as bare:
        assert await bare.call("server.ping") == {}
        daemon.write_config({"auth": {"requireTokens": True}})
        await until(lambda: is_set(old, "auth", "requireTokens", True))
        assert await bare.call("server.ping") == {}
        async with Raw(daemon.socket) as new:
            assert await new.refusal("server.info") == ("AccessDenied", "token_required")
        async with daemon.client() as operator:  # it can read the data directory, and with it operator.token
            assert operator.hello is not None
            assert operator.hello.operator


async def test_a_file_that_a_process_of_the_user_drops_is_asked_nothing(daemon: Daemon) -> None:
    async with daemon.client() as client:
        await mail(client, BACKEND, 1)
        (real,) = await client.inbox(BACKEND)
        await client.call("access.add", {"rule": {"from": ">", "to": BACKEND, "action": "deny"}})
        with pytest.raises(AccessDenied):
            await client.publish(BACKEND, "hi", sender=CI)
        box = daemon.data_dir / "mailboxes" / subject_hash(BACKEND)
        forged = real.to_wire() | {"id": f"{real.id[:-4]}ZZZZ", "from": "relay.system.bus"}
        (box / "tmp" / "dropped").write_text(json.dumps(forged))
        (box / "tmp" / "dropped").rename(box / "new" / f"{forged['id']}.json")

        async def is_there() -> bool:
            return [envelope.sender for envelope in await client.inbox(BACKEND)] == [CI, "relay.system.bus"]

        await until(is_there)


async def is_set(client: RelayClient, section: str, key: str, value: object) -> bool:
    return bool((await client.config()).config[section][key] == value)


def test_every_code_of_a_dead_letter_is_explained() -> None:
    codes = {value for name, value in vars(Code).items() if name.isupper()}
    table = PAGE.partition("\n## A flood of dead letters\n")[2].partition("\n## ")[0]
    assert {code for code in codes if not re.search(rf"^\|[^|]*`{code}`", table, re.MULTILINE)} == set()
