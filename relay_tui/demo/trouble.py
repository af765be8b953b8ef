"""Those who are in trouble: one fails in spells, one has recovered, one is too slow, one talks too much.

The spells are long enough to be watched and short enough to be waited for; each begins in the first seconds.
"""

from __future__ import annotations

from relay_core.clock import parse_iso
from relay_core.envelope import Envelope
from relay_tui.demo.script import PAGES, PICTURES, QUERIES, REVIEWS, SEARCH_ERRORS, SERVICES, WISHES
from relay_tui.demo.settings import HANDLER_TIMEOUT_SECS
from relay_tui.demo.stage import Member, Stage, Trouble

SEARCH = "relay.agent.search"
DEPLOYS = "relay.agent.deploys"
REVIEWER = "relay.agent.reviewer"
CRAWLER = "relay.agent.crawler"
ARCHIVE = "relay.agent.archive"
VISION = "relay.agent.vision"

WRECKS = 12
"""Failed deploys that are kept in store for whoever wants to replay them."""
REGISTRY_BACK_MS = 1500
"""A deploy that is older than this finds the registry well: a replay always does."""


async def searchers(stage: Stage) -> None:
    """Look for things."""
    while True:
        query = {"content": stage.luck.choice(QUERIES), "limit": stage.luck.choice((10, 20, 50))}
        await stage.tell(SEARCH, query, sender="relay.agent.storefront")
        await stage.pause(0.3, 0.6)


async def search(stage: Stage) -> None:
    """Fail for a while, until the breaker opens; then be well again."""

    async def find(envelope: Envelope) -> None:
        if stage.in_spell(every=40, lasting=9, first=1):
            raise Trouble(stage.luck.choice(SEARCH_ERRORS))
        await stage.pause(0.01, 0.06)

    await stage.consume(SEARCH, find)


async def deployer(stage: Stage) -> None:
    """Deploy; as long as there are few failed deploys, some of them meet the registry while it is down."""
    number = 310
    while True:
        groups = await stage.client.dead_letter_groups()
        enough = sum(group.count for group in groups if group.endpoint_subject == DEPLOYS) >= WRECKS
        # Never more than two in a row, so that the breaker stays closed and a replay can begin.
        for down in (False,) if enough else (True, True, False):
            number += 1
            service = stage.luck.choice(SERVICES)
            deploy = {
                "content": f"deploy {service} 2.{number}",
                "service": service,
                "version": f"2.{number}",
                "image": f"registry.example.com/{service}@sha256:{stage.luck.getrandbits(64):016x}",
                "registry": "down" if down else "up",
            }
            await stage.tell(DEPLOYS, deploy, sender="relay.agent.release")
        hurry = stage.elapsed < 10 and not enough
        await stage.pause(*((0.4, 0.8) if hurry else (3.0, 6.0)))


async def deploys(stage: Stage) -> None:
    """Take every deploy, but for those that came while the registry was down."""

    async def deploy(envelope: Envelope) -> None:
        asked = envelope.payload if isinstance(envelope.payload, dict) else {}
        age = stage.clock.now_ms() - parse_iso(envelope.created_at)
        if asked.get("registry") == "down" and age < REGISTRY_BACK_MS:
            raise Trouble(f"the registry was down: 502 Bad Gateway for {asked.get('image')}")
        await stage.pause(0.02, 0.05)

    await stage.consume(DEPLOYS, deploy)


async def builds(stage: Stage) -> None:
    """Send reviews in waves, more than can be read in time; some are worth something for seconds only."""
    number = 8800
    while True:
        number += 1
        build = {"content": f"{stage.luck.choice(REVIEWS)} build {number}: {stage.luck.choice(WISHES)}"}
        brief = number % 50 == 20
        budget = {"ttl": stage.clock.now_ms() + 4000} if brief else None
        await stage.tell(REVIEWER, build, sender="relay.agent.ci", budget=budget)
        if stage.in_spell(every=50, lasting=18):
            await stage.pause(0.08, 0.22)
        else:
            await stage.pause(0.8, 2.0)


async def reviewer(stage: Stage) -> None:
    """Read slowly."""

    async def read(envelope: Envelope) -> None:
        await stage.pause(0.3, 0.6)

    await stage.consume(REVIEWER, read)


async def crawler(stage: Stage) -> None:
    """Report pages, in spells more of them than the limit allows."""
    while True:
        page = {"content": f"crawled {stage.luck.choice(PAGES)}", "bytes": stage.luck.randint(2_000, 90_000)}
        await stage.tell(ARCHIVE, page, sender=CRAWLER)
        await stage.pause(*((0.1, 0.3) if stage.in_spell(every=30, lasting=6) else (0.5, 1.0)))


async def archive(stage: Stage) -> None:
    """Take everything at once."""

    async def keep(envelope: Envelope) -> None:
        return

    await stage.consume(ARCHIVE, keep)


async def pictures(stage: Stage) -> None:
    """Send pictures, some of them huge."""
    number = 0
    while True:
        number += 1
        huge = number % 8 == 2
        picture = {"content": f"what is on {stage.luck.choice(PICTURES)}?", "megapixels": 240 if huge else 12}
        await stage.tell(VISION, picture, sender="relay.agent.backend")
        await stage.pause(1.5, 3.0)


async def vision(stage: Stage) -> None:
    """Look at pictures; a huge one takes longer than a handler may."""

    async def look(envelope: Envelope) -> None:
        huge = isinstance(envelope.payload, dict) and envelope.payload.get("megapixels") == 240
        await (stage.pause(HANDLER_TIMEOUT_SECS + 0.2, HANDLER_TIMEOUT_SECS + 0.4) if huge else stage.pause(0.05, 0.3))

    await stage.consume(VISION, look)


MAILBOXES = (SEARCH, DEPLOYS, REVIEWER, ARCHIVE, VISION)

MEMBERS: dict[str, Member] = {
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
