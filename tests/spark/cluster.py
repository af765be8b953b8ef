"""A standalone Spark cluster for tests: a master and one worker of the pyspark package, on loopback.

Both tell by their logs where they listen and that they know each other: nothing is asked for twice, and no port is
chosen here. Each runs in its own process group, which is killed at the end (the worker's group holds its executors).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir
from threading import Thread
from typing import IO

import pyspark

from tests.spark import machine

LOOPBACK = "127.0.0.1"
SMALL = machine.SMALL | {
    "spark.executor.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={gettempdir()}",
    "spark.executor.memory": "512m",
}

_GUARD = '"$@" </dev/null & read -r _; kill -KILL 0'
"""Runs a command, and ends it with its group when the test's process has ended, however that was."""

_LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %c{1}: %m%n
"""


@contextmanager
def local_cluster(scratch: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Start a cluster whose files lie in `scratch`, in an environment with a JAVA_HOME; return its address."""
    work = scratch / "work"
    work.mkdir()
    logging = scratch / "log4j2.properties"
    logging.write_text(_LOGGING)
    variables = {
        **environment,
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": (
            f"-XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile={logging.as_uri()} -Djava.io.tmpdir={scratch}"
        ),
        "SPARK_WORKER_DIR": str(work),
    }
    everywhere = ("--host", LOOPBACK, "--port", "0", "--webui-port", "0")
    small = ("--cores", "2", "--memory", "1g")
    with (
        _running("master.Master", everywhere, variables, r"Starting Spark master at (spark://\S+)") as master,
        _running("worker.Worker", (*everywhere, *small, master), variables, r"Successfully registered with (.*)"),
    ):
        yield master


@contextmanager
def _running(role: str, arguments: tuple[str, ...], variables: Mapping[str, str], says: str) -> Iterator[str]:
    """Run one of Spark's daemons; return what its log says once it is ready."""
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    child = subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "guard", str(program), f"org.apache.spark.deploy.{role}", *arguments],
        env=dict(variables),
        cwd=variables["SPARK_WORKER_DIR"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    rest = Thread(target=child.stdout.read)  # an unread log would block its writer
    try:
        found = _wait_for(child.stdout, says)
        rest.start()
        yield found
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        if rest.is_alive():
            rest.join()
        child.stdin.close()
        child.stdout.close()
        child.wait()


def _wait_for(log: IO[str], says: str) -> str:
    """Read a log until a line says it; the test's time limit is ours, too."""
    seen = []
    for line in log:
        seen.append(line)
        if found := re.search(says, line):
            return found[1]
    raise AssertionError(f"it ended before it said {says}:\n{''.join(seen)}")
