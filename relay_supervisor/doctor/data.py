"""The checks of the data directory and the socket."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from relay_core.clock import SystemClock
from relay_core.config import RelayConfig, load_config
from relay_core.errors import ConfigError, StorageError
from relay_core.storage.trusted_file import read_trusted
from relay_core.text.units import ago, plural, size
from relay_supervisor.doctor.survey import Finding, Place, is_alive, listens, shell
from relay_supervisor.server.socket_server import PATH_MAX

LONG_PENDING_MS = 10_000
"""Age of a message without a file at which something is wrong: it takes 100 ms."""

if TYPE_CHECKING:
    from relay_supervisor.adapters.file import Entry


def check_supervisor(place: Place) -> Finding:
    """Look for a running supervisor."""
    if place.holder is None:
        return "ok", "not running", None
    if listens(place.socket):
        return "ok", f"running, process {place.holder}", None
    return (
        "warn",
        f"process {place.holder} holds the data directory, but nothing answers on {place.socket}",
        f"Pass the --socket it was started with, or stop it: kill {place.holder}",
    )


def check_data_directory(place: Place) -> Finding:
    """Check the data directory itself."""
    path = place.data.path
    try:
        found = path.stat()
    except FileNotFoundError:
        return "warn", f"{path} does not exist", "Start the supervisor, which creates it: relay-supervisor run"
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        return "fail", f"{path} is not a directory", "Choose another one with --data-dir."
    if found.st_uid != os.geteuid():
        return "fail", f"{path} belongs to uid {found.st_uid}", "Choose another one with --data-dir."
    if mode & 0o700 != 0o700:
        return "fail", f"{path} is not accessible to its owner (mode {mode:04o})", f"chmod 700 {shell(path)}"
    try:
        place.data.check()
        place.data.check_contents()
    except StorageError as error:
        return "fail", error.message, "No supervisor can start until this is repaired."
    if mode & 0o077:
        return "fail", f"{path} is open to other users (mode {mode:04o})", f"chmod 700 {shell(path)}"
    return "ok", f"{path}, mode {mode:04o}", None


def check_files(place: Place) -> Finding:
    """Check the owners and the modes of the files."""
    survey, path = place.survey, shell(place.data.path)
    if survey.foreign:
        return (
            "warn",
            _count("owned by another user", survey.foreign),
            f"sudo chown -R --no-dereference {os.geteuid()} {path}",
        )
    if survey.open_to_others:
        return "warn", _count("open to other users", survey.open_to_others), f"chmod -R go-rwx {path}"
    return "ok", f"{survey.names} files and directories, all private", None


def check_socket(place: Place) -> Finding:
    """Check the socket and its directory."""
    path, length = place.socket, len(os.fsencode(place.socket))
    if length > PATH_MAX:
        return "fail", f"{path} has {length} bytes: the maximum is {PATH_MAX}", "Choose a shorter path with --socket."
    if not path.parent.exists():
        return "ok", f"{path} (created at the start)", None
    directory = path.parent.stat()
    mode, ours = stat.S_IMODE(directory.st_mode), directory.st_uid == os.geteuid()
    if not ours or mode & 0o077:
        # A sticky directory is shared on purpose, like /tmp.
        repairable = ours and not mode & stat.S_ISVTX
        repair = f"chmod 700 {shell(path.parent)}" if repairable else "Choose a private directory with --socket."
        return "fail", f"{path.parent} is not private (uid {directory.st_uid}, mode {mode:04o})", repair
    try:
        status = path.lstat()
    except FileNotFoundError:
        return "ok", f"{path} (created at the start)", None
    if not stat.S_ISSOCK(status.st_mode):
        return "fail", f"{path} is not a socket", f"mv {shell(path)} {shell(path)}.old"
    if not listens(path):
        return (
            "warn",
            f"{path} is stale: no process listens",
            "Start the supervisor, which replaces it: relay-supervisor run",
        )
    if status.st_mode & 0o077:
        return "fail", f"{path} is open to other users", f"chmod 600 {shell(path)}"
    return "ok", f"{path} answers", None


def check_lock(place: Place) -> Finding:
    """Report the holder of the lock."""
    noted = place.data.holder()
    if place.holder is not None:
        return "ok", f"held by process {place.holder}", None
    if noted is None:
        return "ok", "free", None
    return "ok", f"free (last held by process {noted}{'' if is_alive(noted) else ', which has ended'})", None


def check_config(place: Place) -> Finding:
    """Read config.json."""
    path = place.data.config
    try:
        load_config(path, RelayConfig(), read_trusted)
    except ConfigError as error:
        return "fail", error.message, f"Correct {path}; the message names the key."
    return "ok", _summary(path, "the defaults apply"), None


def check_access_rules(place: Place) -> Finding:
    """Read access-rules.json."""
    from relay_core.storage.access_file import AccessControl

    path = place.data.access_rules
    rules = AccessControl(path)
    rules.load()
    if rules.broken is not None:
        return "fail", f"{rules.broken} (everything is denied)", f"Correct {path}, or write [] to it for no rules."
    return "ok", _summary(path, "no rules", plural(len(rules.rules()), "rule")), None


def check_tokens(place: Place) -> Finding:
    """Read tokens.json."""
    from relay_supervisor.server.tokens import TOKENS_FILE, Tokens

    path = place.data.path / TOKENS_FILE
    tokens = Tokens(path, SystemClock())
    tokens.load()
    if tokens.broken is not None:
        return (
            "fail",
            f"{tokens.broken} (no token is valid)",
            f"Correct {path}, or write [] to it and create new tokens.",
        )
    return "ok", _summary(path, "no tokens", plural(len(tokens.list()), "token")), None


def check_agents(place: Place) -> Finding:
    """Read agents.json."""
    from relay_supervisor.agents.registry import AGENTS_FILE, read_agents

    path = place.data.path / AGENTS_FILE
    try:
        found = len(read_agents(path))
    except ValueError as error:
        repair = f"Correct {path} and restart, or write [] to it and add the agents again."
        return "warn", f"{error} (no agent has a description, and none can be added)", repair
    return "ok", _summary(path, "no agents", plural(found, "agent")), None


def check_adapters(place: Place) -> Finding:
    """Read adapters.json and check the configuration of built-in adapters; starts no adapter and runs no plugin."""
    from relay_supervisor.adapters.file import read_adapters

    path = place.data.adapters
    file = read_adapters(path)
    if file.problem is not None or file.entries is None:
        return (
            "fail",
            file.problem or f"{path} cannot be used",
            f"Correct {path}; running adapters keep running until then.",
        )
    bad = [f"{entry.id}: {problem}" for entry in file.entries if (problem := _find_problem(entry, path.parent))]
    if bad:
        return "warn", "; ".join(bad), f"Correct these entries in {path}; the others run without them."
    return "ok", _summary(path, "no adapters", plural(len(file.entries), "adapter")), None


def _find_problem(entry: Entry, directory: Path) -> str | None:
    from importlib.metadata import entry_points

    from relay_supervisor.adapters.loading import BUILT_IN, GROUP, prepare
    from relay_supervisor.observability.secrets import SecretRedactor

    if entry.problem is not None or not entry.enabled:
        return entry.problem
    if entry.path is not None:
        plugin = directory / entry.path
        return None if plugin.is_file() else f"the plugin {plugin} does not exist"
    if entry.type not in BUILT_IN:
        names = sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})
        return None if entry.type in names else f"unknown adapter type {entry.type}: choose one of {', '.join(names)}"
    try:
        return prepare(entry, directory, SecretRedactor()).warning
    except ConfigError as error:
        if "the environment has no" in error.message:
            return None  # the supervisor may have another environment
        return error.message


def check_journal(place: Place) -> Finding:
    """Report the journal's size, and messages that are not files yet."""
    from relay_core.journal.usage import read_usage

    if place.journal is not None:
        found = place.journal.describe(place.now_ms)
        if (place.journal.oldest_pending_ms or 0) >= LONG_PENDING_MS:
            return "warn", found, "Their files cannot be written: 'relay endpoints list' and the log say why."
        return "ok", found, None
    usage = read_usage(place.data.journal)
    found = (
        f"{size(usage.bytes)}, {size(usage.kept_bytes)} closed; last checkpoint {ago(usage.closed_ms, place.now_ms)}"
    )
    if usage.bytes and place.holder is None:
        found += "; the next start makes the files of its messages"
    return "ok", found, None


def check_index(place: Place) -> Finding:
    """Check the index, unless it is in use."""
    path = place.data.index
    if place.holder is not None:
        return "ok", "in use by the supervisor, which checks it itself", None
    if not path.exists():
        return "ok", "none yet (created at the start)", None
    try:
        result = _quick_check(path)
    except sqlite3.Error as error:
        result = str(error)
    if result != "ok":
        return "fail", f"damaged: {result.splitlines()[0]}", "relay-supervisor rebuild-index"
    return "ok", f"intact, {path.stat().st_size // 1024} KB", None


def _quick_check(path: Path) -> str:
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        # The log is part of the database, and SQLite would write files to read it: check a copy.
        with tempfile.TemporaryDirectory(prefix="relay-doctor-") as directory:
            copy = Path(directory, path.name)
            shutil.copyfile(path, copy)
            shutil.copyfile(log, copy.with_name(log.name))
            return _pragma(f"file:{quote(str(copy))}")
    return _pragma(f"file:{quote(str(path))}?immutable=1")


def _pragma(uri: str) -> str:
    with closing(sqlite3.connect(uri, uri=True)) as db:
        return str(db.execute("PRAGMA quick_check(1)").fetchone()[0])


def check_leftovers(place: Place) -> Finding:
    """Look for files of crashed writers."""
    if place.survey.leftovers:
        return "warn", _count("left by crashed writers", place.survey.leftovers), "relay jobs run retention"
    return "ok", "none", None


def _count(kind: str, paths: list[Path]) -> str:
    return f"{len(paths)} {kind}, such as {paths[0]}"


def _summary(path: Path, absent: str, present: str = "valid") -> str:
    return present if path.exists() else f"no file: {absent}"
