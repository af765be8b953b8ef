"""The progress of a run: one line on stdout per step, as text on a terminal and otherwise as JSON.

The supervisor reads the JSON lines during the run: ``{"progress": {"stage", "detail", "done"}}``, and one
``{"result": {...}}`` at the end. `done` never decreases.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import dataclass
from typing import TextIO

from pydantic import JsonValue


class Progress:
    """Report the progress of a run on stdout."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._is_terminal = self._out.isatty()
        self._done = 0.0
        self._lock = threading.Lock()  # several threads make tables

    def report(self, stage: str, done: float, detail: str | None = None) -> None:
        """Report the current stage, and the share of the run that is done."""
        with self._lock:
            self._done = max(self._done, min(done, 1.0))
            if self._is_terminal:
                self._line(f"{self._done:4.0%}  {stage}{': ' + detail if detail else ''}")
            else:
                self._json("progress", {"stage": stage, "detail": detail, "done": round(self._done, 3)})

    def end(self, result: dict[str, JsonValue]) -> None:
        """Report the result of the run."""
        with self._lock:
            if self._is_terminal:
                self._line("\n".join(f"{name}: {_as_text(value)}" for name, value in result.items()))
            else:
                self._json("result", result)

    def _json(self, name: str, value: dict[str, JsonValue]) -> None:
        self._line(json.dumps({name: value}, ensure_ascii=False))

    def _line(self, text: str) -> None:
        print(text, file=self._out, flush=True)


@dataclass(frozen=True, slots=True)
class Part:
    """Report the progress of a part of the run, from one share of the whole to another."""

    whole: Progress
    begin: float
    end: float
    about: str | None = None

    def report(self, stage: str, done: float, detail: str | None = None) -> None:
        """Report the current stage, and the share of this part that is done."""
        share = self.begin + (self.end - self.begin) * done
        self.whole.report(stage, share, " ".join(filter(None, (self.about, detail))) or None)


def _as_text(value: JsonValue) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
