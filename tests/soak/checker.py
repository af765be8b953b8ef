"""The rules a round is held to.

After the faults have stopped, the mailboxes have drained and the supervisor has shut down:

1. Each copy of an acknowledged publish is exactly one of handled, waiting or a dead letter. One that no consumer saw
   is waiting or a dead letter; one that was seen and never acknowledged is a dead letter, or waits after a replay.
2. A confirmed acknowledgement is the end: the copy is nowhere and is not delivered again.
3. A delivery reaches at most one consumer, once. A replay is another delivery.
4. A publisher's messages to one mailbox reach its consumer in order; replays and pools are excepted.
5. A number has one message id, however often its publish is retried. What was refused is nowhere.
6. `deliveredTo` and `rejected` add up to the mailboxes the publish was meant for.
7. No mailbox holds more than its limit, no sender passes its rate, no conversation its hops.
8. `cur/` and `tmp/` are empty, and every file is whole.

After a power cut rules 2, 3 and 4 do not hold for what was delivered or acknowledged in the last moments before it
(P5): `WINDOW_SECS` says how long that is here, on a machine that may be busy.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tests.soak.history import Delivery, History, Number

WINDOW_SECS = 1.0
RATE_SECS = 60.0


@dataclass(frozen=True)
class Limits:
    """What the supervisor of a round was told to enforce."""

    mailbox: int
    hops: int
    rates: dict[str, int]
    """Publishes in `RATE_SECS` by sender."""
    ordered: frozenset[str]
    """Mailboxes with one consumer at a time."""


@dataclass(frozen=True)
class Remains:
    """A message that lies on disk after the shutdown."""

    mailbox: str
    message_id: str
    state: str
    replays: int
    number: Number
    code: str | None = None

    def __str__(self) -> str:
        what = f"{self.message_id} ({self.number.sender} {self.number.n})"
        return f"{what} in {self.mailbox}, {self.state} {self.code or ''}"


def read_remains(data_dir: Path) -> list[Remains]:
    """Return every message on disk; raises ValueError if a file is torn."""
    found = []
    for box in sorted((data_dir / "mailboxes").iterdir()):
        about = box / "endpoint.json"
        if not about.exists():
            continue  # killed while it was made
        mailbox = json.loads(about.read_bytes())["subject"]
        for path in sorted(box.glob("*/*")):
            state = path.parent.name
            if path.suffix != ".json":
                raise ValueError(f"{path} is no message")
            document = json.loads(path.read_bytes())
            envelope = document["envelope"] if state == "failed" else document
            number = Number(envelope["from"], envelope["payload"]["n"])
            replays = document.get("replays", 0)
            found.append(Remains(mailbox, envelope["id"], state, replays, number, document.get("code")))
    return found


def check(history: History, remains: list[Remains], limits: Limits) -> list[str]:
    """Return every violation of the rules, in words."""
    return [
        *history.violations,
        *_accounted(history, remains),
        *_at_most_once(history),
        *_in_order(history, limits),
        *_one_id(history, remains),
        *_told_the_truth(history),
        *_within_limits(history, remains, limits),
        *(f"left behind: {leftover}" for leftover in remains if leftover.state not in ("new", "failed")),
    ]


def _accounted(history: History, remains: list[Remains]) -> Iterator[str]:
    places: defaultdict[tuple[str, str], list[Remains]] = defaultdict(list)
    for leftover in remains:
        places[leftover.mailbox, leftover.message_id].append(leftover)
    deliveries: defaultdict[tuple[str, str], set[Delivery]] = defaultdict(set)
    last_seen: dict[tuple[str, str], float] = {}
    for seen in history.seen:
        copy = seen.delivery[:2]
        deliveries[copy].add(seen.delivery)
        last_seen[copy] = seen.at
    for found in places.values():
        if len(found) > 1:
            yield f"in {len(found)} places: {found[0]}"
    for number, copy in _copies(history):
        what = f"{copy[1]} ({number.sender} {number.n}) of {copy[0]}"
        there = places.get(copy, [])
        confirmed = [
            history.acks_confirmed[delivery] for delivery in deliveries[copy] if delivery in history.acks_confirmed
        ]
        if confirmed:
            if history.cut_before(max(confirmed), WINDOW_SECS):
                continue
            if there:
                yield f"acknowledged by its consumer, and still there: {there[0]}"
            elif last_seen[copy] > max(confirmed):
                yield f"delivered again after its acknowledgement was confirmed: {what}"
        elif deliveries[copy]:
            latest = max(delivery.replays for delivery in deliveries[copy])
            if not there:
                if not any(delivery in history.acks_sent for delivery in deliveries[copy]):
                    yield f"lost: seen, never acknowledged, and nowhere: {what}"
            elif there[0].state == "new" and there[0].replays <= latest:
                if not history.cut_before(last_seen[copy], WINDOW_SECS):
                    yield f"seen, and offered again without a replay: {there[0]}"
        elif not there:
            yield f"lost: acknowledged to its publisher, never seen, and nowhere: {what}"


def _copies(history: History) -> Iterator[tuple[Number, tuple[str, str]]]:
    """Yield every copy that was acknowledged, as mailbox and message id."""
    for number, answers in history.accepted.items():
        for mailbox in history.targets[number]:
            if mailbox_hash(mailbox) not in answers[0].rejected:
                yield number, (mailbox, answers[0].message_id)


def _at_most_once(history: History) -> Iterator[str]:
    times = Counter(seen.delivery for seen in history.seen)
    first: dict[Delivery, float] = {}
    for seen in history.seen:
        first.setdefault(seen.delivery, seen.at)
    for delivery, count in times.items():
        if count > 1 and not history.cut_before(first[delivery], WINDOW_SECS):
            yield f"delivered {count} times: {delivery}"


def _in_order(history: History, limits: Limits) -> Iterator[str]:
    newest: dict[tuple[str, str], int] = {}
    for seen in history.seen:
        mailbox, _, replays = seen.delivery
        if replays or mailbox not in limits.ordered or history.cut_before(seen.at, WINDOW_SECS):
            continue
        line = (mailbox, seen.number.sender)
        if seen.number.n < newest.get(line, -1):
            yield f"out of order in {mailbox}: {seen.number} after {newest[line]}"
        newest[line] = max(newest.get(line, -1), seen.number.n)


def _one_id(history: History, remains: list[Remains]) -> Iterator[str]:
    ids: defaultdict[Number, set[str]] = defaultdict(set)
    for number, answers in history.accepted.items():
        ids[number].update(answer.message_id for answer in answers)
    for seen in history.seen:
        ids[seen.number].add(seen.delivery.message_id)
    for leftover in remains:
        ids[leftover.number].add(leftover.message_id)
    for number, found in ids.items():
        if len(found) > 1:
            yield f"published twice: {number} as {sorted(found)}"
        if number in history.refused:
            yield f"refused ({history.refused[number]}), and published: {number} as {sorted(found)}"


def _told_the_truth(history: History) -> Iterator[str]:
    for number, answers in history.accepted.items():
        wanted = len(history.targets[number])
        for answer in answers:
            if answer.delivered_to + len(answer.rejected) != wanted:
                yield (
                    f"{number} was meant for {wanted} mailboxes, and the answer was: "
                    f"delivered to {answer.delivered_to}, rejected by {len(answer.rejected)}"
                )


def _within_limits(history: History, remains: list[Remains], limits: Limits) -> Iterator[str]:
    depths = Counter(leftover.mailbox for leftover in remains if leftover.state == "new")
    for mailbox, depth in depths.items():
        if depth > limits.mailbox:
            yield f"{mailbox} holds {depth} messages, its limit is {limits.mailbox}"
    for seen in history.seen:
        if seen.depth > limits.hops:
            yield f"a conversation went {seen.depth} hops, its limit is {limits.hops}: {seen.delivery}"
    if history.clock_jumps:
        return  # the rate's window is wall time
    for sender, rate in limits.rates.items():
        answers = sorted((found[0] for number, found in history.accepted.items() if number.sender == sender))
        for first, last in zip(answers, answers[rate:], strict=False):
            if last.answered_at - first.asked_at < RATE_SECS:
                yield f"{sender} published {rate + 1} times in {RATE_SECS:.0f} s, its limit is {rate}"
                break


def mailbox_hash(subject: str) -> str:
    """Return the name of a subject's mailbox directory."""
    return sha256(subject.encode()).hexdigest()[:12]
