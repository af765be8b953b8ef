"""What the overview says of the traffic: throughput, the mailboxes under the most pressure, the busiest senders.

1. Lists have an order that does not tremble: in steps of a twentieth, then by name. What does not fit is counted in a
   last line, `+3 more`; the row that the cursor is on is shown whatever its rank.
2. Every text from the bus is cleaned here. Times are in whole units.
3. Nothing is computed for rows that are not shown: the work is bounded by the screen, but for one look at each.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest, nsmallest
from math import ceil

from relay_core.messages.delivery import Status
from relay_core.protocol.live_state import LiveMailbox, LiveSender, LiveThroughput
from relay_core.records.metrics import Percentiles
from relay_core.text.bars import bar, spark
from relay_core.text.units import format_duration, number, time_until
from relay_tui.live.store import Store
from relay_tui.views.overview.panel_content import PanelContent, PanelSize, fit_subject, list_entries
from relay_tui.views.overview.panel_grid import Entry
from relay_tui.views.states import mailbox_state, sender_state, share_of, trend_of
from relay_tui.widgets.styled_lines import Line, Piece, fit

_MANY = 500
"""Mailboxes that are sorted at most."""
_LITTLE = 1e-9
_STEPS = 20
_TREND_SECS = 10.0


def throughput(store: Store, size: PanelSize) -> PanelContent:
    """Say how much goes on, and how fast it is handled."""
    now = store.state.throughput
    if now is None:
        return PanelContent(("", ""), [Entry((("waiting for the first picture", "dim"),))], 4)
    wide = size.width >= 50
    rates = [("10s", f"{number(now.rate_10s)}/s"), ("60s", f"{number(now.rate_60s)}/s")]
    peak = ("peak", f"{number(max(now.per_second, default=0))}/s")
    lines: list[Line] = [
        ((spark(now.per_second, min(size.width - 1, len(now.per_second))), "accent"),),
        _labelled(*rates, peak, ("published", number(now.publishes))) if wide else _labelled(*rates, peak),
        _latency(now.recent_us, wide=wide),
        _counts(now, wide=wide),
    ]
    if size.height < len(lines):
        lines[1:3] = [_labelled(*rates) + _latency(now.recent_us, wide=False)]
    return PanelContent((f"{number(now.rate_10s)} msg/s", "strong"), [Entry(one) for one in lines[: size.height]], 4)


def format_us(us: float | None) -> str:
    """Return a latency."""
    return format_duration(us / 1e6) if us is not None else "–"


def _latency(us: Percentiles, *, wide: bool) -> Line:
    found = _labelled(("p95", format_us(us.p95)), ("p50", format_us(us.p50)))
    return (*found, ("until handled, last minute", "dim")) if wide else found


def _labelled(*pairs: tuple[str, str]) -> Line:
    pieces: list[Piece] = []
    for label, value in pairs:
        pieces += [(f"{label} ", "dim"), (f"{value}  ", "strong")]
    return tuple(pieces)


def _counts(now: LiveThroughput, *, wide: bool) -> Line:
    refused, dead = sum(now.refusals.values()), sum(now.dead_letters.values())
    counts = [("delivered" if wide else "stored", now.deliveries.get(Status.NEW, 0), "strong")]
    if wide:
        counts.append(("handled", now.deliveries.get(Status.DONE, 0), "strong"))
    counts += [("refused", refused, "warn" if refused else "strong"), ("dead", dead, "bad" if dead else "strong")]
    gap = "  " if wide else " "
    return tuple(
        piece for word, count, style in counts for piece in ((f"{word} ", "dim"), (f"{number(count)}{gap}", style))
    )


def mailboxes(store: Store, size: PanelSize) -> PanelContent:
    """Say which mailboxes are under the most pressure."""
    boxes = store.state.mailboxes
    warning_at = store.warning_at
    # Mail that waits counts a little where mailboxes have no limit. (In one line: there may be ten thousand.)
    scores = [100.0 if box.degraded else share_of(box.pressure) or (box.depth and _LITTLE) for box in boxes.values()]
    entries = list_entries(
        _worst(boxes, scores, size.height),
        len(boxes),
        size,
        "mailbox",
        lambda key: key in boxes,
        lambda key: _mailbox_line(store, key, boxes[key], size.width, warning_at),
        "mailboxes",
    )
    if not boxes:
        entries = [Entry((("no endpoint is registered yet: N on 3 does it", "dim"),))]
    pressed = len([score for score in scores if score >= warning_at])
    note: Piece = (f"▲ {pressed} under pressure", "warn") if pressed else (f"{len(boxes)}", "dim")
    return PanelContent(note, entries, max(len(boxes), 1))


def _worst(boxes: Mapping[str, LiveMailbox], scores: list[float], count: int) -> list[str]:
    """Return the keys of so many mailboxes, those with the highest scores first."""
    among = list(zip(boxes, scores, strict=True))
    if len(among) > count:
        # Only what can be among the first is sorted: of ten thousand mailboxes that is a handful.
        least = nlargest(count, scores)[-1]
        below = (ceil(least * _STEPS) - 1) / _STEPS
        step = [one for one in among if one[1] > below]
        among = step if len(step) <= _MANY else [one for one in among if one[1] >= least][:_MANY]
    among.sort(key=lambda one: (-ceil(one[1] * _STEPS), boxes[one[0]].subject))
    return [key for key, _ in among[:count]]


def _mailbox_line(store: Store, key: str, box: LiveMailbox, width: int, warning_at: float) -> Line:
    wide = width >= 50
    bar_width = 12 if wide else 5
    state, style = mailbox_state(box, warning_at)
    change, _ = store.history.depth.change(key, box.depth, _TREND_SECS)
    name = width - bar_width - (25 if wide else 20)
    return (
        (fit_subject(box.subject, name), ""),
        (" ", ""),
        (bar(box.pressure, bar_width), style),
        (f"{share_of(box.pressure):5.0%}", "") if wide else ("", ""),
        (fit(number(box.depth), 6, right=True), "strong"),
        (" ", ""),
        trend_of(change),
        (" ", ""),
        (fit(state, 10), style),
    )


def senders(store: Store, size: PanelSize) -> PanelContent:
    """Say who has used the most of its limit, and when there is room again."""
    found = store.state.senders
    order = [name for name, _ in nsmallest(size.height, found.items(), key=_by_usage)]
    entries = list_entries(
        order,
        len(found),
        size,
        "sender",
        lambda name: name in found,
        lambda name: _sender_line(name, found[name], store.now_ms(), size.width),
        "mailboxes",
        argument="sender:",
    )
    if not found:
        entries = [Entry((("nobody has published within its window", "dim"),))]
    full = sum(1 for one in found.values() if one.count >= one.limit)
    note: Piece = (f"✗ {full} at the limit", "bad") if full else (f"{len(found)}", "dim")
    return PanelContent(note, entries, max(len(found), 1))


def _by_usage(one: tuple[str, LiveSender]) -> tuple[int, str]:
    name, sender = one
    return -ceil(sender.count / max(sender.limit, 1) * _STEPS), name


def _sender_line(name: str, sender: LiveSender, now: int, width: int) -> Line:
    wide = width >= 50
    bar_width = 12 if wide else 5
    state, style = sender_state(sender)
    used = f"{number(sender.count)}/{number(sender.limit)}"
    resets = time_until(sender.resets_at, now) if sender.resets_at - now >= 1000 else "now"
    return (
        (fit_subject(name, width - bar_width - (27 if wide else 20)), ""),
        (" ", ""),
        (bar(sender.count / max(sender.limit, 1), bar_width), style),
        (fit(used, 10, right=True), "strong"),
        (" ", ""),
        (state[0], style),
        (fit(f"resets {resets}" if wide else resets, 14 if wide else 7, right=True), "dim"),
    )
