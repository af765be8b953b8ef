"""The contestants and the metrics.

A contestant's module is imported only where needed, so that a worker does not hold the memory of others.
"""

from __future__ import annotations

from importlib import import_module
from typing import Literal, NamedTuple

from benchmarks.compare.contestant import Durability, Entry, Task

CONTESTANTS = {
    "floor": "benchmarks.compare.bare",
    "relay": "benchmarks.compare.relay",
    "relay-socket": "benchmarks.compare.relay",
    "nats": "benchmarks.compare.jetstream",
    "redis": "benchmarks.compare.redis_streams",
    "mailbox": "benchmarks.compare.stdlib_maildir",
    "persist-queue": "benchmarks.compare.persist_queue",
    "persist-queue-files": "benchmarks.compare.persist_queue",
}
"""The module of each, in the order of a round."""

CLASSES: dict[Durability, str] = {
    "power": "An acknowledged message survives a power loss",
    "kill": "An acknowledged message survives kill -9",
}


class Metric(NamedTuple):
    """A column of the table."""

    title: str
    unit: str
    better: Literal["more", "less"]
    task: Task
    """The task that measures it."""


METRICS = {
    "publish_1": Metric("one by one, /s", "1/s", "more", "one_by_one"),
    "publish_64": Metric("64 in flight, /s", "1/s", "more", "in_flight"),
    "bare_64": Metric("the same, bare client, /s", "1/s", "more", "bare_client"),
    "fan_out_10": Metric("fan-out to 10, deliveries/s", "1/s", "more", "fan_out"),
    "latency_p50": Metric("publish → handler p50, ms", "ms", "less", "latency"),
    "latency_p99": Metric("p99, ms", "ms", "less", "latency"),
    "memory_idle": Metric("memory idle, MB", "MB", "less", "memory"),
    "memory_after": Metric("after the run, MB", "MB", "less", "memory"),
}
ROUNDS: tuple[Task, ...] = ("one_by_one", "in_flight", "bare_client", "fan_out", "latency")
"""Tasks measured in rounds. Those that remove messages come last: that slows down creating files (harness.py)."""


def entry(name: str) -> Entry:
    """Return a contestant by name."""
    entries: dict[str, Entry] = import_module(CONTESTANTS[name]).ENTRIES
    return entries[name]
