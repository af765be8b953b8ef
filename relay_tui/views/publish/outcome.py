"""The outcome of a publish as lines: who received it, who refused it and why, and what to do.

1. The result of the call is shown first; the trace (each target by name, and its status) as soon as it is available.
2. A refusal is explained from the live state: when the sender's rate limit resets, how full the mailbox is, when the
   breaker lets a probe pass.
3. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relay_core.errors import AccessDenied, RelayError, SupervisorUnavailable
from relay_core.messages.delivery import Span, Status
from relay_core.messages.results import PublishResult, Reason
from relay_core.protocol.live_state import LiveState
from relay_core.text.sanitize import clean
from relay_core.text.units import format_duration, plural, time_until
from relay_tui.views.publish.draft import Draft
from relay_tui.views.states import share_of
from relay_tui.views.traces.status import DEAD, OPEN, status_label
from relay_tui.widgets.styled_lines import Line, line

_BUDGET_WORDS = {
    "max_hops": "the hop limit is reached: raise max hops",
    "cycle": "the target is one of its ancestors",
    "expired": "the message expired before delivery: set a longer TTL",
    "call_budget": "the call budget is used up: raise calls",
}


@dataclass(slots=True)
class Outcome:
    """One publish, its result and its trace."""

    draft: Draft
    result: PublishResult | None = None
    error: RelayError | None = None
    spans: Sequence[Span] = field(default_factory=tuple)

    @property
    def message_id(self) -> str | None:
        """The id of the message, if the bus created one: it does so before any refusal."""
        if self.result is not None:
            return self.result.message_id
        return self.error.message_id if isinstance(self.error, AccessDenied) else None

    @property
    def is_open(self) -> bool:
        """Whether the trace is not final yet."""
        return self.result is not None and (not self.spans or any(span.status in OPEN for span in self.spans))

    @property
    def summary(self) -> str:
        """The outcome as the history shows it."""
        if self.error is not None:
            return f"not published: {self.error.code}"
        assert self.result is not None
        reasons = ", ".join(dict.fromkeys(rejection.reason for rejection in self.result.rejected or ()))
        delivered = f"delivered to {self.result.delivered_to}"
        return f"{delivered}, refused: {reasons}" if reasons else delivered


def explain(outcome: Outcome, state: LiveState, now_ms: float) -> Iterator[Line]:
    """Yield the lines of an outcome."""
    if outcome.error is not None:
        yield from _explain_error(outcome.error)
    elif outcome.result is not None:
        yield _head(outcome.result, outcome)
        if outcome.spans:
            for span in outcome.spans:
                yield from _explain_span(span, outcome, state, now_ms)
        else:
            for rejection in outcome.result.rejected or ():
                name = _name(rejection.endpoint_hash, state)
                yield line(("  ■ ", "warn"), name, (f"  refused: {clean(rejection.reason)}", "warn"))
                yield from _advice(rejection.reason, rejection.endpoint_hash, outcome, state, now_ms)
        for adapter in outcome.result.adapter_results or ():
            good = adapter.status in ("delivered", "queued")
            took = f" in {format_duration(adapter.duration_ms / 1000)}" if adapter.duration_ms is not None else ""
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
    delivered = f"delivered to {plural(result.delivered_to, 'target')}"
    if result.delivered_to and not refused:
        return line((f" ● {subject}{delivered}", "ok"))
    if result.delivered_to:
        return line((f" ▲ {subject}{delivered}, refused by {refused}", "warn"))
    if not refused or any(span.status in DEAD for span in outcome.spans):
        return line((f" ✗ {subject}not delivered: it is a dead letter now (6)", "bad"))
    return line((f" ■ {subject}refused: nothing was stored, so it can be sent again", "warn"))


def _explain_span(span: Span, outcome: Outcome, state: LiveState, now_ms: float) -> Iterator[Line]:
    word, style = status_label(span.status)
    took = (
        f" in {format_duration((span.handled_at - span.sent_at) / 1000)}"
        if span.status == Status.DONE and span.handled_at
        else ""
    )
    pressure = (outcome.result.mailbox_pressure or {}).get(span.target) if outcome.result is not None else None
    name = "the publish itself" if span.target == "*" else clean(span.target_subject)
    yield line(
        (f"  {word}", style),
        f"  {name}",
        (took, ""),
        (
            f"  mailbox {share_of(pressure):.0%} full" if pressure is not None else "",
            "warn" if (pressure or 0) >= 0.8 else "dim",
        ),
    )
    if span.code or span.reason:
        yield line((f"      {clean(span.code or '')}: ", style), clean(span.reason or ""))
        yield from _advice(span.code or "", span.target, outcome, state, now_ms)


def _advice(code: str, target: str, outcome: Outcome, state: LiveState, now_ms: float) -> Iterator[Line]:
    text = _advice_text(code, target, outcome.draft, state, now_ms)
    if text is not None:
        yield line(("      → ", "accent"), text)


def _advice_text(code: str, target: str, draft: Draft, state: LiveState, now_ms: float) -> str | None:
    if code == Reason.RATE_LIMITED:
        sender = state.senders.get(draft.sender)
        if sender is None:
            return "the rate limit of this sender is used up: wait, or use another sender"
        used = f"{sender.count} of {sender.limit} messages in {sender.window_secs} s"
        return f"{used}: the next is accepted {time_until(sender.resets_at, now_ms)}"
    if code == Reason.BACKPRESSURE:
        mailbox = state.mailboxes.get(target)
        waiting = (
            f"{plural(mailbox.depth, 'message')} waiting, the mailbox is {share_of(mailbox.pressure):.0%} full"
            if mailbox
            else "the mailbox is full"
        )
        return f"{waiting}: it accepts more when a consumer handles some (3)"
    if code == Reason.CIRCUIT_OPEN:
        breaker = state.breakers.get(target)
        if breaker is None or breaker.state == "CLOSED":
            return "its breaker is closed again: send the message again"
        if breaker.forced:
            return "its breaker is forced open until an operator resets it (2)"
        return f"its breaker is open; the next probe is allowed {time_until(breaker.retry_at, now_ms)} (2)"
    if code in ("no_match", "no_subscriber"):
        return "no mailbox, adapter or subscription matches: register the endpoint and replay the dead letter (6)"
    if code == Reason.BUDGET_EXCEEDED:
        return "its budget is exceeded: see hops, calls and TTL"
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
        yield line(("  → ", "accent"), "'relay access list' shows the rules; the first match decides")
    elif isinstance(error, SupervisorUnavailable):
        yield line(
            ("  → ", "accent"), "the draft is kept: send it again when the supervisor is back; it is published once"
        )
