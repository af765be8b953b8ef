"""The publish pipeline: one ordered list of stages. Reading the list is reading the specification.

::

    Validate    subject, sender, reply_to, payload                      bad input raises
    Stamp       id, time, budget (clamped; inherited from the parent)   before any refusal
    Access      first matching rule; a binding, to write to a person    AccessDenied, traced
    RateLimit   once per publish, per sender                            refused, traced
    BudgetGate  hops, cycle, TTL, calls                                 dead letter, nothing runs
    Match       endpoints, adapters, subscriptions, a chat's agent      targets alike
    Deliver     each target: pressure, breaker, budget copy, store      independent of each other
    Settle      what it all means                                       dead letter only if all failed

Rules:

1. Nothing is stored for a target before the last gate has passed.
2. A refusal by policy (access, rate, pressure, breaker) is never a dead letter.
3. All copies of one publish are one change: stored together, each failing for itself.
4. `publish` returns when every copy is stored; it waits longer only for adapters that answer at once.

A stage is called with the publication and returns None, or something to await. A stage that
settles the result ends the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from relay_core.access import AccessControl, AccessRule, AccessVerdict
from relay_core.bindings import Bindings
from relay_core.budget import clamp_budget, refuse_budget
from relay_core.clock import Clock
from relay_core.config import BudgetConfig
from relay_core.deadletters import Code
from relay_core.delivery import Status, TargetKind
from relay_core.envelope import Budget
from relay_core.errors import AccessDenied, InvalidPayload
from relay_core.files import is_full, storage_error
from relay_core.ids import is_ulid
from relay_core.index import PublishRow
from relay_core.mailbox import Mailbox
from relay_core.parents import Parents
from relay_core.parking import Parking
from relay_core.payload import encode_payload
from relay_core.publication import Publication, Settings, Unstored
from relay_core.ratelimit import RateLimiter
from relay_core.recorder import REPLAYED, Recorder
from relay_core.replies import Replies
from relay_core.results import PublishResult, Reason
from relay_core.subjects import is_of_bus, is_reply, is_subject, subject_hash, validate_subject

if TYPE_CHECKING:
    from relay_core.adapters import Adapters

ACCEPTED = "accepted"
"""Accepted, but not counted against the sender's rate limit."""
EVERY_TARGET = "*"
NOT_ASKED = (
    "a reply mailbox takes answers only from a recipient of the question: publish as the subject that was asked, "
    "or name the question's id as the parent"
)

Stage = Callable[[Publication], Awaitable[None] | None]
OpenMailbox = Callable[[str, str], Awaitable[Mailbox]]


def begin_pipeline(
    stages: Sequence[Stage], publication: Publication
) -> PublishResult | Coroutine[Any, Any, PublishResult]:
    """Take a publication through the stages as far as nothing waits; return the result, or the rest of the way."""
    for position, stage in enumerate(stages, 1):
        pending = stage(publication)
        if pending is not None:
            return _go_on(pending, stages[position:], publication)
        if publication.result is not None:
            return publication.result
    raise AssertionError("the last stage settles")


async def run_pipeline(stages: Sequence[Stage], publication: Publication) -> PublishResult:
    """Take a publication through the stages."""
    outcome = begin_pipeline(stages, publication)
    return outcome if isinstance(outcome, PublishResult) else await outcome


async def _go_on(pending: Awaitable[None], rest: Sequence[Stage], publication: Publication) -> PublishResult:
    await pending
    return publication.result or await run_pipeline(rest, publication)


class Validate:
    """Check everything the caller gave."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, publication: Publication) -> None:
        subject = publication.subject
        if not isinstance(subject, str) or not is_subject(subject):
            validate_subject(subject, allow_wildcards=True)
            publication.is_broadcast = True
        validate_subject(publication.sender)
        if publication.reply_to is not None:
            validate_subject(publication.reply_to)
        if publication.parent_id is not None and not is_ulid(publication.parent_id):
            raise InvalidPayload(f"parent id {publication.parent_id!r} is no message id", code="invalid_parent_id")
        if publication.dedupe is not None and not publication.dedupe.isprintable():
            raise InvalidPayload("a dedupe id must be printable text", code="invalid_dedupe_id")
        publication.data = encode_payload(publication.payload, limit=self._settings.config.limits.max_payload_bytes)


class Stamp:
    """Give the message its id, its time and its budget."""

    def __init__(self, settings: Settings, clock: Clock, new_id: Callable[[int], str], parents: Parents) -> None:
        self._settings = settings
        self._clock = clock
        self._new_id = new_id
        self._parents = parents
        self._plain_at = -1
        self._plain_ceilings: BudgetConfig | None = None
        self._plain: Budget

    def __call__(self, publication: Publication) -> Awaitable[None] | None:
        publication.created_ms = now = self._clock.now_ms()
        publication.id = publication.trace_id = self._new_id(now)
        publication.started = self._clock.monotonic()
        if publication.parent_id is not None:
            return self._inherit(publication, publication.parent_id)
        if publication.overrides is not None:
            self._set_budget(publication, None)
        else:
            publication.budget = self._plain_budget(now)
        return None

    def _plain_budget(self, now: int) -> Budget:
        """Return the budget of a publish that asks for nothing: the same for all of one millisecond."""
        ceilings = self._settings.config.budget
        if self._plain_at != now or self._plain_ceilings is not ceilings:
            self._plain_at, self._plain_ceilings = now, ceilings
            self._plain = clamp_budget(now, None, ceilings)
        return self._plain

    async def _inherit(self, publication: Publication, parent_id: str) -> None:
        parent = await self._parents.find(parent_id, publication.sender)
        if parent is not None:
            publication.trace_id = parent.trace_id
        self._set_budget(publication, parent.budget if parent is not None else None)

    def _set_budget(self, publication: Publication, parent: Budget | None) -> None:
        ceilings = self._settings.config.budget
        publication.budget = clamp_budget(publication.created_ms, publication.overrides, ceilings, parent)


class Access:
    """Ask the access rules and, where somebody writes to a person, the bindings.

    What a chat says on its own subject is not asked for here: `Match` asks for each of those who would hear it.
    An answer to a reply mailbox must come from a recipient of the question (replies.py).
    """

    def __init__(
        self, access: AccessControl, bindings: Bindings, adapters: Adapters, replies: Replies, recorder: Recorder
    ) -> None:
        self._access = access
        self._replies = replies
        self._bindings = bindings
        self._adapters = adapters
        self._recorder = recorder

    def __call__(self, publication: Publication) -> None:
        sender, subject = publication.sender, publication.subject
        adapters = self._adapters
        if publication.origin is not None and adapters.is_voice(sender, subject, publication.origin):
            publication.is_voice = True
            return
        verdict = self._access.check(sender, subject)
        if not verdict.allowed:
            refuse_access(publication, self._access, self._recorder, verdict)
        if is_reply(subject) and not self._is_reply_allowed(publication):
            deny(publication, self._recorder, NOT_ASKED, None, code="not_asked")
        if publication.is_broadcast or not adapters.is_person(subject) or is_of_bus(sender):
            return
        binding = self._bindings.find(sender, subject)
        if isinstance(binding, str):
            deny(publication, self._recorder, binding, None, code="not_bound")
        publication.binding = binding

    def _is_reply_allowed(self, publication: Publication) -> bool:
        """Return True for a failure notice, for a replay of what was allowed before, and for an answer."""
        if publication.is_notice or publication.replays or publication.replay_of is not None:
            return True
        return self._replies.is_asked(publication, publication.subject)


class RateLimit:
    """Hold the sender to its limit."""

    def __init__(self, limiter: RateLimiter, recorder: Recorder) -> None:
        self._limiter = limiter
        self._recorder = recorder

    def __call__(self, publication: Publication) -> None:
        if not self._limiter.take(publication.sender, publication.created_ms):
            verdict = self._limiter.check(publication.sender, publication.created_ms)
            note_refused(publication, self._recorder, Reason.RATE_LIMITED, verdict.reason or "")
            publication.reject(EVERY_TARGET, Reason.RATE_LIMITED)
            publication.settle()
            return
        publication.is_counted = True


class BudgetGate:
    """Stop what has travelled too far; authoritative, before any target."""

    def __init__(self, graves: Graves, recorder: Recorder) -> None:
        self._graves = graves
        self._recorder = recorder

    def __call__(self, publication: Publication) -> Awaitable[None] | None:
        refusal = refuse_budget(publication.budget, publication.subject, publication.created_ms)
        return self._bury(publication, *refusal) if refusal is not None else None

    async def _bury(self, publication: Publication, reason: str, code: str) -> None:
        publication.reject(subject_hash(publication.subject), Reason.BUDGET_EXCEEDED)
        await self._graves.bury(publication, code, reason, Status.FAILED)
        note_publish(publication, self._recorder, Status.FAILED, publication.settle())


class Settle:
    """Decide what the publish has come to."""

    def __init__(self, graves: Graves, parking: Parking, recorder: Recorder) -> None:
        self._graves = graves
        self._parking = parking
        self._recorder = recorder

    def __call__(self, publication: Publication) -> Awaitable[None] | None:
        if not publication.targets:
            return self._unmatched(publication)
        if publication.unstored:
            return self._unstored(publication, publication.unstored)
        self._finish(publication)
        return None

    def _finish(self, publication: Publication) -> None:
        if publication.failures:
            status = Status.PARTIAL if publication.delivered else Status.FAILED
        elif publication.delivered:
            status = ACCEPTED
        else:
            status = Status.REFUSED
        result = publication.settle()
        note_publish(publication, self._recorder, status, result)

    async def _unmatched(self, publication: Publication) -> None:
        await self._graves.bury(publication, Code.NO_MATCH, "no matching endpoints or adapters", Status.NO_SUBSCRIBER)
        note_publish(publication, self._recorder, Status.NO_SUBSCRIBER, publication.settle())

    async def _unstored(self, publication: Publication, unstored: list[Unstored]) -> None:
        """Keep the copies that could not be stored: as partial if others were, else as dead letters.

        Raises:
            StorageError: if nothing was stored, and either the disk is full or nothing could be kept.
        """
        if not publication.delivered and not publication.failures and all(is_full(one.error) for one in unstored):
            target, _, error = unstored[0]
            raise storage_error("store in", target.mailbox.maildir.path, error) from error
        kept = 0
        for target, item, error in unstored:
            reason = f"could not be stored: {error}"
            partial = publication.delivered > 0
            lost = await self._parking.park(
                target.mailbox,
                item,
                code=Code.STORE_FAILED,
                reason=reason,
                partial=partial,
                # If others were stored, their line has the outcome already.
                dedupe=None if partial else publication.dedupe,
                result=None if partial else publication.outcome().to_wire(),
            )
            kept += lost is None
            publication.note_failure(reason)
        if not publication.delivered and not kept:
            target, _, error = unstored[0]
            raise storage_error("store in", target.mailbox.maildir.path, error) from error
        self._finish(publication)


class Graves:
    """Bury messages that never had a target: a dead letter in their subject's own mailbox."""

    def __init__(self, open_mailbox: OpenMailbox, parking: Parking) -> None:
        self._open_mailbox = open_mailbox
        self._parking = parking

    async def bury(self, publication: Publication, code: str, reason: str, status: str) -> None:
        """Keep a message as a dead letter.

        Raises:
            StorageError: if it could not be kept.
        """
        subject = publication.subject
        mailbox = await self._open_mailbox(subject, TargetKind.NONE)
        data = publication.encode(subject, publication.budget)
        delivery = publication.delivery(mailbox.hash, TargetKind.NONE, subject, status, publication.budget)
        item = publication.item(subject, publication.budget, data, delivery)
        mailbox.reserved += 1  # so that nobody removes it as empty meanwhile
        try:
            error = await self._parking.park(
                mailbox,
                item,
                code=code,
                reason=reason,
                stage="gate",
                status=status,
                dedupe=publication.dedupe,
                result=publication.outcome().to_wire() if publication.dedupe is not None else None,
            )
        finally:
            mailbox.reserved -= 1
        if error is not None:
            raise storage_error("keep the dead letter in", mailbox.maildir.path, error) from error


def refuse_access(
    publication: Publication, access: AccessControl, recorder: Recorder, verdict: AccessVerdict
) -> NoReturn:
    """Refuse a publish on the access rules' word.

    Raises:
        AccessDenied: always.
    """
    code = AccessDenied.default_code if access.broken is None else "rules_broken"
    deny(publication, recorder, verdict.reason or "denied by an access rule", verdict.rule, code=code)


def deny(
    publication: Publication,
    recorder: Recorder,
    reason: str,
    rule: AccessRule | None,
    *,
    code: str = AccessDenied.default_code,
) -> NoReturn:
    """Refuse a publish on an access rule's word, or for want of a binding.

    Raises:
        AccessDenied: always.
    """
    note_refused(publication, recorder, code, reason)
    raise AccessDenied(
        f"{publication.sender} may not publish to {publication.subject}: {reason}",
        sender=publication.sender,
        subject=publication.subject,
        rule=rule,
        message_id=publication.id,
        code=code,
    )


def note_publish(publication: Publication, recorder: Recorder, status: str, result: PublishResult) -> None:
    """Write down a publish for rate accounting, dedupe and the event log; a replay is none."""
    row = _row(publication, status if publication.replaces is None else REPLAYED, result)
    if publication.replays:
        recorder.index.note(row)
    else:
        recorder.published(row, publication.started, is_counted=publication.is_counted)


def note_refused(publication: Publication, recorder: Recorder, code: str, reason: str) -> None:
    """Write down a publish that was refused altogether; a retry of it is a new try."""
    recorder.index.note(_row(publication, Status.REFUSED, None))
    delivery = publication.delivery(
        EVERY_TARGET, TargetKind.NONE, publication.subject, Status.REFUSED, publication.budget
    )
    delivery.code, delivery.reason = code, reason
    recorder.refused(delivery)


def _row(publication: Publication, status: str, result: PublishResult | None) -> PublishRow:
    return PublishRow(
        publication.id,
        publication.subject,
        publication.sender,
        publication.reply_to,
        publication.created_ms,
        publication.trace_id,
        publication.parent_id,
        status,
        len(publication.data),
        publication.budget.hop_count,
        publication.budget.call_budget_remaining,
        publication.dedupe,
        result.to_wire() if result is not None and publication.dedupe is not None else None,
    )
