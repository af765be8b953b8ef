"""The command `relay-supervisor` looks after the daemon: status, stop, doctor, index, service."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.kit.cli import Ran, Relay, a_relay, end

MODULE = "relay_supervisor"


def supervise(relay: Relay, *args: str, code: int = 0, **environment: str) -> Ran:
    return relay.real(*args, code=code, module=MODULE, environment=environment)


def test_it_tells_its_status_and_stops(tmp_path: Path) -> None:
    with a_relay(tmp_path) as relay:
        daemon = relay.daemon
        assert f"pid {daemon.pid}" in supervise(relay, "status").out
        assert supervise(relay, "status", "--json").json["server"]["pid"] == daemon.pid
        assert supervise(relay, "status", "--json").json["journal"]["pending"] == 0
        for command in ("status", "doctor"):
            assert re.search(r"journal .*0 messages not yet files; last checkpoint", supervise(relay, command).out)
        refused = supervise(relay, "rebuild-index", code=1)
        assert f"in use by process {daemon.pid}" in refused.err
        assert supervise(relay, "stop", "--json").json == {"stopped": daemon.pid}
        assert not daemon.socket.exists()
        assert "relay-supervisor run" in supervise(relay, "stop", code=3).err
        assert "relay-supervisor run" in supervise(relay, "status", code=3).err


def test_a_supervisor_without_its_socket_is_stopped_by_its_lock(tmp_path: Path) -> None:
    with a_relay(tmp_path) as relay:
        daemon = relay.daemon
        daemon.socket.unlink()
        ran = supervise(relay, "stop")
        assert f"process {daemon.pid} has stopped" in ran.out
        assert "SIGTERM" in ran.err


def test_a_process_that_only_stands_in_an_old_lock_file_is_left_alone(data_dir: Path) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        (data_dir / "relay.lock").write_text(f"{bystander.pid}\n")
        supervise(Relay(), "stop", "--data-dir", str(data_dir), code=3)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_the_supervisor_of_another_socket_is_left_alone(tmp_path: Path) -> None:
    with a_relay(tmp_path) as relay:
        daemon = relay.daemon
        default = tmp_path / "home" / ".dork" / "relay"
        default.parent.mkdir(parents=True)
        default.symlink_to(daemon.data_dir)
        ran = supervise(Relay(HOME=str(tmp_path / "home")), "stop", "--socket", str(tmp_path / "another.sock"), code=3)
        assert "another.sock" in ran.err
        assert f"pid {daemon.pid}" in supervise(relay, "status").out


def test_a_supervisor_that_does_not_end_is_waited_for_no_longer_than_asked(tmp_path: Path) -> None:
    with a_relay(tmp_path) as relay:
        daemon = relay.daemon
        daemon.socket.unlink()
        daemon.send(signal.SIGSTOP)
        assert "is still stopping" in supervise(relay, "stop", "--timeout", "0.3", code=5).err
        daemon.send(signal.SIGCONT)


def test_the_index_is_rebuilt_while_nobody_runs(tmp_path: Path, data_dir: Path) -> None:
    with a_relay(tmp_path) as relay:
        relay.add("relay.agent.a")
        relay.publish("relay.agent.a")
        supervise(relay, "stop")
        assert "1 message waiting" in supervise(relay, "rebuild-index").out
        assert supervise(relay, "rebuild-index", "--json").json == {"mailboxes": 1, "waiting": 1, "failed": 0}
    assert "not a data directory" in supervise(Relay(), "rebuild-index", "--data-dir", str(data_dir), code=1).err


def test_doctor_says_what_is_wrong_and_exits_1(data_dir: Path) -> None:
    relay = Relay(RELAY_DATA_DIR=str(data_dir))
    (data_dir / "config.json").write_text("{")
    forms = [relay.start("doctor", *form, module=MODULE) for form in ([], ["--json"])]
    shown, document = (end(process, code=1) for process in forms)
    assert "✗ config.json" in shown.out
    checks: list[dict[str, Any]] = document.json["checks"]
    assert [check["ok"] for check in checks if check["name"] == "config.json"] == ["fail"]


def test_a_service_is_installed_and_uninstalled(tmp_path: Path, data_dir: Path) -> None:
    relay = Relay(XDG_CONFIG_HOME=str(tmp_path), HOME=str(tmp_path), RELAY_DATA_DIR=str(data_dir))
    done = supervise(relay, "install-service", "--no-sandbox")
    (unit,) = (path for path in tmp_path.rglob("*relay*supervisor*") if path.is_file())
    assert str(unit) in done.out
    assert "Next:" in done.out
    assert "PrivateUsers" not in unit.read_text()
    assert supervise(relay, "install-service", "--json").json["path"] == str(unit)
    assert supervise(relay, "uninstall-service", "--json").json["nextSteps"]
    assert not unit.exists()
    assert f"{unit} is not installed" in supervise(relay, "uninstall-service").out
    unit.write_text("mine")
    assert "was not written by install-service" in supervise(relay, "uninstall-service", code=1).err


def test_without_arguments_there_is_help() -> None:
    out = supervise(Relay()).out
    assert all(name in out for name in ("run", "stop", "doctor", "rebuild-index", "install-service"))
    assert supervise(Relay(), "later", code=2).err.startswith("relay-supervisor: ")
