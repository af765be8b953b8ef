"""How far a run has come: one line on stdout per step, for people on a terminal and as JSON for everyone else.

The supervisor reads the JSON lines while the run is under way: ``{"progress": {"stage", "detail", "done"}}``, and one
``{"result": {...}}`` at the end. Lines are never about more than one step, and `done` never falls.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import dataclass
from typing import TextIO

from pydantic import JsonValue


class Progress:
    """Tell whoever reads our stdout."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._for_people = self._out.isatty()
        self._done = 0.0
        self._lock = threading.Lock()  # tables are made in several threads

    def tell(self, stage: str, done: float, detail: str | None = None) -> None:
        """Say what is being done now, and the share of the run that lies behind it."""
        with self._lock:
            self._done = max(self._done, min(done, 1.0))
            if self._for_people:
                self._line(f"{self._done:4.0%}  {stage}{': ' + detail if detail else ''}")
            else:
                self._json("progress", {"stage": stage, "detail": detail, "done": round(self._done, 3)})

    def end(self, result: dict[str, JsonValue]) -> None:
        """Say what the run has made."""
        with self._lock:
            if self._for_people:
                self._line("\n".join(f"{name}: {_in_words(value)}" for name, value in result.items()))
            else:
                self._json("result", result)

    def _json(self, name: str, value: dict[str, JsonValue]) -> None:
        self._line(json.dumps({name: value}, ensure_ascii=False))

    def _line(self, text: str) -> None:
        print(text, file=self._out, flush=True)


@dataclass(frozen=True, slots=True)
class Part:
    """Tell how far a part of the run has come, which begins and ends at some share of the whole."""

    whole: Progress
    begin: float
    end: float
    about: str | None = None

    def tell(self, stage: str, done: float, detail: str | None = None) -> None:
        """Say what is being done now, and the share of this part that lies behind it."""
        share = self.begin + (self.end - self.begin) * done
        self.whole.tell(stage, share, " ".join(filter(None, (self.about, detail))) or None)


def _in_words(value: JsonValue) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
