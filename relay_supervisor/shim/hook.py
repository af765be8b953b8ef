"""``relay hook``: what an agent that has hooks runs at a session's start, at each prompt and at each stop.

1. Unread mail becomes additional context, fenced and labelled as foreign (`fence.py`), in the shape that the agent
   expects (`hook_shapes.py`). At a stop it is the reason to go on; with nothing new a stop says nothing, so that an
   agent never loops, and neither does one that is asked again because of itself.
2. Each message is shown once in a session (`shown.py`). The session's start shows everything that is unread, also what
   an earlier session was shown. That a message was shown is noted after the text is out: a crash shows it twice rather
   than never.
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
import sys
import time

from relay_supervisor.shim import TYPE_CHECKING
from relay_supervisor.shim.fence import payload_text
from relay_supervisor.shim.hook_shapes import EVENTS, PROMPT, START, STOP, Event, Unusable, answer, read_event
from relay_supervisor.shim.line import Address, Line, Refused, Unreachable, find_token
from relay_supervisor.shim.push import HEADING, MOST_CHARS, compose
from relay_supervisor.shim.shown import Shown

if TYPE_CHECKING:
    from typing import Any

LIMIT_SECS = 2.0
"""How long everything together may take."""

_MOST_IDS = 1000
_PAGE = 10
_MOST_STDIN = 32 * 1024 * 1024
_OPTIONS = {"--as": "subject", "--data-dir": "data_dir", "--socket": "socket", "--token": "token"}


def main(args: list[str]) -> int:
    """Do what a hook does; return its exit code, which is always 0."""
    try:
        _run(args, time.monotonic() + LIMIT_SECS)
    except (Unreachable, Refused, Unusable) as error:
        _say(str(error))
    except Exception as error:  # rule 6
        _say(f"{type(error).__name__}: {error}")
    return 0


def _run(args: list[str], until: float) -> None:
    options, given = parse(args)
    subject = options.get("subject")
    if not subject:
        raise Unusable("whose mail? say --as relay.agent.NAME")
    event = read_event(_stdin(until), given)
    address = Address.find(options.get("data_dir"), options.get("socket"))
    token = find_token(address, subject, options.get("token"))
    line = Line.open(address, agent=subject, token=token, client="relay hook", timeout=_left(until))
    try:
        _tell_news(line, subject, event, until)
    finally:
        line.close()


def _tell_news(line: Line, subject: str, event: Event, until: float) -> None:
    spoken = _signal(line, subject, event, []) if by_person(event) else None
    if not event.takes_text:
        if spoken is not None:
            line.await_answer(spoken, _left(until))
        return
    # Requests are begun in the order they are sent: the signal is out when the ids have come.
    waiting = line.ask("inbox.wait", {"subject": subject, "limit": _MOST_IDS, "timeoutMs": 1}, _left(until))["ids"]
    shown = Shown(subject, event.session)
    seen = [] if event.kind == START else shown.read()
    known = set(seen)
    new = [one for one in waiting if one not in known]
    messages = _fetch(line, subject, waiting, new, until)
    if messages:
        text, pushed = compose(subject, messages, len(new))
        _print(answer(event, text))
        shown.write(seen + pushed)
        line.await_answer(_signal(line, subject, event, pushed), _left(until))


def parse(args: list[str]) -> tuple[dict[str, str], str | None]:
    """Return the options and the event of a command line, in any order.

    Raises:
        Unusable: if something is too much or missing.
    """
    options: dict[str, str] = {}
    given: str | None = None
    rest = iter(args)
    for one in rest:
        name, has_value, value = one.partition("=")
        if name in _OPTIONS:
            found = value if has_value else next(rest, None)
            if not found:
                raise Unusable(f"{name} needs a value")
            options[_OPTIONS[name]] = found
        elif one in EVENTS and given is None:
            given = one
        else:
            raise Unusable(f"{one!r} means nothing here: see 'relay hook --help'")
    return options, given


def by_person(event: Event) -> bool:
    """Tell whether an event means that a person begins something."""
    return event.kind == START or (event.kind == PROMPT and HEADING not in event.prompt)


def _stdin(until: float) -> bytes:
    """Return what the agent says on stdin; nothing from a terminal."""
    data = b""
    while not os.isatty(0) and select.select([0], [], [], _left(until) / 2)[0]:
        chunk = os.read(0, 1 << 16)
        if not chunk:
            break
        data += chunk
        if len(data) > _MOST_STDIN:
            raise Unusable(f"more than {_MOST_STDIN} bytes are on stdin")
    return data


def _fetch(line: Line, subject: str, waiting: list[str], new: list[str], until: float) -> list[dict[str, Any]]:
    """Return the new ones of the messages that wait, oldest first, as many as a text may have room for."""
    found: dict[str, dict[str, Any]] = {}
    room = MOST_CHARS
    while new and room > 0:
        asked: dict[str, Any] = {"subject": subject, "limit": _PAGE}
        before = [one for one in waiting if one < min(new)]
        page = line.ask("inbox.peek", {**asked, "after": max(before)} if before else asked, _left(until))["messages"]
        fresh = {one["id"]: one for one in page if one["id"] in new}
        if not fresh:
            break  # somebody has taken them meanwhile
        found |= fresh
        room -= sum(len(payload_text(one.get("payload"))) for one in fresh.values())
        new = [one for one in new if one not in fresh]
    return list(found.values())


def _signal(line: Line, subject: str, event: Event, shown: list[str]) -> int:
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


def _say(text: str) -> None:
    shown = "".join(one if one.isprintable() else "?" for one in text)
    sys.stderr.write(f"relay hook: {shown}\n")
