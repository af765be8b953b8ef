"""The newest events; each opens the screen with its details.

Events of one kind, target and reason are one row with a count: a mailbox that refuses ten messages a second would
otherwise hide a breaker that opened. Rows of the same second are sorted by key, so that they do not swap all the time.
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
    """Events that share a row."""

    newest: Event
    total: int


def events(store: Store, size: PanelSize) -> PanelContent:
    """Return the newest events."""
    groups = _grouped(store.state.events)
    order = sorted(groups, key=lambda key: (-(groups[key].newest.time // 1000), key))
    shown = order[: size.height]
    if size.cursor in groups and size.cursor not in shown:
        shown[-1:] = [size.cursor]
    entries = [Entry(_line(groups[key], size.width), key, _link(groups[key].newest)) for key in shown]
    if not entries:
        entries = [Entry((("no events yet", "dim"),))]
    return PanelContent(("newest first, UTC", "dim"), entries, _WANTED)


def _grouped(events: tuple[Event, ...]) -> dict[str, EventGroup]:
    """Return the rows by key."""
    groups: dict[tuple[str | None, ...], EventGroup] = {}
    for event in events:
        kind = event.status if _is_removed(event) else event.kind
        key = (kind, event.adapter or event.target, event.subject, event.code or event.status)
        groups[key] = EventGroup(event, groups[key].total + 1 if key in groups else 1)
    for failed in [key for key in groups if key[0] == EventKind.FAILED]:
        if (EventKind.DEAD_LETTER, *failed[1:]) in groups:
            del groups[failed]  # the row of its dead letter says the same
    return {f"event:{'/'.join(map(str, key))}": group for key, group in groups.items()}


def _is_removed(event: Event) -> bool:
    """Return True if a dead letter was removed: purged, or replaced by an edited copy."""
    return event.kind is EventKind.DEAD_LETTER and event.status in (Status.PURGED, Status.REPLACED)


def _link(event: Event) -> tuple[str, str | None]:
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


def _line(group: EventGroup, width: int) -> Line:
    event = group.newest
    wide = width >= 100
    mark, style = _STYLES.get(event.kind) or _BY_STATUS.get(event.status or "", _NEUTRAL)
    kind = str(event.kind)
    if _is_removed(event):
        kind, (mark, style) = str(event.status), _NEUTRAL
    about = event.code if event.kind is EventKind.JOB else event.adapter or event.subject or event.target
    why = (event.status if event.kind is EventKind.JOB else (event.code or event.status)) or ""
    subject = 26 if wide else 20
    return (
        (f"{clock_time(event.time)} ", "dim"),
        (f"{mark} {fit(kind.replace('_', ' '), 12)}", style),
        (fit_subject(about or "–", subject), ""),
        (fit(f"×{group.total}" if group.total > 1 else "", 5, right=True), "strong"),
        (" ", ""),
        (fit(clean(why), 16), "") if wide else ("", ""),
        (fit(clean(event.detail or ("" if wide else why)), width - subject - (46 if wide else 30)), "dim"),
    )
