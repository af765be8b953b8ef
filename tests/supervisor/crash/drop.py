"""Another program that drops files into mailboxes: ``python -m tests.supervisor.crash.drop COUNT NEW_DIR...``."""

from __future__ import annotations

import sys
from pathlib import Path

from relay_core.clock import SystemClock, iso
from relay_core.messages.envelope import Envelope, encode_envelope
from relay_core.messages.ids import UlidFactory
from relay_core.rules.budget import create_default_budget


def drop(count: int, directories: list[Path]) -> None:
    """Rename so many messages into place, each directory in turn."""
    clock = SystemClock()
    new_id = UlidFactory(clock)
    now = clock.now_ms()
    budget = create_default_budget(now)
    for number in range(count):
        new = directories[number % len(directories)]
        message_id = new_id()
        envelope = Envelope(
            id=message_id,
            subject="relay.dropped",
            sender="relay.other.program",
            reply_to=None,
            budget=budget,
            created_at=iso(now),
            payload={"n": number},
        )
        draft = new.parent / "tmp" / f"{message_id}.draft"
        draft.write_bytes(encode_envelope(envelope))
        draft.rename(new / f"{message_id}.json")


if __name__ == "__main__":
    drop(int(sys.argv[1]), [Path(directory) for directory in sys.argv[2:]])
