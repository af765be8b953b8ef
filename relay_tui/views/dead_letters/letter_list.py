"""The list of dead letters of a filter: loaded page by page, and kept in step with the supervisor.

1. The newest request wins: an answer to an older one is dropped. An invalid filter sends no request, and the last good
   list stays with the error beside it (`problem`).
2. A search in bodies is answered in parts: the list grows during the search and has no total.
3. When dead letters have come or gone, the visible rows and the top of the list are loaded again, and nothing else: a
   few hundred of 100,000 rows.
4. After every change `on_change` is called before any other task runs, so a table never sees rows that moved.
"""

from __future__ import annotations

from collections.abc import Callable

from relay_core.client.client import RelayClient
from relay_core.messages.dead_letter import DeadLetterFilter
from relay_core.messages.filter_language import FilterError, parse_filter
from relay_core.protocol.base import MAX_PAGE
from relay_core.protocol.deadletters import DeadLetterSummaries
from relay_tui.views.dead_letters.rows import LetterRows, first_rows

PAGE = 100


class LetterList:
    """The rows that are loaded, and the requests for more."""

    def __init__(self, client: Callable[[], RelayClient], on_change: Callable[[], None]) -> None:
        self.text = ""
        """The filter of the rows."""
        self.problem: str | None = None
        """The error of the last filter or request."""
        self.rows = LetterRows()
        self.total: int | None = 0
        self.is_asking = False
        self.is_asked = False
        """Whether any request was answered."""
        self._client = client
        self._on_change = on_change
        self._requests = 0
        self.is_loading = False
        self.wants_all = False
        """Whether all pages are to be loaded."""
        self._newest: str | None = None

    @property
    def newer(self) -> int:
        """How many rows are above the one that was first when `seen` was last called."""
        return self.rows.place(self._newest) if self._newest is not None else 0

    def seen(self) -> None:
        """Record that the operator has seen the top of the list."""
        self._newest = self.rows[0].key if len(self.rows) else None

    async def ask(self, text: str) -> None:
        """Load the letters that a filter selects; an invalid filter only sets `problem`."""
        self._requests += 1
        request = self._requests
        self.wants_all = False
        try:
            parse_filter(text)
        except FilterError as error:
            self.problem, self.is_asking = str(error), False
            self._on_change()
            return
        self.problem, self.is_asking = None, True
        try:
            page = await self._page(text, None, PAGE)
            if request != self._requests:
                return
            self.text, self.total, self.is_asked = text, page.total, True
            self.rows = first_rows(page)
            self.seen()
            self.is_asking = self._is_short
            self._on_change()
            while self._is_short and request == self._requests:
                await self._load_next(request, PAGE)
        finally:
            if request == self._requests and self.is_asking:
                self.is_asking = False
                self._on_change()

    @property
    def _is_short(self) -> bool:
        """Whether a search in bodies has found less than a page yet."""
        return self.rows.cursor is not None and len(self.rows) < PAGE

    async def more(self) -> None:
        """Load another page, if there is one; all of them while `wants_all`."""
        if self.is_loading or self.is_asking or self.rows.cursor is None:
            return
        request = self._requests
        self.is_loading = True
        try:
            await self._load_next(request, PAGE)
            while self.wants_all and self.rows.cursor is not None and request == self._requests:
                await self._load_next(request, MAX_PAGE)
        finally:
            self.is_loading = self.wants_all = False
            self._on_change()

    async def renew(self, at: int, reach: int, *, at_top: bool) -> None:
        """Load the top of the list again, and the rows around a position."""
        request, text = self._requests, self.text
        after = self.rows.key_before(max(at - reach, 0))
        page = await self._page(text, None, PAGE)
        if request != self._requests:
            return
        if page.cursor is not None and self.rows.is_beyond(page.cursor):
            await self._fill(page, request, at_top=at_top)
            return
        self._put(page, None)
        if after is not None and page.cursor is not None and at + reach > PAGE:
            page = await self._page(text, after, 2 * reach)
            if request == self._requests:
                self._put(page, after)

    async def _fill(self, page: DeadLetterSummaries, request: int, *, at_top: bool) -> None:
        """Add more newer rows than fit a page, with no gap between them and the rows that are loaded."""
        if at_top and len(page.rows) >= PAGE:  # a short page is an unfinished search in bodies
            self.rows = first_rows(page)
            self.total = page.total
            self._on_change()
            return
        pages: list[tuple[DeadLetterSummaries, str | None]] = [(page, None)]
        rows = self.rows
        while page.cursor is not None and rows.is_beyond(page.cursor):
            after = page.cursor
            page = await self._page(self.text, after, MAX_PAGE)
            if request != self._requests:
                return
            pages.append((page, after))
        for newer, after_key in reversed(pages):  # from below, so that there is never a gap
            rows.put(newer, after=after_key)
        self.total = page.total
        self._on_change()

    async def _load_next(self, request: int, limit: int) -> None:
        after = self.rows.cursor
        page = await self._page(self.text, after, limit)
        if request == self._requests and after == self.rows.cursor:
            self._put(page, after)

    def _put(self, page: DeadLetterSummaries, after: str | None) -> None:
        self.rows.put(page, after=after)
        self.total = page.total
        self._on_change()

    async def _page(self, text: str, cursor: str | None, limit: int) -> DeadLetterSummaries:
        filter = DeadLetterFilter(where=text) if text.strip() else None
        return await self._client().dead_letter_summaries(filter=filter, cursor=cursor, limit=limit)
