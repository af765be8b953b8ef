"""The class-data archive: Spark's classes preprocessed for the JVM, so that a session starts sooner.

Rules:
1. A session without an archive makes its JVM record the classes it loads. When the session ends, a background process
   at the lowest priority builds the archive from that list. It runs `spark-submit` itself, so class path and flags are
   those of later sessions. No run waits for it.
2. The archive's name is a digest of its inputs: the Java (path, version, library) and Spark's jars (names, sizes,
   times). An archive that no session has used for 30 days is removed.
3. An archive appears complete (built under a temporary name, synced, renamed) or not at all. A lock allows one maker at
   a time; its holder removes the leftovers of killed makers.

Failure cases: the JVM ignores an archive that does not fit or is damaged (-Xshare:auto). If the JVM dies of it,
`open_session` removes the archive and starts again. Without a cache there is no archive.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spark.engine.java import Java
from spark.engine.lock import locked

_KEEP_SECS = 30 * 86_400

# $1 is the maker's directory, $2 the archive's path; the rest is the command that writes $1/classes.jsa.
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
    """The location of a session's archive, which may not exist yet."""

    path: Path
    recorded: Path
    """The list of loaded classes that a session without an archive writes."""

    @property
    def options(self) -> list[str]:
        """Return the JVM options that use the archive, or that record the classes for it."""
        if self.path.exists():
            return ["-Xshare:auto", f"-XX:SharedArchiveFile={self.path}"]
        return [f"-XX:DumpLoadedClassList={self.recorded}"]


def archive_for(java: Java, spark_home: Path, cache: Path, scratch: Path) -> Archive:
    """Return the archive for this Java and this Spark."""
    parts = [str(java.java), java.version, str(spark_home)]
    library = java.home / "lib" / "server" / "libjvm.so"
    for file in [library, *sorted((spark_home / "jars").glob("*.jar"))]:
        with contextlib.suppress(OSError):
            status = file.stat()
            parts.append(f"{file.name} {status.st_size} {status.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    archive = Archive(cache / f"classes-{digest}.jsa", scratch / "classes.list")
    with contextlib.suppress(OSError):
        os.utime(archive.path)  # marks it as used
    return archive


def make_archive(archive: Archive, submit: Path, conf: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Start a process that builds the archive from a session's class list and outlives this one, unless it exists.

    `conf` holds the settings that the JVM is started with, without those of the archive.
    """
    if archive.path.exists() or not archive.recorded.exists():
        return
    with contextlib.suppress(OSError, subprocess.SubprocessError), locked(archive.path.parent) as lock:
        making = Path(tempfile.mkdtemp(prefix=".archive-", dir=archive.path.parent))
        _tidy(making)
        # The JVM is still running, so the last line may be incomplete.
        whole, newline, _ = archive.recorded.read_bytes().rpartition(b"\n")
        (making / "classes.list").write_bytes(whole + newline)
        dump = [
            conf.get("spark.driver.extraJavaOptions", ""),
            "-Xshare:dump",
            quoted(f"-XX:SharedClassListFile={making / 'classes.list'}"),
            quoted(f"-XX:SharedArchiveFile={making / 'classes.jsa'}"),
        ]
        settings = {**conf, "spark.driver.extraJavaOptions": " ".join(dump)}
        flags = [argument for key, value in settings.items() for argument in ("--conf", f"{key}={value}")]
        command = [str(submit), *flags, "pyspark-shell"]
        subprocess.run(  # the shell continues in the background and keeps the lock
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
    """Quote an option in a list that Spark will split."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _tidy(making: Path) -> None:
    """Remove the leftovers of killed makers, and archives that are no longer used."""
    for left in making.parent.glob(".archive-*"):
        if left != making:
            shutil.rmtree(left, ignore_errors=True)
    now = making.stat().st_mtime
    for old in making.parent.glob("classes-*.jsa"):
        if old.stat().st_mtime < now - _KEEP_SECS:
            old.unlink(missing_ok=True)
