"""The class-data archive: Spark's thousands of classes as the JVM wants them, so that a session starts sooner.

Rules:
1. A session without an archive has its JVM note which classes it loads. When the session ends, a process of its own
   makes the archive from that list, at the lowest priority, with `spark-submit` itself, so that class path and flags
   are those of every later session. No run waits for it.
2. An archive is named after all it was made from: the Java (path, version, library) and Spark's jars (names, sizes,
   times). Another of any of these is another archive. One that no session has used for 30 days is removed.
3. It appears whole (made beside its place, synced, renamed) or not at all. One maker at a time: it holds a lock, and
   what an earlier one has left behind is dead.

Failure cases: an archive that does not fit or is damaged is ignored by the JVM (-Xshare:auto), which then starts as
slowly as without. If the JVM dies of it, `open_session` removes it and starts again. No cache, no archive.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark.engine.java import Java

_KEEP_SECS = 30 * 86_400

# $1 is the maker's directory, $2 the archive's place; the rest is the command that writes $1/classes.jsa.
_MAKE = """\
making=$1 place=$2
shift 2
{
  if nice -n 19 "$@" && [ -s "$making/classes.jsa" ]; then
    chmod 600 "$making/classes.jsa"
    sync "$making/classes.jsa"
    mv -f "$making/classes.jsa" "$place"
  fi
  rm -rf "$making"
} &
"""


@dataclass(frozen=True, slots=True)
class Archive:
    """Where a session's archive is, or will be."""

    path: Path
    recorded: Path
    """The list of classes that a session without an archive leaves."""

    @property
    def options(self) -> list[str]:
        """Return the JVM's options to use the archive, or to note what would be in it."""
        if self.path.exists():
            return ["-Xshare:auto", f"-XX:SharedArchiveFile={self.path}"]
        return [f"-XX:DumpLoadedClassList={self.recorded}"]


def archive_for(java: Java, spark_home: Path, cache: Path, scratch: Path) -> Archive:
    """Return the archive that fits this Java and this Spark."""
    parts = [str(java.java), java.version, str(spark_home)]
    library = java.home / "lib" / "server" / "libjvm.so"
    for file in [library, *sorted((spark_home / "jars").glob("*.jar"))]:
        with contextlib.suppress(OSError):
            seen = file.stat()
            parts.append(f"{file.name} {seen.st_size} {seen.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    archive = Archive(cache / f"classes-{digest}.jsa", scratch / "classes.list")
    with contextlib.suppress(OSError):
        os.utime(archive.path)  # it is in use
    return archive


def make_archive(archive: Archive, submit: Path, conf: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Have the archive made from what a session has left, by a process that outlives this one, unless it is there.

    `conf` holds the settings that the JVM is started with, without those of the archive.
    """
    if archive.path.exists() or not archive.recorded.exists():
        return
    with contextlib.suppress(OSError, subprocess.SubprocessError), _only_maker(archive.path.parent) as lock:
        making = Path(tempfile.mkdtemp(prefix=".archive-", dir=archive.path.parent))
        _tidy(making)
        # The JVM still runs, and the end of its list may be half a line.
        whole, newline, _ = archive.recorded.read_bytes().rpartition(b"\n")
        (making / "classes.list").write_bytes(whole + newline)
        dump = [
            conf.get("spark.driver.extraJavaOptions", ""),
            "-Xshare:dump",
            quoted(f"-XX:SharedClassListFile={making / 'classes.list'}"),
            quoted(f"-XX:SharedArchiveFile={making / 'classes.jsa'}"),
        ]
        settings = {**conf, "spark.driver.extraJavaOptions": " ".join(dump)}
        command = [str(submit), *_flags(settings.items()), "pyspark-shell"]
        subprocess.run(  # the shell goes on in the background, with the lock
            ["/bin/sh", "-c", _MAKE, "make", str(making), str(archive.path), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
            cwd="/",
            pass_fds=[lock],
            start_new_session=True,
            check=True,
        )


def quoted(option: str) -> str:
    """Quote one of several options that Spark will take apart."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _flags(settings: Iterable[tuple[str, str]]) -> Iterator[str]:
    for key, value in settings:
        yield from ("--conf", f"{key}={value}")


@contextlib.contextmanager
def _only_maker(cache: Path) -> Iterator[int]:
    """Hold the makers' lock, which a child that inherits it keeps for its life.

    Raises:
        OSError: somebody else has it.
    """
    descriptor = os.open(cache / "maker.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def _tidy(making: Path) -> None:
    """Remove what dead makers have left, and archives that are no longer used."""
    for left in making.parent.glob(".archive-*"):
        if left != making:
            shutil.rmtree(left, ignore_errors=True)
    now = making.stat().st_mtime
    for old in making.parent.glob("classes-*.jsa"):
        if old.stat().st_mtime < now - _KEEP_SECS:
            old.unlink(missing_ok=True)
