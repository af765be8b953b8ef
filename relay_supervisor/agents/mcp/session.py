"""One MCP session: the client on stdin and stdout, the supervisor on its socket, and the calls between them.

1. One thread and one `select`. Calls run concurrently as generators and are answered as they end.
2. stdout carries only the protocol. It is written in pieces that a pipe takes without blocking.
3. If the client does not read, it is not read from either: unwritten output and running calls are bounded.
4. A line that is too long is refused and skipped, and a call beyond `MAX_CALLS` is refused.
5. When stdin ends, running calls have `GRACE_SECS` to end. The supervisor then dead-letters messages that are claimed
   and not acknowledged.
"""

from __future__ import annotations

import json
import os
import select
from collections import deque

from relay_supervisor.agents.light import TYPE_CHECKING
from relay_supervisor.agents.light.refusals import explain
from relay_supervisor.agents.light.sync_connection import MAX_FRAME
from relay_supervisor.agents.light.upstream import Ask, Upstream
from relay_supervisor.agents.mcp.agent import Agent, Say
from relay_supervisor.agents.mcp.protocol import INVALID_REQUEST, Id, Mcp
from relay_supervisor.agents.mcp.reading import ack, inbox, list_all
from relay_supervisor.agents.mcp.sending import ask, notify, send
from relay_supervisor.agents.mcp.tools import explain_arguments

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from relay_supervisor.agents.light.sync_connection import Address
    from relay_supervisor.agents.mcp.agent import Steps

MAX_CALLS = 32
MAX_UNWRITTEN = 1024 * 1024
PROGRESS_SECS = 3.0
GRACE_SECS = 1.0
_CHUNK = 64 * 1024
_PIECE = 4096
"""A writable pipe takes this much without blocking (the largest PIPE_BUF)."""

VERBS = {
    "relay_send": send,
    "relay_ask": ask,
    "relay_inbox": inbox,
    "relay_ack": ack,
    "relay_list": list_all,
    "relay_notify_user": notify,
}


class Call:
    """A running tool."""

    def __init__(self, id: Id, steps: Steps, progress_token: Id | None, began: float) -> None:
        self.id = id
        self.steps = steps
        self.progress_token = progress_token
        self.began = began
        self.progress_at = began + PROGRESS_SECS
        self.request: Ask | None = None
        self.is_answered = False


class Session:
    """Serve one client until it goes away."""

    def __init__(
        self,
        address: Address,
        subject: str,
        token: str | None,
        *,
        monotonic: Callable[[], float],
        now_ms: Callable[[], int],
        stdin: int = 0,
        stdout: int = 1,
    ) -> None:
        self._monotonic = monotonic
        self._stdin, self._stdout = stdin, stdout
        self._upstream = Upstream(address, subject, token, monotonic, self._take_signal)
        self._agent = Agent(subject, monotonic, now_ms)
        self._mcp = Mcp(self)
        self._calls: dict[Id, Call] = {}
        self._running: list[Call] = []
        self._partial = b""
        self._is_skipping = False
        self._out: deque[tuple[bytes, Call | None]] = deque()
        self._written = 0
        """Bytes of the first frame that are written."""
        self._unwritten = 0
        self._ends_at: float | None = None

    def run(self) -> None:
        """Serve until stdin ends; a client that has closed stdout raises `BrokenPipeError`."""
        try:
            self._upstream.tick()
            while not self._is_over():
                self._turn()
        finally:
            self._upstream.close()

    # The protocol's host

    def write(self, frame: dict[str, Any], call: Call | None = None) -> None:
        """Queue a frame; when it is written, `call` is resumed."""
        data = json.dumps(frame, separators=(",", ":")).encode() + b"\n"
        self._out.append((data, call))
        self._unwritten += len(data)

    def call(self, id: Id, name: str, arguments: Any, progress_token: Id | None) -> None:
        """Start a tool."""
        problem = explain_arguments(name, arguments)
        if problem is None and len(self._running) >= MAX_CALLS:
            problem = f"{MAX_CALLS} calls are already running: wait until some have ended"
        if problem is not None:
            self.write(self._mcp.answer(id, _result(problem, is_error=True)))
            return
        call = Call(id, VERBS[name](self._agent, arguments), progress_token, self._monotonic())
        self._calls[id] = call
        self._running.append(call)
        self._resume(call)

    def cancel(self, id: Id) -> None:
        """Cancel a running call."""
        call = self._calls.pop(id, None)
        if call is not None:
            if call.request is not None:
                call.request.is_wanted = False
            self._running.remove(call)
            call.steps.close()

    def is_under_way(self, id: Id) -> bool:
        """Return True if a call with this id is running."""
        return id in self._calls

    # The loop

    def _is_over(self) -> bool:
        if self._ends_at is None:
            return False
        return self._monotonic() >= self._ends_at or not (self._running or self._out)

    def _turn(self) -> None:
        upstream, connection = self._upstream, self._upstream.connection
        reading: list[Any] = [connection] if connection is not None else []
        writing: list[Any] = [connection] if connection is not None and connection.unsent else []
        if self._ends_at is None and self._unwritten < MAX_UNWRITTEN:
            reading.append(self._stdin)
        if self._out:
            writing.append(self._stdout)
        readable, writable, _ = select.select(reading, writing, [], self._pause())
        if self._stdout in writable:
            self._write_out()
        if self._stdin in readable:
            self._read()
        if connection is not None and connection in writable:
            upstream.flush()
        if connection is not None and connection in readable:
            upstream.receive()
        upstream.tick()
        for request, result, error in upstream.answers():
            for call in [call for call in self._running if call.request is request]:
                self._resume(call, result, error)
        self._report_progress()

    def _pause(self) -> float | None:
        times = [call.progress_at for call in self._running if call.progress_token is not None]
        times += [at for at in (self._upstream.next_at(), self._ends_at) if at is not None]
        return max(min(times) - self._monotonic(), 0) if times else None

    def _read(self) -> None:
        data = os.read(self._stdin, _CHUNK)
        if not data:
            self._ends_at = self._monotonic() + GRACE_SECS
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            if self._is_skipping:
                self._is_skipping = False
            elif len(line) > MAX_FRAME:
                self._refuse_line()
            elif line.strip():
                self._mcp.take(line)
        if len(self._partial) > MAX_FRAME:
            if not self._is_skipping:
                self._refuse_line()
            self._is_skipping = True
            self._partial = b""

    def _refuse_line(self) -> None:
        self._mcp.refuse(None, INVALID_REQUEST, f"a line has at most {MAX_FRAME} bytes")

    def _write_out(self) -> None:
        data, call = self._out[0]
        count = os.write(self._stdout, data[self._written : self._written + _PIECE])
        self._written += count
        self._unwritten -= count
        if self._written == len(data):
            self._out.popleft()
            self._written = 0
            if call is not None and call in self._running:
                self._resume(call)

    def _report_progress(self) -> None:
        now = self._monotonic()
        for call in self._running:
            if call.progress_token is None or now < call.progress_at:
                continue
            call.progress_at = now + PROGRESS_SECS
            if not call.is_answered and self._unwritten < MAX_UNWRITTEN:
                secs = round(now - call.began, 1)
                params = {
                    "progressToken": call.progress_token,
                    "progress": secs,
                    "message": f"waiting for {secs:.0f} s",
                }
                self.write({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

    def _resume(self, call: Call, result: Any = None, error: Exception | None = None) -> None:
        """Resume a call until it waits again or ends."""
        call.request = None
        try:
            step = call.steps.send(result) if error is None else call.steps.throw(error)
        except StopIteration as ended:
            self._end(call, ended.value, is_error=False)
        except Exception as failed:
            self._end(call, explain(failed), is_error=True)
        else:
            if isinstance(step, Say):
                self._answer(call, step.text, is_error=step.is_error, is_over=False)
            else:
                call.request = step
                self._upstream.ask(step)

    def _end(self, call: Call, text: str, *, is_error: bool) -> None:
        self._running.remove(call)
        if not call.is_answered:
            self._answer(call, text, is_error=is_error, is_over=True)

    def _answer(self, call: Call, text: str, *, is_error: bool, is_over: bool) -> None:
        call.is_answered = True
        self._calls.pop(call.id, None)
        frame = self._mcp.answer(call.id, _result(text, is_error=is_error))
        self.write(frame, None if is_over else call)

    def _take_signal(self, params: dict[str, Any]) -> None:
        """Process the signal of a hook of the same agent; ignore other signals."""
        signal = params.get("signal")
        if not isinstance(signal, dict) or signal.get("type") != "presence":
            return
        if params.get("subject") != self._agent.subject or signal.get("endpointSubject") != self._agent.subject:
            return
        data = signal.get("data")
        shown = data.get("shown") if isinstance(data, dict) else None
        ids = [id for id in shown if isinstance(id, str)] if isinstance(shown, list) else []
        if signal.get("state") == "prompt":
            self._agent.handled.prompted(ids)
        for id in ids:
            if signal.get("state") == "stop":
                self._agent.handled.read(id)
            else:
                self._agent.handled.see(id)


def _result(text: str, *, is_error: bool) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}
