"""The list of dead letters behind a filter: asked for page by page, and kept true to what the supervisor has.

1. The newest question wins: an answer to an older one is dropped. What is no filter asks nothing, and the last good
   list stays with what is wrong beside it (`problem`).
2. A search in bodies is answered piece by piece: the list grows while it goes on, and has no total.
3. When dead letters have come or gone, what is in sight is asked for again, and the top of the list, and nothing
   else: of 100,000 rows a few hundred.
4. After every change `on_change` is called before anybody else runs, so a table never sees rows that moved.
"""

from __future__ import annotations

from collections.abc import Callable

from relay_core.client import RelayClient
from relay_core.deadletters import DeadLetterFilter
from relay_core.filter_language import FilterError, parse_filter
from relay_core.protocol import MAX_PAGE, DeadLetterSummaries
from relay_tui.views.dead_letters.rows import LetterRows, first_rows

PAGE = 100


class Listing:
    """What is held of the list, and how more of it is got."""

    def __init__(self, client: Callable[[], RelayClient], on_change: Callable[[], None]) -> None:
        self.text = ""
        """The filter that the rows are of."""
        self.problem: str | None = None
        """What is wrong with the filter that was typed last, or with asking."""
        self.rows = LetterRows()
        self.total: int | None = 0
        self.is_asking = False
        self.is_asked = False
        """Whether any answer has come yet."""
        self._client = client
        self._on_change = on_change
        self._questions = 0
        self.is_loading = False
        self.wants_all = False
        """Whether everything is to be held."""
        self._newest: str | None = None

    @property
    def newer(self) -> int:
        """How many rows have come above the one that was the first when it was last looked at."""
        return self.rows.place(self._newest) if self._newest is not None else 0

    def seen(self) -> None:
        """Take note that the top of the list has been looked at."""
        self._newest = self.rows[0].key if len(self.rows) else None

    async def ask(self, text: str) -> None:
        """Show what a filter selects; a text that is none says why, and changes nothing else."""
        self._questions += 1
        question = self._questions
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
            if question != self._questions:
                return
            self.text, self.total, self.is_asked = text, page.total, True
            self.rows = first_rows(page)
            self.seen()
            self.is_asking = self._is_short
            self._on_change()
            while self._is_short and question == self._questions:
                await self._go_on(question, PAGE)
        finally:
            if question == self._questions and self.is_asking:
                self.is_asking = False
                self._on_change()

    @property
    def _is_short(self) -> bool:
        """Whether a search in bodies has found less than a page so far."""
        return self.rows.cursor is not None and len(self.rows) < PAGE

    async def more(self) -> None:
        """Hold another page, if there is one; all of them while `wants_all`."""
        if self.is_loading or self.is_asking or self.rows.cursor is None:
            return
        question = self._questions
        self.is_loading = True
        try:
            await self._go_on(question, PAGE)
            while self.wants_all and self.rows.cursor is not None and question == self._questions:
                await self._go_on(question, MAX_PAGE)
        finally:
            self.is_loading = self.wants_all = False
            self._on_change()

    async def renew(self, at: int, reach: int, *, at_top: bool) -> None:
        """Ask again for the top of the list, and for the rows around a position; at the top only that matters."""
        question, text = self._questions, self.text
        after = self.rows.key_before(max(at - reach, 0))
        page = await self._page(text, None, PAGE)
        if question != self._questions:
            return
        if page.cursor is not None and self.rows.is_beyond(page.cursor):
            await self._fill(page, question, at_top=at_top)
            return
        self._put(page, None)
        if after is not None and page.cursor is not None and at + reach > PAGE:
            page = await self._page(text, after, 2 * reach)
            if question == self._questions:
                self._put(page, after)

    async def _fill(self, page: DeadLetterSummaries, question: int, *, at_top: bool) -> None:
        """Take in more newer rows than a page has: no row between them and those that are held may be missing."""
        if at_top and len(page.rows) >= PAGE:  # one that is short is a search in bodies, which has more to look through
            self.rows = first_rows(page)
            self.total = page.total
            self._on_change()
            return
        pages: list[tuple[DeadLetterSummaries, str | None]] = [(page, None)]
        known = self.rows
        while page.cursor is not None and known.is_beyond(page.cursor):
            after = page.cursor
            page = await self._page(self.text, after, MAX_PAGE)
            if question != self._questions:
                return
            pages.append((page, after))
        for one, begin in reversed(pages):  # from below, so that there is no gap at any time
            known.put(one, after=begin)
        self.total = page.total
        self._on_change()

    async def _go_on(self, question: int, limit: int) -> None:
        after = self.rows.cursor
        page = await self._page(self.text, after, limit)
        if question == self._questions and after == self.rows.cursor:
            self._put(page, after)

    def _put(self, page: DeadLetterSummaries, after: str | None) -> None:
        self.rows.put(page, after=after)
        self.total = page.total
        self._on_change()

    async def _page(self, text: str, cursor: str | None, limit: int) -> DeadLetterSummaries:
        meant = DeadLetterFilter(where=text) if text.strip() else None
        return await self._client().dead_letter_summaries(filter=meant, cursor=cursor, limit=limit)
