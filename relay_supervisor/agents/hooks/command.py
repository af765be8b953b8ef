"""``relay hook``: show an agent its unread mail at session start, at each prompt and at each stop.

1. Unread mail becomes additional context, fenced and labelled as untrusted (`fence.py`), in the agent's format
   (`shapes.py`). At a stop it is the reason to continue; without new mail a stop prints nothing, so an agent never
   loops.
2. Each message is shown once per session (`shown.py`). A session's start shows all unread mail, including messages that
   an earlier session saw. A message is recorded as shown after the text is printed: a crash shows it twice rather than
   never. If it cannot be recorded, a stop shows nothing: it would show the same message forever.
3. Showing a message neither claims nor acknowledges it; the text says how to do that.
4. The text has at most `text.MAX_CHARS` characters; the remaining messages are counted and follow at the next event.
5. After printing, a `presence` signal tells the agent's MCP server which messages were shown, so that replies inherit
   their budget, and at a start or prompt that a person has spoken. A prompt that repeats this hook's own text (some
   agents submit the text of a stop as a prompt) does not count as a person's.
6. A hook never breaks a prompt. On any error (no supervisor, no token, invalid stdin, no answer within `LIMIT_SECS`) it
   exits with 0, prints nothing on stdout and one line on stderr.
7. Without new mail it needs one round trip: hello, signal and the query for waiting messages are sent together. Only
   new messages are then fetched.
"""

from __future__ import annotations

import os
import select
import time

from relay_supervisor.agents.hooks.shapes import EVENTS, PROMPT, START, STOP, Event, Unusable, answer, read_event
from relay_supervisor.agents.hooks.text import HEADING, MAX_CHARS, compose
from relay_supervisor.agents.light import TYPE_CHECKING
from relay_supervisor.agents.light.command import Misused, read_options, say
from relay_supervisor.agents.light.fence import payload_text
from relay_supervisor.agents.light.shown import MAX_IDS, Shown
from relay_supervisor.agents.light.sync_connection import Address, Refused, SyncConnection, Unreachable, find_token

if TYPE_CHECKING:
    from typing import Any

LIMIT_SECS = 2.0
"""How long a run may take."""

_PAGE_IDS = 1000
"""Ids in one response."""
_PAGE = 10
_MAX_STDIN = 32 * 1024 * 1024


def main(args: list[str]) -> int:
    """Run the hook; return its exit code, which is always 0."""
    try:
        _run(args, time.monotonic() + LIMIT_SECS)
    except (Unreachable, Refused, Unusable) as error:
        say("hook", str(error))
    except Misused as error:
        say("hook", f"{error} (see 'relay hook --help')")
    except Exception as error:  # rule 6
        say("hook", f"{type(error).__name__}: {error}")
    return 0


def _run(args: list[str], until: float) -> None:
    options = read_options(args, tuple(EVENTS))
    event = read_event(_stdin(until), options.word)
    address = Address.find(options.data_dir, options.socket)
    token = find_token(address, options.subject, options.token)
    connection = SyncConnection.open(
        address, agent=options.subject, token=token, client="relay hook", timeout=_left(until)
    )
    try:
        _show_mail(connection, options.subject, event, until)
    finally:
        connection.close()


def _show_mail(connection: SyncConnection, subject: str, event: Event, until: float) -> None:
    signal = _signal(connection, subject, event, []) if by_person(event) else None
    if not event.takes_text:
        if signal is not None:
            connection.await_answer(signal, _left(until))
        return
    # Requests are handled in order: the signal is sent when the ids arrive.
    waiting = _list_waiting(connection, subject, until)
    shown = Shown(subject, event.session)
    seen = [] if event.kind == START else shown.read()
    known = set(seen)
    new = [id for id in waiting if id not in known]
    messages = _fetch(connection, subject, waiting, new, until)
    if messages:
        text, pushed = compose(subject, messages, len(new))
        if event.kind == STOP:
            shown.write(seen)  # fails now if it would fail afterwards
        _print(answer(event, text))
        try:
            shown.write(seen + pushed)
        finally:
            connection.await_answer(_signal(connection, subject, event, pushed), _left(until))


def by_person(event: Event) -> bool:
    """Return True if an event means that a person has started something."""
    return event.kind == START or (event.kind == PROMPT and HEADING not in event.prompt)


def _stdin(until: float) -> bytes:
    """Return the agent's event from stdin; nothing from a terminal."""
    data = bytearray()
    while not os.isatty(0) and select.select([0], [], [], _left(until) / 2)[0]:
        chunk = os.read(0, 1 << 16)
        if not chunk:
            break
        data += chunk
        if len(data) > _MAX_STDIN:
            raise Unusable(f"stdin has more than {_MAX_STDIN} bytes")
    return bytes(data)


def _list_waiting(connection: SyncConnection, subject: str, until: float) -> list[str]:
    """Return the ids of the waiting messages, as many as can be remembered."""
    found: list[str] = []
    params: dict[str, Any] = {"subject": subject, "limit": _PAGE_IDS, "timeoutMs": 1}
    while len(found) < MAX_IDS:
        page = connection.ask("inbox.wait", params, _left(until))["ids"]
        found += page
        if len(page) < _PAGE_IDS:
            break
        params["after"] = max(found)
    return found


def _fetch(
    connection: SyncConnection, subject: str, waiting: list[str], new: list[str], until: float
) -> list[dict[str, Any]]:
    """Return the new messages, oldest first, as many as a text may have room for."""
    found: dict[str, dict[str, Any]] = {}
    room = MAX_CHARS
    while new and room > 0:
        oldest = min(new)
        before = [id for id in waiting if id < oldest]
        after = {"after": max(before)} if before else {}
        page = connection.ask("inbox.peek", {"subject": subject, "limit": _PAGE, **after}, _left(until))["messages"]
        fresh = {message["id"]: message for message in page if message["id"] in new}
        if not fresh:
            break  # another consumer has claimed them
        found |= fresh
        room -= sum(len(payload_text(message.get("payload"))) for message in fresh.values())
        new = [id for id in new if id not in fresh]
    return list(found.values())


def _signal(connection: SyncConnection, subject: str, event: Event, shown: list[str]) -> int:
    signal = {
        "type": "presence",
        "state": event.kind if by_person(event) or event.kind != PROMPT else STOP,
        "endpointSubject": subject,
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "data": {"shown": shown},
    }
    return connection.send("signal.send", {"subject": subject, "signal": signal})


def _print(text: str) -> None:
    data = memoryview(text.encode(errors="replace"))
    while data:
        data = data[os.write(1, data) :]


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0.0)
