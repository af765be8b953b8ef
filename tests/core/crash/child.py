"""The process that is killed: it uses the bus in every way at once and prints the acknowledgements.

Run as ``python -m tests.core.crash.child`` it reads jobs (one JSON object per line) and forks for each, so that a
cycle costs milliseconds, not an interpreter's start. On stdout, unbuffered, one line per fact::

    born 123        the job's process
    ready           the bus is open
    try 7           about to publish number 7
    ack 7           its publish has returned
    purging 7       about to purge the dead letter of number 7
    purged 7        that has returned
    refused 7 code  a publish raised
    end             the job is through, the bus closed
    dead 9          the process has ended, with this wait status

What a handler or a pull consumer does with a message is a line in the log file, written before it does it:
``number subject replays verdict id``. The verdict is `ok` or `fail`, and is known beforehand.

A job may name a step at which the process kills itself. The system call is counted from outside, in this process
only; the bus knows nothing of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NoReturn

from relay_core.config import RelayConfig
from relay_core.core import RelayCore
from relay_core.errors import NotFound, StorageError
from relay_core.journal import spare_segments
from relay_core.journal.journal import Journal
from relay_core.messages.dead_letter import DeadLetter, DeadLetterFilter
from relay_core.messages.envelope import Envelope
from relay_core.storage.maildir import Maildir
from tests.kit.waiting import until

GOOD = "work.good"
"""Handled, always well."""
FLAKY = "work.flaky"
"""Its handler fails, until the message is replayed."""
PULL = "work.pull"
"""Claimed, then completed, or failed until it is replayed."""
EDIT = "work.edit"
"""Its handler fails, until an operator has edited the message."""
TRASH = "work.trash"
"""Its handler fails; the dead letters are purged, never replayed."""
HOLD = "work.hold"
"""Its handler holds the first messages until they are files."""
HOLDS = 8
KEEP = "work.keep"
"""It has no consumer."""
LATE = "late.subject"
"""No endpoint: a dead letter, replayed once there is a subscription."""
ALL = "work.*"

SUBJECTS = (HOLD, GOOD, FLAKY, PULL, EDIT, TRASH, KEEP, LATE, ALL)
ENDPOINTS = (HOLD, GOOD, FLAKY, PULL, EDIT, TRASH, KEEP)
LANES = 4

When = Literal["before", "during", "after"]


@dataclass(frozen=True)
class Step:
    """A call that makes a step, in this process only."""

    name: str
    is_meant: Callable[[tuple[Any, ...]], bool]
    owner: Any = os
    torn: bool = False
    """Whether a kill may come in the middle of it: its second argument is bytes."""


def _to(*parts: str) -> Callable[[tuple[Any, ...]], bool]:
    def is_meant(args: tuple[Any, ...]) -> bool:
        paths = [str(arg) for arg in args if isinstance(arg, (str, os.PathLike))]
        return bool(paths) and any(part in paths[-1] for part in parts)

    return is_meant


def _line(part: bytes) -> Step:
    return Step("_put", lambda args: part in args[1], Journal, torn=True)


STEPS: dict[str, Step] = {
    "appended": _line(b'"ops":[["new"'),
    "synced": Step("fdatasync", lambda args: True),
    "acknowledged": Step("write", lambda args: args[0] == 1 and args[1].startswith(b"ack ")),
    "begun": _line(b'"ops":[["begun"'),
    "written": Step("write", lambda args: args[0] > 2 and args[1].startswith(b'{"'), torn=True),
    "file made": Step("link", _to("/new/", "/cur/")),
    "claimed": Step("rename", _to("/cur/")),
    "finished": _line(b'"ops":[["gone"'),
    "file removed": Step("unlink", lambda args: _to("/cur/")(args) and os.path.lexists(args[0])),
    "dead letter journaled": _line(b'"ops":[["failed"'),
    "dead letter made": Step("rename", _to("/failed/")),
    "dead letter removed": Step("unlink", _to("/failed/")),
    "checkpointed": Step("rename", _to("/journal/kept/")),
    "segment reused": Step("link", _to("/journal/")),
}
"""Name of a step → the call that makes it."""


@dataclass
class Job:
    """What one process does."""

    data_dir: str
    log: str
    first: int
    """The first number to publish."""
    durability: Literal["os", "fsync"] = "fsync"
    rounds: int = 4
    """How often each lane publishes to each subject."""
    seed: int = 0
    segment_bytes: int = 16 * 1024 * 1024
    reuses: bool = False
    """Whether segments are not kept: each becomes the next one but one."""
    step: str | None = None
    when: When = "before"
    nth: int = 1
    count_from: Literal["start", "ready"] = "start"
    """Whether the steps of the bus's start count, too."""
    subjects: tuple[str, ...] = SUBJECTS
    power_fails: bool = False
    """Whether the disk will be shut down meanwhile."""
    operate: bool = True
    """Whether dead letters are replayed, edited and purged meanwhile."""

    def to_line(self) -> str:
        """Return the job as the process reads it."""
        return json.dumps(asdict(self)) + "\n"

    @property
    def numbers(self) -> range:
        """Return every number the job publishes."""
        return range(self.first, self.first + LANES * self.rounds * len(self.subjects))

    def subject(self, number: int) -> str:
        """Return where a number is published to."""
        return self.subjects[(number - self.first) // LANES % len(self.subjects)]


def config(durability: Literal["os", "fsync"], **retention: int) -> RelayConfig:
    """Return a configuration whose rules refuse nothing."""
    off = {"enabled": False}
    return RelayConfig.model_validate(
        {
            "durability": durability,
            "reliability": {"rateLimit": off, "circuitBreaker": off, "backpressure": off},
            "retention": retention,
        }
    )


def dedupe_id(number: int) -> str | None:
    """Return the dedupe id of a number; two of three have one."""
    return f"d{number}" if number % 3 else None


def sender(number: int) -> str:
    """Return who publishes a number."""
    return f"lane.{number % LANES}"


def payload(number: int) -> dict[str, Any]:
    """Return what is published: long enough that a torn write would show."""
    return {"n": number, "filling": "x" * (number * 37 % 2000)}


def verdict(subject: str, number: int, replays: int, edited: bool) -> bool:
    """Return True if a message will be handled successfully."""
    if subject == EDIT:
        return edited
    if subject == PULL:
        return replays > 0 or number % 4 != 0
    return subject not in (FLAKY, TRASH) or replays > 0


def say(text: str) -> None:
    """Print one line, unbuffered."""
    os.write(1, f"{text}\n".encode())


def die() -> NoReturn:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    while True:
        signal.pause()


class Work:
    """One job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.random = random.Random(job.seed)
        self.is_ready = threading.Event()
        self.late = asyncio.Lock()
        self.held: Maildir
        self.holds = 0
        self.log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    async def run(self) -> None:
        retention = {"journalBytes": 0} if self.job.reuses else {}
        async with RelayCore(self.job.data_dir, config(self.job.durability, **retention)) as core:
            for subject in ENDPOINTS:
                await core.register_endpoint(subject)
            for subject in (GOOD, FLAKY, EDIT, TRASH):
                await core.subscribe(subject, self.handle)
            mailbox = core.bus.mailboxes.find(HOLD)
            assert mailbox is not None
            self.held = mailbox.maildir
            await core.subscribe(HOLD, self.hold)
            say("ready")
            self.is_ready.set()
            async with asyncio.TaskGroup() as group:
                for lane in range(LANES):
                    group.create_task(self.publish(core, lane))
            await core.idle()
        say("end")

    async def publish(self, core: RelayCore, lane: int) -> None:
        job = self.job
        for number in job.numbers[lane::LANES]:
            say(f"try {number}")
            try:
                await core.publish(
                    job.subject(number), payload(number), sender=sender(number), dedupe_id=dedupe_id(number)
                )
            except StorageError as error:
                say(f"refused {number} {error.code}")
                continue
            say(f"ack {number}")
            if number % 5 == 0 or job.subject(number) == PULL:
                await self.pull(core)
            if job.operate and number % 7 == 0:
                await self.operate(core)

    async def handle(self, envelope: Envelope) -> None:
        if envelope.payload["n"] % 2:
            await asyncio.sleep(0)
        well = self.note(envelope)
        if envelope.payload["n"] % 4 < 2:
            await asyncio.sleep(0)  # a kill may come between what a handler does and the end of its message
        if not well:
            raise RuntimeError("as arranged")

    async def hold(self, envelope: Envelope) -> None:
        self.note(envelope)
        self.holds += 1
        if self.holds <= HOLDS:
            await until(lambda: envelope.id not in self.held.pending)

    def note(self, envelope: Envelope) -> bool:
        number, replays = envelope.payload["n"], envelope.replays
        well = verdict(envelope.subject, number, replays, "edited" in envelope.payload)
        line = f"{number} {envelope.subject} {replays} {'ok' if well else 'fail'} {envelope.id}\n"
        os.write(self.log, line.encode())
        return well

    async def pull(self, core: RelayCore) -> None:
        for envelope in await core.claim(PULL, 2):
            if self.note(envelope):
                await core.complete(PULL, envelope.id)
            else:
                await core.fail(PULL, envelope.id, "as arranged")

    async def operate(self, core: RelayCore) -> None:
        subjects = self.job.subjects
        letters = [
            letter
            for letter in await core.dead_letters()
            if letter.envelope is not None and (ALL in subjects or letter.envelope.subject in subjects)
        ]
        for letter in self.random.sample(letters, min(4, len(letters))):
            envelope = letter.envelope
            assert envelope is not None
            number = envelope.payload["n"]
            try:
                if envelope.subject == TRASH:
                    say(f"purging {number}")
                    await core.purge_dead_letters(filter=_only(letter))
                    say(f"purged {number}")
                elif envelope.subject == EDIT:
                    await core.replays.edit(
                        letter.message_id, {**envelope.payload, "edited": True}, endpoint=letter.endpoint_hash
                    )
                elif envelope.subject == LATE:
                    async with self.late:  # two subscriptions would each get the message
                        subscription = await core.subscribe(LATE, self.handle)
                        await self.replay(core, letter)
                        await core.idle()
                        await subscription.close()
                elif letter.replays < 3:
                    await self.replay(core, letter)
            except (StorageError, NotFound):  # the disk is gone, or another lane was faster
                continue

    async def replay(self, core: RelayCore, letter: DeadLetter) -> None:
        plan = await core.plan_replay(filter=_only(letter))
        await core.run_replay(plan.id)


def _only(letter: DeadLetter) -> DeadLetterFilter:
    return DeadLetterFilter(ids=(letter.message_id,), endpoint=letter.endpoint_hash)


def arm(job: Job, is_ready: threading.Event) -> None:
    """Make this process kill itself at the job's step."""
    assert job.step is not None
    step = STEPS[job.step]
    original: Callable[..., Any] = getattr(step.owner, step.name)
    calls = 0

    def call(*args: Any, **named: Any) -> Any:
        nonlocal calls
        if (job.count_from == "ready" and not is_ready.is_set()) or not step.is_meant(args):
            return original(*args, **named)
        calls += 1
        if calls == job.nth:
            if job.when == "during":
                original(args[0], args[1][: len(args[1]) // 2], *args[2:])
            elif job.when == "after":
                original(*args, **named)
            die()
        return original(*args, **named)

    if step.name == "fdatasync":
        _default(fdatasync=call)
    else:
        setattr(step.owner, step.name, call)


def _default(**values: Any) -> None:
    """Change the defaults of a journal's parameters, in this process only."""
    defaults = Journal.__init__.__kwdefaults__
    assert defaults is not None
    assert defaults.keys() >= values.keys()
    defaults.update(values)


def fdatasync_with_power(fd: int) -> None:
    """Sync a file; fail if the power is off by then: ext4 may call a sync a success that the shutdown overtook.

    A machine without power would not have returned from it. Opening a file fails on a disk that was shut down.
    """
    os.fdatasync(fd)
    os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY))


def live(job: Job) -> None:
    """Be the process of one job."""
    say(f"born {os.getpid()}")
    _default(segment_bytes=job.segment_bytes)
    if job.reuses:
        spare_segments.MIN_BYTES = 1
    if job.power_fails:
        _default(fdatasync=fdatasync_with_power)
    work = Work(job)
    if job.step is not None:
        arm(job, work.is_ready)
    asyncio.run(work.run())


def main() -> None:
    """Fork for every job."""
    for line in sys.stdin:
        fields = json.loads(line)
        job = Job(**{**fields, "subjects": tuple(fields["subjects"])})
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                live(job)
                status = 0
            except BaseException as error:
                sys.excepthook(type(error), error, error.__traceback__)
            finally:
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        say(f"dead {status}")


if __name__ == "__main__":
    main()
