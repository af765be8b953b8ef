"""Three workers share a queue: a free worker gets the next job, and a worker that leaves finishes its job first.

Run: python examples/worker_pool.py
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict

from relay_core import Envelope, RelayConfig, RelayCore, Subscription

JOBS = "relay.job.build"
MINUTE = 0.02
"""Seconds that stand for a minute of work."""


class Worker:
    """A consumer that handles one job after another."""

    def __init__(self, name: str, done: dict[str, list[str]]) -> None:
        self.__qualname__ = name  # its name in traces
        self.begun = asyncio.Event()
        self._done = done

    async def __call__(self, job: Envelope) -> None:
        self.begun.set()
        await asyncio.sleep(job.payload["minutes"] * MINUTE)
        self._done[self.__qualname__].append(job.payload["what"])


async def main(data_dir: str) -> None:
    done: dict[str, list[str]] = defaultdict(list)
    async with RelayCore(data_dir, config=RelayConfig(durability="os")) as relay:
        await relay.register_endpoint(JOBS)
        workers = [Worker(name, done) for name in ("ann", "bob", "cat")]
        pool: list[Subscription] = [await relay.subscribe(JOBS, worker, queue="builders") for worker in workers]

        jobs = [("the compiler", 20), *((f"test {number}", 2) for number in range(1, 9))]
        sent = [
            await relay.publish(JOBS, {"what": what, "minutes": minutes}, sender="relay.agent.boss")
            for what, minutes in jobs
        ]
        print(f"each job is delivered to {sent[0].delivered_to} mailbox and handled by one of three workers")
        await workers[0].begun.wait()
        await pool[0].close()  # ann finishes the compiler and gets no other job
        await relay.idle()

        for name, what in sorted(done.items()):
            print(f"{name} did {', '.join(sorted(what))}")
        (span,) = await relay.trace(sent[0].message_id)
        print(f"trace: {span.outcomes[0]['handler']} of {span.outcomes[0]['queue']} did {jobs[0][0]}")
        finished = sorted(job for names in done.values() for job in names)
        assert finished == sorted(what for what, _ in jobs), "every job once"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))
