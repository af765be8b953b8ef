"""Run the work of screens so that a failure is reported and ends nothing else.

1. A `RelayError` is the operator's to know: it is shown. Anything else is our fault: it is also logged and recorded.
2. The same fault of drawing is reported once; drawing repeats several times a second.
3. A named task does not start again while it is running, so pressing a key twice equals pressing it once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class TaskRunner:
    """Runs functions and coroutines on behalf of the dashboard."""

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None]], object], toast: Callable[[str, str], None]) -> None:
        self.faults: list[str] = []
        """Unexpected errors; tests require this list to be empty."""
        self.running: set[str] = set()
        """Names of the tasks that have not ended."""
        self._spawn = spawn
        self._toast = toast

    def attempt(self, work: Callable[[], Any], doing: str) -> Any:
        """Call a function and return its result, or None if it fails."""
        try:
            return work()
        except Exception as error:
            text = f"{doing}: {type(error).__name__}: {error}"
            if text not in self.faults:
                self._report(error, doing, text)
            return None

    def start(self, work: Coroutine[Any, Any, None], *, doing: str) -> None:
        """Run a coroutine in the background."""
        self._spawn(self._guarded(work, doing))

    def start_once(self, name: str, work: Coroutine[Any, Any, None], *, doing: str) -> None:
        """Run a coroutine in the background unless one of this name is running."""
        if name in self.running:
            work.close()
            return
        self.running.add(name)
        self.start(self._named(name, work), doing=doing)

    async def _named(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self.running.discard(name)

    async def _guarded(self, work: Coroutine[Any, Any, None], doing: str) -> None:
        from relay_core.errors import RelayError

        try:
            await work
        except RelayError as error:
            self._toast(f"{doing}: {error}", "error")
        except Exception as error:
            self._report(error, doing, f"{doing}: {type(error).__name__}: {error}")

    def _report(self, error: Exception, doing: str, text: str) -> None:
        logger.error("%s", doing, exc_info=error)
        self.faults.append(text)
        self._toast(text, "error")
