"""Workloads with problems: recurring failures, a failure that is over, a slow consumer, a sender at its rate limit.

Outages are long enough to watch and short enough to wait for; each starts within the first seconds.
"""

from __future__ import annotations

from relay_core.clock import parse_iso
from relay_core.messages.envelope import Envelope
from relay_tui.demo.bus_access import BusAccess, HandlerError, Workload
from relay_tui.demo.sample_texts import PAGES, PICTURES, QUERIES, REVIEWS, SEARCH_ERRORS, SERVICES, WISHES
from relay_tui.demo.settings import HANDLER_TIMEOUT_SECS

SEARCH = "relay.agent.search"
DEPLOYS = "relay.agent.deploys"
REVIEWER = "relay.agent.reviewer"
CRAWLER = "relay.agent.crawler"
ARCHIVE = "relay.agent.archive"
VISION = "relay.agent.vision"

FAILED_DEPLOYS = 12
"""Failed deploys that are kept for the operator to replay."""
REGISTRY_BACK_MS = 1500
"""A deploy older than this succeeds, so a replay always does."""


async def searchers(bus: BusAccess) -> None:
    """Send queries."""
    while True:
        query = {"content": bus.random.choice(QUERIES), "limit": bus.random.choice((10, 20, 50))}
        await bus.publish(SEARCH, query, sender="relay.agent.storefront")
        await bus.pause(0.3, 0.6)


async def search(bus: BusAccess) -> None:
    """Fail until the breaker opens, then recover."""

    async def find(envelope: Envelope) -> None:
        if bus.is_active(every=40, duration=9, first=1):
            raise HandlerError(bus.random.choice(SEARCH_ERRORS))
        await bus.pause(0.01, 0.06)

    await bus.consume(SEARCH, find)


async def deployer(bus: BusAccess) -> None:
    """Send deploys; some of them fail until there are enough failed ones."""
    number = 310
    while True:
        groups = await bus.client.dead_letter_groups()
        enough = sum(group.count for group in groups if group.endpoint_subject == DEPLOYS) >= FAILED_DEPLOYS
        # At most two failures in a row: the breaker stays closed, and a replay can start.
        for down in (False,) if enough else (True, True, False):
            number += 1
            service = bus.random.choice(SERVICES)
            deploy = {
                "content": f"deploy {service} 2.{number}",
                "service": service,
                "version": f"2.{number}",
                "image": f"registry.example.com/{service}@sha256:{bus.random.getrandbits(64):016x}",
                "registry": "down" if down else "up",
            }
            await bus.publish(DEPLOYS, deploy, sender="relay.agent.release")
        hurry = bus.elapsed < 10 and not enough
        await bus.pause(*((0.4, 0.8) if hurry else (3.0, 6.0)))


async def deploys(bus: BusAccess) -> None:
    """Handle deploys; fail those that were sent while the registry was down."""

    async def deploy(envelope: Envelope) -> None:
        request = envelope.payload if isinstance(envelope.payload, dict) else {}
        age = bus.clock.now_ms() - parse_iso(envelope.created_at)
        if request.get("registry") == "down" and age < REGISTRY_BACK_MS:
            raise HandlerError(f"the registry was down: 502 Bad Gateway for {request.get('image')}")
        await bus.pause(0.02, 0.05)

    await bus.consume(DEPLOYS, deploy)


async def builds(bus: BusAccess) -> None:
    """Send reviews in waves, faster than they are handled; some with a short TTL."""
    number = 8800
    while True:
        number += 1
        build = {"content": f"{bus.random.choice(REVIEWS)} build {number}: {bus.random.choice(WISHES)}"}
        brief = number % 50 == 20
        budget = {"ttl": bus.clock.now_ms() + 4000} if brief else None
        await bus.publish(REVIEWER, build, sender="relay.agent.ci", budget=budget)
        if bus.is_active(every=50, duration=18):
            await bus.pause(0.08, 0.22)
        else:
            await bus.pause(0.8, 2.0)


async def reviewer(bus: BusAccess) -> None:
    """Handle reviews slowly."""

    async def read(envelope: Envelope) -> None:
        await bus.pause(0.3, 0.6)

    await bus.consume(REVIEWER, read)


async def crawler(bus: BusAccess) -> None:
    """Send pages, from time to time faster than the rate limit allows."""
    while True:
        page = {"content": f"crawled {bus.random.choice(PAGES)}", "bytes": bus.random.randint(2_000, 90_000)}
        await bus.publish(ARCHIVE, page, sender=CRAWLER)
        await bus.pause(*((0.1, 0.3) if bus.is_active(every=30, duration=6) else (0.5, 1.0)))


async def archive(bus: BusAccess) -> None:
    """Acknowledge every message."""
    await bus.consume(ARCHIVE)


async def pictures(bus: BusAccess) -> None:
    """Send pictures, some of them huge."""
    number = 0
    while True:
        number += 1
        huge = number % 8 == 2
        picture = {"content": f"what is on {bus.random.choice(PICTURES)}?", "megapixels": 240 if huge else 12}
        await bus.publish(VISION, picture, sender="relay.agent.backend")
        await bus.pause(1.5, 3.0)


async def vision(bus: BusAccess) -> None:
    """Handle pictures; a huge one exceeds the handler timeout."""

    async def look(envelope: Envelope) -> None:
        huge = isinstance(envelope.payload, dict) and envelope.payload.get("megapixels") == 240
        await (bus.pause(HANDLER_TIMEOUT_SECS + 0.2, HANDLER_TIMEOUT_SECS + 0.4) if huge else bus.pause(0.05, 0.3))

    await bus.consume(VISION, look)


MAILBOXES = (SEARCH, DEPLOYS, REVIEWER, ARCHIVE, VISION)

WORKLOADS: dict[str, Workload] = {
    "searchers": searchers,
    "search": search,
    "deployer": deployer,
    "deploys": deploys,
    "builds": builds,
    "reviewer": reviewer,
    "crawler": crawler,
    "archive": archive,
    "pictures": pictures,
    "vision": vision,
}
