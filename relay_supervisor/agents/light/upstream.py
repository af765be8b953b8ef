"""The connection of a long-lived session to the supervisor, reconnected when it is lost.

1. No request is sent before the supervisor has accepted the token: until then the peer is not verified.
2. A lost connection is reopened immediately, then with growing pauses; a new request retries immediately. Requests
   without an answer are sent again in order; `Ask.times` counts how often.
3. A request fails when its time is over. While disconnected that is after `PATIENCE_SECS`, unless the connection was
   lost recently: then the supervisor is probably restarting, and the request waits longer.
4. A refused token fails every request immediately, with the supervisor's message.
5. There are no callbacks: results wait in `answers` until the loop fetches them.
6. A result that arrives after its caller has gone is not lost: see `Ask.keep`.
"""

from __future__ import annotations

from relay_supervisor.agents.light import TYPE_CHECKING
from relay_supervisor.agents.light.sync_connection import Refused, SyncConnection, Unreachable, find_token, refusal

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from relay_supervisor.agents.light.sync_connection import Address

ANSWER_SECS = 30.0
PATIENCE_SECS = 3.0
FIRST_PAUSE_SECS = 0.05
LONGEST_PAUSE_SECS = 5.0
_GROWTH = 1.5
_NO_ANSWER = "the supervisor does not answer: check it with 'relay-supervisor status'"
_BAD_RESULT = "this is not a supervisor: it sent a result that is not an object"


class Ask:
    """A request to the supervisor."""

    def __init__(self, method: str, params: dict[str, Any], secs: float | None = None) -> None:
        self.method = method
        self.params = params
        self.secs = secs
        """How long to wait for the answer, connected or not; None: the default."""
        self.times = 0
        """How often it has been sent."""
        self.until = 0.0
        self.is_wanted = True
        """True while a caller waits for the answer."""
        self.keep: Callable[[dict[str, Any]], None] | None = None
        """Takes the answer if its caller has been cancelled or has timed out."""


if TYPE_CHECKING:
    Answer = tuple[Ask, Any, Exception | None]
    """A request and its result or error."""


class Upstream:
    """Send requests to the supervisor across reconnections."""

    def __init__(
        self,
        address: Address,
        subject: str,
        token: str | None,
        monotonic: Callable[[], float],
        on_signal: Callable[[dict[str, Any]], None],
    ) -> None:
        self._address = address
        self._subject = subject
        self._token = token
        self._monotonic = monotonic
        self._on_signal = on_signal
        self.connection: SyncConnection | None = None
        self._is_accepted = False
        self._asked: dict[int, Ask] = {}
        self._queue: list[Ask] = []
        self._answers: list[Answer] = []
        self._try_at = 0.0
        self._pause = FIRST_PAUSE_SECS
        self._lost_at: float | None = None
        self._problem = _NO_ANSWER

    def ask(self, request: Ask) -> None:
        """Send a request; its result will be among the answers."""
        now = self._monotonic()
        request.until = now + self._patience(request, now)
        self._queue.append(request)
        if self.connection is None:
            self._try_at = now
        self._send()

    def answers(self) -> list[Answer]:
        """Return the results since the last call."""
        found, self._answers = self._answers, []
        wanted: list[Answer] = []
        for request, result, error in found:
            if request.is_wanted:
                request.is_wanted = False
                wanted.append((request, result, error))
            elif request.keep is not None and error is None:
                request.keep(result)
        return wanted

    def close(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def next_at(self) -> float | None:
        """Return when `tick` is due."""
        if self._answers:
            return self._monotonic()
        times = [request.until for request in (*self._queue, *self._asked.values()) if request.is_wanted]
        if self.connection is None:
            times.append(self._try_at)
        return min(times, default=None)

    def tick(self) -> None:
        """Connect if it is time, and fail requests that have timed out."""
        now = self._monotonic()
        if self.connection is None and now >= self._try_at:
            self._connect(now)
        for request in (*self._queue, *self._asked.values()):
            if request.is_wanted and now >= request.until:
                self._answers.append((request, None, Unreachable(self._problem)))
        self._queue = [request for request in self._queue if request.is_wanted and now < request.until]

    def receive(self) -> None:
        """Process the frames that have arrived."""
        try:
            for frame in self.connection.receive() if self.connection is not None else ():
                self._take(frame)
        except Unreachable as error:
            self._lose(error)

    def flush(self) -> None:
        """Send buffered data."""
        if self.connection is not None:
            self.connection.flush()

    def _patience(self, request: Ask, now: float) -> float:
        if request.secs is not None:
            return request.secs
        is_down = self.connection is None and (self._lost_at is None or now - self._lost_at > ANSWER_SECS)
        return PATIENCE_SECS if is_down else ANSWER_SECS

    def _connect(self, now: float) -> None:
        self._try_at = now + self._pause
        self._pause = min(self._pause * _GROWTH, LONGEST_PAUSE_SECS)
        try:
            token = find_token(self._address, self._subject, self._token)
        except Unreachable as error:
            self._fail_all(error)
            return
        try:
            self.connection = SyncConnection.open(
                self._address, agent=self._subject, token=token, client=f"mcp {self._subject}"
            )
            self._problem = _NO_ANSWER
        except Unreachable as error:
            self._problem = str(error)

    def _send(self) -> None:
        while self._queue and self.connection is not None and self._is_accepted:
            request = self._queue.pop(0)
            try:
                self._asked[self.connection.send(request.method, request.params)] = request
            except Refused as error:
                self._answers.append((request, None, error))
            else:
                request.times += 1

    def _take(self, frame: dict[str, Any]) -> None:
        id = frame.get("id")
        if self.connection is not None and id == self.connection.hello_id:
            self._greeted(frame)
        elif "method" in frame:
            if frame["method"] == "signal" and isinstance(frame.get("params"), dict):
                self._on_signal(frame["params"])
        elif isinstance(id, int) and (request := self._asked.pop(id, None)) is not None:
            result = frame.get("result")
            error = refusal(frame["error"]) if "error" in frame else None
            if error is not None and error.code == "stopping":
                self._queue.append(request)  # not handled: send it again when the supervisor is back
            elif error is None and not isinstance(result, dict):
                self._answers.append((request, None, Unreachable(_BAD_RESULT)))
            else:
                self._answers.append((request, result, error))

    def _greeted(self, frame: dict[str, Any]) -> None:
        if "error" in frame:
            error = refusal(frame["error"])
            self.close()
            if error.code != "stopping":
                self._fail_all(error)
            return
        self._is_accepted = True
        self._pause = FIRST_PAUSE_SECS
        self._try_at = self._monotonic() + self._pause  # do not reconnect in a tight loop if it is lost at once
        subscription = Ask("signal.subscribe", {"pattern": self._subject})
        subscription.is_wanted = False
        self._queue.insert(0, subscription)
        self._send()

    def _lose(self, error: Unreachable) -> None:
        if self._is_accepted:
            self._lost_at = self._monotonic()
        self._problem = f"{error}, and it is not back: start it with 'relay-supervisor run'"
        self.close()
        self._is_accepted = False
        self._queue = [request for request in self._asked.values() if request.is_wanted] + self._queue
        self._asked.clear()

    def _fail_all(self, error: Exception) -> None:
        self._answers += [(request, None, error) for request in self._queue]
        self._queue.clear()
        self._problem = str(error)
