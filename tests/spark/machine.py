"""A machine without Java: the environment of a process that finds every program but that one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

SMALL = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.memory": "512m",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""Settings of a session that does next to nothing: little is compiled."""

ROOT = Path(__file__).parents[2]


def without_java(place: Path) -> dict[str, str]:
    """Return an environment in which only the wheel has a Java, with a cache and temporary files in `place`."""
    programs, cache, temporary = place / "bin", place / "cache", place / "tmp"
    for directory in (programs, cache, temporary):
        directory.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    for directory in (Path("/usr/bin"), Path("/bin"), Path("/usr/local/bin")):
        for program in directory.iterdir() if directory.is_dir() else ():
            link = programs / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("JAVA", "SPARK", "PYSPARK"))}
    return ours | {
        "PATH": str(programs),
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(temporary),
        "XDG_CACHE_HOME": str(cache),
    }


def complaints(said: str) -> list[str]:
    """Return the lines of stderr that are not the JVM's own about the flags that Spark gives to it."""
    flags = ("WARNING: package sun.security.action not in", "WARNING: Using incubator modules")
    return [line for line in said.splitlines() if not line.startswith(flags)]
