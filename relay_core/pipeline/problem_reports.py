"""Report problems with the operator's files: a signal and an event for each change, none for a repetition.

1. A problem is one text per file, or per adapter of adapters.json. The first report of it, a different text, and its
   end are each reported once; the same text again is not.
2. The signals are sent on ``relay.system.config``, and on ``relay.system.adapter.ID`` for an adapter, from
   ``relay.system.bus``, which no client can name as the sender: type `problem`, state `error` or `ok`.
3. A signal reaches current listeners only. `relay status` lists the problems that persist.
"""

from __future__ import annotations

from relay_core.clock import Clock, iso
from relay_core.messages.signals import Signal, SignalHub, SignalType
from relay_core.messages.subjects import BUS_SENDER, SYSTEM_PREFIX, is_subject
from relay_core.records.events import EventKind
from relay_core.records.recorder import Recorder

CONFIG_SUBJECT = f"{SYSTEM_PREFIX}config"
"""Where problems with config.json, access-rules.json and adapters.json are signalled."""


class ProblemReports:
    """The present problems with the operator's files, as far as they were reported."""

    def __init__(self, signals: SignalHub, recorder: Recorder, clock: Clock) -> None:
        self._signals = signals
        self._recorder = recorder
        self._clock = clock
        self._known: dict[tuple[str, str | None], str] = {}

    def report(self, file: str, problem: str | None, *, adapter: str | None = None) -> None:
        """Report the present problem with a file or an adapter, or that there is none, if that is a change."""
        key = (file, adapter)
        if problem == self._known.get(key):
            return
        data = {"file": file}
        if adapter is not None:
            data["adapter"] = adapter
        if problem is not None:
            self._known[key] = data["problem"] = problem
        else:
            data["was"] = self._known.pop(key)
        subject = problem_subject(adapter)
        state = "error" if problem is not None else "ok"
        now = self._clock.now_ms()
        detail = problem or f"repaired; it was: {data['was']}"
        self._recorder.event(
            EventKind.PROBLEM, time=now, subject=subject, adapter=adapter, status=state, code=file, detail=detail
        )
        signal = Signal(
            type=SignalType.PROBLEM, state=state, endpoint_subject=BUS_SENDER, timestamp=iso(now), data=data
        )
        self._signals.emit(subject, signal)


def problem_subject(adapter: str | None) -> str:
    """Return where a problem is signalled; an entry without a valid id counts as a problem of its file."""
    subject = f"{SYSTEM_PREFIX}adapter.{adapter}"
    return subject if adapter is not None and is_subject(subject) else CONFIG_SUBJECT
