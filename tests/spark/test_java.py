from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from spark.engine import java
from spark.engine.java import VECTOR, Java, NoJavaError, cache_directory, describe, find_java
from tests.spark.machine import ROOT

SAYS = "#!/bin/sh\necho 'openjdk version \"{}\" 2025-01-01' >&2\n"
TOO_OLD = SAYS.format("1.8.0_402")
FINE = SAYS.format("21.0.4")


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o700)
    return path


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no Java but the wheel's, and a cache of our own."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)


def set_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return program(tmp_path / "jdk" / "bin" / "java", text)


def test_java_home_comes_first_then_the_path_then_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_java().source == "wheel"
    on_path = program(tmp_path / "bin" / "java", FINE)
    assert find_java() == Java(on_path, tmp_path, "21.0.4", "PATH")
    set_java_home(tmp_path, monkeypatch, SAYS.format("17"))
    assert find_java() == Java(tmp_path / "jdk" / "bin" / "java", tmp_path / "jdk", "17", "JAVA_HOME")


def test_the_home_of_a_java_on_the_path_is_the_one_it_names(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "java", FINE + f"echo '    java.home = {tmp_path}/real home' >&2\n")
    found = find_java()
    assert found.home == tmp_path / "real home"
    assert found.home_for_spark(tmp_path) == found.home  # without the shim


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TOO_OLD, "Java 1.8.0_402 is too old"),
        (SAYS.format("16.0.2"), "Java 16.0.2 is too old"),
        (f'#!/bin/sh\n[ "$1" != {VECTOR} ] || exit 1\necho \'version "11.0.1"\' >&2\n', "Java 11.0.1 is too old"),
        (f'#!/bin/sh\n[ "$1" != {VECTOR} ] || exit 1\necho \'version "25"\' >&2\n', "Java 25 does not start with"),
        ("#!/bin/sh\nexit 0\n", "it does not print its version"),
        ("#!/bin/sh\nkill -SEGV $$\n", "it does not print its version"),
        ("no program", "it cannot be run (Exec format error)"),
        ("#!/bin/sh\n/bin/sleep 1000 & wait\n", "it hangs"),
    ],
    ids=["8", "16", "without-modules", "without-the-module", "silent", "crashing", "broken", "hanging"],
)
def test_a_java_that_will_not_do_is_passed_over_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    if reason == "it hangs":
        monkeypatch.setattr(java, "_PATIENCE_SECS", 1.0)
    home = set_java_home(tmp_path, monkeypatch, text)
    program(tmp_path / "bin" / "java", FINE)
    found = find_java()
    assert found.source == "PATH"
    assert [line.startswith(f"{home}: {reason}") for line in found.passed_over] == [True], found.passed_over


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="it watches processes as Linux has them")
def test_a_wrapper_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_PATIENCE_SECS", 1.0)
    program(tmp_path / "bin" / "java", f"#!/bin/sh\n/bin/sleep 1000 &\necho $! > {tmp_path}/pid\nwait\n")
    assert find_java().source == "wheel"
    with suppress(ProcessLookupError):
        child = os.pidfd_open(int((tmp_path / "pid").read_text()))
        ready, _, _ = select.select([child], [], [], 60)
        os.close(child)
        assert ready


def test_a_java_home_without_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert describe() == {
        "java": str(find_java().java),
        "version": find_java().version,
        "from": "wheel",
        "passedOver": [f"{tmp_path}/gone/bin/java: it cannot be run (No such file or directory)"],
    }


def test_without_any_the_error_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    program(tmp_path / "bin" / "java", TOO_OLD)
    with pytest.raises(NoJavaError, match=r"too old\): run pip install 'relay-bus\[spark\]', .* or install Java 17"):
        find_java()
    assert describe()["java"] is None
    json.dumps(describe())


def wheel(tmp_path: Path) -> Java:
    """Return a runtime that prints its arguments, one a line."""
    runtime = tmp_path / "the runtime's"
    (runtime / "lib").mkdir(parents=True)
    program(runtime / "bin" / "keytool", "")
    return Java(program(runtime / "bin" / "java", '#!/bin/sh\nprintf "%s\\n" "$@"\n'), runtime, "25.0.2", "wheel")


def test_the_shim_drops_that_flag_and_nothing_else(tmp_path: Path) -> None:
    home = wheel(tmp_path).home_for_spark(tmp_path)
    kept = [
        "-cp",
        "a b:*",
        "",
        "--add-modules=java.sql",
        f"{VECTOR},java.sql",
        "$HOME `x` 'y' \"z\"",
        "-n",
        VECTOR[:-1],
    ]
    said = subprocess.run([home / "bin" / "java", *kept[:3], VECTOR, *kept[3:], VECTOR], capture_output=True, text=True)
    assert said.stdout.splitlines() == kept
    none = subprocess.run([home / "bin" / "java", VECTOR], capture_output=True, text=True)
    assert none.stdout == "\n"  # printf's, without any argument
    assert (home / "lib").resolve() == tmp_path / "the runtime's" / "lib"
    assert (home / "bin" / "keytool").exists()


def test_the_home_is_for_its_owner_and_is_made_once(tmp_path: Path) -> None:
    java = wheel(tmp_path)
    (tmp_path / "cache" / "relay" / "spark").mkdir(parents=True, mode=0o755)
    home = java.home_for_spark(tmp_path / "spare")
    assert home.parent == cache_directory() == tmp_path / "cache" / "relay" / "spark"
    assert [path.stat().st_mode & 0o777 for path in (home.parent, home, home / "bin" / "java")] == [0o700] * 3
    made = home.stat().st_ino
    assert java.home_for_spark(tmp_path / "spare").stat().st_ino == made
    assert [path.name for path in home.parent.iterdir()] == [home.name]


def test_a_broken_home_is_rebuilt(tmp_path: Path) -> None:
    java = wheel(tmp_path)
    home = java.home_for_spark(tmp_path)
    (home / "bin" / "java").unlink()
    (home.parent / ".making-killed").mkdir()  # the leftovers of a kill are ignored
    assert (java.home_for_spark(tmp_path) / "bin" / "java").exists()


def test_until_its_last_step_the_making_leaves_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(self: Path, target: Path) -> Path:
        assert list(cache.glob("java-*")) == []
        raise KeyboardInterrupt

    cache = tmp_path / "cache" / "relay" / "spark"
    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        wheel(tmp_path).home_for_spark(tmp_path)
    assert list(cache.iterdir()) == []


def test_who_comes_second_takes_the_home_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = wheel(tmp_path)
    first = ours.home_for_spark(tmp_path).stat().st_ino
    seen = iter([False])  # it was not there when the second looked
    whole = java._is_complete
    monkeypatch.setattr(java, "_is_complete", lambda home: next(seen, None) is None and whole(home))
    assert ours.home_for_spark(tmp_path).stat().st_ino == first


def test_many_processes_make_one_home(tmp_path: Path) -> None:
    make = "import pathlib; from spark.engine import java; print(java.find_java().home_for_spark(pathlib.Path('/no')))"

    def run(_: int) -> str:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.run([sys.executable, "-c", make], env=environment, capture_output=True, text=True).stdout

    with ThreadPoolExecutor(6) as pool:
        homes = set(pool.map(run, range(6)))
    assert len(homes) == 1
    home = Path(homes.pop().strip())
    assert list(home.parent.iterdir()) == [home]
    said = subprocess.run([home / "bin" / "java", VECTOR, "-version"], capture_output=True, text=True)
    assert '"25.' in said.stderr


@pytest.mark.parametrize("cache", ["file", "relative", "foreign"])
def test_without_a_cache_the_home_is_in_the_spare_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", {"file": str(tmp_path / "file"), "foreign": "/proc"}.get(cache, "cache"))
    spare = tmp_path / "spare"
    spare.mkdir()
    assert cache_directory() is None
    assert wheel(tmp_path).home_for_spark(spare).parent == spare
