"""Traffic through the client, and what must therefore be on disk once the daemon has stopped.

A message is known by its number. The rules:

1. A number whose publish was answered was seen by a consumer, or lies in ``new/`` or in ``failed/``.
2. A number has one message id, and lies in one place.
3. A consumer sees a number at most once; what waits in ``new/`` was not seen.
4. Every dead letter was in flight at a consumer when its connection ended.
5. ``cur/`` and ``tmp/`` are empty, and every file is whole.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from relay_core.client.client import RelayClient
from relay_core.errors import NotFound, SupervisorUnavailable
from relay_core.messages.dead_letter import Code, decode_dead_letter
from relay_core.messages.envelope import Envelope, decode_envelope

PUSHED = ("relay.work.push.a", "relay.work.push.b")
PULLED = "relay.work.pull"
KEPT = "relay.work.keep"
SUBJECTS = (*PUSHED, PULLED, *PUSHED, PULLED, KEPT)
"""Where numbers go in turn."""
CUT_OFF = frozenset({Code.INTERRUPTED, Code.DISCONNECTED})


@dataclass
class Traffic:
    """Everything that was published and seen."""

    data_dir: Path
    answered: dict[int, str] = field(default_factory=dict)
    """The message id that the answer gave, by number."""
    seen: list[tuple[int, str]] = field(default_factory=list)
    """Numbers and message ids, as consumers got them."""
    unclear: list[str] = field(default_factory=list)
    """Why claims could not be completed."""
    _numbers: count[int] = field(default_factory=count)
    _stopping: bool = False

    async def register(self, client: RelayClient) -> None:
        """Make the mailboxes."""
        for subject in dict.fromkeys(SUBJECTS):
            await client.register_endpoint(subject)

    def answered_more_than(self, number: int) -> bool:
        """Return True if the load continues."""
        return len(self.answered) > number

    def stop(self) -> None:
        """Publish nothing more."""
        self._stopping = True

    async def publish(self, client: RelayClient, *, batch: int = 1) -> None:
        """Publish numbers, one at a time or several in a frame, until it is stopped."""
        while not self._stopping:
            numbers = [next(self._numbers) for _ in range(batch)]
            if batch == 1:
                results = [await client.publish(**_message(numbers[0]))]
            else:
                found = await client.publish_many(map(_message, numbers))
                results = [result for result in found if not isinstance(result, Exception)]
                assert len(results) == len(found), found
            for number, result in zip(numbers, results, strict=True):
                assert result.delivered_to == 1, result
                self.answered[number] = result.message_id

    async def subscribe(self, client: RelayClient) -> None:
        """Take what is pushed, until it is cancelled."""
        async with client.subscribe("relay.work.push.*", max_in_flight=2) as messages:
            async for envelope in messages:
                self._saw(envelope)

    async def pull(self, client: RelayClient) -> None:
        """Take what waits, until it is cancelled."""
        while True:
            for envelope in await client.claim(PULLED, 3):
                self._saw(envelope)
                try:
                    await client.complete(PULLED, envelope.id)
                except (SupervisorUnavailable, NotFound) as error:  # the connection was lost, now or since the claim
                    self.unclear.append(error.code)
            await asyncio.sleep(0.002)

    def _saw(self, envelope: Envelope) -> None:
        self.seen.append((envelope.payload["n"], envelope.id))

    def check(self, *, parked: frozenset[str] = CUT_OFF) -> None:
        """Hold what a stopped daemon has left to the rules."""
        there = self.found()
        waiting = {number for number, _, state, _ in there if state == "new"}
        seen = Counter(number for number, _ in self.seen)
        lost = self.answered.keys() - {number for number, *_ in there} - seen.keys()
        assert not lost, f"answered, and neither seen nor anywhere: {sorted(lost)}"
        twice = [number for number, times in seen.items() if times > 1]
        assert not twice, f"seen twice: {twice}"
        places = Counter(number for number, *_ in there)
        doubled = [copy for copy in there if places[copy[0]] > 1]
        assert not doubled, f"in two places: {doubled}"
        assert not waiting & seen.keys(), f"seen, and still waiting: {waiting & seen.keys()}"
        ids: defaultdict[int, set[str]] = defaultdict(set)
        for number, message_id in [*self.answered.items(), *self.seen, *((copy[0], copy[1]) for copy in there)]:
            ids[number].add(message_id)
        again = {number: some for number, some in ids.items() if len(some) > 1}
        assert not again, f"published twice: {again}"
        assert set(self.unclear) <= {"outcome_unknown", "not_found"}
        codes = {code for _, _, state, code in there if state == "failed"}
        assert codes <= parked, codes
        assert not [copy for copy in there if copy[2] == "cur"]
        assert not list(self.data_dir.glob("mailboxes/*/tmp/*"))

    def found(self) -> list[tuple[int, str, str, str | None]]:
        """Return every message on disk as number, id, state and code; fails if a file is torn."""
        found: list[tuple[int, str, str, str | None]] = []
        for path in self.data_dir.glob("mailboxes/*/*/*.json"):
            state = path.parent.name
            if state == "failed":
                letter = decode_dead_letter(path.stem, path.read_bytes())
                assert letter.envelope is not None, letter
                found.append((letter.envelope.payload["n"], path.stem, state, letter.code))
            elif state != "tmp":
                found.append((decode_envelope(path.read_bytes()).payload["n"], path.stem, state, None))
        return found


@asynccontextmanager
async def consuming(traffic: Traffic, client: RelayClient) -> AsyncIterator[None]:
    """Consume while the block runs, and then what is left."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(traffic.subscribe(client)), group.create_task(traffic.pull(client))]
        yield
        # Another process works them off: there is no event to wait for.
        while any(box.depth or box.claimed for box in await client.mailboxes() if box.subject != KEPT):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()


def _message(number: int) -> dict[str, Any]:
    subject = SUBJECTS[number % len(SUBJECTS)]
    return {"subject": subject, "payload": {"n": number, "x": "x" * (number % 300)}, "sender": "relay.agent.s"}
