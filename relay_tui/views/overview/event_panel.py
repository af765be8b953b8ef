"""The overview's newest events: when, what, about whom, and why; each leads to the screen that shows more of it.

Events of one kind about one target, for the same reason, are one row with a count: a mailbox that refuses ten
messages a second would otherwise hide the breaker that has opened. Rows of the same second are in the order of their
names, so that they do not change places all the time.
"""

from __future__ import annotations

from typing import NamedTuple

from relay_core.messages.delivery import Status
from relay_core.records.events import Event, EventKind
from relay_core.text.sanitize import clean
from relay_core.text.units import clock_time
from relay_tui.live.store import Store
from relay_tui.views.overview.panel_content import PanelContent, PanelSize, fit_subject
from relay_tui.views.overview.panel_grid import Entry
from relay_tui.widgets.styled_lines import Line, Piece, fit

_STYLES = {
    EventKind.REFUSED: ("▲", "warn"),
    EventKind.FAILED: ("✗", "bad"),
    EventKind.DEAD_LETTER: ("✗", "bad"),
    EventKind.EXPIRED: ("▲", "warn"),
    EventKind.REPLAYED: ("●", "ok"),
}
_BY_STATUS = {
    "OPEN": ("✗", "bad"),
    "HALF_OPEN": ("◐", "warn"),
    "CLOSED": ("●", "ok"),
    "warning": ("▲", "warn"),
    "critical": ("✗", "bad"),
    "connected": ("●", "ok"),
    "disconnected": ("○", "warn"),
    "error": ("✗", "bad"),
    "ok": ("●", "ok"),
    "failed": ("✗", "bad"),
    "timed_out": ("✗", "bad"),
}
_NEUTRAL: Piece = ("·", "dim")
_WANTED = 200


class EventGroup(NamedTuple):
    """Events that are one row."""

    newest: Event
    times: int


def newest(store: Store, size: PanelSize) -> PanelContent:
    """Say what has happened, newest first."""
    found = _grouped(store.state.events)
    order = sorted(found, key=lambda key: (-(found[key].newest.time // 1000), key))
    shown = order[: size.height]
    if size.cursor in found and size.cursor not in shown:
        shown[-1:] = [size.cursor]
    entries = [Entry(_line(found[key], size.width), key, _leads(found[key].newest)) for key in shown]
    if not entries:
        entries = [Entry((("nothing has happened yet but everyday traffic", "dim"),))]
    return PanelContent(("newest first, UTC", "dim"), entries, _WANTED)


def _grouped(events: tuple[Event, ...]) -> dict[str, EventGroup]:
    """Return the rows by their keys."""
    times: dict[tuple[str | None, ...], int] = {}
    last: dict[tuple[str | None, ...], Event] = {}
    for event in events:
        gone = event.status if _is_gone(event) else None
        about = (gone or event.kind, event.adapter or event.target, event.subject, event.code or event.status)
        times[about] = times.get(about, 0) + 1
        last[about] = event
    for failed in [about for about in times if about[0] == EventKind.FAILED]:
        if (EventKind.DEAD_LETTER, *failed[1:]) in times:
            del times[failed]  # the dead letter that came of it says the same
    return {f"event:{'/'.join(map(str, about))}": EventGroup(last[about], times[about]) for about in times}


def _is_gone(event: Event) -> bool:
    """Return True if a dead letter was removed: purged, or replaced by an edited copy."""
    return event.kind is EventKind.DEAD_LETTER and event.status in (Status.PURGED, Status.REPLACED)


def _leads(event: Event) -> tuple[str, str | None]:
    match event.kind:
        case EventKind.BREAKER:
            return "breakers", event.target
        case EventKind.PRESSURE:
            return "mailboxes", event.target
        case EventKind.ADAPTER:
            return "adapters", event.adapter
        case EventKind.JOB:
            return "jobs", event.code
    return ("traces", event.message_id) if event.message_id else ("", None)


def _line(one: EventGroup, width: int) -> Line:
    event = one.newest
    wide = width >= 100
    mark, style = _STYLES.get(event.kind) or _BY_STATUS.get(event.status or "", _NEUTRAL)
    kind = str(event.kind)
    if _is_gone(event):
        kind, (mark, style) = str(event.status), _NEUTRAL
    about = event.code if event.kind is EventKind.JOB else event.adapter or event.subject or event.target
    why = (event.status if event.kind is EventKind.JOB else (event.code or event.status)) or ""
    subject = 26 if wide else 20
    return (
        (f"{clock_time(event.time)} ", "dim"),
        (f"{mark} {fit(kind.replace('_', ' '), 12)}", style),
        (fit_subject(about or "–", subject), ""),
        (fit(f"×{one.times}" if one.times > 1 else "", 5, right=True), "strong"),
        (" ", ""),
        (fit(clean(why), 16), "") if wide else ("", ""),
        (fit(clean(event.detail or ("" if wide else why)), width - subject - (46 if wide else 30)), "dim"),
    )
