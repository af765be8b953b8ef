"""The message list of the traces screen: the search, its results, and the requests that keep them up to date.

Requests are paced: the next starts `_AGAIN_SECS` after an answer at the earliest, and later the longer the answer took.
An error is shown above the list; the rows stay.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from relay_core.errors import RelayError
from relay_core.messages.delivery import TracePage
from relay_tui.shell.view import View
from relay_tui.views.traces.query import TraceQuery, parse_query
from relay_tui.views.traces.trace_list import TraceList

_PAGE = 100
_AGAIN_SECS = 1.5
_SHARE = 30.0
"""The pause before the next request, as a multiple of the time the last one took."""


class TraceFeed:
    """The search and its results, for one view."""

    def __init__(self, view: View) -> None:
        self.list = TraceList(TraceQuery())
        self.text = ""
        """The search as it was typed."""
        self.problem: str | None = None
        """The error of the last request."""
        self._view = view
        self._running: set[str] = set()
        self._due = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time to refresh."""
        store = self._view.store
        return store.is_live and store.clock.monotonic() >= self._due

    @property
    def is_loading_more(self) -> bool:
        """Whether an older page is being loaded."""
        return "more" in self._running

    def search(self, text: str) -> None:
        """Start a new search.

        Raises:
            FilterError: if the text is not a valid search; nothing changes then.
        """
        self.list = TraceList(parse_query(text))
        self.text = " ".join(text.split())
        self.problem = None
        self._running.discard("refresh")  # the running refresh belongs to the previous search
        self.refresh_soon()

    def refresh_soon(self) -> None:
        """Refresh at the next draw."""
        self._due = 0.0

    def refresh(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a refresh unless one is running."""
        self._request("refresh", work)

    async def load_newest(self, *, following: bool) -> bool:
        """Update the list from the newest page; return True if its rows were replaced."""
        results = self.list
        page = await self._page(results, None)
        if results is not self.list:
            return False
        is_first = not results.is_begun
        if not following and not is_first:
            results.stand_still(page)
            return False
        results.follow(page)
        if is_first and not page.complete:
            self.load_more()
        return True

    def load_more(self) -> None:
        """Load the next page, however far back the supervisor has to search for it."""
        if self.list.cursor is not None and self._view.store.is_live:
            self._request("more", self._load_more(self.list))

    async def _load_more(self, results: TraceList) -> None:
        added = 0
        while results is self.list and results.cursor is not None and added < _PAGE:
            added += results.extend(await self._page(results, results.cursor))
            self._view.draw()

    async def _page(self, results: TraceList, cursor: str | None) -> TracePage:
        request = results.query.request(self._view.store.clock.now_ms(), cursor, _PAGE)
        return await self._view.client.search_traces(request)

    def _request(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        if name in self._running:
            work.close()
            return
        self._running.add(name)
        self._view.start(self._paced(name, work), doing="loading traces")

    async def _paced(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        clock = self._view.store.clock
        started = clock.monotonic()
        try:
            await work
            self.problem = None
        except RelayError as error:
            self.problem = str(error)
        finally:
            self._running.discard(name)
            now = clock.monotonic()
            self._due = now + max(_AGAIN_SECS, (now - started) * _SHARE)
        self._view.dashboard.draw()
