"""The Spark session of a run: on this machine, on a cluster, over Spark Connect, or in the JVM of `spark-submit`.

Rules:
1. Without a master, Spark runs on this machine's cores, listens only on loopback, and leaves nothing behind: scratch
   space is a private directory removed with the session (after a kill, by the next session).
2. A remote master must be able to connect back, so Spark chooses the driver's addresses; memory and partitions of the
   executors are up to the cluster.
3. With `remote`, no Java is needed here, and only settings that a session may change are sent.
4. Under `spark-submit` the JVM already exists, and its master and settings are the user's: as with `remote`.
5. The caller's settings override all of these, except that JVM options are appended.
6. The JVM ends with this process, however that ends: it reads from a pipe that the kernel then closes.

Failure cases: no Java → java.NoJavaError. A JVM that dies at start with a class-data archive is restarted without it.
"""

from __future__ import annotations

import contextlib
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
from spark.engine.lock import locked

LOOPBACK = "127.0.0.1"
_CONNECTED = "SPARK_CONNECT_MODE_ENABLED"
"""Tells pyspark's functions what to build; pyspark sets it and does not remove it."""

# Settings that a session may change, wherever it runs.
_SESSION = {
    "spark.sql.session.timeZone": "UTC",
    # Hundreds of paths are listed in the driver: a job that lists them costs more than it saves.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}

# Settings that the driver's JVM is started with, wherever the executors are.
_DRIVER = {
    # Heap 1.25 GB, and about 0.5 GB of code, classes and buffers beside it: below 2.5 GB with room for Python.
    "spark.driver.memory": "1280m",
    "spark.eventLog.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_COLLECTOR = "-XX:+UseSerialGC"  # least memory beside the heap, no extra threads
_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"  # the optimising one uses a core for most of a short run
_JVM = (
    "-XX:-UsePerfData",  # no file in /tmp for monitoring tools
    "-Xlog:disable",
    "-Xlog:all=error,cds*=off:stderr",  # its warnings would go to stdout
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
"""Errors on stderr. Spark prints a notice if the gateway's level differs from the root's, so it is set as well."""


@contextmanager
def open_session(
    name: str,
    *,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    light: bool = False,
) -> Iterator[SparkSession]:
    """Open the session, and stop it at the end.

    `light` means little to compute: code is compiled quickly instead of optimised.

    Raises:
        NoJavaError: if a local Java is needed and there is none.
    """
    overrides = dict(conf or {})
    with contextlib.ExitStack() as stack:
        if remote is not None:
            if _CONNECTED not in os.environ:
                stack.callback(os.environ.pop, _CONNECTED, None)
            session = _build(name, {"spark.remote": remote, **_SESSION, **overrides})
        elif "PYSPARK_GATEWAY_PORT" in os.environ:
            session = _build(name, {**({"spark.master": master} if master else {}), **_SESSION, **overrides})
        else:
            session = stack.enter_context(_classic(name, master or "local[*]", overrides, light))
        stack.callback(session.stop)
        yield session


@contextmanager
def _classic(name: str, master: str, overrides: Mapping[str, str], light: bool) -> Iterator[SparkSession]:
    with _scratch_in(Path(tempfile.gettempdir())) as scratch:
        java = find_java()
        spark_home = _spark_home()
        environment = {
            "JAVA_HOME": str(java.home_for_spark(scratch)),
            # For the small JVM that only prints the command line of the real one.
            "SPARK_LAUNCHER_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto",
            **({"SPARK_LOCAL_IP": LOOPBACK} if _is_here(master) else {}),
        }
        settings = {"spark.master": master, **_SESSION, **_DRIVER, **_places(master, scratch, light), **overrides}
        settings["spark.driver.extraJavaOptions"] = _jvm_options(_files_in(scratch), overrides, light)
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
    """Return where the driver listens and writes, and the number of shuffle partitions."""
    places = {"spark.local.dir": str(scratch), "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri()}
    if _is_here(master):
        places |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if master.startswith("local"):
        cores = os.cpu_count() or 1
        # Enough for each part of 20M rows to fit in memory. With few rows, Spark would coalesce them, which costs more.
        places["spark.sql.shuffle.partitions"] = str(cores if light else max(16, 4 * cores))
        places["spark.sql.adaptive.enabled"] = str(not light).lower()
        places["spark.sql.sources.ignoreDataLocality"] = "true"  # one host, and looking it up costs time per file
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


def _jvm_options(files: str, overrides: Mapping[str, str], light: bool) -> str:
    theirs = overrides.get("spark.driver.extraJavaOptions", "")
    # A JVM with two collectors configured does not start.
    collector = [] if re.search(r"-XX:\+Use\w+GC\b", theirs) else [_COLLECTOR]
    compiler = [_QUICK_COMPILER] if light else []
    return " ".join([*collector, *compiler, *_JVM, files, theirs]).strip()


def _files_in(scratch: Path) -> str:
    """Return the JVM options that configure logging and put temporary files into the scratch directory."""
    file = scratch / "log4j2.properties"
    file.write_text(_LOGGING)
    return " ".join(map(quoted, (f"-Dlog4j2.configurationFile={file.as_uri()}", f"-Djava.io.tmpdir={scratch}")))


@contextmanager
def _scratch_in(directory: Path) -> Iterator[Path]:
    """Make a private directory for the session, and remove those of killed sessions."""
    prefix = f"relay-spark-{os.getuid()}-"
    for left in directory.glob(f"{prefix}*"):
        with contextlib.suppress(OSError), locked(left):
            shutil.rmtree(left, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=directory))
    try:
        with locked(scratch):
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _set_in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables that the JVM inherits; pyspark offers no other way."""
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
