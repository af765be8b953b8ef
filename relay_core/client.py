"""RelayClient: the bus's verbs over the socket.

1. Errors are the classes that the supervisor raised. `SupervisorUnavailable` means that nobody answers.
2. What was asked over a connection that was lost is asked again where that is safe (redial.py). A publish always is:
   it carries a dedupe id, made here if the caller gives none, so that the supervisor returns the first outcome instead
   of publishing twice. Where it is not, `SupervisorUnavailable` has the code `outcome_unknown`.
3. Subscriptions go on after a reconnect by themselves (client_streams.py).

The module is long because it is one flat list of verbs, each a few lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from secrets import token_hex
from typing import Any, TypeVar

import orjson

from relay_core.access import AccessRule
from relay_core.client_streams import MessageStream, ReplyStream, SignalStream, StateWatch, subscribe_params
from relay_core.clock import SystemClock
from relay_core.deadletters import DeadLetter, DeadLetterFilter, DeadLetterGroup
from relay_core.delivery import Span
from relay_core.endpoints import Endpoint
from relay_core.envelope import BudgetOverrides, Envelope
from relay_core.errors import AccessDenied, Closed, InvalidPayload, ProtocolError, RelayError
from relay_core.frames import MAX_FRAME, error_from_wire
from relay_core.link import Link
from relay_core.metrics import MetricsSnapshot
from relay_core.model import WireModel
from relay_core.operations import AgentState, ConfiguredAdapter, JobArguments, JobRun, JobState, TokenInfo
from relay_core.payload import encode_payload
from relay_core.protocol import (
    MAX_BATCH,
    MAX_PAGE,
    AccessRules,
    Adapters,
    ConfigState,
    DeadLetters,
    DeadLetterSummaries,
    NewAgent,
    NewToken,
    PlanItems,
    Replay,
    ReportContent,
    Reports,
    ServerInfo,
    ServerStatus,
    Traces,
    parse_answer,
)
from relay_core.ratelimit import SenderUsage
from relay_core.redial import OWN_TIMEOUT, TIMEOUT_SECS, Redial
from relay_core.replay_plan import PlanHead, PlanItem, ReplayOutcome, ReplayPlan
from relay_core.results import PublishResult
from relay_core.signals import Signal
from relay_core.state import MailboxState, TargetBreaker

_ENVELOPE_ROOM = 4096
"""Bytes of a frame for what is around a payload."""
_LEAVE_SECS = 2.0
_WAIT_SECS = 300.0
"""How long one question for mail may take, so that a supervisor keeps none for a client that is gone."""
_LONG_SECS = 600.0
"""For what reads or removes every dead letter there is."""

M = TypeVar("M", bound=WireModel)


class RelayClient(Redial):
    """The bus's verbs over the socket."""

    # Publishing and subscribing

    async def publish(
        self,
        subject: str,
        payload: Any,
        *,
        sender: str,
        reply_to: str | None = None,
        budget: BudgetOverrides | Mapping[str, Any] | None = None,
        parent_id: str | None = None,
        dedupe_id: str | None = None,
    ) -> PublishResult:
        """Publish a message; see `RelayCore.publish`."""
        params = _publish_params(subject, _encoded(payload), sender, reply_to, budget, parent_id, dedupe_id)
        return await self._ask(PublishResult, "publish", params)

    async def publish_many(self, messages: Iterable[Mapping[str, Any]]) -> list[PublishResult | RelayError]:
        """Publish messages, each given as the arguments of `publish`, in as few frames as they fit into.

        Each stands for itself. Returns what became of each, in order: its result, or the error it would have raised.
        """
        outcomes: list[PublishResult | RelayError] = []
        batch: list[dict[str, Any]] = []
        size = 0
        for message in messages:
            named = _named(message)
            try:
                named["payload"] = _encoded(named["payload"])
            except InvalidPayload as error:
                outcomes += [*await self._publish_batch(batch), error]
                batch, size = [], 0
                continue
            more = len(named["payload"]) + _ENVELOPE_ROOM
            if batch and (len(batch) == MAX_BATCH or size + more > MAX_FRAME):
                outcomes += await self._publish_batch(batch)
                batch, size = [], 0
            batch.append(_publish_params(**named))
            size += more
        return outcomes + await self._publish_batch(batch)

    async def _publish_batch(self, batch: list[dict[str, Any]]) -> list[PublishResult | RelayError]:
        if not batch:
            return []
        return [
            error_from_wire(one["error"]) if "error" in one else PublishResult.model_validate(one["result"])
            for one in (await self.call("publish.batch", {"messages": batch}))["results"]
        ]

    def subscribe(self, pattern: str, *, max_in_flight: int = 1, queue: str | None = None) -> MessageStream:
        """Iterate over the messages of a subject or a pattern, those that wait already first.

        Each is acknowledged on the next step. Await the stream to begin it before the first step. All streams with the
        same `queue`, of any process, share the messages, one each.
        """
        return MessageStream(self, subscribe_params(pattern, max_in_flight, queue))

    async def request(
        self, subject: str, payload: Any, *, sender: str, timeout: float = TIMEOUT_SECS, **options: Any
    ) -> Envelope:
        """Publish a message and return the first answer to it, from a private mailbox; a failure notice is one too.

        Raises:
            TimeoutError: if none comes in time.
            RelayError: with code `not_delivered`, if nobody took the message.
        """
        answers = ReplyStream(self)
        options.setdefault("dedupe_id", token_hex(16))
        if options["dedupe_id"] is None:
            options["dedupe_id"] = token_hex(16)
        try:
            async with asyncio.timeout(timeout), answers:
                result = await self._publish_question(answers, subject, payload, sender, options)
                if not result.delivered_to:
                    reasons = [one.reason for one in result.rejected or ()]
                    reasons += [one.error or one.status for one in result.adapter_results or ()]
                    why = ", ".join(dict.fromkeys(reasons)) or "nobody is there"
                    raise RelayError(f"{subject} did not get the message: {why}", code="not_delivered")
                async for envelope in answers:
                    return envelope
            raise Closed("the client is closed")
        finally:
            if answers.subject is not None:
                with suppress(RelayError):  # a supervisor that does not answer forgets it with the connection
                    await self.call("endpoints.unregister", {"subject": answers.subject}, timeout=_LEAVE_SECS)

    async def _publish_question(
        self, answers: ReplyStream, subject: str, payload: Any, sender: str, options: dict[str, Any]
    ) -> PublishResult:
        """Publish a question; if the connection was lost since its mailbox was made, that is made again first."""
        while True:
            try:
                return await self.publish(subject, payload, sender=sender, reply_to=answers.subject, **options)
            except AccessDenied as error:
                if error.code != "reply_not_yours" or answers.is_current:
                    raise
                await answers

    async def signal(self, subject: str, signal: Signal) -> None:
        """Send a signal to whoever listens right now."""
        await self.call("signal.send", {"subject": subject, "signal": signal.to_wire()})

    def signals(self, pattern: str) -> SignalStream:
        """Iterate over the signals of a pattern."""
        return SignalStream(self, {"pattern": pattern})

    def watch(self) -> StateWatch:
        """Iterate over the state as it changes, at most 5 times a second."""
        return StateWatch(self, {})

    # Endpoints and pull consumers

    async def register_endpoint(self, subject: str) -> Endpoint:
        """Give a subject a mailbox that lasts."""
        return await self._ask(Endpoint, "endpoints.register", {"subject": subject})

    async def unregister_endpoint(self, subject: str) -> None:
        """Stop routing to a subject; its mail stays on disk."""
        await self.call("endpoints.unregister", {"subject": subject})

    async def endpoints(self) -> list[Endpoint]:
        """Return every registered endpoint, by subject."""
        return await self._pages(Endpoint, "endpoints.list", "endpoints")

    async def mailboxes(self) -> list[MailboxState]:
        """Return the state of every mailbox, by subject."""
        return await self._list(MailboxState, "mailboxes.list", "mailboxes")

    async def inbox(self, subject: str, limit: int = 50, *, after: str | None = None) -> list[Envelope]:
        """Look at the oldest waiting messages, of those after an id, without taking them."""
        return await self._list(Envelope, "inbox.peek", "messages", _given(subject=subject, limit=limit, after=after))

    async def wait_inbox(
        self,
        subject: str,
        limit: int = 50,
        *,
        after: str | None = None,
        answer_to: str | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        """Return the ids of waiting messages, when there are any, without taking them; none if the time is over.

        It waits on through any number of lost connections.
        """
        clock = SystemClock()
        until = clock.monotonic() + timeout if timeout is not None else None
        while True:
            left = min(until - clock.monotonic(), _WAIT_SECS) if until is not None else _WAIT_SECS
            params = _given(subject=subject, limit=limit, after=after, answerTo=answer_to)
            params["timeoutMs"] = max(int(left * 1000), 1)
            found: list[str] = (await self.call("inbox.wait", params, timeout=None))["ids"]
            if found or (until is not None and clock.monotonic() >= until):
                return found

    async def claim(
        self, subject: str, limit: int = 1, *, lease: timedelta | None = None, ids: Iterable[str] | None = None
    ) -> list[Envelope]:
        """Take the oldest waiting messages, or those with these ids; each must be completed or failed.

        They are this connection's and are parked when it is lost, unless a lease keeps them for a time.
        """
        params: dict[str, Any] = {"subject": subject, "limit": limit}
        if ids is not None:
            params["ids"] = list(ids)
        if lease is not None:
            params["leaseMs"] = int(lease.total_seconds() * 1000)

        def unwanted(link: Link, taken: dict[str, Any]) -> None:
            for message in taken["messages"]:
                reason = "the claim was cancelled before it was answered"
                link.notify("inbox.fail", {"subject": subject, "id": message["id"], "reason": reason})

        taken = await self.call("inbox.claim", params, unwanted=unwanted)
        return [Envelope.model_validate(one) for one in taken["messages"]]

    async def complete(self, subject: str, message_id: str, *, late: bool = False) -> bool:
        """Finish a claimed message; return whether it was late; see `RelayCore.complete`."""
        params = {"subject": subject, "id": message_id, **({"late": True} if late else {})}
        return bool((await self.call("inbox.complete", params)).get("late"))

    async def fail(self, subject: str, message_id: str, reason: str) -> None:
        """Make a dead letter of a claimed message."""
        await self.call("inbox.fail", {"subject": subject, "id": message_id, "reason": reason})

    # Agents

    async def agents(self) -> list[AgentState]:
        """Return the agents that were added and every other endpoint, by subject."""
        return await self._pages(AgentState, "agents.list", "agents")

    async def add_agent(self, subject: str, *, description: str | None = None, cwd: str | None = None) -> NewAgent:
        """Give an agent its mailbox and its token; what is there stays."""
        return await self._ask(NewAgent, "agents.add", _given(subject=subject, description=description, cwd=cwd))

    async def remove_agent(self, subject: str) -> None:
        """Take an agent's token and endpoint away; its mail stays."""
        await self.call("agents.remove", {"subject": subject})

    async def people(self, subject: str) -> list[str]:
        """Return the persons to whom an agent may write."""
        return list((await self.call("agents.people", {"subject": subject}))["people"])

    # Dead letters and replay

    async def dead_letters(
        self, endpoint: str | None = None, *, filter: DeadLetterFilter | None = None
    ) -> list[DeadLetter]:
        """Return dead letters, oldest first; of one endpoint (subject or hash) if given."""
        if endpoint is not None:
            filter = (filter or DeadLetterFilter()).model_copy(update={"endpoint": endpoint})
        found: list[DeadLetter] = []
        cursor = None
        while True:
            page = await self.dead_letter_page(filter=filter, cursor=cursor, limit=1000)
            found += page.dead_letters
            cursor = page.cursor
            if cursor is None:
                return found[::-1]

    async def dead_letter_page(
        self, *, filter: DeadLetterFilter | None = None, cursor: str | None = None, limit: int = 100
    ) -> DeadLetters:
        """Return a page of dead letters, newest first."""
        return await self._ask(
            DeadLetters, "deadletters.list", _given(filter=_wire(filter), cursor=cursor, limit=limit)
        )

    async def dead_letter_summaries(
        self, *, filter: DeadLetterFilter | None = None, cursor: str | None = None, limit: int = 100
    ) -> DeadLetterSummaries:
        """Return a page of dead letters without their messages, newest first."""
        return await self._ask(
            DeadLetterSummaries, "deadletters.summaries", _given(filter=_wire(filter), cursor=cursor, limit=limit)
        )

    async def dead_letter_groups(self) -> list[DeadLetterGroup]:
        """Return the dead letters by code and target, largest group first."""
        return await self._list(DeadLetterGroup, "deadletters.groups", "groups")

    async def dead_letter(self, message_id: str, *, endpoint: str | None = None) -> DeadLetter:
        """Return one dead letter."""
        return await self._ask(DeadLetter, "deadletters.get", _given(id=message_id, endpoint=endpoint))

    async def plan_replay(
        self, ids: Iterable[str] | None = None, *, filter: DeadLetterFilter | None = None, fresh_budget: bool = False
    ) -> ReplayPlan:
        """Freeze a selection of dead letters and say what a replay would do with each."""
        head = await self.freeze_replay(ids, filter=filter, fresh_budget=fresh_budget)
        items: list[PlanItem] = []
        while len(items) < head.total:
            page = await self.plan_items(head.id, cursor=str(len(items)), limit=MAX_PAGE)
            items += page.items
        return ReplayPlan(id=head.id, created_at=head.created_at, fresh_budget=head.fresh_budget, items=tuple(items))

    async def freeze_replay(
        self, ids: Iterable[str] | None = None, *, filter: DeadLetterFilter | None = None, fresh_budget: bool = False
    ) -> PlanHead:
        """Freeze a selection of dead letters (by ``ID``, ``ID/HASH`` or filter) and count what would become of them."""
        params = _given(ids=list(ids) if ids is not None else None, filter=_wire(filter), freshBudget=fresh_budget)
        return await self._ask(PlanHead, "deadletters.plan", params, timeout=_LONG_SECS)

    async def plan_items(self, plan_id: str, *, cursor: str | None = None, limit: int = 100) -> PlanItems:
        """Return a page of a plan's messages, each with its verdict."""
        return await self._ask(PlanItems, "deadletters.items", _given(planId=plan_id, cursor=cursor, limit=limit))

    async def start_replay(self, plan_id: str, *, rate: float | None = None, canary: bool = False) -> Replay:
        """Begin to carry out a plan; it goes on when this client is gone."""
        return await self._ask(Replay, "deadletters.run", _given(planId=plan_id, rate=rate, canary=canary))

    async def run_replay(self, plan_id: str, *, rate: float | None = None, canary: bool = False) -> ReplayOutcome:
        """Carry out a plan and return what became of it."""
        await self.start_replay(plan_id, rate=rate, canary=canary)
        return (await self.wait_replay(plan_id)).outcome

    async def wait_replay(self, plan_id: str) -> Replay:
        """Return when a run has ended."""
        answer = await self.call("deadletters.wait", {"planId": plan_id}, timeout=None)
        return Replay.model_validate(answer)

    async def replays(self) -> list[Replay]:
        """Return the newest runs, oldest first."""
        return await self._list(Replay, "deadletters.runs", "replays")

    async def steer_replay(self, plan_id: str, what: str) -> Replay:
        """Do `pause`, `resume` or `cancel` to a run."""
        return await self._ask(Replay, f"deadletters.{what}", {"planId": plan_id})

    async def edit_replay(
        self, message_id: str, payload: Any, *, endpoint: str | None = None, fresh_budget: bool = False
    ) -> PublishResult:
        """Publish an edited copy in the place of a dead letter."""
        params = _given(id=message_id, endpoint=endpoint, freshBudget=fresh_budget) | {
            "payload": orjson.Fragment(_encoded(payload))
        }
        return await self._ask(PublishResult, "deadletters.edit", params)

    async def purge_dead_letters(
        self,
        older_than: int | timedelta | None = None,
        ids: Iterable[str] | None = None,
        *,
        filter: DeadLetterFilter | None = None,
        plan_id: str | None = None,
    ) -> int:
        """Remove dead letters that failed before an instant (epoch ms) or an age, or by id; all if none is given.

        With a plan it is those that it has frozen.
        """
        if isinstance(older_than, timedelta):
            older_than = SystemClock().now_ms() - int(older_than.total_seconds() * 1000)
        params = _given(
            olderThan=older_than, ids=list(ids) if ids is not None else None, filter=_wire(filter), planId=plan_id
        )
        return int((await self.call("deadletters.purge", params, timeout=_LONG_SECS))["purged"])

    async def export_dead_letters(
        self, *, filter: DeadLetterFilter | None = None, plan_id: str | None = None
    ) -> AsyncIterator[str]:
        """Yield dead letters as JSON lines, oldest first; with a plan those that it has frozen."""
        cursor = None
        while True:
            params = _given(filter=_wire(filter), planId=plan_id, cursor=cursor, limit=MAX_PAGE)
            part = await self.call("deadletters.export", params)
            for line in part["lines"]:
                yield line
            cursor = part.get("cursor")
            if cursor is None:
                return

    # Seeing and changing what goes on

    async def info(self) -> ServerInfo:
        """Return which supervisor this is."""
        return await self._ask(ServerInfo, "server.info")

    async def status(self) -> ServerStatus:
        """Return how everything is doing."""
        return await self._ask(ServerStatus, "server.status")

    async def stop(self) -> None:
        """Stop the supervisor."""
        await self.call("server.stop")

    async def trace(self, message_id: str) -> list[Span]:
        """Return what became of a message, one span per target."""
        return await self._list(Span, "traces.get", "spans", {"id": message_id})

    async def search_traces(
        self,
        *,
        id: str | None = None,
        subject: str | None = None,
        sender: str | None = None,
        status: str | None = None,
        since: int | None = None,
        until: int | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Traces:
        """Return a page of messages and what became of them, newest first; see `TracesParams`."""
        parts = _given(id=id, subject=subject, sender=sender, status=status, since=since, until=until)
        return await self._ask(Traces, "traces.search", parts | _given(cursor=cursor, limit=limit))

    async def conversation(self, trace_id: str) -> list[Span]:
        """Return the spans of every message that followed from one."""
        return await self._list(Span, "traces.conversation", "spans", {"id": trace_id})

    async def metrics(self) -> MetricsSnapshot:
        """Return what has been counted since the start."""
        return await self._ask(MetricsSnapshot, "metrics")

    async def breakers(self) -> list[TargetBreaker]:
        """Return every breaker."""
        return await self._list(TargetBreaker, "breakers.list", "breakers")

    async def reset_breaker(self, target: str, reason: str = "reset by the operator") -> None:
        """Close a target's breaker (subject or hash)."""
        await self.call("breakers.reset", {"target": target, "reason": reason})

    async def force_breaker(self, target: str, state: str, reason: str) -> None:
        """Hold a target's breaker open, or close it, until it is reset."""
        await self.call("breakers.force", {"target": target, "state": state, "reason": reason})

    async def senders(self) -> list[SenderUsage]:
        """Return what each sender has used of its limit."""
        return await self._list(SenderUsage, "senders.list", "senders")

    async def adapters(self) -> Adapters:
        """Return every adapter in adapters.json, and what is wrong with the file."""
        return await self._ask(Adapters, "adapters.list")

    async def change_adapter(self, adapter_id: str, what: str) -> ConfiguredAdapter:
        """Do `enable`, `disable` or `test` to an adapter."""
        return await self._ask(ConfiguredAdapter, f"adapters.{what}", {"id": adapter_id}, timeout=60.0)

    async def reload_adapters(self, adapter_id: str | None = None) -> Adapters:
        """Read adapters.json again, or make one adapter anew."""
        return await self._ask(Adapters, "adapters.reload", _given(id=adapter_id), timeout=60.0)

    async def access_rules(self) -> AccessRules:
        """Return the access rules, in the order of the file."""
        return await self._ask(AccessRules, "access.list")

    async def add_access_rule(self, rule: AccessRule) -> AccessRules:
        """Append a rule, unless it is there already."""
        return await self._ask(AccessRules, "access.add", {"rule": rule.to_wire()})

    async def remove_access_rule(self, sender: str, to: str) -> int:
        """Remove every rule with exactly these patterns and return how many there were."""
        return int((await self.call("access.remove", {"from": sender, "to": to}))["removed"])

    async def tokens(self) -> list[TokenInfo]:
        """Return every token, without its secret."""
        return await self._list(TokenInfo, "tokens.list", "tokens")

    async def add_token(self, pattern: str, note: str | None = None) -> NewToken:
        """Make a token for the subjects of a pattern; it is shown this once."""
        return await self._ask(NewToken, "tokens.add", _given(pattern=pattern, note=note))

    async def remove_token(self, token_id: str) -> None:
        """Make a token worthless."""
        await self.call("tokens.remove", {"id": token_id})

    async def jobs(self) -> list[JobState]:
        """Return every job."""
        return await self._list(JobState, "jobs.list", "jobs")

    async def run_job(self, name: str, *, wait: bool = True, arguments: JobArguments | None = None) -> JobRun:
        """Run a job now, and return how it went (or that it was started)."""
        params = {"name": name, "wait": wait} | _given(arguments=_wire(arguments))
        return await self._ask(JobRun, "jobs.run", params, timeout=None)

    async def cancel_job(self, name: str) -> JobRun:
        """Break off the run of a job that is under way, and return how far it came."""
        return await self._ask(JobRun, "jobs.cancel", {"name": name})

    async def reports(self) -> Reports:
        """Return the nightly reports, newest first."""
        return await self._ask(Reports, "reports.list")

    async def report(self, date: str | None = None) -> ReportContent:
        """Return a nightly report, the newest unless a date is given."""
        return await self._ask(ReportContent, "reports.get", _given(date=date))

    async def config(self) -> ConfigState:
        """Return the configuration in force."""
        return await self._ask(ConfigState, "config.get")

    async def reload(self) -> list[str]:
        """Have the operator's files read again; return what is wrong with them."""
        return list((await self.call("config.reload"))["problems"])

    async def _ask(
        self, model: type[M], method: str, params: dict[str, Any] | None = None, *, timeout: float | None = OWN_TIMEOUT
    ) -> M:
        return parse_answer(model, method, await self.call(method, params, timeout=timeout))

    async def _list(self, model: type[M], method: str, key: str, params: dict[str, Any] | None = None) -> list[M]:
        return _rows(model, method, key, await self.call(method, params))

    async def _pages(self, model: type[M], method: str, key: str) -> list[M]:
        """Return all of a list that comes in pages."""
        found: list[M] = []
        cursor = None
        while True:
            answer = await self.call(method, _given(cursor=cursor, limit=MAX_PAGE))
            found += _rows(model, method, key, answer)
            cursor = answer.get("cursor")
            if cursor is None:
                return found


def _rows(model: type[M], method: str, key: str, answer: Any) -> list[M]:
    rows = answer.get(key) if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        raise ProtocolError(f"unexpected answer to {method} (no {key})", code="bad_answer")
    return [parse_answer(model, method, one) for one in rows]


def _publish_params(
    subject: str,
    payload: bytes,
    sender: str,
    reply_to: str | None = None,
    budget: BudgetOverrides | Mapping[str, Any] | None = None,
    parent_id: str | None = None,
    dedupe_id: str | None = None,
) -> dict[str, Any]:
    if isinstance(budget, BudgetOverrides):
        budget = budget.to_wire()
    params: dict[str, Any] = {
        "subject": subject,
        "from": sender,
        "payload": orjson.Fragment(payload),
        "dedupeId": dedupe_id or token_hex(16),
    }
    return params | _given(replyTo=reply_to, budget=budget, parentId=parent_id)


def _encoded(payload: Any) -> bytes:
    """Return a payload as JSON by the bus's own rules, under which NaN is an error and not null."""
    return encode_payload(payload, limit=MAX_FRAME)


def _named(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message's parts by the names of `publish`, also if they were given as on the wire."""
    aliases = {"from": "sender", "replyTo": "reply_to", "parentId": "parent_id", "dedupeId": "dedupe_id"}
    return {aliases.get(name, name): value for name, value in message.items()}


def _given(**params: Any) -> dict[str, Any]:
    """Return the parameters that are not None."""
    return {name: value for name, value in params.items() if value is not None}


def _wire(model: WireModel | None) -> dict[str, Any] | None:
    return model.to_wire() if model is not None else None
