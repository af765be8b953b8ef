"""Logs: every record of `logging` as one line, without secrets.

1. A record is one line: for people (time, level, event, ``key=value``) or one JSON object. Only an exception takes more
   lines for people. Each of those begins with a bar, so it cannot pass for a record.
2. Untrusted text cannot forge a line, a field or an escape sequence: control characters, line and direction marks are
   escaped, and a field never replaces time, level, logger or event.
3. Secrets are redacted in one place, last before the rendering, so messages, fields, their names, exceptions and stacks
   are all covered: by their form (`redaction`), and known ones by their value (`secrets`), both before a long text
   is shortened and again in the finished line.
4. Logging never fails its caller. A record that cannot be rendered is replaced by a line that reports it; a line that
   cannot be written (closed stream, full disk, broken pipe) is dropped.
5. Other handlers on the root logger are left alone; ours is replaced at each configuration.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TextIO

from relay_core.clock import iso
from relay_core.config import LogsConfig
from relay_supervisor.observability.redaction import as_text, redact

QUIET = {
    "apscheduler": logging.WARNING,
    "asyncio": logging.WARNING,
    "opentelemetry": logging.CRITICAL,  # it repeats for each batch what telemetry logs once
    "urllib3": logging.WARNING,
    "watchdog": logging.WARNING,
    "watchdog.observers.inotify": logging.CRITICAL,  # an error for each watch that ends while it is being read
}
"""The levels of libraries that log too much."""

_OWN = ("time", "level", "logger", "event")
# Attributes of every record; the others are the caller's fields.
_RECORD_KEYS = {*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime"}

Fields = dict[str, Any]


def configure_logging(config: LogsConfig, *, stream: TextIO | None = None, redact: Callable[[str], str] = str) -> None:
    """Log to a stream (stderr) with this configuration; may be called again.

    `redact` removes the secrets of this process from a text.
    """
    stream = sys.stderr if stream is None else stream
    human = config.format == "human" or (config.format == "auto" and _is_terminal(stream))
    render = partial(_human_lines, colours=_is_terminal(stream)) if human else _json_line
    handler = _Handler(stream, _Formatter(render, redact))
    level = logging.getLevelNamesMapping()[config.level.upper()]
    handler.setLevel(level)
    root = logging.getLogger()
    root.handlers = [*(other for other in root.handlers if not isinstance(other, _Handler)), handler]
    root.setLevel(level)
    for name, minimum in QUIET.items():
        logging.getLogger(name).setLevel(minimum)


class _Handler(logging.Handler):
    """Write lines to a stream, and never fail."""

    def __init__(self, stream: TextIO, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or drop it."""
        try:
            try:
                line = self.format(record)
            except Exception as error:
                problem = f"a log record could not be rendered: {type(error).__name__}"
                line = self.format(logging.LogRecord(record.name, logging.ERROR, "", 0, problem, (), None))
            try:
                self._stream.write(line + "\n")
            except UnicodeEncodeError:  # an ASCII terminal
                self._stream.write(line.encode("ascii", "backslashreplace").decode() + "\n")
            self._stream.flush()
        except Exception:
            return  # stderr itself failed, and there is no other place to report it


class _Formatter(logging.Formatter):
    """Make a redacted line of a record."""

    def __init__(self, render: Callable[[Fields], str], redact: Callable[[str], str]) -> None:
        super().__init__()
        self._render = render
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, or the lines, of a record."""
        # Before a long text is shortened, which might leave half of a secret.
        fields = {key: self._redact(value) if isinstance(value, str) else value for key, value in self._fields(record)}
        own = {key: redact(fields.pop(key)) for key in _OWN}
        return self._redact(self._render({**own, **redact(fields)}))

    def _fields(self, record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
        """Yield the record's own fields first, and those of its caller under other names."""
        yield "time", iso(int(record.created * 1000))
        yield "level", record.levelname.lower()
        yield "logger", record.name
        yield "event", record.getMessage()
        for key, value in vars(record).items():
            if key not in _RECORD_KEYS:
                yield (f"{key}_" if key in _OWN else key), value
        if record.stack_info:
            yield "stack_info", record.stack_info
        if record.exc_info and record.exc_info[0] is not None:
            yield "exception", self.formatException(record.exc_info)


def _json_line(fields: Fields) -> str:
    return json.dumps(fields, default=as_text)  # escapes everything but printable ASCII


_COLOURS = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
_RESET, _FAINT = "\x1b[0m", "\x1b[2m"
# C0, DEL and C1; line and direction marks; zero-width characters; surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def _human_lines(fields: Fields, *, colours: bool) -> str:
    def paint(colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if colours and colour else text

    blocks = [str(fields.pop(key)) for key in ("stack_info", "exception") if key in fields]
    time, level, source, text = (_escape(as_text(fields.pop(key))) for key in _OWN)
    line = f"{paint(_FAINT, time)} {paint(_COLOURS.get(level, ''), f'{level:8}')} {text}"
    for key, value in [*fields.items(), ("logger", source)]:
        line += f" {paint(_FAINT, _escape(key) + '=')}{_human_value(value)}"
    for block in blocks:
        line += "".join(f"\n  | {_escape(part)}" for part in block.splitlines())
    return line


def _human_value(value: Any) -> str:
    if isinstance(value, str) and value and not re.search(r"[\s=\"']", value):
        return _escape(value)
    return _escape(json.dumps(value, ensure_ascii=False, default=as_text))


def _escape(text: str) -> str:
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # no stream, or a closed one
        return False
