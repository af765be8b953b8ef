"""Random walks of publishers, consumers and droppers through restarts and kills, against a simple reference.

The reference knows of every copy of a message whether it was acknowledged, which deliveries a consumer saw, and how
each of them ended. Whatever happens in whatever order:

1. A consumer sees each delivery of a copy at most once.
2. A copy that was begun and has not ended when the process dies is a dead letter, `interrupted`; one that was finished
   is gone; one that was not begun is waiting.
3. In the end, every acknowledged copy was finished exactly once. A publish that was not acknowledged has finished with
   all of its targets, or none.
4. A consumer sees the messages of one sender in the order in which they were sent.

A kill is a copy of the directory as it is at that moment. RELAY_MODEL_WALKS sets how many walks there are.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections import Counter, defaultdict
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from relay_core.clock import SystemClock
from relay_core.core import RelayCore
from relay_core.errors import Closed
from relay_core.journal.journal import Journal
from relay_core.messages.dead_letter import Code
from relay_core.messages.envelope import Envelope
from relay_core.messages.ids import UlidFactory
from tests.core.crash.child import config
from tests.kit.bus import envelope_json, mailbox_dir
from tests.kit.waiting import run_ready_tasks, until

PUSH = ("work.one", "work.two")
PULL = "work.pull"
SUBJECTS = (*PUSH, PULL)
ALL = "work.*"
SENDERS = ("anna", "bert")
DROPPER = "dropper"
WALKS = int(os.environ.get("RELAY_MODEL_WALKS", "3"))
STEPS = 60


class TargetCopy(NamedTuple):
    """A message in one mailbox."""

    number: int
    subject: str


class Delivery(NamedTuple):
    """One delivery of a copy."""

    copy: TargetCopy
    replays: int


@dataclass
class Reference:
    """What is known from outside."""

    targets: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Number → where it was published to."""
    senders: dict[int, str] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    seen: list[Delivery] = field(default_factory=list)
    begun: set[Delivery] = field(default_factory=set)
    """Deliveries that a consumer has and has not ended."""
    failed: set[Delivery] = field(default_factory=set)
    interrupted: set[Delivery] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    """Noted where a consumer runs: what it raises is a failed delivery, not a failed test."""
    finished: Counter[TargetCopy] = field(default_factory=Counter)

    def number(self, sender: str, *targets: str) -> int:
        number = len(self.targets)
        self.targets[number] = targets
        self.senders[number] = sender
        return number

    def begin(self, delivery: Delivery) -> None:
        if delivery in self.seen:
            self.problems.append(f"delivered twice: {delivery}")
        if self.finished[delivery.copy]:
            self.problems.append(f"delivered after it was finished: {delivery}")
        self.seen.append(delivery)
        self.begun.add(delivery)

    def end(self, delivery: Delivery, *, well: bool) -> None:
        self.begun.remove(delivery)
        if well:
            self.finished[delivery.copy] += 1
        else:
            self.failed.add(delivery)

    def copies(self) -> set[TargetCopy]:
        """Return every copy of an acknowledged message."""
        return {TargetCopy(number, target) for number in self.acknowledged for target in self.targets[number]}

    def check_order(self) -> None:
        orders: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for (number, subject), replays in self.seen:
            if not replays:
                orders[self.senders[number], subject].append(number)
        for key, numbers in orders.items():
            assert numbers == sorted(numbers), f"out of order: {key}: {numbers}"

    def check_finished(self) -> None:
        assert not self.problems
        lost = {copy for copy in self.copies() if not self.finished[copy]}
        assert not lost, f"lost: {lost}"
        doubled = {copy for copy, count in self.finished.items() if count > 1}
        assert not doubled, f"finished twice: {doubled}"
        for number, targets in self.targets.items():
            some = {self.finished[TargetCopy(number, target)] for target in targets}
            assert len(some) == 1, f"{number} reached only some of its targets"


def delivery_of(envelope: Envelope) -> Delivery:
    return Delivery(TargetCopy(envelope.payload["n"], envelope.budget.ancestor_chain[-1]), envelope.replays)


class Walk:
    """One bus on one directory after the other, and what its clients do."""

    def __init__(self, root: Path, durability: Literal["os", "fsync"], seed: int) -> None:
        self.root = root
        self.durability = durability
        self.chance = random.Random(seed)
        self.reference = Reference()
        self.new_id = UlidFactory(SystemClock())
        self.life = 0
        self.core: RelayCore
        self.stack = AsyncExitStack()
        self.held: list[Delivery] = []
        """Claimed by the pull consumer."""
        self.ids: dict[TargetCopy, str] = {}

    @property
    def data_dir(self) -> Path:
        return self.root / str(self.life)

    async def open(self) -> None:
        self.core = await self.stack.enter_async_context(RelayCore(self.data_dir, config(self.durability)))
        self.files = self.core.bus.commits.files
        await self.check_interrupted()
        for subject in SUBJECTS:
            await self.core.register_endpoint(subject)
        life = self.life
        for subject in PUSH:
            await self.core.subscribe(subject, lambda envelope: self.handle(envelope, life))

    async def close(self) -> None:
        await self.stack.aclose()

    async def handle(self, envelope: Envelope, life: int) -> None:
        if life != self.life:
            raise RuntimeError("this process was killed")
        delivery = delivery_of(envelope)
        self.reference.begin(delivery)
        pause = self.chance.choice(["none", "turns", "file"])
        if pause == "turns":
            await run_ready_tasks()
        elif pause == "file":
            files = self.files
            await until(lambda: life != self.life or files.is_idle)
        if life != self.life:
            raise RuntimeError("this process was killed")
        well = bool(envelope.replays) or not envelope.payload["fails"]
        self.reference.end(delivery, well=well)
        if not well:
            raise RuntimeError("as arranged")

    def payload(self, number: int) -> dict[str, Any]:
        return {"n": number, "fails": self.chance.random() < 0.2, "filling": "x" * self.chance.randrange(300)}

    # Steps

    async def publish(self) -> None:
        life = self.life

        async def send(sender: str) -> None:
            for _ in range(self.chance.randrange(1, 5)):
                if life != self.life:
                    return
                subject = self.chance.choice([*SUBJECTS, ALL])
                number = self.reference.number(sender, *(SUBJECTS if subject == ALL else (subject,)))
                try:
                    result = await self.core.publish(subject, self.payload(number), sender=sender)
                except Closed:
                    assert life != self.life
                    return
                if life == self.life:
                    assert result.delivered_to == len(self.reference.targets[number])
                    self.reference.acknowledged.add(number)

        async with asyncio.TaskGroup() as group:
            for sender in SENDERS:
                group.create_task(send(sender))
            if self.chance.random() < 0.2:
                for _ in range(self.chance.randrange(20)):
                    await asyncio.sleep(0)
                await self.kill()

    async def drop(self) -> None:
        subject = self.chance.choice(SUBJECTS)
        number = self.reference.number(DROPPER, subject)
        message_id = self.new_id()
        mailbox = mailbox_dir(self.data_dir, subject)
        path = mailbox / "tmp" / f"{message_id}.json"
        path.write_bytes(envelope_json(message_id, subject, self.payload(number), SystemClock()))
        path.rename(mailbox / "new" / path.name)
        self.reference.acknowledged.add(number)

    async def pull(self) -> None:
        for envelope in await self.core.claim(PULL, self.chance.randrange(1, 4)):
            delivery = delivery_of(envelope)
            self.reference.begin(delivery)
            self.ids[delivery.copy] = envelope.id
            self.held.append(delivery)
        while self.held and self.chance.random() < 0.7:
            delivery = self.held.pop(self.chance.randrange(len(self.held)))
            well = self.chance.random() < 0.7 or bool(delivery.replays)
            if well:
                await self.core.complete(PULL, self.ids[delivery.copy])
            else:
                await self.core.fail(PULL, self.ids[delivery.copy], "as arranged")
            self.reference.end(delivery, well=well)

    async def replay(self) -> None:
        letters = await self.core.dead_letters()
        chosen = [letter.message_id for letter in letters if self.chance.random() < 0.5]
        if chosen:
            await self.core.run_replay((await self.core.plan_replay(ids=chosen)).id)

    async def rest(self) -> None:
        if self.chance.random() < 0.5:
            await self.core.idle()
        else:
            await run_ready_tasks()

    async def checkpoint(self) -> None:
        await asyncio.to_thread(self.core.bus.commits.checkpoints.run)

    async def restart(self) -> None:
        await self.close()
        self.held.clear()
        await self.open()

    async def kill(self) -> None:
        """Continue with a copy of the directory; a step of the loop, so that clients do nothing meanwhile.

        The commit thread may: the journal is copied first, and newer dead letters do no harm. No index is copied.
        """
        await self.core.bus.commits.settled()
        self.core.bus.dispatch.take_turn()  # a handler that has returned is finished once its turn has recorded that
        before = self.data_dir
        self.life += 1
        with self.files._writing:  # no file is made while they are copied one after the other
            for name in ("journal", "mailboxes"):
                shutil.copytree(before / name, self.data_dir / name, copy_function=_copy_if_there)
        self.data_dir.chmod(0o700)
        begun = set(self.reference.begun)
        await self.close()  # what it does now happens to the old directory
        assert self.reference.begun == begun
        self.held.clear()
        await self.open()

    async def check_interrupted(self) -> None:
        """Every delivery that was begun before this start is a dead letter, and no other than those and the failed."""
        interrupted, reference = set(), self.reference
        for letter in await self.core.dead_letters():
            assert letter.envelope is not None
            delivery = delivery_of(letter.envelope)._replace(replays=letter.replays)
            assert not reference.finished[delivery.copy], f"finished, and a dead letter: {delivery}"
            if letter.code == Code.INTERRUPTED:
                interrupted.add(delivery)
            else:
                assert delivery in reference.failed, f"it did not fail: {delivery} {letter.reason}"
        assert reference.begun <= interrupted, f"begun, and not interrupted: {reference.begun - interrupted}"
        for delivery in interrupted - reference.begun - reference.failed - reference.interrupted:
            assert delivery not in reference.seen, f"it was not in flight: {delivery}"
        reference.interrupted |= interrupted
        reference.begun.clear()
        for mailbox in self.core.bus.mailboxes:
            for message_id in mailbox.waiting(100_000):
                stored = mailbox.read("new", message_id)
                delivery = delivery_of(stored.envelope)  # type: ignore[union-attr]
                assert delivery not in reference.seen, f"seen, and waiting again: {delivery}"

    async def run(self) -> None:
        self.data_dir.mkdir(mode=0o700)
        await self.open()
        steps = {
            self.publish: 8,
            self.drop: 3,
            self.pull: 6,
            self.replay: 2,
            self.rest: 3,
            self.checkpoint: 1,
            self.restart: 1,
            self.kill: 2,
        }
        for step in self.chance.choices(list(steps), list(steps.values()), k=STEPS):
            await step()
            assert not self.reference.problems
        await self.finish()

    async def finish(self) -> None:
        """Restart once more, let everything be handled and replayed, and compare."""
        await self.restart()

        async def is_finished() -> bool:
            await self.core.idle()
            while claimed := await self.core.claim(PULL, 100):
                for envelope in claimed:
                    self.reference.begin(delivery_of(envelope))
                    await self.core.complete(PULL, envelope.id)
                    self.reference.end(delivery_of(envelope), well=True)
            if await self.core.dead_letters():
                await self.core.run_replay((await self.core.plan_replay()).id)
                return False
            return all(self.reference.finished[copy] for copy in self.reference.copies())

        with suppress(TimeoutError):
            await until(is_finished, patience=15.0)
        self.reference.check_finished()
        self.reference.check_order()
        await self.close()
        left = [path for state in ("new", "cur", "failed") for path in self.data_dir.glob(f"mailboxes/*/{state}/*")]
        assert left == []


def _copy_if_there(source: str, target: str) -> None:
    with suppress(FileNotFoundError):  # removed by a thread meanwhile
        shutil.copy2(source, target)


@pytest.mark.may_block("a kill copies the directory in one step of the loop")
@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("seed", range(WALKS))
async def test_walk(
    tmp_path: Path, durability: Literal["os", "fsync"], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:  # many checkpoints
        defaults = Journal.__init__.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "segment_bytes", 8 * 1024)
    walk = Walk(tmp_path, durability, seed)
    try:
        await walk.run()
    finally:
        await walk.close()
