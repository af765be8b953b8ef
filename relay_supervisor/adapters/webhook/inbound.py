"""One inbound request: verified, published, answered. Independent of sockets.

::

    not signed correctly, for any reason            401   the same body for all reasons, so a forger learns nothing
    an id that was accepted before                  200   with the message's id; nothing is published
    invalid budget headers or body                  400
    published                                       202   with the message's id, also if it became a dead letter
    denied by an access rule                        403   but 503 if the file of rules is broken
    over the budget (a loop, too old)               422   a retry cannot help
    over the sender's rate                          429   with Retry-After
    mailbox full, breaker open, disk full, stopping 503   with Retry-After

1. A replay is answered as a success: a sender that lost our first response must not retry forever, and a client that
   can present a replay has a valid signature already, so the response reveals nothing to strangers.
2. An id is recorded only after its message was published. A refused message may be sent again under the same id.
3. The same time and body by the other scheme is the same message. It is always looked up, and recorded if both schemes
   are accepted or both signatures present, so a change of the scheme does not accept a message twice either.
4. The id is also the publish's dedupe id. So concurrent copies are one message (the second waits for the first), and
   so is a copy after a kill between publish and record.
5. A JSON body is the payload; one with a duplicate key in an object is refused, since parsers differ in which value
   they use. Other text becomes a StandardPayload.
6. The budget comes from the headers, and the bus clamps it to its own limits.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from relay_core.adapters.interface import AdapterContext
from relay_core.errors import AccessDenied, InvalidPayload, RelayError
from relay_core.limited_log import LimitedLog
from relay_core.messages.envelope import BudgetOverrides
from relay_core.messages.payload import StandardPayload
from relay_core.messages.results import PublishResult, Reason
from relay_supervisor.adapters.budget_headers import read_budget
from relay_supervisor.adapters.webhook.config import InboundConfig
from relay_supervisor.adapters.webhook.replays import Replays
from relay_supervisor.adapters.webhook.rotation import Rotation
from relay_supervisor.adapters.webhook.signing import ID, ID_HEADERS, LEGACY_SIGNATURE, Signed, Unverified, verify

RATE_RETRY_SECS = 30
BUSY_RETRY_SECS = 10
_RULES_BROKEN = "rules_broken"


class Answer(NamedTuple):
    """The response to the sender."""

    status: int
    body: dict[str, Any]
    retry_after: int | None = None


UNAUTHORIZED = Answer(401, {"error": "unauthorized"})


class Inbound:
    """Handle the requests of one adapter."""

    def __init__(
        self,
        config: InboundConfig,
        context: AdapterContext,
        sender: str,
        rotation: Rotation,
        replays: Replays,
    ) -> None:
        self.max_body_bytes = config.max_body_bytes
        self._config = config
        self._context = context
        self._clock = context.clock
        self._logger = context.logger
        self._sender = sender
        self._rotation = rotation
        self._replays = replays
        self._running: set[asyncio.Task[Any]] = set()
        self._log = LimitedLog(context.logger, context.clock)

    async def handle(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Handle one request; the headers have lower-case names."""
        task = asyncio.current_task()
        assert task is not None
        # Until the task ends, not just this call: the response has been sent by then.
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        config = self._config
        try:
            signed = verify(
                headers,
                body,
                self._rotation.keys(),
                config.scheme,
                now_ms=self._clock.now_ms(),
                tolerance=config.tolerance_secs,
            )
        except Unverified as error:
            self._log.warning("unverified", "a webhook was refused with 401: %s", error)
            return UNAUTHORIZED
        if config.scheme != "both":
            return await self._accept(signed, headers, body)
        async with self._replays.lock(signed.content):
            return await self._accept(signed, headers, body)

    async def finish(self, timeout: float) -> None:
        """Wait until every running request has been answered; cancel those that take longer than the timeout."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=timeout)
            for task in late:  # the bus completes a publish that has begun
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=timeout)

    async def _accept(self, signed: Signed, headers: Mapping[str, str], body: bytes) -> Answer:
        known = self._replays.find(signed.id)
        twin = signed.twin
        if known is None and twin is not None and (known := self._replays.find(twin)) is not None:
            self._record(known, signed.id)  # signed again, it has another twin
        if known is not None:
            return Answer(200, {"messageId": known, "duplicate": True})
        if self._replays.is_full():
            self._logger.error("too many messages: their ids can no longer be recorded, so they are put off")
            return Answer(503, {"error": "busy"}, BUSY_RETRY_SECS)
        try:
            budget = read_budget(headers)
            payload = read_payload(headers, body, ID_HEADERS[self._config.scheme])
        except ValueError as error:
            return Answer(400, {"error": "invalid", "message": str(error)})
        both = self._config.scheme == "both" or (twin is not None and LEGACY_SIGNATURE in headers)
        return await self._publish(signed, {signed.id, signed.mark} if both else {signed.id}, payload, budget)

    async def _publish(self, signed: Signed, ids: set[str], payload: Any, budget: BudgetOverrides) -> Answer:
        try:
            result = await self._context.publish(
                self._config.subject,
                payload,
                sender=self._sender,
                reply_to=self._config.reply_to,
                budget=budget,
                dedupe_id=f"webhook {self._context.adapter_id} {signed.id}",
            )
        except InvalidPayload as error:
            return Answer(413 if error.code == "payload_too_large" else 400, {"error": error.code})
        except RelayError as error:
            if isinstance(error, AccessDenied) and error.code != _RULES_BROKEN:
                return Answer(403, {"error": "denied"})
            self._logger.warning("a webhook is put off: %s", error.message)
            return Answer(503, {"error": error.code}, BUSY_RETRY_SECS)
        refusal = find_refusal(result)
        if refusal is not None:
            return refusal
        self._record(result.message_id, *ids)
        return Answer(202, {"messageId": result.message_id})

    def _record(self, message_id: str, *ids: str) -> None:
        problem = self._replays.record(message_id, *ids)
        if problem is not None:
            self._logger.warning("the id of a webhook is not on disk: %s", problem.strerror)


def find_refusal(result: PublishResult) -> Answer | None:
    """Return the answer to a publish that the bus refused, or None if the bus has the message."""
    if result.put_off:
        if Reason.RATE_LIMITED in result.put_off:
            return Answer(429, {"error": Reason.RATE_LIMITED}, RATE_RETRY_SECS)
        return Answer(503, {"error": min(result.put_off)}, BUSY_RETRY_SECS)
    if result.is_refused:
        return Answer(422, {"error": Reason.BUDGET_EXCEEDED, "messageId": result.message_id})
    return None  # delivered, or kept as a dead letter


def read_payload(headers: Mapping[str, str], body: bytes, id_header: str = ID) -> Any:
    """Return the payload of a body.

    Raises:
        ValueError: if the body is invalid; the message does not quote it.
    """
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ValueError("the body must not be compressed")
    content_type = headers.get("content-type", "application/json")
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            payload = orjson.loads(body)
        except ValueError:
            raise ValueError("the body is not JSON") from None
        _check_keys(body)
        return payload
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise ValueError("the body must be JSON or UTF-8 text") from None
    platform_data = {"contentType": content_type}
    if id_header in headers:
        platform_data["webhookId"] = headers[id_header]
    return StandardPayload(content=text, platform_data=platform_data)


def _check_keys(body: bytes) -> None:
    """Refuse a JSON text with a duplicate key in an object: the signer may have meant the other value.

    orjson silently keeps the last value, so the text is parsed a second time. Raises ValueError.
    """
    if body.count(b":") < 2:
        return
    try:
        json.loads(body.decode(), object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("the body is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("an object in the body has a key twice")
