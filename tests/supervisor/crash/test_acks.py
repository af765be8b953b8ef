"""An acknowledgement is answered after its end is written: seen by a kill at the answer, and in the system calls."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.kit.daemon import UNLIMITED, Daemon, a_daemon
from tests.kit.raw_client import Raw, request
from tests.kit.waiting import PATIENCE_SECS, until

COUNT = 10
"""Of each kind: not more than the supervisor begins in one turn, so that their answers go out in one write."""
ALONE, SHARED, PULLED = "alone", "shared", "pulled"
KINDS = (ALONE, SHARED, PULLED)
pytestmark = pytest.mark.parametrize("durability", ["os", "fsync"])


def subject(kind: str, number: int) -> str:
    return f"work.{kind}.{number}"


async def take(raw: Raw, kind: str, count: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Publish messages to mailboxes of their own and take them; return how each is acknowledged, by its id."""
    if kind == ALONE:
        await raw.call("subscribe", pattern=f"work.{kind}.*")
    elif kind == SHARED:
        await raw.call("subscribe", pattern=f"work.{kind}.*", queue="workers", maxInFlight=count)
    for number in range(count):
        await raw.call("endpoints.register", subject=subject(kind, number))
        await raw.call("publish", subject=subject(kind, number), payload=number, **{"from": "work.sender"})
    taken: dict[str, tuple[str, dict[str, Any]]] = {}
    for number in range(count):
        if kind == PULLED:
            where = subject(kind, number)
            (message,) = (await raw.call("inbox.claim", subject=where, leaseMs=600_000))["messages"]
            taken[message["id"]] = ("inbox.complete", {"subject": where, "id": message["id"]})
        else:
            note = await raw.note()
            taken[note["envelope"]["id"]] = ("ack", {"deliveryId": note["deliveryId"]})
    return taken


def acknowledge_and_kill(daemon: Daemon, raw: Raw, taken: dict[str, tuple[str, dict[str, Any]]]) -> set[str]:
    """Acknowledge everything in one breath and kill the supervisor at the first answer; return what was answered.

    Blocks, so that nothing happens in between here.
    """
    ids = {1_000 + number: message_id for number, message_id in enumerate(taken)}
    breath = b"".join(request(*taken[message_id], id) for id, message_id in ids.items())
    with socket.socket(fileno=os.dup(raw.writer.get_extra_info("socket").fileno())) as connection:
        connection.settimeout(PATIENCE_SECS)
        connection.sendall(breath)
        said = connection.recv(1 << 20)
        os.kill(daemon.pid, signal.SIGKILL)
        while more := _rest(connection):
            said += more
    answers = [json.loads(line) for line in said.splitlines(keepends=True) if line.endswith(b"\n")]
    assert all("result" in answer for answer in answers), answers
    return {ids[answer["id"]] for answer in answers}


def _rest(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 20)
    except ConnectionError:
        return b""


@pytest.mark.may_block("it must act at once on an answer")
async def test_what_was_acknowledged_is_over_though_the_supervisor_is_killed_at_the_answer(
    tmp_path: Path, durability: str
) -> None:
    async with a_daemon(tmp_path, {**UNLIMITED, "durability": durability}) as daemon:
        async with Raw(daemon.socket) as raw:
            taken = {id: how for kind in KINDS for id, how in (await take(raw, kind, COUNT)).items()}
            answered = acknowledge_and_kill(daemon, raw, taken)
        await daemon.process.wait()
        assert answered
        await daemon.start()
        async with daemon.client() as client:
            dead = {letter.message_id for letter in await client.dead_letters()}
            subjects = [subject(kind, number) for kind in KINDS for number in range(COUNT)]
            waiting = {message.id for name in subjects for message in await client.inbox(name, limit=10)}
            assert not answered & dead
            assert not waiting  # they were all begun


async def test_the_end_is_written_before_the_answer(tmp_path: Path, durability: str) -> None:
    if (strace := shutil.which("strace")) is None:
        pytest.skip("no strace here")
    log = tmp_path / "calls"
    calls = "trace=pwrite64,write,writev,sendto,sendmsg,unlink,unlinkat"
    async with a_daemon(tmp_path, {**UNLIMITED, "durability": durability}) as daemon, Raw(daemon.socket) as raw:
        taken = [item for kind in KINDS for item in (await take(raw, kind, 2)).items()]
        tracer = await asyncio.create_subprocess_exec(
            strace,
            "-f",
            "-s",
            "4096",
            "-e",
            calls,
            "-o",
            str(log),
            "-p",
            str(daemon.pid),
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert tracer.stderr is not None
            async with asyncio.timeout(PATIENCE_SECS):
                said = await tracer.stderr.readline()
            if b"attached" not in said:
                pytest.skip(f"strace may not look: {said.decode().strip()}")
            answers = {}
            for message_id, (method, params) in taken:
                id = raw.ask(method, **params)
                assert (await raw.answer(id))["result"] is not None
                answers[message_id] = rf'\\"id\\":{id}[,}}]'
            last = list(answers.values())[-1]
            await until(lambda: re.search(last, log.read_text(errors="replace")))
        finally:
            if tracer.returncode is None:
                tracer.terminate()
            await tracer.communicate()
    lines = log.read_text(errors="replace").splitlines()
    for message_id, answer in answers.items():
        end = rf'gone\\".*{message_id}'
        assert _first(lines, end) < _first(lines, answer), message_id


def _first(lines: list[str], pattern: str) -> int:
    found = [number for number, line in enumerate(lines) if re.search(pattern, line)]
    assert found, (pattern, lines)
    return found[0]
