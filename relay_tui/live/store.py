"""What the dashboard knows of the bus: one connection, one live picture, and whether it can be believed.

1. The picture is never thrown away: while nobody answers it stays as it was, and `link` says how much it is worth.
2. `link` is `connecting` until the first answer, `live` while the supervisor answers, `silent` while somebody has the
   socket and does not answer, `lost` after the connection has gone, `absent` if there never was one.
3. A lost connection is made again by the client, however long that takes; the store only watches.
4. What an operator wants done (`act`) is done on the connection that is there, or not at all: it neither waits for
   another one nor is asked again on it.
5. Nothing here ends the dashboard: what goes wrong is a text for the operator.
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
_AGAIN_SECS = 1.0
_FROZEN_SECS = 5.0
"""Without an update, of which one comes every second at least."""
_NO_NEWS = {"full", "at"}


class Store:
    """The picture of one supervisor, kept up to date by `run`."""

    def __init__(self, client: RelayClient, clock: Clock, on_change: Callable[[], None]) -> None:
        from relay_core.protocol.live_state import LiveState

        self.client = client
        self.clock = clock
        self.state: LiveState = LiveState()
        self.history = History()
        self.connection: ConnectionState = "connecting"
        self.problem: str | None = None
        """Why there is no connection, in words."""
        self.is_refused = False
        """Whether somebody is there who does not want to talk, or is not the one that was meant."""
        self.lag_ms: float | None = None
        """How long the supervisor took to answer the last time."""
        self.info: ServerInfo | None = None
        self.config: dict[str, Any] = {}
        self._tell = on_change
        self._answered = self._updated = clock.monotonic()
        self._acts: set[asyncio.Timeout] = set()
        """Ends what an operator waits for, when it is rescheduled."""
        client.on_connection = self._connection

    @property
    def socket(self) -> Path:
        """Where the supervisor is, or should be."""
        return self.client.path

    @property
    def is_live(self) -> bool:
        """Whether what is shown is how things are."""
        return self.connection == "live"

    @property
    def warning_at(self) -> float:
        """The pressure from which senders are warned."""
        found = self.config.get("reliability", {}).get("backpressure", {}).get("pressureWarningAt")
        return float(found) if isinstance(found, int | float) else 0.8

    def now_ms(self) -> int:
        """Return the time that ages are counted from: it stands still with the picture once nobody answers."""
        return self.clock.now_ms() if self.is_live else self.state.at or self.clock.now_ms()

    def silent_secs(self) -> float:
        """Return for how long nobody has answered."""
        return self.clock.monotonic() - self._answered

    def not_connected(self) -> str:
        """Return why nothing can be done, in words."""
        why = "the supervisor does not answer" if self.connection == "silent" else "the connection is lost"
        if self.connection in ("connecting", "absent"):
            why = "there is no connection yet" if self.connection == "connecting" else "no supervisor is running"
        return f"not connected: {why}. Nothing was done"

    async def act(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the supervisor do something now, or not at all.

        Raises:
            SupervisorUnavailable: if there is no connection; with code `outcome_unknown` if it was lost meanwhile.
            RelayError: what the supervisor raised.
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
                "the connection was lost before the answer: look whether it was done",
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
            except Exception as error:  # whatever it is, the dashboard goes on, and says so
                logger.exception("the store failed")
                self._fail(f"{type(error).__name__}: {error}")
            await asyncio.sleep(_AGAIN_SECS)

    async def _ping(self) -> None:
        """Ask again and again whether somebody is there; the first time nobody need be waited for."""
        from relay_core.errors import SupervisorUnavailable

        if self.connection == "connecting":
            with suppress(TimeoutError):  # then it is asked for an answer, and has its time again
                async with asyncio.timeout(_SILENT_SECS):
                    await self.client.__aenter__()
        while True:
            asked = self.clock.monotonic()
            try:
                await self.client.call("server.ping", timeout=_SILENT_SECS)
            except SupervisorUnavailable as error:
                self._fail(str(error))
            else:
                self._answered = self.clock.monotonic()
                self.lag_ms = (self._answered - asked) * 1000
                await self._learn()
                stands_still = self.state.at and self._answered - self._updated > _FROZEN_SECS
                self._say("silent" if stands_still else "live")
                await asyncio.sleep(_PING_SECS)

    def _fail(self, problem: str) -> None:
        self.problem = problem
        if self.client.trouble is None and not self.is_refused:
            self._say("silent")  # somebody has the socket
        else:
            self._say("lost" if self.state.at else "absent")

    async def _learn(self) -> None:
        """Ask which supervisor this is, once for each connection."""
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
                self._on_change()

    def _connection(self, is_made: bool) -> None:
        self.info = None
        if is_made:
            return
        now = asyncio.get_running_loop().time()
        for limit in self._acts:
            if not limit.expired():
                limit.reschedule(now)
        if self.state.at:
            self._say("lost")

    def _say(self, link: ConnectionState) -> None:
        if link == "live":
            self.problem = None
            self.is_refused = False
        if link != self.connection or link != "live":
            self.connection = link
            self._on_change()

    def _on_change(self) -> None:
        """Tell whoever shows the picture; that it cannot be shown is no reason not to keep it."""
        try:
            self._tell()
        except Exception:
            logger.exception("the picture could not be shown")
