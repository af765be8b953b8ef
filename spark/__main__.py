"""``python -m spark``, which is also what ``spark-submit`` is given: make reports, or say which Java would be used.

1. Nothing of Spark is imported before the arguments make sense; without Spark the error says how to get it.
2. Progress goes to stdout (progress.py), everything else to stderr. The last line there says what went wrong.
3. If RELAY_PARENT_PIPE is set, whoever started us holds the other end of our stdin. When it closes, that process is
   gone, and we go at once with all that we have started, however busy the JVM is.
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
        threading.Thread(target=_go_with_parent, name="parent", daemon=True).start()
    try:
        return _java() if options.command == "java" else _nightly(options)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j", "fsspec"):
            raise
        return _say(NO_SPARK)


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
        return _say(str(error), USAGE)
    os.umask(0o077)  # what the JVM writes is for its owner, too
    try:
        nightly(settings, request, Progress())
    except Failed as error:
        return _say(str(error))
    return 0


def _java() -> int:
    from spark.engine.java import describe

    print(json.dumps(describe()))  # noqa: T201
    return 0


def _say(problem: str, code: int = ERROR) -> int:
    print(problem, file=sys.stderr)  # noqa: T201
    return code


def _go_with_parent() -> None:
    while os.read(0, 4096):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m spark", description="From the bus's events to a nightly report.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("java", help="say which Java would be used, as JSON")
    run = commands.add_parser(
        "nightly",
        help="take in new events and make the reports that are behind",
        description="Take in new events and make the report of every day that is behind; today is left to tomorrow.",
    )
    days = run.add_mutually_exclusive_group()
    days.add_argument("--date", type=_day, metavar="DAY", help="make this day's report again, such as 2026-01-31 (UTC)")
    days.add_argument("--since", type=_day, metavar="DAY", help="make every report from this day on again")
    days.add_argument("--backfill", action="store_true", help="make the reports of all days that have events again")
    run.add_argument("--until", type=_day, metavar="DAY", help="with --since: the last day (else today)")
    run.add_argument("--today", action="store_true", help="make today's report so far, too")
    run.add_argument("--data-dir", type=Path, metavar="DIR", help="the bus's directory (else RELAY_DATA_DIR)")
    run.add_argument("--events", metavar="URI", help="where the event log lies, if not in the data directory")
    run.add_argument("--output", metavar="URI", help="where tables and reports go, if not to the data directory")
    spark = run.add_mutually_exclusive_group()
    spark.add_argument("--master", metavar="URL", help="the cluster, such as spark://host:7077 (else this machine)")
    spark.add_argument("--remote", metavar="URL", help="a Spark Connect server, such as sc://host:15002")
    run.add_argument("--conf", type=_pair, action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark")
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
