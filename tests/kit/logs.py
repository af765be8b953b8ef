"""Undo a configuration of logging."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from relay_supervisor.observability.logs import QUIET


@contextmanager
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in QUIET}
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)
        for name, minimum in levels.items():
            logging.getLogger(name).setLevel(minimum)
