"""Predict the outcome of replaying each dead letter.

Planning changes nothing. A run checks again just before it acts, because a plan may be outdated by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from relay_core.clock import Clock, iso, parse_iso
from relay_core.config import BudgetConfig
from relay_core.deadletters.store import DeadLetterStore
from relay_core.dispatch.mailbox_lifecycle import MailboxLifecycle
from relay_core.dispatch.subscriptions import Subscriptions
from relay_core.errors import NotFound
from relay_core.messages.dead_letter import DeadLetter, DeadLetterFilter
from relay_core.messages.delivery import Span, Status, TargetKind
from relay_core.messages.envelope import Budget, Envelope
from relay_core.messages.replay_plan import Key, PackedPlanItems, PlanItem, ReplayPlan, Verdict
from relay_core.messages.subjects import adapter_of, is_of_bus, is_pattern, subject_hash
from relay_core.pipeline.routing import AdapterRouting, Target
from relay_core.records.index import Index
from relay_core.records.queries import spans
from relay_core.rules.backpressure import check_backpressure
from relay_core.rules.bindings import Bindings
from relay_core.rules.breaker import CircuitBreakers
from relay_core.rules.budget import clamp_budget, refuse_budget
from relay_core.storage.access_file import AccessControl
from relay_core.storage.config_file import LiveConfig
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.mailboxes import Mailboxes

_AT_A_TIME = 1000
"""Ids planned before yielding to the event loop."""


class ReplayPlanner:
    """Plan replays."""

    def __init__(
        self,
        dead_letters: DeadLetterStore,
        mailboxes: Mailboxes,
        lifecycle: MailboxLifecycle,
        subscriptions: Subscriptions,
        adapters: AdapterRouting,
        access: AccessControl,
        bindings: Bindings,
        breakers: CircuitBreakers,
        index: Index,
        settings: LiveConfig,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._dead_letters = dead_letters
        self._mailboxes = mailboxes
        self._lifecycle = lifecycle
        self._subscriptions = subscriptions
        self._adapters = adapters
        self._access = access
        self._bindings = bindings
        self._breakers = breakers
        self._index = index
        self._settings = settings
        self._clock = clock
        self._new_id = new_id

    async def plan(
        self, ids: Iterable[str] | None, filter: DeadLetterFilter | None, *, fresh_budget: bool
    ) -> ReplayPlan:
        """Freeze a selection, including copies kept from partial deliveries.

        Raises:
            NotFound: if an id was never a dead letter.
        """
        there: dict[Key, tuple[str, int]] = {}
        items = PackedPlanItems()
        if ids is None:
            selection = self._dead_letters.select(filter)
            async for batch in self._dead_letters.read(await self._dead_letters.keys(selection), selection):
                for letter in batch:
                    items.add(self.plan_item(letter, fresh_budget=fresh_budget))
                    there[letter.message_id, letter.endpoint_hash] = (letter.failed_at, letter.replays)
        else:
            items = await self._plan_ids(list(dict.fromkeys(ids)), filter, fresh_budget, there)
        return ReplayPlan.frozen(self._new_id(), iso(self._clock.now_ms()), items, there, fresh_budget=fresh_budget)

    def plan_item(self, letter: DeadLetter, *, fresh_budget: bool) -> PlanItem:
        """Return the verdict on a dead letter."""
        mailbox = self._mailboxes.get(letter.endpoint_hash)
        verdict, detail = self._verdict(letter, fresh_budget)
        return PlanItem(
            message_id=letter.message_id,
            endpoint_hash=letter.endpoint_hash,
            endpoint_subject=mailbox.subject if mailbox is not None else "",
            verdict=verdict,
            detail=detail,
            failed_at=letter.failed_at,
            replays=letter.replays,
            partial=letter.partial,
        )

    def targets(self, letter: DeadLetter) -> list[Mailbox]:
        """Return the mailboxes that a replay would go to: the one whose copy it is, or those of its subject."""
        envelope = letter.envelope
        mailbox = self._mailboxes.get(letter.endpoint_hash)
        if envelope is None or mailbox is None:
            return []
        if letter.stage == "target":
            return [] if self._missing(mailbox) is not None else [mailbox]
        subject = envelope.subject
        if is_pattern(subject):
            allowed = self._access.check
            return [box for box in self._mailboxes.select(subject) if allowed(envelope.sender, box.subject).allowed]
        found: list[Mailbox] = []
        for subject in self._addressed(envelope):
            for host in self._adapters.matching(subject, envelope.origin):
                found.append(host.find_mailbox(subject) or host.mailbox)  # a new mailbox is as empty
            if self._mailboxes.endpoint(subject) is not None or self._subscriptions.match(subject):
                found.append(self._mailboxes.get(subject_hash(subject)) or mailbox)
        return list(dict.fromkeys(found))

    async def make_targets(self, letter: DeadLetter) -> None:
        """Create the mailboxes that a replay to its subject would create, so that `targets` returns them."""
        envelope = letter.envelope
        if envelope is None or is_pattern(envelope.subject):
            return
        for subject in self._addressed(envelope):
            for host in self._adapters.matching(subject, envelope.origin):
                target = host.target(subject)
                if not isinstance(target, Target):
                    await target()
            if self._mailboxes.endpoint(subject) is None and self._subscriptions.match(subject):
                await self._lifecycle.open(subject, TargetKind.SUBSCRIPTION)

    def _addressed(self, envelope: Envelope) -> list[str]:
        """Return the subjects that a message goes to; for a chat's message, those that may receive it."""
        subject = envelope.subject
        if not self._adapters.is_chat_inbound(envelope.sender, subject, envelope.origin):
            return [subject]
        binding = self._bindings.route(subject)
        addresses = [subject] if binding is None else [subject, binding.agent]
        return [address for address in addresses if self._access.check(subject, address).allowed]

    def blocked(self, targets: list[Mailbox]) -> str | None:
        """Return what a replay to these targets should wait for, or None."""
        limits = self._settings.config.reliability.backpressure
        for mailbox in targets:
            if self._breakers.retry_in(mailbox.hash) > 0:
                return f"breaker of {mailbox.subject} is open"
            pressure = check_backpressure(mailbox.load, limits).pressure
            if limits.enabled and pressure >= limits.pressure_warning_at:
                return f"pressure of {mailbox.subject} is {pressure:.0%}"
        return None

    async def _plan_ids(
        self, ids: list[str], filter: DeadLetterFilter | None, fresh_budget: bool, there: dict[Key, tuple[str, int]]
    ) -> PackedPlanItems:
        store = self._dead_letters
        selection = store.select(filter)
        planned = PackedPlanItems()
        found: dict[str, tuple[int, ...]] = {}
        """Name → positions in `planned`: plain numbers, since there may be many."""
        keys = await store.keys(store.select(None, ids=ids))
        async for batch in store.read(keys):
            for letter in batch:
                item = self.plan_item(letter, fresh_budget=fresh_budget)
                accepted = selection.accepts(letter, item.endpoint_subject, parse_iso(letter.failed_at))
                place = (len(planned),) if accepted else ()
                if accepted:
                    planned.add(item)
                    there[letter.message_id, letter.endpoint_hash] = (letter.failed_at, letter.replays)
                for name in (letter.message_id, letter.cursor):
                    found[name] = found.get(name, ()) + place
        items = PackedPlanItems()
        taken: set[int | Key] = set()
        for position, name in enumerate(ids, 1):
            if position % _AT_A_TIME == 0:
                await asyncio.sleep(0)
            if name not in found:
                item = await self._gone(name)
                if (key := (item.message_id, item.endpoint_hash)) not in taken:
                    taken.add(key)
                    items.add(item)
            for at in found.get(name, ()):
                if at not in taken:
                    taken.add(at)
                    items.add(planned[at])
        return items

    async def _gone(self, name: str) -> PlanItem:
        """Return the verdict on a former dead letter (``ID`` or ``ID/HASH``)."""
        message_id, _, target = name.partition("/")
        known = await self._index.run(partial(spans, message_id=message_id))
        item = gone([span for span in known if target in ("", span.target)])
        if item is None:
            raise NotFound(f"no dead letter {name}", what=name)
        return item

    def _missing(self, mailbox: Mailbox) -> str | None:
        """Return why a mailbox's target is missing, or None."""
        about = mailbox.about
        if about.kind == TargetKind.ADAPTER and not self._adapters.has(mailbox):
            return f"the adapter {adapter_of(mailbox.subject)} is not running"
        if about.kind == TargetKind.ENDPOINT and not about.registered:
            return "the endpoint is no longer registered"
        return None

    def _denial(self, envelope: Envelope) -> str | None:
        """Return why its sender may no longer send it, as the stages of a publish decide."""
        sender, subject = envelope.sender, envelope.subject
        if self._adapters.is_chat_inbound(sender, subject, envelope.origin):
            return None  # checked for each recipient of the chat
        access = self._access.check(sender, subject)
        if not access.allowed:
            return access.reason or "denied by an access rule"
        if self._adapters.is_person(subject) and not is_of_bus(sender):
            binding = self._bindings.find(sender, subject)
            return binding if isinstance(binding, str) else None
        return None

    def _verdict(self, letter: DeadLetter, fresh_budget: bool) -> tuple[str, str | None]:
        envelope = letter.envelope
        if envelope is None:
            return Verdict.MALFORMED, letter.reason
        denial = self._denial(envelope)
        if denial is not None:
            return Verdict.DENIED, denial
        targets = self.targets(letter)
        if not targets:
            mailbox = self._mailboxes.get(letter.endpoint_hash)
            missing = self._missing(mailbox) if mailbox is not None and letter.stage == "target" else None
            return Verdict.NO_TARGET, missing or "there is still no target"
        if letter.stage == "gate":
            now = self._clock.now_ms()
            budget = renewed(envelope.budget, now, self._settings.config.budget, fresh=fresh_budget)
            refusal = refuse_budget(budget, envelope.subject, now)
            if refusal is not None:
                return Verdict.OVER_BUDGET, refusal[0]
        if any(self._breakers.retry_in(mailbox.hash) > 0 for mailbox in targets):
            return Verdict.BREAKER_OPEN, None
        limits = self._settings.config.reliability.backpressure
        if not all(check_backpressure(mailbox.load, limits).allowed for mailbox in targets):
            return Verdict.MAILBOX_FULL, None
        return Verdict.WILL_DELIVER, None


def gone(known: list[Span]) -> PlanItem | None:
    """Return the verdict on a former dead letter; None if the message never was one."""
    for span in known:
        if span.replays or span.status in (Status.REPLACED, Status.PURGED, Status.GONE):
            return PlanItem(
                message_id=span.message_id,
                endpoint_hash=span.target,
                endpoint_subject=span.target_subject,
                verdict=Verdict.ALREADY_REPLAYED,
                detail=f"it is {span.status} now",
            )
    return None


def renewed(budget: Budget, now_ms: int, ceilings: BudgetConfig, *, fresh: bool) -> Budget:
    """Return the budget of a replayed message: its own with a new TTL, or a fresh one."""
    if fresh:
        return clamp_budget(now_ms, None, ceilings)
    return budget.model_copy(update={"ttl": now_ms + ceilings.ttl_ms})


def before_delivery(budget: Budget, target_subject: str) -> Budget:
    """Return the budget of a target's copy as it was before that delivery."""
    chain = budget.ancestor_chain
    if not chain or chain[-1] != target_subject:
        return budget
    return budget.model_copy(
        update={
            "hop_count": max(budget.hop_count - 1, 0),
            "ancestor_chain": chain[:-1],
            "call_budget_remaining": budget.call_budget_remaining + 1,
        }
    )
