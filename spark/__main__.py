"""``python -m spark``, also the script for ``spark-submit``: make reports, or print which Java would be used.

1. Spark is imported only after the arguments are valid. If it is not installed, the error says how to install it.
2. Progress goes to stdout (progress.py), everything else to stderr, where the last line is the error.
3. If RELAY_PARENT_PIPE is set, the parent process holds the other end of stdin. When stdin closes, the parent is gone,
   and this process kills its process group at once, however busy the JVM is.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from datetime import date
from pathlib import Path

NO_SPARK = "Spark is not installed: run pip install 'relay-bus[spark]'"
ERROR, USAGE = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(argv)
    if os.environ.get("RELAY_PARENT_PIPE"):
        threading.Thread(target=_die_with_parent, name="parent", daemon=True).start()
    try:
        if options.command == "java":
            from spark.engine.java import describe

            print(json.dumps(describe()))  # noqa: T201
            return 0
        return _nightly(options)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j", "fsspec"):
            raise
        return _fail(NO_SPARK)


def _nightly(options: argparse.Namespace) -> int:
    from spark.days import Request
    from spark.nightly import Failed, nightly
    from spark.progress import Progress
    from spark.settings import SettingsError, read_settings

    try:
        request = Request(options.date, options.since, options.until, options.backfill, options.today)
        settings = read_settings(
            options.data_dir,
            events=options.events,
            output=options.output,
            master=options.master,
            remote=options.remote,
            conf=dict(options.conf),
        )
    except (ValueError, SettingsError) as error:
        return _fail(str(error), USAGE)
    os.umask(0o077)  # also applies to the JVM's files
    try:
        nightly(settings, request, Progress())
    except Failed as error:
        return _fail(str(error))
    return 0


def _fail(problem: str, code: int = ERROR) -> int:
    print(problem, file=sys.stderr)  # noqa: T201
    return code


def _die_with_parent() -> None:
    while os.read(0, 4096):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m spark", description="From the bus's events to a nightly report.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("java", help="print which Java would be used, as JSON")
    run = commands.add_parser(
        "nightly",
        help="ingest new events and make the reports that are out of date",
        description="Ingest new events and make every report that is missing or out of date, except today's.",
    )
    days = run.add_mutually_exclusive_group()
    days.add_argument("--date", type=_day, metavar="DAY", help="remake the report of this UTC day, such as 2026-01-31")
    days.add_argument("--since", type=_day, metavar="DAY", help="remake every report from this day on")
    days.add_argument("--backfill", action="store_true", help="remake the reports of all days that have events")
    run.add_argument("--until", type=_day, metavar="DAY", help="with --since: the last day (default: today)")
    run.add_argument("--today", action="store_true", help="also make a report of today so far")
    run.add_argument("--data-dir", type=Path, metavar="DIR", help="the data directory (default: RELAY_DATA_DIR)")
    run.add_argument("--events", metavar="URI", help="location of the event log, if not in the data directory")
    run.add_argument("--output", metavar="URI", help="location of tables and reports, if not in the data directory")
    spark = run.add_mutually_exclusive_group()
    spark.add_argument("--master", metavar="URL", help="the cluster, such as spark://host:7077 (default: this machine)")
    spark.add_argument("--remote", metavar="URL", help="a Spark Connect server, such as sc://host:15002")
    run.add_argument("--conf", type=_pair, action="append", default=[], metavar="KEY=VALUE", help="a Spark setting")
    return parser


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a day such as 2026-01-31") from None


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


if __name__ == "__main__":
    sys.exit(main())
