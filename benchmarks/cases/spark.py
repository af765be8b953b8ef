"""The nightly run as operators run it, ``python -m spark nightly`` in its own process, on generated events.

1. A large day is already ingested (Parquet by kind, and a manifest), so only tables and report are measured. DuckDB
   makes the same tables from the same files in its own process (duckdb_tables.py).
2. A night is a day of 200,000 events as the daemon writes them, from JSON to the report, alternately with one day of
   history and with ninety.
3. Memory is the peak resident memory of Python and the JVM together.
4. A first run that does not count triggers the background process that makes the class-data archive.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter, time_ns

from benchmarks.harness import Bench, Cases, Goal, Result
from benchmarks.rig.servers import memory_mb

DAY = dt.date(2026, 3, 14)
LARGE, SMALL, NIGHT = 200, 10, 2
"""Rows of the cases, as multiples of `Bench.stored`: 20M, 1M and 200,000 in a full run."""
HISTORY_DAYS = 90

_POLL_SECS = 0.1


def start(bench: Bench, name: str, *, most: float) -> Iterator[Result]:
    """Start Python and a session, and count one row."""
    script = (
        "from spark.engine.session import open_session\nwith open_session('start') as spark: spark.range(1).count()"
    )
    _run([sys.executable, "-c", script])
    _wait_for_archive()
    rounds = [_run([sys.executable, "-c", script])[0] for _ in range(bench.rounds)]
    yield Goal(name, "session", "s", "most", most).result(rounds)


def large_day(bench: Bench, name: str, *, times_duckdb: float, growth: float, memory: float) -> Iterator[Result]:
    """Make the report of a large day, and of a small one, and DuckDB the same tables."""
    small, large = (_generated(bench.fresh(), bench.stored * size) for size in (SMALL, LARGE))
    _night(small)  # does not count: the archive is made after it
    _wait_for_archive()
    ratios, growths, peaks, secs = [], [], [], []
    for _ in range(min(bench.rounds, 3)):
        base, _peak = _run([sys.executable, "-m", "benchmarks.duckdb_tables", str(large), str(DAY)])
        on_small, _peak = _night(small)
        on_large, peak = _night(large)
        ratios.append(on_large / base)
        growths.append(on_large / on_small)
        peaks.append(peak * 1024**2 / 1e9)
        secs.append(on_large)
    rows = bench.stored * LARGE
    yield Goal(name, "ratio_to_duckdb", "x", "most", times_duckdb).result(ratios, rows=rows, spark_s=median(secs))
    yield Goal(name, "growth", "x", "most", growth).result(growths, rows=[bench.stored * SMALL, rows])
    yield Goal(name, "peak_memory", "GB", "most", memory).result(peaks, rows=rows)


def night(bench: Bench, name: str, *, secs: float, history: float) -> Iterator[Result]:
    """Ingest a day and make its report, after a day of history and after ninety."""
    rows = bench.stored * NIGHT
    short, long = (_with_history(bench.fresh(), rows, days) for days in (1, HISTORY_DAYS))
    _night(short)
    _wait_for_archive()
    times, ratios = [], []
    for _ in range(min(bench.rounds, 5)):
        first, took, last = (_fresh_night(data_dir) for data_dir in (short, long, short))
        times.append(took)
        ratios.append(took / ((first + last) / 2))
    yield Goal(name, "time", "s", "most", secs).result(times, rows=rows)
    yield Goal(name, "ratio_to_no_history", "x", "most", history).result(ratios, days=HISTORY_DAYS)


def _generated(data_dir: Path, rows: int) -> Path:
    """Fill a data directory with an ingested day of events."""
    _run(
        [sys.executable, "-m", "benchmarks.rig.spark_events", str(data_dir / "reports" / "tables"), str(DAY), str(rows)]
    )
    return data_dir


def _with_history(data_dir: Path, rows: int, days: int) -> Path:
    """Fill a data directory with a day of JSON lines, and with the reports of earlier days."""
    from benchmarks.rig.spark_events import lines

    segments = data_dir / "events" / f"date={DAY}"
    segments.mkdir(parents=True, mode=0o700)
    rest = lines(rows, DAY)
    for hour in range(24):
        part = "\n".join(islice(rest, rows // 24 + 1))
        (segments / f"{hour:02d}-{hour}-1.jsonl").write_text(f"{part}\n")
    yesterday = DAY - dt.timedelta(days=1)
    before = data_dir / "events" / f"date={yesterday}"
    before.mkdir(mode=0o700)
    (before / "00-1-1.jsonl").write_text("\n".join(lines(rows // 10, yesterday, 2)) + "\n")
    _night(data_dir, yesterday)
    shutil.rmtree(before)
    reports = data_dir / "reports"
    for back in range(2, days + 1):
        day = DAY - dt.timedelta(days=back)
        shutil.copytree(reports / f"date={yesterday}", reports / f"date={day}")
        for table in ("events", "daily", "carried"):
            shutil.copytree(
                reports / "tables" / table / f"date={yesterday}", reports / "tables" / table / f"date={day}"
            )
        manifest = (reports / "tables" / "manifest" / f"date={yesterday}.json").read_text()
        (reports / "tables" / "manifest" / f"date={day}.json").write_text(manifest.replace(str(yesterday), str(day)))
    return data_dir


def _fresh_night(data_dir: Path) -> float:
    """Make the day as if for the first time; return the seconds."""
    tables = data_dir / "reports" / "tables"
    shutil.rmtree(data_dir / "reports" / f"date={DAY}", ignore_errors=True)
    for table in ("events", "daily", "carried"):
        shutil.rmtree(tables / table / f"date={DAY}", ignore_errors=True)
    (tables / "manifest" / f"date={DAY}.json").unlink(missing_ok=True)
    return _night(data_dir)[0]


def _night(data_dir: Path, day: dt.date = DAY) -> tuple[float, float]:
    keep = (dt.datetime.fromtimestamp(time_ns() / 1e9, dt.UTC).date() - DAY).days + HISTORY_DAYS + 10
    (data_dir / "config.json").write_text(f'{{"jobs": {{"metrics": {{"keepDays": {keep}}}}}}}')
    return _run([sys.executable, "-m", "spark", "nightly", "--data-dir", str(data_dir), "--date", str(day)])


def _run(command: list[str]) -> tuple[float, float]:
    """Run a command; return its seconds, and the peak resident memory of it and its children in MiB."""
    began = perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    peaks: dict[int, float] = {}
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(process.pid, peaks, over))
    watch.start()
    _, errors = process.communicate()
    took = perf_counter() - began
    over.set()
    watch.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {errors.decode(errors='replace')[-2000:]}")
    return took, sum(peaks.values())


def _watch(session: int, peaks: dict[int, float], over: threading.Event) -> None:
    while not over.wait(_POLL_SECS):
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                try:
                    if os.getsid(int(entry.name)) == session:
                        peaks[int(entry.name)] = memory_mb(entry.name, "VmHWM")
                except (OSError, KeyError):  # it has ended, or is a zombie without memory
                    continue


def _wait_for_archive() -> None:
    """Wait until no process makes a class-data archive, which would disturb the measurements."""
    while subprocess.run(["pgrep", "-f", "Xshare:dump"], stdout=subprocess.DEVNULL, check=False).returncode == 0:
        threading.Event().wait(1.0)


SPARK_CASES: Cases = {
    "spark_start": partial(start, most=4.0),
    "spark_night": partial(night, secs=20.0, history=1.1),
    "spark_day": partial(large_day, times_duckdb=4.0, growth=5.0, memory=2.5),
}
