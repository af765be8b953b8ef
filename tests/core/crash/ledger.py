"""What the parent of a killed process knows, and what must therefore be on disk.

A message is known by its number; a *copy* is a number in one mailbox. The rules, after every kill:

1. Every copy of an acknowledged number was handled well, or lies in ``new/`` or in ``failed/``.
2. No copy lies in two places. ``cur/`` and ``tmp/`` are empty once a bus has started.
3. A handler sees a delivery (a message and how often it was replayed) at most once; what waits in ``new/``, not yet.
4. A number has one message id, however often its publish is retried with its dedupe id.
5. A number that was purged does not come back.
6. Every file is whole, and the bus counts what is there.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from relay_core.core import RelayCore
from relay_core.messages.dead_letter import Code, decode_dead_letter
from relay_core.messages.envelope import Envelope, decode_envelope
from relay_core.messages.subjects import subject_hash
from relay_core.storage.endpoint_file import read_endpoint_file
from relay_core.storage.maildir import CUR, FAILED, NEW, TMP
from tests.core.crash.child import ALL, EDIT, ENDPOINTS, TRASH, Job, config, dedupe_id, payload, sender
from tests.kit import ROOT


class Nursery:
    """The process that forks the processes we kill."""

    def __init__(self) -> None:
        # Not a pipe: it is not read while the process runs.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.core.crash.child"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def run(self, job: Job) -> Iterator[str]:
        """Start a job; yield what it says until it is dead. Send True into the iterator's `kill` to end it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(job.to_line())
        self._process.stdin.flush()
        for line in self._process.stdout:
            yield line.rstrip("\n")
            if line.startswith("dead "):
                return
        raise AssertionError(f"the nursery died: {self.errors()}")

    def errors(self) -> str:
        """Return what went to stderr, to its end."""
        self._errors.seek(0)
        return self._errors.read()[-5000:]


class TargetCopy(NamedTuple):
    """A number in one mailbox."""

    number: int
    subject: str


class Handling(NamedTuple):
    """One call of a handler."""

    copy: TargetCopy
    replays: int
    verdict: str
    message_id: str


class Found(NamedTuple):
    """A message on disk."""

    copy: TargetCopy
    state: str
    replays: int
    code: str | None
    envelope: Envelope


@dataclass
class Ledger:
    """Everything that was said so far, by all processes that used one data directory."""

    data_dir: Path
    log: Path
    durability: Literal["os", "fsync"]
    subjects: dict[int, str] = field(default_factory=dict)
    tried: set[int] = field(default_factory=set)
    acknowledged: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    purging: set[int] = field(default_factory=set)
    purged: set[int] = field(default_factory=set)
    next_number: int = 1

    def job(self, **wishes: object) -> Job:
        """Return a job whose numbers are new."""
        job = Job(str(self.data_dir), str(self.log), self.next_number, self.durability, **wishes)  # type: ignore[arg-type]
        self.next_number = job.numbers[-1] + 1
        self.subjects.update({number: job.subject(number) for number in job.numbers})
        return job

    def run(
        self,
        nursery: Nursery,
        job: Job,
        *,
        kill_after: int | None = None,
        cut: Callable[[], None] | None = None,
        cut_after: int = 0,
    ) -> int:
        """Run a job to its end and return its wait status.

        It is killed after so many lines; or, after so many acknowledged publishes, its power is cut, and it is
        killed when it notices.
        """
        pid = 0
        status = -1
        acknowledged = 0
        for count, line in enumerate(nursery.run(job)):
            word, _, rest = line.partition(" ")
            if word == "born":
                pid = int(rest)
            elif word == "dead":
                status = int(rest)
            elif word in ("try", "ack", "purging", "purged", "refused"):
                self._note(word, int(rest.split()[0]))
            acknowledged += word == "ack"
            if cut is not None and acknowledged == cut_after:
                cut()
                cut = None
            if count == kill_after or word == "refused":
                os.kill(pid, signal.SIGKILL)
        return status

    def _note(self, word: str, number: int) -> None:
        noted = {
            "try": self.tried,
            "ack": self.acknowledged,
            "purging": self.purging,
            "purged": self.purged,
            "refused": self.refused,
        }
        noted[word].add(number)

    def copies(self, number: int) -> list[TargetCopy]:
        """Return the copies a publish makes."""
        subject = self.subjects[number]
        return [TargetCopy(number, target) for target in (ENDPOINTS if subject == ALL else (subject,))]

    def handlings(self) -> list[Handling]:
        """Return the entries of the handlers' log."""
        if not self.log.exists():
            return []
        found = []
        for line in self.log.read_text().splitlines():
            number, subject, replays, verdict, message_id = line.split()
            found.append(Handling(TargetCopy(int(number), subject), int(replays), verdict, message_id))
        return found

    def lost(self) -> set[TargetCopy]:
        """Return the copies of acknowledged numbers that are neither handled nor anywhere."""
        there = {found.copy for found in self.find()}
        well = {handling.copy for handling in self.handlings() if handling.verdict == "ok"}
        wanted = {copy for number in self.acknowledged for copy in self.copies(number)}
        return wanted - there - well - {TargetCopy(number, TRASH) for number in self.purging}

    def find(self) -> list[Found]:
        """Return every message on disk; fails if any file is torn, unless it was set aside as malformed."""
        found = []
        for mailbox in sorted((self.data_dir / "mailboxes").iterdir()):
            about = read_endpoint_file(mailbox)
            if about is None:  # killed while it was made
                assert not list(mailbox.glob("*/*"))
                continue
            subject = about.subject
            for state in (NEW, CUR, FAILED):
                for path in sorted((mailbox / state).glob("*.json")):
                    if (mailbox / state / f"{path.stem}.original").exists():
                        assert self.durability == "os"
                        continue
                    data = path.read_bytes()
                    code, replays = None, None
                    if state == FAILED:
                        letter = decode_dead_letter(path.stem, data)
                        assert letter.envelope is not None, letter
                        envelope, code, replays = letter.envelope, letter.code, letter.replays
                    else:
                        envelope = decode_envelope(data)
                    assert envelope.id == path.stem
                    number = envelope.payload["n"]
                    assert {**payload(number), **envelope.payload} == envelope.payload
                    at = envelope.replays if replays is None else replays
                    found.append(Found(TargetCopy(number, subject), state, at, code, envelope))
        return found

    def check(self, *, power_lost: bool = False, retry: random.Random | None = None) -> None:
        """Start a bus on the directory and hold it to the rules; publish some numbers again as a client would."""
        asyncio.run(self._check(power_lost, retry))

    async def _check(self, power_lost: bool, retry: random.Random | None) -> None:
        async with RelayCore(self.data_dir, config(self.durability)) as core:
            await self._compare(core, power_lost)
            if retry is not None:
                for number in self._retried(retry):
                    subject = self.subjects[number]
                    await core.publish(subject, payload(number), sender=sender(number), dedupe_id=dedupe_id(number))
                    self.acknowledged.add(number)
                await self._compare(core, power_lost)

    def _retried(self, retry: random.Random) -> list[int]:
        """Return numbers whose clients ask again: they got no answer, or it was lost on the way."""
        numbers = [number for number in sorted(self.tried) if dedupe_id(number)]
        return retry.sample(numbers, min(len(numbers), 40))

    async def _compare(self, core: RelayCore, power_lost: bool) -> None:
        await core.idle()  # what rests is a file
        found = self.find()
        handlings = self.handlings()
        lost = self.lost()
        assert not lost, f"acknowledged, but neither handled nor anywhere: {lost}"
        assert not [file for file in found if file.state == CUR]
        assert not list(self.data_dir.glob(f"mailboxes/*/{TMP}/*"))
        places = Counter(file.copy for file in found)
        doubled = [(*file[:4], file.envelope.id, file.envelope.replay_of) for file in found if places[file.copy] > 1]
        assert not doubled, f"in two places: {doubled}"
        if not power_lost:
            purged = {TargetCopy(number, TRASH) for number in self.purged}
            back = [file[:4] for file in found if file.copy in purged]
            assert not back, f"purged, and back again: {back}"
        calls = Counter((handling.copy, handling.message_id, handling.replays) for handling in handlings)
        if not power_lost:
            twice = [call for call, count in calls.items() if count > 1]
            assert not twice, f"handled twice in one delivery: {twice}"
            waiting = {(file.copy, file.envelope.id, file.replays) for file in found if file.state == NEW}
            assert not waiting & calls.keys(), f"handled, and still waiting: {waiting & calls.keys()}"
        well = {
            (handling.copy, handling.message_id, handling.replays) for handling in handlings if handling.verdict == "ok"
        }
        for file in found:
            if (file.copy, file.envelope.id, file.replays) in well and not power_lost:
                assert file.code == Code.INTERRUPTED, f"handled well, and yet a dead letter: {file[:4]}"
        ids: defaultdict[TargetCopy, set[str]] = defaultdict(set)
        for handling in handlings:
            ids[handling.copy].add(handling.message_id)
        for file in found:
            ids[file.copy].add(file.envelope.id)
        again = {copy: some for copy, some in ids.items() if len(some) > 1 and copy.subject != EDIT}
        assert not again, f"published twice: {again}"
        boxes = {mailbox.hash: mailbox for mailbox in core.mailboxes()}
        for subject in {file.copy.subject for file in found}:
            box = boxes[subject_hash(subject)]
            states = Counter(file.state for file in found if file.copy.subject == subject)
            assert (box.depth, box.claimed, box.failed) == (states[NEW], 0, states[FAILED])
