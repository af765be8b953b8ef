"""Agents that work on requests: a desk sends one, agents pass the work on, and the reply goes back to the desk.

`ROUTES` maps each agent and kind of work to its next targets; ``desk`` is the reply-to address. Every message names its
parent, so a request is one conversation. Its budget bounds it: a cycle, a chain of more than five hops and a request
with few calls left end as dead letters.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from relay_core.errors import RelayError
from relay_core.messages.envelope import Envelope
from relay_core.messages.signals import SignalType
from relay_tui.demo.bus_access import BusAccess, HandlerError, Workload
from relay_tui.demo.sample_texts import NEWS, QUESTIONS, REFUSALS, WISHES

DESKS = ("relay.desk.ada", "relay.desk.bo", "relay.desk.chen")
PLANNER = "relay.agent.planner"

ROUTES: dict[str, dict[str, tuple[str, ...]]] = {
    PLANNER: {
        "wish": ("relay.agent.backend", "relay.agent.docs"),
        "question": ("relay.agent.docs",),
        "circle": ("relay.agent.backend",),
        "long": ("relay.agent.backend",),
        "thrifty": ("relay.agent.backend",),
    },
    "relay.agent.backend": dict.fromkeys(("wish", "circle", "long", "thrifty"), ("relay.agent.tests",)),
    "relay.agent.tests": {
        "wish": ("relay.agent.release",),
        "circle": ("relay.agent.backend",),  # back to its sender
        "long": ("relay.agent.release",),
    },
    "relay.agent.docs": {"wish": ("desk",), "question": ("desk",)},
    "relay.agent.release": {"wish": ("desk",), "long": ("relay.agent.changelog",)},
    "relay.agent.changelog": {"long": ("desk",)},
}
PACE = {"relay.agent.tests": (0.2, 0.7), "relay.agent.release": (0.1, 0.4)}
"""The seconds that slow agents take."""
KINDS = {"wish": 12, "question": 9, "circle": 1, "long": 1, "thrifty": 1}
"""The weight of each kind of work."""
REPLIES = {
    PLANNER: "planned",
    "relay.agent.backend": "patch is ready for",
    "relay.agent.tests": "214 passed, 0 failed",
    "relay.agent.docs": "documented",
    "relay.agent.release": "released",
    "relay.agent.changelog": "noted",
}

TEAMS = ("relay.team.blue", "relay.team.green", "relay.team.red")


async def people(bus: BusAccess) -> None:
    """Send requests from the desks."""
    number = 1000
    first = ["wish", "circle", "long", "thrifty", "question"]  # each kind is seen early
    while True:
        kind = first.pop(0) if first else bus.random.choices(list(KINDS), list(KINDS.values()))[0]
        number += 1
        text = bus.random.choice(QUESTIONS if kind == "question" else WISHES)
        desk = bus.random.choice(DESKS)
        await bus.publish(
            PLANNER,
            {"content": text, "task": f"T-{number}", "kind": kind},
            sender=desk,
            reply_to=desk,
            budget={"callBudgetRemaining": 2} if kind == "thrifty" else None,
        )
        await bus.pause(0.5, 1.3)


async def agent(subject: str, bus: BusAccess) -> None:
    """Receive work and pass it on."""

    async def work(envelope: Envelope) -> None:
        task: Any = envelope.payload
        if not isinstance(task, dict):
            raise HandlerError(f"not a task for {subject}")
        await bus.signal(subject, SignalType.PROGRESS, "working", {"task": task.get("task")})
        await bus.pause(*PACE.get(subject, (0.02, 0.15)))
        for target in ROUTES[subject].get(str(task.get("kind")), ()):
            to = envelope.reply_to if target == "desk" else target
            if to is not None:
                request = str(task.get("content")).rpartition(": ")[2]
                reply = {**task, "content": f"{REPLIES[subject]}: {request}"}
                await bus.publish(to, reply, sender=subject, parent_id=envelope.id, reply_to=envelope.reply_to)

    await bus.consume(subject, work)


async def desk(subject: str, bus: BusAccess) -> None:
    """Claim messages from time to time, and fail some of them."""
    read = 0
    while True:
        await bus.pause(3.0, 6.0)
        await bus.signal(subject, SignalType.TYPING, "active")
        for envelope in await bus.client.claim(subject, 8):
            read += 1
            try:
                if read % 20 == 3:
                    await bus.client.fail(subject, envelope.id, bus.random.choice(REFUSALS))
                else:
                    await bus.client.complete(subject, envelope.id)
            except RelayError:  # an operator settled it first
                continue


async def announcer(bus: BusAccess) -> None:
    """Publish news to all teams."""
    while True:
        await bus.publish("relay.team.*", {"content": bus.random.choice(NEWS)}, sender=PLANNER)
        await bus.pause(3.0, 5.0)


async def team(subject: str, bus: BusAccess) -> None:
    """Receive news; the red team fails from time to time."""

    async def read(envelope: Envelope) -> None:
        if subject == "relay.team.red" and bus.is_active(every=20, duration=6):
            raise HandlerError("out of office until Monday")

    await bus.consume(subject, read)


MAILBOXES = (*ROUTES, *DESKS, *TEAMS)

WORKLOADS: dict[str, Workload] = {
    "people": people,
    **{subject: partial(agent, subject) for subject in ROUTES},
    **{subject: partial(desk, subject) for subject in DESKS},
    "announcer": announcer,
    **{subject: partial(team, subject) for subject in TEAMS},
}
