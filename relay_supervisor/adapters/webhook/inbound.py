"""One request on its way in: verified, published, answered. Knows nothing of sockets.

::

    not signed as it should be, in whatever way     401   one text for all: a forger learns nothing
    an id that was taken before                     200   with the message it became; nothing is published
    budget headers or a body that make no sense     400
    published                                       202   with the message's id, also if nobody took it (a dead letter)
    denied by an access rule                        403   but 503 if the file of the rules is broken: it will be mended
    over the budget (a loop, too old)               422   no retry can help
    over the sender's rate                          429   with Retry-After
    mailbox full, breaker open, disk full, stopping 503   with Retry-After

1. A replay is answered as a success: a sender that lost our first answer must not try for ever, and whoever can
   present one has a good signature already, so it tells no stranger anything.
2. An id is remembered only once its message is in the bus's hands. What was refused may be sent again under it.
3. The same time and body by the other scheme is the same message. It is looked for always, and marked where both are
   taken or both signatures are there: so a change of the scheme lets nothing in a second time, either.
4. The id is the publish's dedupe id, too. So copies that come at the same time are one message (the second waits for
   the first), and so is one that comes again after a kill between publish and remembering.
5. A JSON body is the payload as it is; one with a key twice in the same object is refused, since readers differ in
   which value they take. Other text becomes a StandardPayload.
6. The budget comes from the headers, and the bus cuts it to its own ceilings.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from relay_core.adapters.interface import AdapterContext
from relay_core.errors import AccessDenied, InvalidPayload, RelayError
from relay_core.messages.envelope import BudgetOverrides
from relay_core.messages.payload import StandardPayload
from relay_core.messages.results import PublishResult, Reason
from relay_supervisor.adapters.budget_headers import read_budget
from relay_supervisor.adapters.webhook.config import InboundConfig
from relay_supervisor.adapters.webhook.replays import Replays
from relay_supervisor.adapters.webhook.rotation import Rotation
from relay_supervisor.adapters.webhook.signing import ID, LEGACY_SIGNATURE, Signed, Unverified, verify

RATE_RETRY_SECS = 30
BUSY_RETRY_SECS = 10
_LOG_SECS = 60.0
_RULES_BROKEN = "rules_broken"


class Answer(NamedTuple):
    """What the sender is told."""

    status: int
    body: dict[str, Any]
    retry_after: int | None = None


UNAUTHORIZED = Answer(401, {"error": "unauthorized"})


class Inbound:
    """Take the requests of one adapter."""

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
        self._under_way: set[asyncio.Task[Any]] = set()
        self._refusals = _Refusals(context)

    async def handle(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Take one request (headers with lower-case names)."""
        task = asyncio.current_task()
        assert task is not None
        # Until the task ends, not just this call: then the answer has been sent, too.
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await self._handle(headers, body)

    async def finish(self, timeout: float) -> None:
        """Return once every request under way has been answered, or cut off after the timeout."""
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=timeout)
            for task in late:  # what it has given to the bus, the bus finishes
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=timeout)

    async def _handle(self, headers: Mapping[str, str], body: bytes) -> Answer:
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
            self._refusals.note(str(error))
            return UNAUTHORIZED
        if config.scheme != "both":
            return await self._take(signed, headers, body)
        async with self._replays.alone(signed.content):
            return await self._take(signed, headers, body)

    async def _take(self, signed: Signed, headers: Mapping[str, str], body: bytes) -> Answer:
        known = self._replays.find(signed.id)
        if known is None and (known := self._replays.find(signed.twin)) is not None:
            self._remember(known, signed.id)  # signed anew it has another twin
        if known is not None:
            return Answer(200, {"messageId": known, "duplicate": True})
        if self._replays.is_full():
            self._logger.error("too many messages: their ids can no longer be kept, so they are put off")
            return Answer(503, {"error": "busy"}, BUSY_RETRY_SECS)
        try:
            budget = read_budget(headers)
            payload = read_payload(headers, body)
        except ValueError as error:
            return Answer(400, {"error": "invalid", "message": str(error)})
        both = self._config.scheme == "both" or LEGACY_SIGNATURE in headers
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
        except AccessDenied as error:
            if error.code == _RULES_BROKEN:
                self._logger.warning("a webhook is put off: %s", error.message)
                return Answer(503, {"error": error.code}, BUSY_RETRY_SECS)
            return Answer(403, {"error": "denied"})
        except InvalidPayload as error:
            return Answer(413 if error.code == "payload_too_large" else 400, {"error": error.code})
        except RelayError as error:  # the disk, or a bus that is closing
            self._logger.warning("a webhook is put off: %s", error.message)
            return Answer(503, {"error": error.code}, BUSY_RETRY_SECS)
        refusal = judge(result)
        if refusal is not None:
            return refusal
        self._remember(result.message_id, *ids)
        return Answer(202, {"messageId": result.message_id})

    def _remember(self, message_id: str, *ids: str) -> None:
        problem = self._replays.record(message_id, *ids)
        if problem is not None:
            self._logger.warning("the id of a webhook is not on disk: %s", problem.strerror)


class _Refusals:
    """Say in the log that requests were refused, but not for each: their number is the sender's to choose."""

    def __init__(self, context: AdapterContext) -> None:
        self._context = context
        self._count = 0
        self._next_at = float("-inf")

    def note(self, why: str) -> None:
        """Count a refusal, and log the count now and then."""
        self._count += 1
        now = self._context.clock.monotonic()
        if now >= self._next_at:
            self._context.logger.warning("%d webhook(s) refused with 401; the last one: %s", self._count, why)
            self._count, self._next_at = 0, now + _LOG_SECS


def judge(result: PublishResult) -> Answer | None:
    """Return the answer to a publish that the bus has not taken, or None if it has it in hand."""
    if result.put_off:
        if Reason.RATE_LIMITED in result.put_off:
            return Answer(429, {"error": Reason.RATE_LIMITED}, RATE_RETRY_SECS)
        return Answer(503, {"error": min(result.put_off)}, BUSY_RETRY_SECS)
    failed = any(one.status == "failed" for one in result.adapter_results or ())
    if not result.delivered_to and not failed and result.rejected:
        return Answer(422, {"error": Reason.BUDGET_EXCEEDED, "messageId": result.message_id})
    return None  # with a target, or kept as a dead letter


def read_payload(headers: Mapping[str, str], body: bytes) -> Any:
    """Return the payload that a body stands for.

    Raises:
        ValueError: if it cannot be read; the text does not quote it.
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
    about = {"contentType": content_type}
    if ID in headers:
        about["webhookId"] = headers[ID]
    return StandardPayload(content=text, platform_data=about)


def _check_keys(body: bytes) -> None:
    """Check that no object of a JSON text has a key twice: whoever signed it may have read the other value.

    orjson keeps the last value without a word, so the text is read a second time.

    Raises:
        ValueError: if one has.
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
