"""The way to the supervisor for a session that lasts: one line, made again when it is lost.

1. Nothing is asked before the supervisor has accepted the token: a connection that it has not accepted may be
   anybody's.
2. A lost line is made again, at once and then with growing pauses; a new question makes it be tried at once. What was
   asked and not answered is asked again then, in its order. `Ask.times` tells whoever asked that this has happened.
3. A question gives up when its time is over. Without a line that is after `PATIENCE_SECS`, unless the line was lost
   not long ago: then the supervisor is probably being started again, and there is more time.
4. A token that is refused fails every question at once, in the supervisor's words.
5. Nobody is called back: what was answered waits in `answers` until the loop asks for it.
6. An answer that comes when nobody waits for it any more is not lost: see `Ask.keep`.
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
_NO_ANSWER = "the supervisor does not answer: look at it with 'relay-supervisor status'"
_NO_SENSE = "whoever answers there is no supervisor: a result is no object"


class Ask:
    """A question to the supervisor."""

    def __init__(self, method: str, params: dict[str, Any], secs: float | None = None) -> None:
        self.method = method
        self.params = params
        self.secs = secs
        """How long to wait for the answer, whether there is a line or not; None: as long as is usual."""
        self.times = 0
        """How often it has been sent."""
        self.until = 0.0
        self.is_wanted = True
        """Whether anybody still waits for the answer."""
        self.keep: Callable[[dict[str, Any]], None] | None = None
        """What to do with an answer that nobody waits for any more: the call was cancelled, or its time was over."""


if TYPE_CHECKING:
    Answer = tuple[Ask, Any, Exception | None]
    """A question, and what it came to: one of the two."""


class Upstream:
    """Ask the supervisor, through whatever becomes of the connection."""

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
        self.line: SyncConnection | None = None
        self._is_accepted = False
        self._asked: dict[int, Ask] = {}
        self._queue: list[Ask] = []
        self._answers: list[Answer] = []
        self._try_at = 0.0
        self._pause = FIRST_PAUSE_SECS
        self._lost_at: float | None = None
        self._trouble = _NO_ANSWER

    def ask(self, question: Ask) -> None:
        """Ask; what it comes to will be among the answers."""
        now = self._monotonic()
        question.until = now + self._patience(question, now)
        self._queue.append(question)
        if self.line is None:
            self._try_at = now
        self._send()

    def answers(self) -> list[Answer]:
        """Return what questions have come to since the last time."""
        found, self._answers = self._answers, []
        wanted: list[Answer] = []
        for question, result, error in found:
            if question.is_wanted:
                question.is_wanted = False
                wanted.append((question, result, error))
            elif question.keep is not None and error is None:
                question.keep(result)
        return wanted

    def close(self) -> None:
        """Close the line."""
        if self.line is not None:
            self.line.close()
            self.line = None

    def next_at(self) -> float | None:
        """Return when `tick` is due."""
        if self._answers:
            return self._monotonic()
        times = [one.until for one in (*self._queue, *self._asked.values()) if one.is_wanted]
        if self.line is None:
            times.append(self._try_at)
        return min(times, default=None)

    def tick(self) -> None:
        """Do what is due: connect, and give up."""
        now = self._monotonic()
        if self.line is None and now >= self._try_at:
            self._connect(now)
        for question in (*self._queue, *self._asked.values()):
            if question.is_wanted and now >= question.until:
                self._answers.append((question, None, Unreachable(self._trouble)))
        self._queue = [one for one in self._queue if one.is_wanted and now < one.until]

    def receive(self) -> None:
        """Take what has come."""
        try:
            for frame in self.line.receive() if self.line is not None else ():
                self._take(frame)
        except Unreachable as error:
            self._lose(error)

    def flush(self) -> None:
        """Send what waits for the supervisor to read."""
        if self.line is not None:
            self.line.flush()

    def _patience(self, question: Ask, now: float) -> float:
        if question.secs is not None:
            return question.secs
        is_down = self.line is None and (self._lost_at is None or now - self._lost_at > ANSWER_SECS)
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
            self.line = SyncConnection.open(
                self._address, agent=self._subject, token=token, client=f"mcp {self._subject}"
            )
            self._trouble = _NO_ANSWER
        except Unreachable as error:
            self._trouble = str(error)

    def _send(self) -> None:
        while self._queue and self.line is not None and self._is_accepted:
            question = self._queue.pop(0)
            try:
                self._asked[self.line.send(question.method, question.params)] = question
            except Refused as error:
                self._answers.append((question, None, error))
            else:
                question.times += 1

    def _take(self, frame: dict[str, Any]) -> None:
        id = frame.get("id")
        if self.line is not None and id == self.line.hello_id:
            self._greeted(frame)
        elif "method" in frame:
            if frame["method"] == "signal" and isinstance(frame.get("params"), dict):
                self._on_signal(frame["params"])
        elif isinstance(id, int) and (question := self._asked.pop(id, None)) is not None:
            result = frame.get("result")
            error = refusal(frame["error"]) if "error" in frame else None
            if error is not None and error.code == "stopping":
                self._queue.append(question)  # nothing was done: it is asked again when the supervisor is back
            elif error is None and not isinstance(result, dict):
                self._answers.append((question, None, Unreachable(_NO_SENSE)))
            else:
                self._answers.append((question, result, error))

    def _greeted(self, frame: dict[str, Any]) -> None:
        if "error" in frame:
            error = refusal(frame["error"])
            self.close()
            if error.code != "stopping":
                self._fail_all(error)
            return
        self._is_accepted = True
        self._pause = FIRST_PAUSE_SECS
        self._try_at = self._monotonic() + self._pause  # if it is lost before that, something is wrong with it
        listening = Ask("signal.subscribe", {"pattern": self._subject})
        listening.is_wanted = False
        self._queue.insert(0, listening)
        self._send()

    def _lose(self, error: Unreachable) -> None:
        if self._is_accepted:
            self._lost_at = self._monotonic()
        self._trouble = f"{error}, and it has not come back: start it with 'relay-supervisor run'"
        self.close()
        self._is_accepted = False
        self._queue = [one for one in self._asked.values() if one.is_wanted] + self._queue
        self._asked.clear()

    def _fail_all(self, error: Exception) -> None:
        self._answers += [(question, None, error) for question in self._queue]
        self._queue.clear()
        self._trouble = str(error)
