"""The Spark session of a run: on this machine, on a cluster, over Spark Connect, or in the JVM of `spark-submit`.

Rules:
1. Without a master, Spark runs in this machine's cores, listens on loopback alone, and leaves nothing behind: scratch
   space is a private directory that goes with the session (one that a kill has left goes with the next session).
2. A master elsewhere must be able to call back, so then the driver's addresses are Spark's choice; memory and
   partitions of the executors are the cluster's.
3. With `remote`, no Java is needed here. Only settings that a session may change are sent.
4. Under `spark-submit` the JVM is there already, and its master and settings are the user's: as with `remote`.
5. What the caller sets wins over all of this, except that JVM options are added to ours.
6. The JVM ends with this process, however that ends: it reads our end of a pipe, which the kernel closes.

Failure cases: no Java → java.NoJavaError. A JVM that dies at once with a class-data archive is started again without.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from spark.engine.class_archive import Archive, archive_for, make_archive, quoted
from spark.engine.java import cache_directory, find_java

LOOPBACK = "127.0.0.1"
_CONNECTED = "SPARK_CONNECT_MODE_ENABLED"
"""The mark by which pyspark's functions know what to build; it sets it, and leaves it."""

# What a session may change, wherever it runs.
_SESSION = {
    "spark.sql.session.timeZone": "UTC",
    # Hundreds of paths are listed here: a job that lists them costs more than it saves.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}

# What the driver's JVM is started with, wherever the executors are.
_DRIVER = {
    # Heap 1.25 GB, and about 0.5 GB of code, classes and buffers beside it: below 2.5 GB with room for Python.
    "spark.driver.memory": "1280m",
    "spark.eventLog.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_COLLECTOR = "-XX:+UseSerialGC"  # the least memory beside the heap, and no threads that two cores do not have
_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"  # the good one takes a core for most of a short run, and gains little
_JVM = (
    "-XX:-UsePerfData",  # no file in /tmp for tools that watch
    "-Xlog:disable",
    "-Xlog:all=error,cds*=off:stderr",  # its warnings would go to stdout; those about the archive are for nobody
)

_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""
"""Errors on stderr; Spark takes the gateway's level for that of a shell, and tells when it differs from the root's."""


@contextmanager
def open_session(
    name: str,
    *,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    light: bool = False,
) -> Iterator[SparkSession]:
    """Open the session, and stop it.

    `light` says that there is little to compute: then code is compiled quickly rather than well.

    Raises:
        NoJavaError: it needs a Java here, and there is none.
    """
    given = dict(conf or {})
    with contextlib.ExitStack() as stack:
        if remote is not None:
            if _CONNECTED not in os.environ:
                stack.callback(os.environ.pop, _CONNECTED, None)
            session = _build(name, {"spark.remote": remote, **_SESSION, **given})
        elif "PYSPARK_GATEWAY_PORT" in os.environ:
            session = _build(name, {**({"spark.master": master} if master else {}), **_SESSION, **given})
        else:
            session = stack.enter_context(_classic(name, master or "local[*]", given, light))
        stack.callback(session.stop)
        yield session


@contextmanager
def _classic(name: str, master: str, given: Mapping[str, str], light: bool) -> Iterator[SparkSession]:
    with _scratch_in(Path(tempfile.gettempdir())) as scratch:
        java = find_java()
        spark_home = _spark_home()
        environment = {
            "JAVA_HOME": str(java.home_for_spark(scratch)),
            # Of the small JVM that only puts the command of the real one together.
            "SPARK_LAUNCHER_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto",
            **({"SPARK_LOCAL_IP": LOOPBACK} if _is_here(master) else {}),
        }
        settings = {"spark.master": master, **_SESSION, **_DRIVER, **_places(master, scratch, light), **given}
        settings["spark.driver.extraJavaOptions"] = _jvm_options(_files_in(scratch), given, light)
        cache = cache_directory()
        archive = archive_for(java, spark_home, cache, scratch) if cache else None
        with _set_in_environment(environment):
            session = _launch(name, settings, archive)
        yield session
        if archive is not None:
            at_start = {key: settings[key] for key in ("spark.driver.extraJavaOptions", "spark.driver.memory")}
            make_archive(archive, spark_home / "bin" / "spark-submit", at_start, environment)


def _spark_home() -> Path:
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def _places(master: str, scratch: Path, light: bool) -> dict[str, str]:
    """Return where the driver listens and writes, and how many parts a shuffle has."""
    places = {"spark.local.dir": str(scratch), "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri()}
    if _is_here(master):
        places |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if master.startswith("local"):
        cores = os.cpu_count() or 1
        # Enough parts that each of 20M rows fits in memory; of few rows Spark would join them again, which costs more.
        places["spark.sql.shuffle.partitions"] = str(cores if light else max(16, 4 * cores))
        places["spark.sql.adaptive.enabled"] = str(not light).lower()
        places["spark.sql.sources.ignoreDataLocality"] = "true"  # there is one place, and asking costs per file
    return places


def _is_here(master: str) -> bool:
    if not master.startswith("spark://"):
        return master.startswith("local")
    hosts = {urlsplit(f"//{each}").hostname for each in master.removeprefix("spark://").split(",")}
    return hosts <= {LOOPBACK, "localhost"}


def _launch(name: str, settings: dict[str, str], archive: Archive | None) -> SparkSession:
    if archive is None:
        return _build(name, settings)
    options = settings["spark.driver.extraJavaOptions"]
    used = archive.path.exists()
    with_archive = " ".join([*map(quoted, archive.options), options])
    try:
        return _build(name, {**settings, "spark.driver.extraJavaOptions": with_archive})
    except PySparkRuntimeError as error:
        if not used or error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        archive.path.unlink(missing_ok=True)
        return _build(name, settings)


def _build(name: str, settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _jvm_options(files: str, given: Mapping[str, str], light: bool) -> str:
    theirs = given.get("spark.driver.extraJavaOptions", "")
    # A JVM that is told of two collectors does not start.
    collector = [] if re.search(r"-XX:\+Use\w+GC\b", theirs) else [_COLLECTOR]
    compiler = [_QUICK_COMPILER] if light else []
    return " ".join([*collector, *compiler, *_JVM, files, theirs]).strip()


def _files_in(scratch: Path) -> str:
    """Return the options that have the JVM log as we say, and unpack its libraries where they go with the session."""
    file = scratch / "log4j2.properties"
    file.write_text(_LOGGING)
    return " ".join(map(quoted, (f"-Dlog4j2.configurationFile={file.as_uri()}", f"-Djava.io.tmpdir={scratch}")))


@contextmanager
def _scratch_in(directory: Path) -> Iterator[Path]:
    """Make a private directory that goes with the session, and remove those whose session was killed."""
    prefix = f"relay-spark-{os.getuid()}-"
    for left in directory.glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=directory))
    try:
        with _locked(scratch):
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold a directory's lock, which ends with the process.

    Raises:
        OSError: another process has it, or it is not ours.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _set_in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set what the JVM inherits; pyspark can be told in no other way."""
    before = {key: os.environ.get(key) for key in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
