"""The dashboard's copy of the live state, and the state of the connection it comes from.

1. The state is never discarded: without a supervisor it stays as it was, and `connection` tells how current it is.
2. `connection` is `connecting` until the first response, `live` while the supervisor responds, `silent` while the
   socket is open without a response, `lost` after a disconnect, `absent` if there never was a connection.
3. The client reconnects, however long that takes; the store only observes.
4. An operator's action (`act`) runs on the current connection or not at all: it is neither delayed nor repeated.
5. No error here ends the dashboard: each becomes a text for the operator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from relay_tui.live.history import History

if TYPE_CHECKING:
    from relay_core.client.client import RelayClient
    from relay_core.clock import Clock
    from relay_core.protocol.live_state import LiveState
    from relay_core.protocol.serving import ServerInfo

logger = logging.getLogger(__name__)

T = TypeVar("T")

ConnectionState = Literal["connecting", "live", "silent", "lost", "absent"]

_PING_SECS = 0.5
_SILENT_SECS = 0.9
_RETRY_SECS = 1.0
_FROZEN_SECS = 5.0
"""Without an update; there is at least one a second."""
_NO_NEWS = {"full", "at"}


class Store:
    """The state of one supervisor, kept up to date by `run`."""

    def __init__(self, client: RelayClient, clock: Clock, on_change: Callable[[], None]) -> None:
        from relay_core.protocol.live_state import LiveState

        self.client = client
        self.clock = clock
        self.state: LiveState = LiveState()
        self.history = History()
        self.connection: ConnectionState = "connecting"
        self.problem: str | None = None
        """Why there is no connection."""
        self.is_refused = False
        """Whether the supervisor rejects this client, or serves another data directory."""
        self.lag_ms: float | None = None
        """The response time of the last ping."""
        self.info: ServerInfo | None = None
        self.config: dict[str, Any] = {}
        self._on_change = on_change
        self._answered = self._updated = clock.monotonic()
        self._acts: set[asyncio.Timeout] = set()
        """The running actions; rescheduling one ends it."""
        client.on_connection = self._connection_changed

    @property
    def socket(self) -> Path:
        """The supervisor's socket."""
        return self.client.path

    @property
    def is_live(self) -> bool:
        """Whether the state is current."""
        return self.connection == "live"

    @property
    def warning_at(self) -> float:
        """The pressure at which a mailbox is in warning."""
        found = self.config.get("reliability", {}).get("backpressure", {}).get("pressureWarningAt")
        return float(found) if isinstance(found, int | float) else 0.8

    def now_ms(self) -> int:
        """Return the time that ages count from; it stops with the state when the connection is not live."""
        return self.clock.now_ms() if self.is_live else self.state.at or self.clock.now_ms()

    def silent_secs(self) -> float:
        """Return the seconds since the last response."""
        return self.clock.monotonic() - self._answered

    def not_connected(self) -> str:
        """Return why an action is refused."""
        why = "the supervisor does not respond" if self.connection == "silent" else "the connection is lost"
        if self.connection in ("connecting", "absent"):
            why = "there is no connection yet" if self.connection == "connecting" else "no supervisor is running"
        return f"not connected: {why}. Nothing was done"

    async def act(self, work: Coroutine[Any, Any, T]) -> T:
        """Run an operator's action on the current connection.

        Raises:
            SupervisorUnavailable: if there is no connection; with code `outcome_unknown` if it was lost meanwhile.
            RelayError: if the supervisor refuses.
        """
        from relay_core.errors import SupervisorUnavailable

        if not self.is_live:
            work.close()
            raise SupervisorUnavailable(self.not_connected(), socket=str(self.socket), code="not_connected")
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._acts.add(limit)
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            raise SupervisorUnavailable(
                "the connection was lost before the response: check whether it was done",
                socket=str(self.socket),
                code="outcome_unknown",
            ) from None
        finally:
            self._acts.discard(limit)

    async def run(self) -> None:
        """Follow the supervisor until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forever(self._ping))
                group.create_task(self._forever(self._watch))
        finally:
            await self.client.close()

    async def _forever(self, work: Callable[[], Any]) -> None:
        from relay_core.errors import RelayError, SupervisorUnavailable

        while True:
            try:
                await work()
            except SupervisorUnavailable as error:
                self.is_refused = error.code == "other_data_dir"
                self._fail(str(error))
            except RelayError as error:
                self.is_refused = True
                self._fail(str(error))
            except Exception as error:
                logger.exception("the store failed")
                self._fail(f"{type(error).__name__}: {error}")
            await asyncio.sleep(_RETRY_SECS)

    async def _ping(self) -> None:
        """Ping for ever; the first connection is awaited only briefly, so that `absent` shows at once."""
        from relay_core.errors import SupervisorUnavailable

        if self.connection == "connecting":
            with suppress(TimeoutError):  # the ping below has its own timeout
                async with asyncio.timeout(_SILENT_SECS):
                    await self.client.__aenter__()
        while True:
            started = self.clock.monotonic()
            try:
                await self.client.call("server.ping", timeout=_SILENT_SECS)
            except SupervisorUnavailable as error:
                self._fail(str(error))
            else:
                self._answered = self.clock.monotonic()
                self.lag_ms = (self._answered - started) * 1000
                await self._load_info()
                is_frozen = self.state.at and self._answered - self._updated > _FROZEN_SECS
                self._set_connection("silent" if is_frozen else "live")
                await asyncio.sleep(_PING_SECS)

    def _fail(self, problem: str) -> None:
        self.problem = problem
        if self.client.trouble is None and not self.is_refused:
            self._set_connection("silent")  # the socket is open
        else:
            self._set_connection("lost" if self.state.at else "absent")

    async def _load_info(self) -> None:
        """Load the supervisor's info and configuration, once per connection."""
        if self.info is None:
            self.config = (await self.client.config()).config
            self.info = await self.client.info()

    async def _watch(self) -> None:
        watch = self.client.watch()
        async for state in watch:
            self._updated = self.clock.monotonic()
            self.state = state
            self.history.note(state)
            if watch.update is not None and watch.update.model_fields_set - _NO_NEWS:
                self._report_change()

    def _connection_changed(self, connected: bool) -> None:
        self.info = None
        if connected:
            return
        now = asyncio.get_running_loop().time()
        for limit in self._acts:
            if not limit.expired():
                limit.reschedule(now)
        if self.state.at:
            self._set_connection("lost")

    def _set_connection(self, connection: ConnectionState) -> None:
        if connection == "live":
            self.problem = None
            self.is_refused = False
        if connection != self.connection or connection != "live":
            self.connection = connection
            self._report_change()

    def _report_change(self) -> None:
        """Redraw; a failure to draw must not stop the updates."""
        try:
            self._on_change()
        except Exception:
            logger.exception("the state could not be drawn")
