"""What became of a publish, in words: who got it, who refused and why, and what would help.

1. The bus's answer comes first; what its trace tells (each target by name, and how it ended) as soon as it is known.
2. A refusal says what it waits for, from the live picture: the count to the sender's next free place, how full the
   mailbox is, when the breaker lets a probe pass.
3. Nothing here changes anything. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relay_core.delivery import Span, Status
from relay_core.errors import AccessDenied, RelayError, SupervisorUnavailable
from relay_core.live_state import LiveState
from relay_core.results import PublishResult, Reason
from relay_tui.lines import Line, line
from relay_tui.safe import clean
from relay_tui.views.publish.draft import Draft
from relay_tui.views.states import share_of
from relay_tui.views.traces.words import DEAD, OPEN, status_piece
from relay_tui.words import ahead, lasting, plural

_BUDGET_WORDS = {
    "max_hops": "it may travel no further: give it more hops",
    "cycle": "the target is among its ancestors already",
    "expired": "its time was over before it arrived: give it a longer TTL",
    "call_budget": "it has no calls left: give it more calls",
}


@dataclass(slots=True)
class Outcome:
    """One publish and what is known of it."""

    draft: Draft
    result: PublishResult | None = None
    error: RelayError | None = None
    spans: Sequence[Span] = field(default_factory=tuple)

    @property
    def message_id(self) -> str | None:
        """The message, if the bus made one: it does so before any refusal."""
        if self.result is not None:
            return self.result.message_id
        return self.error.message_id if isinstance(self.error, AccessDenied) else None

    @property
    def is_open(self) -> bool:
        """Whether more will become known by itself."""
        return self.result is not None and (not self.spans or any(span.status in OPEN for span in self.spans))

    @property
    def in_short(self) -> str:
        """What the history says of it."""
        if self.error is not None:
            return f"not published: {self.error.code}"
        assert self.result is not None
        reasons = ", ".join(dict.fromkeys(one.reason for one in self.result.rejected or ()))
        taken = f"taken by {self.result.delivered_to}"
        return f"{taken}, refused: {reasons}" if reasons else taken


def explain(outcome: Outcome, state: LiveState, now_ms: float) -> Iterator[Line]:
    """Yield what became of a publish."""
    if outcome.error is not None:
        yield from _explain_error(outcome.error)
    elif outcome.result is not None:
        yield _head(outcome.result, outcome)
        if outcome.spans:
            for span in outcome.spans:
                yield from _explain_span(span, outcome, state, now_ms)
        else:
            for one in outcome.result.rejected or ():
                name = _name(one.endpoint_hash, state)
                yield line(("  ■ ", "warn"), name, (f"  refused: {clean(one.reason)}", "warn"))
                yield from _advice(one.reason, one.endpoint_hash, outcome, state, now_ms)
        for adapter in outcome.result.adapter_results or ():
            good = adapter.status in ("delivered", "queued")
            took = f" in {lasting(adapter.duration_ms / 1000)}" if adapter.duration_ms is not None else ""
            yield line(
                ("  ● " if good else "  ✗ ", "ok" if good else "bad"),
                f"adapter {clean(adapter.adapter_id)}: {clean(adapter.status)}{took}",
                (f"  {clean(adapter.error)}" if adapter.error else "", "bad"),
            )
    if outcome.message_id is not None:
        yield line(("  message ", "dim"), clean(outcome.message_id), ("   esc then t: its trace", "dim"))


def _head(result: PublishResult, outcome: Outcome) -> Line:
    subject = f"{clean(outcome.draft.subject)}: "
    refused = len(result.rejected or ())
    taken = f"taken by {plural(result.delivered_to, 'target')}"
    if result.delivered_to and not refused:
        return line((f" ● {subject}{taken}", "ok"))
    if result.delivered_to:
        return line((f" ▲ {subject}{taken}, refused by {refused}", "warn"))
    if not refused or any(span.status in DEAD for span in outcome.spans):
        return line((f" ✗ {subject}nobody took it: it is a dead letter now (6)", "bad"))
    return line((f" ■ {subject}refused: nothing was stored, so it may simply be sent again", "warn"))


def _explain_span(span: Span, outcome: Outcome, state: LiveState, now_ms: float) -> Iterator[Line]:
    word, style = status_piece(span.status)
    took = (
        f" in {lasting((span.handled_at - span.sent_at) / 1000)}"
        if span.status == Status.DONE and span.handled_at
        else ""
    )
    pressure = (outcome.result.mailbox_pressure or {}).get(span.target) if outcome.result is not None else None
    name = "the publish itself" if span.target == "*" else clean(span.target_subject)
    yield line(
        (f"  {word}", style),
        f"  {name}",
        (took, ""),
        (f"  mailbox {share_of(pressure):.0%} full" if pressure is not None else "", _pressure_style(pressure)),
    )
    if span.code or span.reason:
        yield line((f"      {clean(span.code or '')}: ", style), clean(span.reason or ""))
        yield from _advice(span.code or "", span.target, outcome, state, now_ms)


def _pressure_style(pressure: float | None) -> str:
    return "dim" if pressure is None or pressure < 0.8 else "warn"


def _advice(code: str, target: str, outcome: Outcome, state: LiveState, now_ms: float) -> Iterator[Line]:
    text = _advice_text(code, target, outcome.draft, state, now_ms)
    if text is not None:
        yield line(("      → ", "accent"), text)


def _advice_text(code: str, target: str, draft: Draft, state: LiveState, now_ms: float) -> str | None:
    if code == Reason.RATE_LIMITED:
        sender = state.senders.get(draft.sender)
        if sender is None:
            return "this sender has used up its limit: wait a little, or send as another"
        used = f"{sender.count} of {sender.limit} in {sender.window_secs} s are used"
        return f"{used}: there is room for one more {ahead(sender.resets_at, now_ms)}"
    if code == Reason.BACKPRESSURE:
        mailbox = state.mailboxes.get(target)
        waiting = (
            f"{plural(mailbox.depth, 'message')} wait there, it is {share_of(mailbox.pressure):.0%} full"
            if mailbox
            else "full"
        )
        return f"{waiting}: it takes more as soon as somebody reads (3)"
    if code == Reason.CIRCUIT_OPEN:
        breaker = state.breakers.get(target)
        if breaker is None or breaker.state == "CLOSED":
            return "its breaker is closed again: send it once more"
        if breaker.forced:
            return "an operator holds its breaker open until it is reset (2)"
        return f"its breaker is open; the next probe may pass {ahead(breaker.retry_at, now_ms)} (2)"
    if code in ("no_match", "no_subscriber"):
        return "no mailbox, adapter or subscription has this subject: register it and replay the dead letter (6)"
    if code == Reason.BUDGET_EXCEEDED:
        return "its budget does not reach so far: see hops, calls and TTL"
    return _BUDGET_WORDS.get(code)


def _name(hash: str, state: LiveState) -> str:
    mailbox = state.mailboxes.get(hash)
    return "the publish itself" if hash == "*" else clean(mailbox.subject if mailbox is not None else hash)


def _explain_error(error: RelayError) -> Iterator[Line]:
    yield line((f" ✗ not published: {clean(error.code)}", "bad"))
    yield line("  ", clean(str(error)))
    if isinstance(error, AccessDenied):
        rule: Any = error.rule
        if isinstance(rule, Mapping):
            who = f"{clean(str(rule.get('from')))} → {clean(str(rule.get('to')))}"
            yield line(
                ("  rule ", "dim"),
                f"{who}  {clean(str(rule.get('action')))}, priority {clean(str(rule.get('priority', 0)))}",
            )
        yield line(("  → ", "accent"), "'relay access list' shows the rules; the first that matches decides")
    elif isinstance(error, SupervisorUnavailable):
        yield line(("  → ", "accent"), "the draft is kept: send it again when the supervisor is back; it goes out once")
