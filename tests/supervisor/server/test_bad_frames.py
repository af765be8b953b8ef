"""50,000 bad frames: each gets an error or ends its connection, and no other client notices."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from relay_core.errors import ProtocolError
from relay_core.protocol.frames import MAX_FRAME
from relay_core.protocol.methods import METHODS, parse_params
from tests.kit.daemon import UNLIMITED, Daemon, a_daemon
from tests.kit.raw_client import Raw, kind
from tests.kit.waiting import until

FRAMES = 50_000
WARM_UP = 6_000
PER_CONNECTION = 100
SIDE_BY_SIDE = 8
GROWTH = 20 * 1024 * 1024
GOOD = "relay.agent.good"

PUBLISH = {"subject": "relay.agent.nobody", "from": "relay.agent.s", "payload": {"content": "grüße", "n": [1, 2.5]}}
VALID: list[dict[str, Any]] = [
    {"jsonrpc": "2.0", "id": 7, "method": "publish", "params": PUBLISH},
    {"jsonrpc": "2.0", "id": "x", "method": "publish.batch", "params": {"messages": [PUBLISH, PUBLISH]}},
    {"jsonrpc": "2.0", "id": 8, "method": "inbox.claim", "params": {"subject": "relay.agent.nobody", "limit": 3}},
    {"jsonrpc": "2.0", "id": 9, "method": "deadletters.list", "params": {"filter": {"code": "timeout"}, "limit": 5}},
]
VALUES: list[Any] = [None, True, 7, -1, 2.5, 10**30, "", "x", "\x00", [], [[]], {}, {"x": 1}, "x" * 5000]

GOOD_CLIENT = """
import asyncio, sys
from relay_core.client.client import RelayClient

async def main():
    loop, took = asyncio.get_running_loop(), []
    done = loop.run_in_executor(None, sys.stdin.read)
    async with RelayClient(sys.argv[1]) as client:
        while not done.done() or len(took) < 100:
            before = loop.time()
            result = await client.publish(sys.argv[2], {"content": "hi"}, sender="relay.agent.polite")
            assert result.delivered_to == 1, result
            took.append(loop.time() - before)
            await asyncio.sleep(0.01)  # what it publishes is remembered, and must not look like a leak
    took.sort()
    print(len(took), 1000 * took[len(took) // 2], 1000 * took[len(took) * 99 // 100], 1000 * took[-1])

asyncio.run(main())
"""
"""Publishes in a separate process until it is stopped; each publish must be answered."""


@pytest.fixture
def lines() -> list[bytes]:
    return list(islice(bad_lines(Random(20_261_116)), FRAMES))


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_50000_bad_frames_get_an_error_or_end_their_connection_and_leave_nothing(
    tmp_path: Path, lines: list[bytes], record_property: Callable[[str, object], None]
) -> None:
    async with a_daemon(tmp_path, UNLIMITED) as daemon, Raw(daemon.socket) as operator:
        await operator.call("endpoints.register", subject=GOOD)
        await operator.call("publish", **{**PUBLISH, "subject": GOOD})
        before = open_files(daemon)
        async with a_polite_client(daemon) as polite:
            codes = await send_all(daemon, lines[:WARM_UP])
            await send_huge(daemon)
            memory = resident(daemon)
            codes += await send_all(daemon, lines[WARM_UP:])
            await send_huge(daemon)
            await send_cut_off(daemon)
            grown = resident(daemon) - memory
            told, _ = await polite.communicate(b"")

        published, p50, p99, longest = map(float, told.split())
        figures = f"{published:.0f} publishes meanwhile: p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {longest:.1f} ms"
        record_property("well-behaved client", figures)
        record_property("memory", f"{grown / 1e6:.1f} MB more")
        print(f"{figures}; {grown / 1e6:.1f} MB more; {dict(codes)}")  # noqa: T201
        assert polite.returncode == 0  # each of its publishes was answered
        assert grown < GROWTH
        assert daemon.process.returncode is None
        await until(lambda: open_files(daemon)["socket"] == before["socket"])
        assert open_files(daemon).total() <= before.total() + 3  # the event log and the journal may have gone on
        mailboxes = (await operator.call("mailboxes.list"))["mailboxes"]
        assert {mailbox["subject"]: mailbox["depth"] for mailbox in mailboxes} == {GOOD: published + 1}
        assert (await operator.call("deadletters.list"))["total"] == 0
        assert "Traceback" not in daemon.output()
        assert await daemon.stop() == 0


# Sending


@asynccontextmanager
async def a_polite_client(daemon: Daemon) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", GOOD_CLIENT, str(daemon.socket), GOOD),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def send_all(daemon: Daemon, lines: list[bytes]) -> Counter[str]:
    """Send lines over many connections; each must be answered by exactly one error, if it asks for an answer."""
    codes: Counter[str] = Counter()
    portions = [lines[at : at + PER_CONNECTION] for at in range(0, len(lines), PER_CONNECTION)]

    async def work() -> None:
        while portions:
            codes.update(await send(daemon, portions.pop()))

    async with asyncio.TaskGroup() as group:
        for _ in range(SIDE_BY_SIDE):
            group.create_task(work())
    return codes


async def send(daemon: Daemon, lines: list[bytes]) -> Counter[str]:
    async with Raw(daemon.socket) as raw:
        for line in lines:
            raw.send(line + b"\n")
            await raw.writer.drain()
        raw.writer.write_eof()
        answers = await raw.over()
    expected = sum(asks_for_an_answer(part) for line in lines for part in line.split(b"\n"))
    assert len(answers) == expected
    return Counter(kind(answer)[1] for answer in answers)


async def send_huge(daemon: Daemon) -> None:
    """Send frames as long as they may be, and longer ones; those end their connection."""
    for letter, excess in product([b"x", b"[", b"\x00", b"\xff"], [-1, 0, 1, MAX_FRAME]):
        async with Raw(daemon.socket) as raw:
            frame = b'{"jsonrpc": "2.0", "id": 1, "method": "no.such", "params": {"a": "'
            end = b'"}}'
            raw.send(frame + letter * (MAX_FRAME + excess - len(frame) - len(end)) + end + b"\n")
            if excess <= 0:
                answer = await raw.frame()
                assert answer is not None
                expected = "parse_error" if letter in b"\x00\xff" else "unknown_method"
                assert kind(answer)[1] == expected
                raw.writer.write_eof()
                assert await raw.over() == []
            else:
                assert [kind(answer)[1] for answer in await raw.over()] == ["frame_too_large"]


async def send_cut_off(daemon: Daemon) -> None:
    """Send requests cut off at every byte, without an end: nothing is answered, and the connection is closed."""
    for valid in VALID:
        line = json.dumps(valid).encode()
        for at in range(1, len(line)):
            async with Raw(daemon.socket) as raw:
                raw.send(line[:at])
                raw.writer.write_eof()
                assert await raw.over() == []


def open_files(daemon: Daemon) -> Counter[str]:
    """Count what a process has open by what it is."""
    found: Counter[str] = Counter()
    for name in Path(f"/proc/{daemon.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found[os.readlink(name).partition(":")[0]] += 1
    return found


def resident(daemon: Daemon) -> int:
    return int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def asks_for_an_answer(line: bytes) -> bool:
    """Tell by JSON-RPC's rules whether a line gets an answer: all but notifications, answers and empty lines do."""
    if line in (b"", b"\r"):
        return False
    try:
        frame = json.loads(line.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return True
    if not isinstance(frame, dict) or frame.get("jsonrpc") != "2.0" or "id" in frame:
        return True
    is_notification = isinstance(frame.get("method"), str) and isinstance(frame.get("params", {}), dict)
    is_answer = "method" not in frame and ("result" in frame or "error" in frame)
    return not is_notification and not is_answer


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("twice")
    return dict(pairs)


def _no_constant(name: str) -> None:
    raise ValueError(name)


# Bad lines, none of which may be a request that the server carries out


def bad_lines(random: Random) -> Iterator[bytes]:
    """Return bad lines without end: all the systematic ones first, shuffled, then random ones."""
    systematic = [*truncated(), *deep(), *wrong_members(), *wrong_params(), *twice(), *not_json(), *not_utf8()]
    random.shuffle(systematic)
    yield from systematic
    kinds = [unknown_method, noise, mutated, mutated, mutated]
    while True:
        yield random.choice(kinds)(random)


def truncated() -> Iterator[bytes]:
    for valid in VALID:
        line = json.dumps(valid).encode()
        for at in range(1, len(line)):
            yield line[:at]
            yield line[:at] + b"\r"


def deep() -> Iterator[bytes]:
    for depth in (300, 2_000, 100_000):
        arrays, objects = b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth
        for nested in (arrays, objects):
            yield nested
            yield nested[:-1]
            yield b'{"jsonrpc":"2.0","id":1,"method":"no.such","params":{"a":%s}}' % nested
            yield b'{"jsonrpc":"2.0","id":%s,"method":"server.ping"}' % nested


def wrong_members() -> Iterator[bytes]:
    right = {"jsonrpc": "2.0", "id": 1, "method": "no.such.method", "params": {}}
    for member, value in product(right, VALUES):
        yield dump({**right, member: value})
    for member in ("jsonrpc", "method"):
        yield dump({name: value for name, value in right.items() if name != member})
    for value in VALUES:
        yield dump(value)
        yield dump([right, value])
        yield dump({"id": 1, "result": value})


def wrong_params() -> Iterator[bytes]:
    for method in METHODS.values():
        tries: list[dict[str, Any]] = [{"bogus": 1}, {"": 1}]
        for name, field in method.params.model_fields.items():
            tries += [{field.alias or name: value} for value in VALUES]
        for params in tries:
            try:
                parse_params(method, params)
            except ProtocolError:
                yield dump({"jsonrpc": "2.0", "id": 1, "method": method.name, "params": params})
        for wrong in (VALUES[9], "x", 7, True):
            yield dump({"jsonrpc": "2.0", "id": 1, "method": method.name, "params": wrong})
    for name, value in product(PUBLISH, VALUES):
        if name != "payload" and not isinstance(value, str):
            yield dump({"jsonrpc": "2.0", "id": 1, "method": "publish", "params": {**PUBLISH, name: value}})


def twice() -> Iterator[bytes]:
    for valid in VALID:
        line = json.dumps(valid)
        for member in ('"jsonrpc": "2.0"', '"id": 7', '"method": "server.ping"', '"params": {}', '"params": null'):
            yield f"{{{member}, {line[1:]}".encode()
            yield f"{line[:-1]}, {member}}}".encode()
        yield line.replace('"params": {', '"params": {"subject": "a", "subject": "b", ').encode()
        yield line.replace('"params": {', '"params": {"a": [{"b": 1, "\\u0062": 2}], ').encode()


def not_json() -> Iterator[bytes]:
    line = json.dumps(VALID[0])
    for value in (
        *("NaN", "Infinity", "-Infinity", "nan", "01", "+1", ".5", "1.", "0x10", "1e", "'x'", "undefined", "True"),
        *("[1,]", "{,}", '{"a"}', "{a: 1}", '"\\x41"', '"\\ud800"', '"\t"', "/* */ 1", "1 // x", "\\", "\x00", "--1"),
    ):
        yield line.replace("2.5", value).encode()
        yield line.replace('"id": 7', f'"id": {value}').encode()
        yield value.encode()
    for extra in ("}", "{}", ",", " x", "\x00", "\ufeff", "]"):
        yield (line + extra).encode()
        yield (extra + line).encode()
    yield from (line.encode("utf-16"), line.encode("utf-32"), b"\xef\xbb\xbf" + line.encode(), b"\x00", b"\r\r")


def not_utf8() -> Iterator[bytes]:
    line = json.dumps(VALID[0], ensure_ascii=False).encode()
    for bad in (b"\xff", b"\xfe", b"\x80", b"\xc0\x80", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88"):
        for at in range(len(line) + 1):
            changed = line[:at] + bad + line[at:]
            try:
                changed.decode()
            except UnicodeDecodeError:
                yield changed


def unknown_method(random: Random) -> bytes:
    known = random.choice(list(METHODS))
    name = random.choice(
        [
            known + random.choice([" ", ".", "\x00", "z", "\n", "é"]),
            random.choice([" ", ".", "_"]) + known,
            known.upper(),
            "".join(chr(random.choice([*range(32, 127), 0x400, 0x1F600])) for _ in range(random.randrange(60))),
            random.choice(["__init__", "answer", "rpc.discover", "x" * random.randrange(20_000)]),
        ]
    )
    return dump({"jsonrpc": "2.0", "id": random.choice([1, "x", None, -5]), "method": name, "params": {}})


def noise(random: Random) -> bytes:
    return random.randbytes(random.randrange(1, 300))


def mutated(random: Random) -> bytes:
    """Change a request that is refused for two reasons, so that no change makes it one that is carried out."""
    line = bytearray(dump({"jsonrpc": "2.0", "id": 7, "method": "publish.no", "params": {**PUBLISH, "bogus": 1}}))
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(line))
        match random.randrange(4):
            case 0:
                line[at] = random.randrange(256)
            case 1:
                line.insert(at, random.choice(b'{}[]",:\\0e-\x00\r '))
            case 2:
                del line[at]
            case _:
                line[at] ^= 1 << random.randrange(8)
    return bytes(line)


def dump(value: Any) -> bytes:
    return json.dumps(value).encode()
