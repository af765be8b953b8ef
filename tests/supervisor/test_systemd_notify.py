from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relay_supervisor.systemd_notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    if request.param == "abstract" and not Path("/proc/net/unix").exists():
        pytest.skip("this system has no abstract sockets")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify") if request.param == "path" else f"\0relay-test-{os.getpid()}")
        listening.setblocking(False)
        yield listening


def address(manager: socket.socket) -> str:
    name: str | bytes = manager.getsockname()
    return name if isinstance(name, str) else "@" + name[1:].decode()


CALLS: list[tuple[str, Callable[[Notifier], None], str]] = [
    ("ready", lambda notifier: notifier.ready("serving"), r"READY=1\nSTATUS=serving"),
    ("reloading", lambda notifier: notifier.reloading(), r"RELOADING=1\nMONOTONIC_USEC=\d+"),
    ("stopping", lambda notifier: notifier.stopping(), r"STOPPING=1\nSTATUS=stopping"),
    ("watchdog", lambda notifier: notifier.watchdog(), r"WATCHDOG=1"),
    ("status", lambda notifier: notifier.status("3 endpoints"), r"STATUS=3 endpoints"),
    ("no-lines-of-their-own", lambda notifier: notifier.status("a\nREADY=1\r\nb"), r"STATUS=a READY=1 b"),
    ("not-unicode", lambda notifier: notifier.status("a\udc80b"), r"STATUS=a\?b"),
]


@pytest.mark.parametrize(("call", "expected"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS])
def test_each_call_is_one_datagram(manager: socket.socket, call: Callable[[Notifier], None], expected: str) -> None:
    call(Notifier({"NOTIFY_SOCKET": address(manager)}))
    assert re.fullmatch(expected, manager.recv(4096).decode())
    with pytest.raises(BlockingIOError):
        manager.recv(4096)


def test_a_reload_is_dated_by_the_machines_own_clock(manager: socket.socket) -> None:
    before = time.monotonic_ns() // 1000
    Notifier({"NOTIFY_SOCKET": address(manager)}).reloading()
    dated = int(manager.recv(4096).decode().rpartition("=")[2])
    assert before <= dated <= time.monotonic_ns() // 1000


def test_it_is_the_environment_of_the_process_that_counts(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address(manager))
    Notifier().watchdog()
    assert manager.recv(4096) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    "where",
    [None, "", "relative", "/nowhere/notify", "/" + "x" * 200, "@nobody-listens-here", "vsock:2:1"],
    ids=["unset", "empty", "relative", "missing", "too-long", "unbound", "another-family"],
)
def test_a_missing_manager_is_harmless(where: str | None) -> None:
    notifier = Notifier({} if where is None else {"NOTIFY_SOCKET": where})
    for _, call, _ in CALLS:
        call(notifier)


def test_a_manager_that_does_not_read_does_not_block(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": address(manager)})
    for number in range(5000):  # far more than its queue takes
        notifier.status(f"{number} " + "x" * 1000)
    assert manager.recv(4096).startswith(b"STATUS=0 ")


PID = str(os.getpid())


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": PID}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "me"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
    ids=["for-any-process", "for-us", "for-another", "bad-pid", "zero", "no-number", "none"],
)
def test_the_watchdog_is_told_twice_as_often_as_it_asks(environ: dict[str, str], seconds: float | None) -> None:
    assert Notifier({"NOTIFY_SOCKET": "/run/notify", **environ}).watchdog_interval() == seconds


def test_without_a_socket_there_is_no_watchdog() -> None:
    assert Notifier({"WATCHDOG_USEC": "30000000"}).watchdog_interval() is None
