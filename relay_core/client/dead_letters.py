"""The verbs of `RelayClient` for dead letters and replay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any

import orjson

from relay_core.client.reconnect import given
from relay_core.client.typed_calls import TypedCalls, encode_json, wire_or_none
from relay_core.clock import SystemClock
from relay_core.messages.dead_letter import DeadLetter, DeadLetterFilter, DeadLetterGroup
from relay_core.messages.replay_plan import PlanHead, PlanItem, ReplayOutcome, ReplayPlan
from relay_core.messages.results import PublishResult
from relay_core.protocol.base import MAX_PAGE
from relay_core.protocol.deadletters import DeadLetterPage, DeadLetterSummaries, PlanItems, Replay

LONG_SECS = 600.0
"""The timeout of calls that read or remove every dead letter."""


class DeadLetterVerbs(TypedCalls):
    """List, replay, edit, purge and export dead letters."""

    async def dead_letters(
        self, endpoint: str | None = None, *, filter: DeadLetterFilter | None = None
    ) -> list[DeadLetter]:
        """Return dead letters, oldest first; of one endpoint (subject or hash) if given."""
        if endpoint is not None:
            filter = (filter or DeadLetterFilter()).model_copy(update={"endpoint": endpoint})
        newest_first = await self._pages(DeadLetter, "deadletters.list", "deadLetters", filter=wire_or_none(filter))
        return newest_first[::-1]

    async def dead_letter_page(
        self, *, filter: DeadLetterFilter | None = None, cursor: str | None = None, limit: int = 100
    ) -> DeadLetterPage:
        """Return a page of dead letters, newest first."""
        return await self._ask(
            DeadLetterPage, "deadletters.list", given(filter=wire_or_none(filter), cursor=cursor, limit=limit)
        )

    async def dead_letter_summaries(
        self, *, filter: DeadLetterFilter | None = None, cursor: str | None = None, limit: int = 100
    ) -> DeadLetterSummaries:
        """Return a page of dead letters without their messages, newest first."""
        return await self._ask(
            DeadLetterSummaries, "deadletters.summaries", given(filter=wire_or_none(filter), cursor=cursor, limit=limit)
        )

    async def dead_letter_groups(self) -> list[DeadLetterGroup]:
        """Return the dead letters by code and target, largest group first."""
        return await self._list(DeadLetterGroup, "deadletters.groups", "groups")

    async def dead_letter(self, message_id: str, *, endpoint: str | None = None) -> DeadLetter:
        """Return one dead letter."""
        return await self._ask(DeadLetter, "deadletters.get", given(id=message_id, endpoint=endpoint))

    async def plan_replay(
        self, ids: Iterable[str] | None = None, *, filter: DeadLetterFilter | None = None, fresh_budget: bool = False
    ) -> ReplayPlan:
        """Freeze a selection of dead letters and predict the outcome of replaying each."""
        head = await self.freeze_replay(ids, filter=filter, fresh_budget=fresh_budget)
        items = await self._pages(PlanItem, "deadletters.items", "items", planId=head.id)
        return ReplayPlan(id=head.id, created_at=head.created_at, fresh_budget=head.fresh_budget, items=tuple(items))

    async def freeze_replay(
        self, ids: Iterable[str] | None = None, *, filter: DeadLetterFilter | None = None, fresh_budget: bool = False
    ) -> PlanHead:
        """Freeze a selection of dead letters (by ``ID``, ``ID/HASH`` or filter) and count the predicted outcomes."""
        params = given(
            ids=list(ids) if ids is not None else None, filter=wire_or_none(filter), freshBudget=fresh_budget
        )
        return await self._ask(PlanHead, "deadletters.plan", params, timeout=LONG_SECS)

    async def plan_items(self, plan_id: str, *, cursor: str | None = None, limit: int = 100) -> PlanItems:
        """Return a page of a plan's messages, each with its verdict."""
        return await self._ask(PlanItems, "deadletters.items", given(planId=plan_id, cursor=cursor, limit=limit))

    async def start_replay(self, plan_id: str, *, rate: float | None = None, canary: bool = False) -> Replay:
        """Start a replay; it continues without this client."""
        return await self._ask(Replay, "deadletters.run", given(planId=plan_id, rate=rate, canary=canary))

    async def run_replay(self, plan_id: str, *, rate: float | None = None, canary: bool = False) -> ReplayOutcome:
        """Run a plan and return its outcome."""
        await self.start_replay(plan_id, rate=rate, canary=canary)
        return (await self.wait_replay(plan_id)).outcome

    async def wait_replay(self, plan_id: str) -> Replay:
        """Wait until a replay has ended."""
        answer = await self.call("deadletters.wait", {"planId": plan_id}, timeout=None)
        return Replay.model_validate(answer)

    async def replays(self) -> list[Replay]:
        """Return the newest replays, oldest first."""
        return await self._list(Replay, "deadletters.runs", "replays")

    async def steer_replay(self, plan_id: str, action: str) -> Replay:
        """Do `pause`, `resume` or `cancel` to a replay."""
        return await self._ask(Replay, f"deadletters.{action}", {"planId": plan_id})

    async def edit_replay(
        self, message_id: str, payload: Any, *, endpoint: str | None = None, fresh_budget: bool = False
    ) -> PublishResult:
        """Publish an edited copy in place of a dead letter."""
        params = given(id=message_id, endpoint=endpoint, freshBudget=fresh_budget) | {
            "payload": orjson.Fragment(encode_json(payload))
        }
        return await self._ask(PublishResult, "deadletters.edit", params)

    async def purge_dead_letters(
        self,
        older_than: int | timedelta | None = None,
        ids: Iterable[str] | None = None,
        *,
        filter: DeadLetterFilter | None = None,
        plan_id: str | None = None,
    ) -> int:
        """Remove dead letters that failed before an instant (epoch ms) or an age, or by id; all if none is given.

        With a plan: those that it has frozen.
        """
        if isinstance(older_than, timedelta):
            older_than = SystemClock().now_ms() - int(older_than.total_seconds() * 1000)
        params = given(
            olderThan=older_than,
            ids=list(ids) if ids is not None else None,
            filter=wire_or_none(filter),
            planId=plan_id,
        )
        return int((await self.call("deadletters.purge", params, timeout=LONG_SECS))["purged"])

    async def export_dead_letters(
        self, *, filter: DeadLetterFilter | None = None, plan_id: str | None = None
    ) -> AsyncIterator[str]:
        """Yield dead letters as JSON lines, oldest first; with a plan, those that it has frozen."""
        cursor = None
        while True:
            params = given(filter=wire_or_none(filter), planId=plan_id, cursor=cursor, limit=MAX_PAGE)
            part = await self.call("deadletters.export", params)
            for line in part["lines"]:
                yield line
            cursor = part.get("cursor")
            if cursor is None:
                return
