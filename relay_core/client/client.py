"""RelayClient: the bus's verbs over the socket.

1. Errors are the classes that the supervisor raised. `SupervisorUnavailable` means that no supervisor answered.
2. Requests that were lost with a connection are sent again where that is safe (reconnect.py). A publish always is: it
   carries a dedupe id, generated here unless the caller gives one, so that the supervisor returns the first outcome
   instead of publishing twice. Otherwise `SupervisorUnavailable` has the code `outcome_unknown`.
3. Subscriptions continue after a reconnect (streams.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from itertools import count
from secrets import token_hex
from typing import Any

import orjson

from relay_core.client.connection import Connection
from relay_core.client.dead_letters import DeadLetterVerbs
from relay_core.client.operating import OperatorVerbs
from relay_core.client.reconnect import TIMEOUT_SECS, given
from relay_core.client.streams import MessageStream, ReplyStream, SignalStream, StateWatch, subscribe_params
from relay_core.client.typed_calls import encode_json
from relay_core.clock import SystemClock
from relay_core.errors import AccessDenied, Closed, InvalidPayload, RelayError
from relay_core.messages.envelope import BudgetOverrides, Envelope
from relay_core.messages.operator_views import AgentState
from relay_core.messages.results import PublishResult
from relay_core.messages.signals import Signal
from relay_core.protocol.base import MAX_BATCH
from relay_core.protocol.consuming import SubscriptionState
from relay_core.protocol.endpoints import NewAgent
from relay_core.protocol.frames import MAX_FRAME, error_from_wire
from relay_core.protocol.state import MailboxState
from relay_core.storage.endpoint_file import Endpoint

_ENVELOPE_ROOM = 4096
"""Bytes of a frame beside the payload."""
_LEAVE_SECS = 2.0
_WAIT_SECS = 300.0
"""The longest single wait, so that a supervisor does not keep waits of clients that are gone."""


class RelayClient(DeadLetterVerbs, OperatorVerbs):
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
        params = self._publish_params(subject, encode_json(payload), sender, reply_to, budget, parent_id, dedupe_id)
        return await self._ask(PublishResult, "publish", params)

    async def publish_many(self, messages: Iterable[Mapping[str, Any]]) -> list[PublishResult | RelayError]:
        """Publish messages, each given as the arguments of `publish`, in as few frames as they fit into.

        Each is independent. Returns the outcomes in order: a result, or the error that `publish` would have raised.
        """
        outcomes: list[PublishResult | RelayError] = []
        batch: list[dict[str, Any]] = []
        size = 0
        for message in messages:
            named = _named(message)
            try:
                named["payload"] = encode_json(named["payload"])
            except InvalidPayload as error:
                outcomes += [*await self._publish_batch(batch), error]
                batch, size = [], 0
                continue
            more = len(named["payload"]) + _ENVELOPE_ROOM
            if batch and (len(batch) == MAX_BATCH or size + more > MAX_FRAME):
                outcomes += await self._publish_batch(batch)
                batch, size = [], 0
            batch.append(self._publish_params(**named))
            size += more
        return outcomes + await self._publish_batch(batch)

    async def _publish_batch(self, batch: list[dict[str, Any]]) -> list[PublishResult | RelayError]:
        if not batch:
            return []
        return [
            error_from_wire(outcome["error"]) if "error" in outcome else PublishResult.model_validate(outcome["result"])
            for outcome in (await self.call("publish.batch", {"messages": batch}))["results"]
        ]

    def _publish_params(
        self,
        subject: str,
        payload: bytes,
        sender: str,
        reply_to: str | None = None,
        budget: BudgetOverrides | Mapping[str, Any] | None = None,
        parent_id: str | None = None,
        dedupe_id: str | None = None,
    ) -> dict[str, Any]:
        params: dict[str, Any] = {
            "subject": subject,
            "from": sender,
            "payload": orjson.Fragment(payload),
            "dedupeId": dedupe_id or next(self._dedupe_ids),
        }
        if reply_to is not None:
            params["replyTo"] = reply_to
        if budget is not None:
            params["budget"] = budget.to_wire() if isinstance(budget, BudgetOverrides) else budget
        if parent_id is not None:
            params["parentId"] = parent_id
        return params

    @cached_property
    def _dedupe_ids(self) -> Iterator[str]:
        """Ids that no other client can have or guess."""
        prefix = token_hex(16)
        return (f"{prefix}-{number}" for number in count())

    def subscribe(self, pattern: str, *, max_in_flight: int = 1, queue: str | None = None) -> MessageStream:
        """Iterate over the messages of a subject or a pattern, starting with those already waiting.

        Each is acknowledged on the next step. Await the stream to start it before the first step. Streams with the same
        `queue`, in any process, share the messages: each goes to one of them.
        """
        return MessageStream(self, subscribe_params(pattern, max_in_flight, queue))

    async def request(
        self, subject: str, payload: Any, *, sender: str, timeout: float = TIMEOUT_SECS, **options: Any
    ) -> Envelope:
        """Publish a message and return the first answer from a private mailbox, which may be a failure notice.

        Raises:
            TimeoutError: if none arrives in time.
            RelayError: with code `not_delivered`, if no target accepted the message.
        """
        answers = ReplyStream(self)
        options["dedupe_id"] = options.get("dedupe_id") or next(self._dedupe_ids)  # the same for every attempt
        try:
            async with asyncio.timeout(timeout), answers:
                result = await self._publish_question(answers, subject, payload, sender, options)
                if not result.delivered_to:
                    reasons = [rejection.reason for rejection in result.rejected or ()]
                    reasons += [outcome.error or outcome.status for outcome in result.adapter_results or ()]
                    why = ", ".join(dict.fromkeys(reasons)) or "no endpoint or consumer matches"
                    raise RelayError(f"{subject} did not receive the message: {why}", code="not_delivered")
                async for envelope in answers:
                    return envelope
            raise Closed("the client is closed")
        finally:
            if answers.subject is not None:
                with suppress(RelayError):  # it is removed with the connection anyway
                    await self.call("endpoints.unregister", {"subject": answers.subject}, timeout=_LEAVE_SECS)

    async def _publish_question(
        self, answers: ReplyStream, subject: str, payload: Any, sender: str, options: dict[str, Any]
    ) -> PublishResult:
        """Publish a question; if the connection was lost since its mailbox was opened, open that again first."""
        while True:
            try:
                return await self.publish(subject, payload, sender=sender, reply_to=answers.subject, **options)
            except AccessDenied as error:
                if error.code != "reply_not_yours" or answers.is_current:
                    raise
                await answers

    async def signal(self, subject: str, signal: Signal) -> None:
        """Send a signal to current listeners."""
        await self.call("signal.send", {"subject": subject, "signal": signal.to_wire()})

    def signals(self, pattern: str) -> SignalStream:
        """Iterate over the signals of a pattern."""
        return SignalStream(self, {"pattern": pattern})

    async def subscriptions(self) -> list[SubscriptionState]:
        """Return the live subscriptions, oldest first: all for an operator, those of its own token for an agent."""
        return await self._pages(SubscriptionState, "subscriptions.list", "subscriptions")

    def watch(self) -> StateWatch:
        """Iterate over the state as it changes, at most 5 times a second."""
        return StateWatch(self, {})

    # Endpoints and pull consumers

    async def register_endpoint(self, subject: str) -> Endpoint:
        """Give a subject a durable mailbox."""
        return await self._ask(Endpoint, "endpoints.register", {"subject": subject})

    async def unregister_endpoint(self, subject: str) -> None:
        """Stop routing to a subject; its messages stay on disk."""
        await self.call("endpoints.unregister", {"subject": subject})

    async def endpoints(self) -> list[Endpoint]:
        """Return every registered endpoint, by subject."""
        return await self._pages(Endpoint, "endpoints.list", "endpoints")

    async def mailboxes(self) -> list[MailboxState]:
        """Return the state of every mailbox, by subject."""
        return await self._list(MailboxState, "mailboxes.list", "mailboxes")

    async def inbox(self, subject: str, limit: int = 50, *, after: str | None = None) -> list[Envelope]:
        """Return the oldest waiting messages, optionally after an id, without claiming them."""
        return await self._list(Envelope, "inbox.peek", "messages", given(subject=subject, limit=limit, after=after))

    async def wait_inbox(
        self,
        subject: str,
        limit: int = 50,
        *,
        after: str | None = None,
        answer_to: str | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        """Return the ids of waiting messages once there are any, without claiming them; none after the timeout.

        The wait survives lost connections.
        """
        clock = SystemClock()
        until = clock.monotonic() + timeout if timeout is not None else None
        while True:
            left = min(until - clock.monotonic(), _WAIT_SECS) if until is not None else _WAIT_SECS
            params = given(subject=subject, limit=limit, after=after, answerTo=answer_to)
            params["timeoutMs"] = max(int(left * 1000), 1)
            ids: list[str] = (await self.call("inbox.wait", params, timeout=None))["ids"]
            if ids or (until is not None and clock.monotonic() >= until):
                return ids

    async def claim(
        self, subject: str, limit: int = 1, *, lease: timedelta | None = None, ids: Iterable[str] | None = None
    ) -> list[Envelope]:
        """Claim the oldest waiting messages, or those with these ids; each must be completed or failed.

        They are dead-lettered when this connection is lost, unless they are claimed with a lease.
        """
        params: dict[str, Any] = {"subject": subject, "limit": limit}
        if ids is not None:
            params["ids"] = list(ids)
        if lease is not None:
            params["leaseMs"] = int(lease.total_seconds() * 1000)

        def release(connection: Connection, claimed: dict[str, Any]) -> None:
            for message in claimed["messages"]:
                reason = "the claim was cancelled before it was answered"
                connection.notify("inbox.fail", {"subject": subject, "id": message["id"], "reason": reason})

        claimed = await self.call("inbox.claim", params, on_late_answer=release)
        return [Envelope.model_validate(message) for message in claimed["messages"]]

    async def complete(self, subject: str, message_id: str, *, late: bool = False) -> bool:
        """Finish a claimed message; return True if it was late; see `RelayCore.complete`."""
        params = {"subject": subject, "id": message_id, **({"late": True} if late else {})}
        return bool((await self.call("inbox.complete", params)).get("late"))

    async def fail(self, subject: str, message_id: str, reason: str) -> None:
        """Dead-letter a claimed message."""
        await self.call("inbox.fail", {"subject": subject, "id": message_id, "reason": reason})

    # Agents

    async def agents(self) -> list[AgentState]:
        """Return the agents and every other endpoint, by subject."""
        return await self._pages(AgentState, "agents.list", "agents")

    async def add_agent(self, subject: str, *, description: str | None = None, cwd: str | None = None) -> NewAgent:
        """Create an agent's mailbox and token, unless they exist."""
        return await self._ask(NewAgent, "agents.add", given(subject=subject, description=description, cwd=cwd))

    async def remove_agent(self, subject: str) -> None:
        """Remove an agent's token and endpoint; its messages stay."""
        await self.call("agents.remove", {"subject": subject})

    async def people(self, subject: str) -> list[str]:
        """Return the people an agent may write to."""
        return list((await self.call("agents.people", {"subject": subject}))["people"])


def _named(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message's parts by the parameter names of `publish`; wire names are accepted too."""
    aliases = {"from": "sender", "replyTo": "reply_to", "parentId": "parent_id", "dedupeId": "dedupe_id"}
    return {aliases.get(name, name): value for name, value in message.items()}
