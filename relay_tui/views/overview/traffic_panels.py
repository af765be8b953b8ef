"""The panels of traffic: throughput, the mailboxes under the most pressure, the busiest senders.

1. Lists are sorted in steps of a twentieth, then by name, so that rows do not swap all the time.
2. Texts from the bus are cleaned here.
3. Only visible rows are formatted; the others are ranked.
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

_MOST_SORTED = 500
_LITTLE = 1e-9
_STEPS = 20
_TREND_SECS = 10.0


def throughput(store: Store, size: PanelSize) -> PanelContent:
    """Return rates, latency and counts."""
    now = store.state.throughput
    if now is None:
        return PanelContent(("", ""), [Entry((("waiting for the first update", "dim"),))], 4)
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
    return PanelContent((f"{number(now.rate_10s)} msg/s", "strong"), list(map(Entry, lines[: size.height])), 4)


def format_us(us: float | None) -> str:
    """Return a latency."""
    return format_duration(us / 1e6) if us is not None else "–"


def _latency(us: Percentiles, *, wide: bool) -> Line:
    values = _labelled(("p95", format_us(us.p95)), ("p50", format_us(us.p50)))
    return (*values, ("until handled, last minute", "dim")) if wide else values


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
    """Return the mailboxes under the most pressure."""
    boxes = store.state.mailboxes
    warning_at = store.warning_at
    # Without a limit there is no pressure, but waiting messages count a little. (Inlined: there may be ten thousand.)
    scores = [100.0 if box.degraded else share_of(box.pressure) or (box.depth and _LITTLE) for box in boxes.values()]

    def line_of(key: str) -> Line:
        return _mailbox_line(store, key, boxes[key], size.width, warning_at)

    empty: Piece = ("no endpoint is registered yet: N on 3 registers one", "dim")
    order = _worst(boxes, scores, size.height)
    entries = list_entries("mailbox", "mailboxes", boxes, order, size, line_of, empty=empty)
    pressed = len([score for score in scores if score >= warning_at])
    note: Piece = (f"▲ {pressed} under pressure", "warn") if pressed else (f"{len(boxes)}", "dim")
    return PanelContent(note, entries, max(len(boxes), 1))


def _worst(boxes: Mapping[str, LiveMailbox], scores: list[float], count: int) -> list[str]:
    """Return the keys of `count` mailboxes, those with the highest scores first."""
    scored = list(zip(boxes, scores, strict=True))
    if len(scored) > count:
        # Only candidates for the first rows are sorted: of ten thousand mailboxes that is a handful.
        least = nlargest(count, scores)[-1]
        below = (ceil(least * _STEPS) - 1) / _STEPS
        step = [pair for pair in scored if pair[1] > below]
        scored = step if len(step) <= _MOST_SORTED else [pair for pair in scored if pair[1] >= least][:_MOST_SORTED]
    scored.sort(key=lambda pair: (-ceil(pair[1] * _STEPS), boxes[pair[0]].subject))
    return [key for key, _ in scored[:count]]


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
    """Return the senders closest to their limits."""
    senders = store.state.senders
    order = [name for name, _ in nsmallest(size.height, senders.items(), key=_by_usage)]

    def line_of(name: str) -> Line:
        return _sender_line(name, senders[name], store.now_ms(), size.width)

    empty: Piece = ("no sender in the current window", "dim")
    entries = list_entries("sender", "mailboxes", senders, order, size, line_of, empty=empty, prefix="sender:")
    full = sum(sender.count >= sender.limit for sender in senders.values())
    note: Piece = (f"✗ {full} at the limit", "bad") if full else (f"{len(senders)}", "dim")
    return PanelContent(note, entries, max(len(senders), 1))


def _by_usage(item: tuple[str, LiveSender]) -> tuple[int, str]:
    name, sender = item
    return -ceil(sender.count / max(sender.limit, 1) * _STEPS), name


def _sender_line(name: str, sender: LiveSender, now: int, width: int) -> Line:
    wide = width >= 50
    bar_width = 12 if wide else 5
    state, style = sender_state(sender)
    used = f"{number(sender.count)}/{number(sender.limit)}"
    resets = time_until(sender.resets_at, now)
    return (
        (fit_subject(name, width - bar_width - (27 if wide else 20)), ""),
        (" ", ""),
        (bar(sender.count / max(sender.limit, 1), bar_width), style),
        (fit(used, 10, right=True), "strong"),
        (" ", ""),
        (state[0], style),
        (fit(f"resets {resets}" if wide else resets, 14 if wide else 7, right=True), "dim"),
    )
