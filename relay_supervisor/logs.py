"""Logs: what relay_core says through `logging`, and the supervisor through structlog, in one stream.

1. A record is one line: for people (time, level, event, ``key=value``) or one JSON object. Only an
   exception takes more lines for people; each of those begins with a bar, so it passes for no record.
2. No text from outside can forge a line, a field or an escape sequence: control characters, line
   and direction marks are escaped, and a field never takes the place of time, level, logger or event.
3. Secrets are cut out in one place (`redaction.py`), last before the rendering, so that messages, fields,
   their names, exceptions and stacks all pass it. Those that are known (`vault.py`) are cut out of the
   finished line.
4. Logging never fails its caller. A record that cannot be rendered is told of in its place, one that
   cannot be written (closed, full, broken pipe) is dropped.
5. Handlers of others on the root logger are left alone; ours is replaced at each configuration.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, WrappedLogger

from relay_core.clock import iso
from relay_core.config import LogsConfig
from relay_supervisor.redaction import as_text, redact

QUIET = {
    "apscheduler": logging.WARNING,
    "asyncio": logging.WARNING,
    "httpcore": logging.WARNING,
    "httpx": logging.WARNING,
    "opentelemetry": logging.CRITICAL,  # telemetry.py says once what it repeats for each batch
    "urllib3": logging.WARNING,
    "watchdog": logging.WARNING,
    "watchdog.observers.inotify": logging.CRITICAL,  # an error for each watch that ends while it is being read
}
"""Loggers of libraries that say too much, and the least important lines that are heard of them."""

_OWN = ("time", "level", "logger", "event")
# What a record has by itself, or gets from somebody's formatter; the rest is what its caller added.
_RECORD_KEYS = {*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime"}


def configure_logging(config: LogsConfig, *, stream: TextIO | None = None, conceal: Callable[[str], str] = str) -> None:
    """Send every record to a stream (stderr) from now on, by this configuration; may be called again.

    Every line goes through `conceal` at last, which cuts out the secrets that somebody knows.
    """
    stream = sys.stderr if stream is None else stream
    human = config.format == "human" or (config.format == "auto" and _is_terminal(stream))
    render = _HumanLines(colours=_is_terminal(stream)) if human else _json_line
    handler = _Handler(stream, conceal)
    handler.setFormatter(
        ProcessorFormatter(
            processors=[_describe, structlog.processors.format_exc_info, _concealing(conceal), _redact_event, render],
        )
    )
    level = logging.getLevelNamesMapping()[config.level.upper()]
    handler.setLevel(level)
    root = logging.getLogger()
    root.handlers = [*(other for other in root.handlers if not isinstance(other, _Handler)), handler]
    root.setLevel(level)
    for name, least in QUIET.items():
        logging.getLogger(name).setLevel(least)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.StackInfoRenderer(),
            ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


@contextmanager
def restore() -> Iterator[None]:
    """Put logging back as it was before, whatever is configured inside."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in QUIET}
    was_configured, known = structlog.is_configured(), structlog.get_config()
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)
        for name, least in levels.items():
            logging.getLogger(name).setLevel(least)
        if was_configured:
            structlog.configure(**known)
        else:
            structlog.reset_defaults()


class _Handler(logging.Handler):
    """Write lines to a stream, and never fail."""

    def __init__(self, stream: TextIO, conceal: Callable[[str], str]) -> None:
        super().__init__()
        self._stream = stream
        self._conceal = conceal

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or drop it."""
        try:
            try:
                line = self._conceal(self.format(record))
            except Exception as error:
                problem = logging.LogRecord(record.name, logging.ERROR, "", 0, "", (), None)
                problem.msg = f"a log record could not be rendered: {type(error).__name__}"
                line = self.format(problem)
            try:
                self._stream.write(line + "\n")
            except UnicodeEncodeError:  # a terminal that knows no more than ASCII
                self._stream.write(line.encode("ascii", "backslashreplace").decode() + "\n")
            self._stream.flush()
        except Exception:
            # There is nobody left to tell: stderr itself is what failed.
            return


# From a record to a line


def _describe(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """Put a record's own fields first, where no other field can take their place."""
    record: logging.LogRecord = event.pop("_record")
    text = event.pop("event", "")
    args = event.pop("positional_args", None)  # structlog's, which nobody has put in yet
    if not event.pop("_from_structlog"):
        event.update((key, value) for key, value in vars(record).items() if key not in _RECORD_KEYS)
    own: EventDict = {
        "time": iso(int(record.created * 1000)),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": text % args if args else text,
    }
    own.update((f"{key}_" if key in _OWN else key, value) for key, value in event.items())
    return own


def _concealing(conceal: Callable[[str], str]) -> Callable[[WrappedLogger, str, EventDict], EventDict]:
    """Return what cuts out known secrets before a long text is cut short, which might leave half of one."""

    def conceal_event(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
        return {key: conceal(value) if isinstance(value, str) else value for key, value in event.items()}

    return conceal_event


def _redact_event(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    own: EventDict = {key: redact(event[key]) for key in _OWN}
    own.update(redact({key: value for key, value in event.items() if key not in _OWN}))
    return own


def _json_line(logger: WrappedLogger, name: str, event: EventDict) -> str:
    return json.dumps(event, default=as_text)  # it escapes whatever is not printable ASCII


_COLOURS = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
_RESET, _FAINT = "\x1b[0m", "\x1b[2m"
# C0, DEL and C1; marks of line ends and of direction; what has no width; halves of characters.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


class _HumanLines:
    """Render a record for people."""

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours

    def __call__(self, logger: WrappedLogger, name: str, event: EventDict) -> str:
        blocks = [str(event.pop(key)) for key in ("stack", "stack_info", "exception") if key in event]
        time, level, source, text = (_escape(as_text(event.pop(key))) for key in _OWN)
        line = f"{self._paint(_FAINT, time)} {self._paint(_COLOURS.get(level, ''), f'{level:8}')} {text}"
        for key, value in [*event.items(), ("logger", source)]:
            line += f" {self._paint(_FAINT, _escape(key) + '=')}{_human_value(value)}"
        for block in blocks:
            line += "".join(f"\n  | {_escape(each)}" for each in block.splitlines())
        return line

    def _paint(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self._colours and colour else text


def _human_value(value: Any) -> str:
    if isinstance(value, str) and value and not re.search(r"[\s=\"']", value):
        return _escape(value)
    return _escape(json.dumps(value, ensure_ascii=False, default=as_text))


def _escape(text: str) -> str:
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # none at all, or closed
        return False
