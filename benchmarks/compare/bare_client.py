"""A client that costs next to nothing, so that a figure shows the server: one blocking Unix socket, the same for both.

1. Requests are made before the time starts. 64 are in flight, in one of two patterns: a *window* sends as many requests
   as a read completed answers, *pipelines* send 64 when all 64 are answered. Each server is measured with both, and
   the faster counts: with syncs Redis is faster with the window, without them with pipelines (up to three times).
2. Answers are counted by their newlines on arrival and compared with the expected form after the last one.

Equal for Relay and Redis: this loop, both patterns, and the payload. Not equal: a publish to Relay carries what
`RelayClient` sends (sender and dedupe id, a new one each time: 1,186 bytes against 1,071), so that the supervisor
does all its work; its answer has some 140 bytes, that of XADD 22.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from benchmarks.compare.contestant import IN_FLIGHT

Pattern = Literal["window", "pipelines"]
_READ = 1 << 16
_ANSWER_SECS = 30.0


class BareClient:
    """A connection that sends prepared requests."""

    def __init__(self, path: Path, answer: bytes, *, lines: int) -> None:
        """Connect; `answer` is the pattern of one answer, `lines` the number of its newlines."""
        self._answers = re.compile(b"(?:%s)*" % answer)
        self._lines = lines
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_ANSWER_SECS)
        self._socket.connect(str(path))

    def __enter__(self) -> Self:
        """Return the connection."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self._socket.close()

    def exchange(self, requests: Sequence[bytes], pattern: Pattern) -> None:
        """Send all requests, 64 in flight, until all are answered.

        Raises:
            RuntimeError: if an answer is not the expected one.
            TimeoutError: if none arrives.
        """
        answers = []
        sent = lines = answered = 0
        while answered < len(requests):
            may_send = pattern == "window" or answered == sent
            if may_send and (more := requests[sent : answered + IN_FLIGHT]):
                self._socket.sendall(b"".join(more))
                sent += len(more)
            answer = self._socket.recv(_READ)
            if not answer:
                raise RuntimeError(f"the server closed the connection after {answered} answers")
            answers.append(answer)
            lines += answer.count(b"\n")
            answered = lines // self._lines
        if not self._answers.fullmatch(all_of_them := b"".join(answers)):
            raise RuntimeError(f"unexpected answers: {all_of_them[:1000]!r}")
