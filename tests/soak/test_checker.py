"""Each rule of the checker, broken once: a rig that cannot fail proves nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.soak.checker import Limits, Remains, check, mailbox_hash, read_remains
from tests.soak.history import Accepted, Delivery, History, Number, Seen

A, B = "relay.soak.push.a", "relay.soak.pool"
SENDER = "relay.soak.publisher.p0"
LIMITS = Limits(mailbox=2, hops=5, rates={SENDER: 3}, ordered=frozenset({A}))


class Story:
    """A history that is written step by step, a second apart, over more than the rate's window."""

    def __init__(self) -> None:
        self.history = History()
        self.remains: list[Remains] = []
        self.now = 0.0

    def publish(self, n: int, *, to: tuple[str, ...] = (A,), delivered: int | None = None, took: float = 60.0) -> None:
        self.now += took
        number = Number(SENDER, n)
        self.history.targets[number] = to
        count = len(to) if delivered is None else delivered
        self.history.accepted[number] = [Accepted(self.now, self.now, f"id{n}", count, ())]

    def see(self, n: int, *, replays: int = 0, depth: int = 0, mailbox: str = A) -> Delivery:
        self.now += 1
        delivery = Delivery(mailbox, f"id{n}", replays)
        self.history.seen.append(Seen(self.now, delivery, Number(SENDER, n), depth))
        return delivery

    def acknowledge(self, delivery: Delivery, *, confirmed: bool = True) -> None:
        self.now += 1
        self.history.acks_sent.add(delivery)
        if confirmed:
            self.history.acks_confirmed[delivery] = self.now

    def leave(self, n: int, state: str, *, replays: int = 0, message_id: str = "", mailbox: str = A) -> None:
        self.remains.append(Remains(mailbox, message_id or f"id{n}", state, replays, Number(SENDER, n)))

    def verdict(self) -> str:
        return "\n".join(check(self.history, self.remains, LIMITS))


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_round_in_which_everything_went_well_breaks_no_rule(story: Story) -> None:
    story.publish(0)
    story.acknowledge(story.see(0))
    story.publish(1)
    story.see(1)
    story.leave(1, "failed")
    story.publish(2)
    story.acknowledge(story.see(2), confirmed=False)  # it may have taken effect, or not
    story.publish(3, to=(A, B))
    story.leave(3, "new")
    story.acknowledge(story.see(3, mailbox=B))
    story.publish(4)
    story.see(4)
    story.acknowledge(story.see(4, replays=1))
    assert story.verdict() == ""


def test_an_acknowledged_message_that_is_nowhere_is_lost(story: Story) -> None:
    story.publish(0)
    assert "never seen, and nowhere" in story.verdict()


def test_a_seen_message_that_was_not_acknowledged_must_be_a_dead_letter(story: Story) -> None:
    story.publish(0)
    story.see(0)
    assert "never acknowledged, and nowhere" in story.verdict()
    story.leave(0, "new")
    assert "offered again without a replay" in story.verdict()


def test_a_message_in_two_places_is_found(story: Story) -> None:
    story.publish(0)
    story.leave(0, "new")
    story.leave(0, "failed")
    assert "in 2 places" in story.verdict()


def test_a_confirmed_acknowledgement_is_the_end(story: Story) -> None:
    story.publish(0)
    story.acknowledge(story.see(0))
    story.see(0, replays=1)
    assert "delivered again after its acknowledgement was confirmed" in story.verdict()
    story.leave(0, "failed")
    assert "acknowledged by its consumer, and still there" in story.verdict()


def test_a_delivery_happens_once_unless_the_power_was_cut(story: Story) -> None:
    story.publish(0)
    story.see(0)
    story.acknowledge(story.see(0), confirmed=False)
    assert "delivered 2 times" in story.verdict()
    story.history.power_cuts.append(story.history.seen[0].at + 0.5)
    assert story.verdict() == ""


def test_order_is_kept_where_one_consumer_takes_all(story: Story) -> None:
    for n in (0, 1):
        story.publish(n)
    for n in (1, 0):
        story.acknowledge(story.see(n))
    assert "out of order" in story.verdict()


def test_a_number_has_one_message_id(story: Story) -> None:
    story.publish(0)
    story.acknowledge(story.see(0))
    story.leave(0, "new", message_id="another")
    assert "published twice" in story.verdict()


def test_a_refusal_leaves_nothing(story: Story) -> None:
    story.history.refused[Number(SENDER, 0)] = "rate_limited"
    story.leave(0, "new")
    assert "refused (rate_limited), and published" in story.verdict()


def test_an_answer_says_what_became_of_each_target(story: Story) -> None:
    story.publish(0, delivered=0)
    story.leave(0, "new")
    assert "delivered to 0, rejected by 0" in story.verdict()


def test_a_rejected_copy_is_not_missed(story: Story) -> None:
    story.publish(0, to=(A, B))
    story.acknowledge(story.see(0))
    answer = story.history.accepted[Number(SENDER, 0)][0]
    told = answer._replace(delivered_to=1, rejected=(mailbox_hash(B),))
    story.history.accepted[Number(SENDER, 0)] = [told]
    assert story.verdict() == ""


def test_limits_hold(story: Story) -> None:
    for n in range(4):
        story.publish(n, to=(B,), took=1.0)
        story.leave(n, "new", mailbox=B)
    assert "published 4 times in 60 s" in story.verdict()
    assert "holds 4 messages" in story.verdict()
    story.history.clock_jumps.append(0.0)
    assert "published 4 times" not in story.verdict()
    story.see(0, depth=6, mailbox=B)
    assert "went 6 hops" in story.verdict()


def test_nothing_is_left_in_cur(story: Story) -> None:
    story.publish(0)
    story.leave(0, "cur")
    assert "left behind" in story.verdict()


def test_what_the_rig_noticed_itself_counts(story: Story) -> None:
    story.history.violations.append("stuck: relay.soak.pool")
    assert story.verdict() == "stuck: relay.soak.pool"


def test_files_are_read_as_they_lie_on_disk(tmp_path: Path) -> None:
    box = tmp_path / "mailboxes" / "abc"
    for state in ("new", "failed"):
        (box / state).mkdir(parents=True)
    (box / "endpoint.json").write_text(json.dumps({"subject": A}))
    envelope = {"id": "id0", "from": SENDER, "payload": {"n": 0}, "replays": 2}
    (box / "new" / "id0.json").write_text(json.dumps(envelope))
    letter = {"envelope": envelope | {"id": "id1"}, "code": "timeout", "replays": 1}
    (box / "failed" / "id1.json").write_text(json.dumps(letter))
    waiting = Remains(A, "id0", "new", 2, Number(SENDER, 0))
    dead = Remains(A, "id1", "failed", 1, Number(SENDER, 0), "timeout")
    assert sorted(read_remains(tmp_path), key=lambda leftover: leftover.message_id) == [waiting, dead]
    (box / "new" / "id2.json").write_text("{")
    with pytest.raises(ValueError, match="Expecting"):
        read_remains(tmp_path)
