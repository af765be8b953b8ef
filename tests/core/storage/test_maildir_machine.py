"""The bus over real directories against a simple model: whatever is done in whatever order, both agree."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule

from relay_core.config import RelayConfig
from relay_core.core import RelayCore
from relay_core.journal import file_writer
from relay_core.messages.dead_letter import Code
from relay_core.messages.envelope import Envelope
from relay_core.messages.subjects import subject_hash

T = TypeVar("T")

PULL = ("work.one", "work.two")
"""Mailboxes whose mail is claimed by hand."""
AUTO = "auto.one"
"""A mailbox with a handler that fails marked messages until they are replayed."""
UNHEARD = "nobody.home"


class Box:
    """What the model knows of one mailbox."""

    def __init__(self) -> None:
        self.new: list[str] = []
        self.cur: list[str] = []
        self.failed: dict[str, str] = {}


class MaildirMachine(RuleBasedStateMachine):
    """Publish, claim, complete, fail, replay, purge, stop, die.

    Messages become files only by `write_files` and by stopping, so that every rule meets both.
    """

    keys: Bundle[tuple[str, str, str]] = Bundle("keys")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp(prefix="relay-machine-"))
        self.data_dir = self.directory / "0"
        self.generation = 0
        self.boxes = {subject: Box() for subject in (*PULL, AUTO, UNHEARD)}
        self.count = 0
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(file_writer, "LINGER_SECS", 3600.0)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @initialize(durability=st.sampled_from(["os", "fsync"]))
    def begin(self, durability: str) -> None:
        off = {"enabled": False}
        self.config = RelayConfig.model_validate(
            {"durability": durability, "reliability": {"rateLimit": off, "circuitBreaker": off}}
        )
        self.run(self.start())

    async def start(self) -> None:
        self.stack = AsyncExitStack()
        self.core = await self.stack.enter_async_context(RelayCore(self.data_dir, self.config))
        for subject in (*PULL, AUTO):
            await self.core.register_endpoint(subject)
        await self.core.subscribe(AUTO, self.handle)
        await self.core.idle()

    async def handle(self, envelope: Envelope) -> None:
        if envelope.payload["fail"] and not envelope.replays:
            raise RuntimeError("as arranged")

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.runner.close()
        self.patch.undo()
        shutil.rmtree(self.directory)

    @rule(target=keys, subject=st.sampled_from([*PULL, AUTO, UNHEARD]), fail=st.booleans(), dedupe=st.booleans())
    def publish(self, subject: str, fail: bool, dedupe: bool) -> Any:
        self.count += 1
        key = f"key{self.count}" if dedupe and subject != UNHEARD else None
        message_id = self.run(self._publish(subject, {"fail": fail}, key))
        box = self.boxes[subject]
        if subject == UNHEARD:
            box.failed[message_id] = Code.NO_MATCH
        elif subject != AUTO:
            box.new.append(message_id)
        elif fail:
            box.failed[message_id] = Code.HANDLER_FAILED
        return (subject, key, message_id) if key is not None else multiple()

    @rule(key=keys)
    def publish_again(self, key: tuple[str, str, str]) -> None:
        subject, dedupe, message_id = key
        assert self.run(self._publish(subject, {"fail": False}, dedupe)) == message_id

    async def _publish(self, subject: str, payload: Any, dedupe: str | None) -> str:
        result = await self.core.publish(subject, payload, sender="some.body", dedupe_id=dedupe)
        await self.core.bus.dispatch.idle()
        return result.message_id

    @rule()
    def write_files(self) -> None:
        self.run(self.core.idle())
        assert not any(mailbox.maildir.pending for mailbox in self.core.bus.mailboxes)

    @rule()
    def broadcast(self) -> None:
        message_id = self.run(self._publish("work.*", {"fail": False}, None))
        for subject in PULL:
            self.boxes[subject].new.append(message_id)

    @rule(subject=st.sampled_from(PULL), limit=st.integers(1, 3))
    def claim(self, subject: str, limit: int) -> None:
        box = self.boxes[subject]
        claimed = [envelope.id for envelope in self.run(self.core.claim(subject, limit))]
        assert claimed == box.new[:limit]
        box.new = box.new[limit:]
        box.cur += claimed

    @precondition(lambda self: any(self.boxes[subject].cur for subject in PULL))
    @rule(data=st.data(), well=st.booleans())
    def finish(self, data: st.DataObject, well: bool) -> None:
        subject = data.draw(st.sampled_from([subject for subject in PULL if self.boxes[subject].cur]))
        box = self.boxes[subject]
        message_id = data.draw(st.sampled_from(box.cur))
        box.cur.remove(message_id)
        if well:
            self.run(self.core.complete(subject, message_id))
        else:
            self.run(self.core.fail(subject, message_id, "as arranged"))
            box.failed[message_id] = Code.CONSUMER_FAILED

    @precondition(lambda self: any(box.failed for box in self.boxes.values()))
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        letters = sorted({message_id for box in self.boxes.values() for message_id in box.failed})
        message_id = data.draw(st.sampled_from(letters))
        self.run(self._replay(message_id))
        for subject, box in self.boxes.items():
            if subject != UNHEARD and box.failed.pop(message_id, None) is not None and subject != AUTO:
                box.new.append(message_id)

    async def _replay(self, message_id: str) -> None:
        plan = await self.core.plan_replay([message_id])
        outcome = await self.core.run_replay(plan.id)
        assert outcome.state == "finished"
        await self.core.bus.dispatch.idle()

    @precondition(lambda self: any(box.failed for box in self.boxes.values()))
    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        letters = sorted({message_id for box in self.boxes.values() for message_id in box.failed})
        message_id = data.draw(st.sampled_from(letters))
        purged = self.run(self.core.purge_dead_letters(ids=[message_id]))
        assert purged == sum(box.failed.pop(message_id, None) is not None for box in self.boxes.values())

    @rule()
    def restart(self) -> None:
        self.run(self.stack.aclose())
        self._ended()
        self.run(self.start())

    @rule()
    def die(self) -> None:
        """Continue from a copy of the present disk, as after a kill."""
        self.run(self.core.bus.index.flush())
        self.generation += 1
        copy = self.directory / str(self.generation)
        shutil.copytree(self.data_dir, copy)
        self.run(self.stack.aclose())
        self.data_dir = copy
        self._ended()
        self.run(self.start())

    def _ended(self) -> None:
        for box in self.boxes.values():
            box.new.sort()
            for message_id in box.cur:
                box.failed[message_id] = Code.INTERRUPTED
            box.cur = []

    @invariant()
    def every_message_is_where_the_model_has_it(self) -> None:
        if not hasattr(self, "core"):
            return
        states = {state.subject: state for state in self.core.mailboxes()}
        for subject, box in self.boxes.items():
            path = self.data_dir / "mailboxes" / subject_hash(subject)
            if not path.exists():
                assert not box.failed
                continue
            expected = {"new": set(box.new), "cur": set(box.cur), "failed": set(box.failed), "tmp": set[str]()}
            mailbox = self.core.bus.mailboxes.get(subject_hash(subject))
            assert mailbox is not None
            pending = {id: file.state for id, file in mailbox.maildir.pending.copy().items()}  # before the files
            for place, ids in expected.items():
                found = {name.removesuffix(".json") for name in os.listdir(path / place)}
                assert found | {id for id, state in pending.items() if state == place} == ids, (subject, place)
            state = states[subject]
            assert (state.depth, state.claimed, state.failed) == (len(box.new), len(box.cur), len(box.failed))
            assert state.degraded is None

    @invariant()
    def the_dead_letters_are_the_models(self) -> None:
        if not hasattr(self, "core"):
            return
        found = {
            (letter.endpoint_hash, letter.message_id): letter.code for letter in self.run(self.core.dead_letters())
        }
        assert found == {
            (subject_hash(subject), message_id): code
            for subject, box in self.boxes.items()
            for message_id, code in box.failed.items()
        }

    @invariant()
    def what_waits_is_seen_in_order(self) -> None:
        if not hasattr(self, "core"):
            return
        for subject in PULL:
            assert [envelope.id for envelope in self.run(self.core.inbox(subject))] == self.boxes[subject].new


TestMaildir = MaildirMachine.TestCase
TestMaildir.settings = settings(max_examples=30, stateful_step_count=30)
