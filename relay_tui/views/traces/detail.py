"""One span in full: sender, target, times, budget and outcome. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from relay_core.messages.delivery import Span, Status
from relay_core.text.sanitize import clean
from relay_core.text.units import clock_time, format_duration, plural, size
from relay_tui.views.facts import fact
from relay_tui.views.traces.status import MEANINGS, OPEN, status_label
from relay_tui.views.traces.waterfall import Waterfall
from relay_tui.widgets.styled_lines import Line, Piece, line

_MOST_MS = 1e15


def span_lines(span: Span, waterfall: Waterfall, now_ms: float) -> Iterator[Line]:
    """Yield the lines of a span."""
    word, style = status_label(span.status)
    yield line(
        (f" {clean(span.subject)}", "title"), (f"  {word}", style), (f": {MEANINGS.get(span.status, '')}", "dim")
    )
    if span.reason or span.code:
        yield fact("why", (clean(span.code or "–"), style), ": ", clean(span.reason or "–"))
    yield fact("message", clean(span.message_id), ("  size ", "dim"), size(span.size), *_replays(span))
    yield fact("from", clean(span.sender))
    yield fact("to", clean(span.target_subject), (f"  {clean(span.target_kind)} {clean(span.target)}", "dim"))
    yield fact("times", *_times(span, now_ms))
    yield fact("budget", *_budget(span, now_ms))
    chain = " › ".join(clean(ancestor) for ancestor in span.ancestors[-16:])
    yield fact("ancestors", chain or ("none", "dim"))
    yield fact("parent", *_family(span, waterfall))
    for outcome in span.outcomes[:20]:
        yield _outcome(outcome)


def _replays(span: Span) -> Iterator[str | Piece]:
    if span.replays:
        yield ("  replayed ", "dim")
        yield plural(span.replays, "time")
    if span.replay_of is not None:
        yield ("  an edited copy of ", "dim")
        yield clean(span.replay_of)


def _times(span: Span, now_ms: float) -> Iterator[str | Piece]:
    """Yield the time of each step, and the delay since the step before."""
    yield ("sent ", "dim")
    yield clock_time(span.sent_at, millis=True)
    before = span.sent_at
    end = "handled" if span.status in (Status.DONE, Status.PARTIAL) else "ended"
    for word, at in (("stored", span.stored_at), ("claimed", span.claimed_at), (end, span.handled_at)):
        if at is not None:
            yield (f"  {word} ", "dim")
            yield _delta(at - before)
            before = at
    if span.handled_at is not None:
        yield ("  total ", "dim")
        yield _duration(span.handled_at - span.sent_at)
    elif span.status in OPEN:
        yield ("  for ", "dim")
        yield _duration(now_ms - span.sent_at)


def _delta(ms: float) -> str:
    return f"+{_duration(ms)}" if ms >= 0 else f"−{_duration(-ms)} (clock skew)"


def _duration(ms: float) -> str:
    return format_duration(min(ms, _MOST_MS) / 1000)


def _budget(span: Span, now_ms: float) -> Iterator[str | Piece]:
    yield ("hops ", "dim")
    yield f"{span.hops_before} → {span.hops_after}"
    yield (f" of {span.max_hops}", "dim")
    yield ("  calls left ", "dim")
    yield f"{span.calls_before} → {span.calls_after}"
    ended = span.handled_at if span.handled_at is not None else now_ms
    yield ("  TTL ", "dim")
    yield f"{_left(span.expires_at - span.sent_at)} → {_left(span.expires_at - ended)}"


def _left(ms: float) -> str:
    return _duration(ms) if ms > 0 else "expired"


def _family(span: Span, waterfall: Waterfall) -> Iterator[str | Piece]:
    yield clean(span.parent_id) if span.parent_id is not None else ("none", "dim")
    children = waterfall.children(span.message_id)
    yield ("  children ", "dim")
    yield str(len(children)) if children else ("none", "dim")
    for child in children[:2]:
        yield f"  {clean(child)}"
    if len(children) > 2:
        yield (f"  and {len(children) - 2} more", "dim")


def _outcome(outcome: dict[str, object]) -> Line:
    ok = bool(outcome.get("ok"))
    detail = outcome.get("error") or outcome.get("detail") or ""
    return fact(
        "handler",
        ("✓ ok " if ok else "✗ failed ", "ok" if ok else "bad"),
        clean(str(outcome.get("handler", "–"))),
        (f"  {clean(str(detail))}" if detail else "", "dim"),
    )
