"""A bus for tests: real files in a real directory. Subjects, configurations, and short ways to look into it.

The fixture `relay` (`fixtures`) opens one for each test; `a_bus` opens one that a test closes and opens again.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay_core import (
    BackpressureConfig,
    DispatchConfig,
    RateLimitConfig,
    RelayConfig,
    RelayCore,
    ReliabilityConfig,
    Span,
)
from relay_core.clock import Clock, iso
from relay_core.messages.ids import UlidFactory
from relay_core.messages.subjects import subject_hash
from relay_core.protocol.state import TargetBreaker

A, B, C = "relay.agent.a", "relay.agent.b", "relay.agent.c"
ALL = "relay.agent.*"
UNHEARD = "relay.agent.nobody"
"""A subject without endpoint, subscription or adapter."""
SENDER = "relay.agent.s"
UNKNOWN_ID = "01HF7YAT0A8CDKSYBCF7B20000"
"""A well-formed id that no message has."""

MAX_MAILBOX_SIZE = 100_000


def config(durability: str = "os", *, handler_timeout_ms: int = 30_000, **reliability: Any) -> RelayConfig:
    """Return a configuration whose limits no test meets by accident; `reliability` replaces sections of that name."""
    sections: dict[str, Any] = {
        "rate_limit": RateLimitConfig(enabled=False),
        "backpressure": BackpressureConfig(max_mailbox_size=MAX_MAILBOX_SIZE),
    }
    parts = {
        "durability": durability,
        "dispatch": DispatchConfig(handler_timeout_ms=handler_timeout_ms),
        "reliability": ReliabilityConfig(**(sections | reliability)),
    }
    return RelayConfig.model_validate(parts)


@asynccontextmanager
async def a_bus(
    data_dir: Path, clock: Clock | None, config: RelayConfig | None = None, *, endpoints: Iterable[str] = ()
) -> AsyncIterator[RelayCore]:
    """Open a bus with these endpoints."""
    async with RelayCore(data_dir, config or UNLIMITED, clock) as relay:
        for subject in endpoints:
            await relay.register_endpoint(subject)
        yield relay


UNLIMITED = config()


async def publish_all(relay: RelayCore, subject: str, payloads: Iterable[Any]) -> list[str]:
    """Publish payloads one after the other, and return the ids of the messages."""
    return [(await relay.publish(subject, payload, sender=SENDER)).message_id for payload in payloads]


async def span(relay: RelayCore, message_id: str, subject: str = A) -> Span:
    """Return the one span of a message at a subject."""
    (found,) = [span for span in await relay.trace(message_id) if span.target == subject_hash(subject)]
    return found


async def codes(relay: RelayCore) -> list[str]:
    """Return the codes of all dead letters, newest first."""
    return [letter.code for letter in await relay.dead_letters()]


async def dead_ids(relay: RelayCore) -> list[str]:
    """Return the message ids of all dead letters, newest first."""
    return [letter.message_id for letter in await relay.dead_letters()]


def breaker(relay: RelayCore, subject: str = A) -> TargetBreaker:
    """Return the breaker of a subject."""
    (found,) = [breaker for breaker in relay.breakers() if breaker.subject == subject]
    return found


def depth(relay: RelayCore, subject: str = A) -> int:
    """Return how many messages are waiting in a mailbox, 0 if there is none."""
    return {mailbox.subject: mailbox.depth for mailbox in relay.mailboxes()}.get(subject, 0)


def mailbox_dir(data_dir: Path, subject: str = A) -> Path:
    """Return the directory of a subject's mailbox."""
    return data_dir / "mailboxes" / subject_hash(subject)


def files(data_dir: Path, subject: str, state: str) -> list[str]:
    """Return the ids of the messages in `new`, `cur` or `failed` of a mailbox, sorted."""
    return sorted(path.name.removesuffix(".json") for path in (mailbox_dir(data_dir, subject) / state).iterdir())


def snapshot(data_dir: Path) -> dict[str, bytes]:
    """Return every file of every mailbox."""
    return {str(path): path.read_bytes() for path in sorted((data_dir / "mailboxes").rglob("*")) if path.is_file()}


async def write_files(relay: RelayCore) -> None:
    """Let every message that has not ended become a file; unlike `RelayCore.idle`, also while a handler runs.

    Raises:
        OSError: if a file cannot be written.
    """
    await asyncio.to_thread(relay.bus.commits.files.flush)


@contextmanager
def refusing_journal(relay: RelayCore, code: int = errno.EIO, *, claims: bool = True) -> Iterator[None]:
    """Let every write to the journal fail; without `claims`, claims and ends succeed."""
    append = relay.bus.commits.journal.append

    def refuse(lines: Sequence[bytes], *, hold: int | None = None) -> None:
        if not claims and hold is None:
            return append(lines)
        raise OSError(code, "the test refuses")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relay.bus.commits.journal, "append", refuse)
        yield


def assert_counts_match_files(relay: RelayCore, data_dir: Path) -> None:
    """Check that the counts a bus reports are those of its directories, once every message is a file."""
    relay.bus.commits.files.flush()
    for state in relay.mailboxes():
        mailbox = data_dir / "mailboxes" / state.hash
        counts = [len(list((mailbox / name).glob("*.json"))) for name in ("new", "cur", "failed")]
        assert [state.depth, state.claimed, state.failed] == counts, state.subject


def envelope_json(message_id: str, subject: str, payload: Any, clock: Clock) -> bytes:
    """Return a message as another program writes it."""
    now = clock.now_ms()
    return orjson.dumps(
        {
            "id": message_id,
            "subject": subject,
            "from": SENDER,
            "budget": {
                "hopCount": 1,
                "maxHops": 5,
                "ancestorChain": [subject],
                "ttl": now + 60_000,
                "callBudgetRemaining": 9,
            },
            "createdAt": iso(now),
            "payload": payload,
        }
    )


def drop(data_dir: Path, subject: str, payload: Any, clock: Clock) -> str:
    """Drop a message into a mailbox as another program does, and return the name of its file."""
    message_id = UlidFactory(clock)()
    mailbox = mailbox_dir(data_dir, subject)
    path = mailbox / "tmp" / f"{message_id}.json"
    path.write_bytes(envelope_json(message_id, subject, payload, clock))
    path.rename(mailbox / "new" / path.name)
    return path.name
