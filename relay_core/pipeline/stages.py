"""The stages of a publish, in order. Reading the list is reading the specification.

::

    Validate    subject, sender, reply_to, payload                      bad input raises
    Stamp       id, time, budget (clamped; inherited from the parent)   before any refusal
    Access      first matching rule; a binding, to write to a person    AccessDenied, traced
    RateLimit   once per publish, per sender                            refused, traced
    BudgetGate  hops, cycle, TTL, calls                                 dead letter, nothing runs
    Match       endpoints, adapters, subscriptions, a chat's agent      targets alike
    Deliver     each target: pressure, breaker, budget copy, store      independent of each other
    Settle      the result                                              dead letter only if all failed

`bus.py` makes three lists of them: a publish goes through all, a failure notice and a replay skip some (`Pipelines`).
The first five are here, the others in modules named after them.

Rules:

1. Nothing is stored for a target before the last gate has passed.
2. A refusal by policy (access, rate, pressure, breaker) is never a dead letter.
3. All copies of one publish are one transaction: stored together, each failing for itself.
4. `publish` returns when every copy is stored; it waits longer only for adapters that answer at once.

A stage is called with the publication and returns None, or something to await. A stage that settles the result ends
the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from relay_core.clock import Clock
from relay_core.config import BudgetConfig
from relay_core.errors import InvalidPayload
from relay_core.messages.delivery import Status
from relay_core.messages.envelope import Budget
from relay_core.messages.ids import is_ulid
from relay_core.messages.payload import encode_payload
from relay_core.messages.results import Reason
from relay_core.messages.subjects import is_of_bus, is_reply, is_subject, subject_hash, validate_subject
from relay_core.pipeline.parents import Parents
from relay_core.pipeline.publication import Publication
from relay_core.pipeline.publish_records import deny, deny_by_rule, note_publish, note_refused
from relay_core.pipeline.routing import AdapterRouting
from relay_core.pipeline.settle import SubjectDeadLetters
from relay_core.records.recorder import Recorder
from relay_core.rules.bindings import Bindings
from relay_core.rules.budget import clamp_budget, refuse_budget
from relay_core.rules.rate_limit import RateLimiter
from relay_core.rules.replies import ReplyRules
from relay_core.storage.access_file import AccessControl
from relay_core.storage.config_file import LiveConfig

ALL_TARGETS = "*"
NOT_ASKED = (
    "a reply mailbox takes answers only from a recipient of the question: publish as the subject that was asked, "
    "or name the question's id as the parent"
)


class Validate:
    """Check the request."""

    def __init__(self, settings: LiveConfig) -> None:
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
            raise InvalidPayload(f"parent id {publication.parent_id!r} is not a message id", code="invalid_parent_id")
        if publication.dedupe is not None and not publication.dedupe.isprintable():
            raise InvalidPayload("a dedupe id must be printable text", code="invalid_dedupe_id")
        publication.data = encode_payload(publication.payload, limit=self._settings.config.limits.max_payload_bytes)


class Stamp:
    """Give the message its id, its time and its budget."""

    def __init__(self, settings: LiveConfig, clock: Clock, new_id: Callable[[int], str], parents: Parents) -> None:
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
        """Return the budget of a publish without overrides; publishes of the same millisecond share it."""
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
    """Apply the access rules and, for a message to a person, the bindings.

    A person's message from a chat passes: `Match` checks each of its recipients. An answer to a reply mailbox must come
    from a recipient of the question (`replies`); without `replies`, every sender may answer: a failure notice, and the
    replay of a message that was allowed before.
    """

    def __init__(
        self,
        access: AccessControl,
        bindings: Bindings,
        adapters: AdapterRouting,
        recorder: Recorder,
        replies: ReplyRules | None,
    ) -> None:
        self._access = access
        self._bindings = bindings
        self._adapters = adapters
        self._recorder = recorder
        self._replies = replies

    def __call__(self, publication: Publication) -> None:
        sender, subject = publication.sender, publication.subject
        adapters = self._adapters
        if publication.origin is not None and adapters.is_chat_inbound(sender, subject, publication.origin):
            publication.is_chat_inbound = True
            return
        verdict = self._access.check(sender, subject)
        if not verdict.allowed:
            deny_by_rule(publication, self._access, self._recorder, verdict)
        if is_reply(subject) and not self._may_answer(publication):
            deny(publication, self._recorder, NOT_ASKED, None, code="not_asked")
        if publication.is_broadcast or not adapters.is_person(subject) or is_of_bus(sender):
            return
        binding = self._bindings.find(sender, subject)
        if isinstance(binding, str):
            deny(publication, self._recorder, binding, None, code="not_bound")
        publication.binding = binding

    def _may_answer(self, publication: Publication) -> bool:
        return self._replies is None or self._replies.may_answer(
            publication.subject,
            publication.sender,
            publication.reader,
            parent_id=publication.parent_id,
            payload=publication.payload,
        )


class RateLimit:
    """Hold the sender to its rate limit."""

    def __init__(self, limiter: RateLimiter, recorder: Recorder) -> None:
        self._limiter = limiter
        self._recorder = recorder

    def __call__(self, publication: Publication) -> None:
        if not self._limiter.take(publication.sender, publication.created_ms):
            verdict = self._limiter.check(publication.sender, publication.created_ms)
            note_refused(publication, self._recorder, Reason.RATE_LIMITED, verdict.reason or "")
            publication.reject(ALL_TARGETS, Reason.RATE_LIMITED)
            publication.settle()
            return
        publication.is_counted = True


class BudgetGate:
    """Stop messages that have travelled too far; authoritative, before any target."""

    def __init__(self, subject_dead_letters: SubjectDeadLetters, recorder: Recorder) -> None:
        self._subject_dead_letters = subject_dead_letters
        self._recorder = recorder

    def __call__(self, publication: Publication) -> Awaitable[None] | None:
        refusal = refuse_budget(publication.budget, publication.subject, publication.created_ms)
        return self._refuse(publication, *refusal) if refusal is not None else None

    async def _refuse(self, publication: Publication, reason: str, code: str) -> None:
        publication.reject(subject_hash(publication.subject), Reason.BUDGET_EXCEEDED)
        await self._subject_dead_letters.write(publication, code, reason, Status.FAILED)
        note_publish(publication, self._recorder, Status.FAILED, publication.settle())
