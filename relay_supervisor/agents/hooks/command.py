"""``relay hook``: what an agent that has hooks runs at a session's start, at each prompt and at each stop.

1. Unread mail becomes additional context, fenced and labelled as foreign (`fence.py`), in the shape that the agent
   expects (`shapes.py`). At a stop it is the reason to go on; with nothing new a stop says nothing, so that an
   agent never loops, and neither does one that is asked again because of itself.
2. Each message is shown once in a session (`shown.py`). The session's start shows everything that is unread, also what
   an earlier session was shown. That a message was shown is noted after the text is out: a crash shows it twice rather
   than never. Where it cannot be noted, a stop shows nothing: it would show the same for ever.
3. The mere push neither acknowledges nor claims anything: the text says how to.
4. There is at most `push.MOST_CHARS` of text; the rest is counted, and comes with the next event.
5. After printing, the agent's MCP server is told by a `presence` signal what was shown, so that replies inherit the
   budget of what they answer; and at a start or a prompt that a person has spoken. A prompt that this hook has made
   itself (some agents submit the text of a stop as one) was not typed by a person and is not called so.
6. A hook never breaks a prompt. Whatever goes wrong (no supervisor, no token, garbage on stdin, an answer that takes
   longer than `LIMIT_SECS`): exit code 0, nothing on stdout, one line on stderr.
7. Nothing to say costs one round trip: hello, signal and the question which messages wait go out together. Only those
   that are new are then fetched.
"""

from __future__ import annotations

import os
import select
import time

from relay_supervisor.agents.hooks.shapes import EVENTS, PROMPT, START, STOP, Event, Unusable, answer, read_event
from relay_supervisor.agents.hooks.text import HEADING, MOST_CHARS, compose
from relay_supervisor.agents.light import TYPE_CHECKING
from relay_supervisor.agents.light.command import Misused, read_options, say
from relay_supervisor.agents.light.fence import payload_text
from relay_supervisor.agents.light.shown import MOST_IDS, Shown
from relay_supervisor.agents.light.sync_connection import Address, Refused, SyncConnection, Unreachable, find_token

if TYPE_CHECKING:
    from typing import Any

LIMIT_SECS = 2.0
"""How long everything together may take."""

_MANY = 1000
"""Ids in one answer."""
_PAGE = 10
_MOST_STDIN = 32 * 1024 * 1024


def main(args: list[str]) -> int:
    """Do what a hook does; return its exit code, which is always 0."""
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
    line = SyncConnection.open(address, agent=options.subject, token=token, client="relay hook", timeout=_left(until))
    try:
        _tell_news(line, options.subject, event, until)
    finally:
        line.close()


def _tell_news(line: SyncConnection, subject: str, event: Event, until: float) -> None:
    spoken = _signal(line, subject, event, []) if by_person(event) else None
    if not event.takes_text:
        if spoken is not None:
            line.await_answer(spoken, _left(until))
        return
    # Requests are begun in the order they are sent: the signal is out when the ids have come.
    waiting = _list_waiting(line, subject, until)
    shown = Shown(subject, event.session)
    seen = [] if event.kind == START else shown.read()
    known = set(seen)
    new = [one for one in waiting if one not in known]
    messages = _fetch(line, subject, waiting, new, until)
    if messages:
        text, pushed = compose(subject, messages, len(new))
        if event.kind == STOP:
            shown.write(seen)  # else it could not be noted afterwards either
        _print(answer(event, text))
        try:
            shown.write(seen + pushed)
        finally:
            line.await_answer(_signal(line, subject, event, pushed), _left(until))


def by_person(event: Event) -> bool:
    """Tell whether an event means that a person begins something."""
    return event.kind == START or (event.kind == PROMPT and HEADING not in event.prompt)


def _stdin(until: float) -> bytes:
    """Return what the agent says on stdin; nothing from a terminal."""
    data = bytearray()
    while not os.isatty(0) and select.select([0], [], [], _left(until) / 2)[0]:
        chunk = os.read(0, 1 << 16)
        if not chunk:
            break
        data += chunk
        if len(data) > _MOST_STDIN:
            raise Unusable(f"more than {_MOST_STDIN} bytes are on stdin")
    return bytes(data)


def _list_waiting(line: SyncConnection, subject: str, until: float) -> list[str]:
    """Return the ids of the messages that wait, as many as can be remembered."""
    found: list[str] = []
    asked: dict[str, Any] = {"subject": subject, "limit": _MANY, "timeoutMs": 1}
    while len(found) < MOST_IDS:
        page = line.ask("inbox.wait", {**asked, "after": max(found)} if found else asked, _left(until))["ids"]
        found += page
        if len(page) < _MANY:
            break
    return found


def _fetch(
    line: SyncConnection, subject: str, waiting: list[str], new: list[str], until: float
) -> list[dict[str, Any]]:
    """Return the new ones of the messages that wait, oldest first, as many as a text may have room for."""
    found: dict[str, dict[str, Any]] = {}
    room = MOST_CHARS
    while new and room > 0:
        asked: dict[str, Any] = {"subject": subject, "limit": _PAGE}
        oldest = min(new)
        before = [one for one in waiting if one < oldest]
        page = line.ask("inbox.peek", {**asked, "after": max(before)} if before else asked, _left(until))["messages"]
        fresh = {one["id"]: one for one in page if one["id"] in new}
        if not fresh:
            break  # somebody has taken them meanwhile
        found |= fresh
        room -= sum(len(payload_text(one.get("payload"))) for one in fresh.values())
        new = [one for one in new if one not in fresh]
    return list(found.values())


def _signal(line: SyncConnection, subject: str, event: Event, shown: list[str]) -> int:
    signal = {
        "type": "presence",
        "state": event.kind if by_person(event) or event.kind != PROMPT else STOP,
        "endpointSubject": subject,
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "data": {"shown": shown},
    }
    return line.send("signal.send", {"subject": subject, "signal": signal})


def _print(text: str) -> None:
    data = memoryview(text.encode(errors="replace"))
    while data:
        data = data[os.write(1, data) :]


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0.0)
