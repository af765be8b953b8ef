"""The clients of a round: publishers that retry, consumers of every kind, and an operator who replays.

Each client owns one connection, makes a new one when it is lost, and writes what it was told into the history. What a
client does next is drawn from its own generator, seeded by the round and its name.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.soak.history import Accepted, Delivery, History, Number
from tests.soak.wire import Lost, Refused, Wire

PUSH = ("relay.soak.push.a", "relay.soak.push.b")
FAN = ("relay.soak.fan.a", "relay.soak.fan.b")
PULL = "relay.soak.pull"
POOL = "relay.soak.pool"
KEEP = "relay.soak.keep"
METERED = "relay.soak.metered"
HOPS = tuple(f"relay.soak.hop.{position}" for position in range(9))
CONSUMED = (*PUSH, *FAN, PULL, POOL, METERED, *HOPS)
ALL = (*CONSUMED, KEEP)
ORDERED = frozenset({*PUSH, *FAN, PULL})
METERED_SENDER = "relay.soak.greedy"
RETRY_SECS = 0.05
LEASE_MS = 2000

LEAVES_NOTHING = {"rate_limited", "backpressure", "circuit_open"}
REPLAYABLE = {"consumer_failed", "disconnected", "interrupted", "timeout"}


class Client:
    """A client that reconnects."""

    def __init__(self, name: str, socket: Path, history: History, seed: str) -> None:
        self.name = name
        self.history = history
        self.chance = random.Random(f"{seed} {name}")
        self.calm = False
        """Set for the end of a round: consumers acknowledge everything from then on, publishers stop."""
        self._socket = socket
        self._wire: Wire | None = None

    async def run(self) -> None:
        """Work until cancelled, or until there is nothing more to do."""
        raise NotImplementedError

    async def wire(self) -> Wire:
        """Return the connection, made again if it was lost."""
        while self._wire is None or self._wire.is_lost:
            try:
                self._wire = await Wire.connect(self._socket)
            except OSError:
                await asyncio.sleep(RETRY_SECS)
        return self._wire

    def cut(self) -> None:
        """Drop the connection, wherever it is."""
        if self._wire is not None:
            self._wire.cut()

    async def publish(self, number: Number, subject: str, targets: tuple[str, ...], **more: Any) -> bool:
        """Publish with a dedupe id until there is an answer; return True if the bus took the message."""
        self.history.targets[number] = targets
        payload = {"n": number.n, "x": "x" * self.chance.randrange(600), **more.pop("payload", {})}
        while True:
            wire = await self.wire()
            asked_at = time.monotonic()
            try:
                result = await wire.call(
                    "publish",
                    subject=subject,
                    payload=payload,
                    dedupeId=str(number.n),
                    **{"from": number.sender},
                    **more,
                )
            except (Lost, Refused) as error:
                if isinstance(error, Refused) and error.kind not in ("StorageError", "Closed", "SupervisorUnavailable"):
                    self.history.violations.append(f"{number} was refused: {error.kind} {error.code}: {error}")
                    return False
                await asyncio.sleep(RETRY_SECS)
                continue
            rejected = tuple(rejection["endpointHash"] for rejection in result.get("rejected", ()))
            reasons = {rejection["reason"] for rejection in result.get("rejected", ())}
            if result["deliveredTo"] == 0 and reasons and reasons <= LEAVES_NOTHING:
                self.history.refused[number] = ", ".join(sorted(reasons))
                return False
            if reasons == {"budget_exceeded"}:
                self.history.targets[number] = ()  # it is a dead letter of the subject, and reaches no mailbox
                return False
            answer = Accepted(asked_at, time.monotonic(), result["messageId"], result["deliveredTo"], rejected)
            self.history.accepted.setdefault(number, []).append(answer)
            if self.chance.random() > 0.05:
                return True  # else ask once more, as if the answer had been lost


class Publisher(Client):
    """Publish numbers to every kind of mailbox, one after the other."""

    async def run(self) -> None:
        """Publish until the round is calm."""
        sender = f"relay.soak.publisher.{self.name}"
        n = 0
        while not self.calm:
            kind = self.chance.choice(("push", "push", "pull", "pool", "keep", "fan"))
            number = Number(sender, n)
            if kind == "push":
                subject = self.chance.choice(PUSH)
                await self.publish(number, subject, (subject,))
            elif kind == "fan":
                await self.publish(number, "relay.soak.fan.*", FAN)
            else:
                subject = {"pull": PULL, "pool": POOL, "keep": KEEP}[kind]
                await self.publish(number, subject, (subject,))
            n += 1
            await asyncio.sleep(self.chance.uniform(0, 0.004))


class Greedy(Client):
    """Publish faster than the sender's rate allows."""

    async def run(self) -> None:
        """Publish until the round is calm."""
        n = 0
        while not self.calm:
            await self.publish(Number(METERED_SENDER, n), METERED, (METERED,))
            n += 1
            await asyncio.sleep(0.05)


class Starter(Client):
    """Begin conversations that only their budget ends."""

    async def run(self) -> None:
        """Begin one after the other until the round is calm."""
        n = 0
        while not self.calm:
            await self.publish(Number("relay.soak.starter", n), HOPS[0], HOPS[:1], payload={"depth": 1})
            n += 1
            await asyncio.sleep(self.chance.uniform(0.05, 0.2))


class Consumer(Client):
    """A subscriber to one mailbox, alone or as a member of a pool."""

    def __init__(
        self,
        name: str,
        socket: Path,
        history: History,
        seed: str,
        *,
        mailbox: str,
        queue: str | None = None,
        starts: bool = False,
    ) -> None:
        super().__init__(name, socket, history, seed)
        self.mailbox = mailbox
        self._options: dict[str, Any] = {"queue": queue, "starts": starts} if queue else {}
        self._starts = starts
        self._next_hop = 0

    async def run(self) -> None:
        """Take what is pushed, until cancelled."""
        while True:
            try:
                wire = await self.wire()
                await wire.call("subscribe", pattern=self.mailbox, **self._options)
                while (pushed := await wire.pushed.get()) is not None:
                    with suppress(Refused):  # its time was over; to subscribe again here would be a second subscription
                        await self._handle(wire, pushed)
            except (Lost, Refused):
                await asyncio.sleep(RETRY_SECS)

    async def _handle(self, wire: Wire, pushed: dict[str, Any]) -> None:
        envelope, delivery_id = pushed["envelope"], pushed["deliveryId"]
        if self._starts:
            try:
                await wire.call("start", deliveryId=delivery_id)
            except Refused:
                return  # another member may have it now
        delivery = saw(self.history, self.mailbox, envelope)
        chance = 1.0 if self.calm else self.chance.random()
        acknowledge_first = self.chance.random() < 0.5
        if self.mailbox in HOPS and not acknowledge_first:
            await self._pass_on(envelope)
        if chance < 0.01:
            return  # it never answers: the bus must end the delivery
        if chance < 0.05:
            await settle(wire, "fail", deliveryId=delivery_id, reason="as drawn")
            return
        await acknowledge(self.history, wire, delivery, "ack", deliveryId=delivery_id)
        if self.mailbox in HOPS and acknowledge_first:
            await self._pass_on(envelope)

    async def _pass_on(self, envelope: dict[str, Any]) -> None:
        """Continue a conversation at the next mailbox, on the budget of the message that was received."""
        at = HOPS.index(self.mailbox)
        if at + 1 == len(HOPS):
            return
        self._next_hop += 1
        number = Number(self.mailbox, self._next_hop)
        depth = {"depth": envelope["payload"]["depth"] + 1}
        await self.publish(number, HOPS[at + 1], (HOPS[at + 1],), parentId=envelope["id"], payload=depth)


class Puller(Client):
    """A pull consumer, with leases that outlive its connection or without."""

    async def run(self) -> None:
        """Claim, and end each claim in one of the ways there are, until cancelled."""
        while True:
            wire = await self.wire()
            lease = {"leaseMs": LEASE_MS} if self.chance.random() < 0.7 else {}
            try:
                claimed = (await wire.call("inbox.claim", subject=PULL, limit=3, **lease))["messages"]
                deliveries = [saw(self.history, PULL, envelope) for envelope in claimed]
                for delivery in deliveries:
                    await self._end(wire, delivery)
            except (Lost, Refused):
                await asyncio.sleep(RETRY_SECS)
            await asyncio.sleep(0.005)

    async def _end(self, wire: Wire, delivery: Delivery) -> None:
        chance = 1.0 if self.calm else self.chance.random()
        if chance < 0.01:
            return  # forgotten: the lease or the connection ends it
        if chance < 0.05:
            await settle(wire, "inbox.fail", subject=PULL, id=delivery.message_id, reason="as drawn")
            return
        await acknowledge(self.history, wire, delivery, "inbox.complete", subject=PULL, id=delivery.message_id)


class Operator(Client):
    """Replay what can be replayed, again and again."""

    async def run(self) -> None:
        """Plan and run replays until the round is calm."""
        while not self.calm:
            await asyncio.sleep(self.chance.uniform(0.1, 0.6))
            wire = await self.wire()
            try:
                page = await wire.call("deadletters.list", limit=200)
                ids = [letter["envelope"]["id"] for letter in page["deadLetters"] if letter["code"] in REPLAYABLE]
                if ids:
                    plan = await wire.call("deadletters.plan", ids=ids)
                    await wire.call("deadletters.run", planId=plan["id"])
                    await wire.call("deadletters.wait", planId=plan["id"])
            except (Lost, Refused):
                await asyncio.sleep(RETRY_SECS)


def saw(history: History, mailbox: str, envelope: dict[str, Any]) -> Delivery:
    """Note an envelope that a consumer received."""
    delivery = Delivery(mailbox, envelope["id"], envelope.get("replays", 0))
    payload = envelope["payload"]
    history.saw(delivery, Number(envelope["from"], payload["n"]), payload.get("depth", 0))
    return delivery


async def acknowledge(history: History, wire: Wire, delivery: Delivery, method: str, **params: Any) -> None:
    """Acknowledge a delivery, and note what was answered."""
    history.acks_sent.add(delivery)
    await settle(wire, method, **params)
    history.confirmed(delivery)


async def settle(wire: Wire, method: str, **params: Any) -> None:
    """Say how a delivery ended, again while the disk is full: it stays in hand until then."""
    while True:
        try:
            await wire.call(method, **params)
        except Refused as error:
            if error.kind != "StorageError":
                raise
            await asyncio.sleep(RETRY_SECS)
        else:
            return
