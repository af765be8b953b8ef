"""The verbs of `RelayClient` for observing and operating a supervisor."""

from __future__ import annotations

from relay_core.client.reconnect import given
from relay_core.client.typed_calls import TypedCalls, wire_or_none
from relay_core.messages.delivery import Span, TracePage, TraceSearch
from relay_core.messages.operator_views import ConfiguredAdapter, JobArguments, JobRun, JobState, TokenInfo
from relay_core.protocol.operating import AccessRules, AdapterList, NewToken
from relay_core.protocol.reporting import ReportContent, ReportList
from relay_core.protocol.scheduling import ScheduleList, ScheduleRun, ScheduleState
from relay_core.protocol.serving import ConfigState, ServerInfo, ServerStatus
from relay_core.protocol.state import TargetBreaker
from relay_core.records.metrics import MetricsSnapshot
from relay_core.rules.access import AccessRule
from relay_core.rules.rate_limit import SenderUsage


class OperatorVerbs(TypedCalls):
    """Observe and operate a supervisor."""

    async def info(self) -> ServerInfo:
        """Return the supervisor's identity."""
        return await self._ask(ServerInfo, "server.info")

    async def status(self) -> ServerStatus:
        """Return the state of the whole supervisor."""
        return await self._ask(ServerStatus, "server.status")

    async def stop(self) -> None:
        """Stop the supervisor."""
        await self.call("server.stop")

    async def trace(self, message_id: str) -> list[Span]:
        """Return the spans of a message, one per target."""
        return await self._list(Span, "traces.get", "spans", {"id": message_id})

    async def search_traces(self, search: TraceSearch) -> TracePage:
        """Return a page of messages and their status, newest first."""
        return await self._ask(TracePage, "traces.search", search.to_wire())

    async def conversation(self, trace_id: str) -> list[Span]:
        """Return the spans of a message and all that followed from it."""
        return await self._list(Span, "traces.conversation", "spans", {"id": trace_id})

    async def metrics(self) -> MetricsSnapshot:
        """Return the counters since the start."""
        return await self._ask(MetricsSnapshot, "metrics")

    async def breakers(self) -> list[TargetBreaker]:
        """Return every breaker."""
        return await self._list(TargetBreaker, "breakers.list", "breakers")

    async def reset_breaker(self, target: str, reason: str = "reset by the operator") -> None:
        """Close a target's breaker (subject or hash)."""
        await self.call("breakers.reset", {"target": target, "reason": reason})

    async def force_breaker(self, target: str, state: str, reason: str) -> None:
        """Hold a target's breaker open until it is reset, or close it."""
        await self.call("breakers.force", {"target": target, "state": state, "reason": reason})

    async def senders(self) -> list[SenderUsage]:
        """Return the rate-limit usage of each sender."""
        return await self._list(SenderUsage, "senders.list", "senders")

    async def adapters(self) -> AdapterList:
        """Return every adapter in adapters.json, and errors in the file."""
        return await self._ask(AdapterList, "adapters.list")

    async def change_adapter(self, adapter_id: str, action: str) -> ConfiguredAdapter:
        """Do `enable`, `disable` or `test` to an adapter."""
        return await self._ask(ConfiguredAdapter, f"adapters.{action}", {"id": adapter_id}, timeout=60.0)

    async def reload_adapters(self, adapter_id: str | None = None) -> AdapterList:
        """Reload adapters.json, or recreate one adapter."""
        return await self._ask(AdapterList, "adapters.reload", given(id=adapter_id), timeout=60.0)

    async def access_rules(self) -> AccessRules:
        """Return the access rules, in file order."""
        return await self._ask(AccessRules, "access.list")

    async def add_access_rule(self, rule: AccessRule) -> AccessRules:
        """Append a rule, unless it exists."""
        return await self._ask(AccessRules, "access.add", {"rule": rule.to_wire()})

    async def remove_access_rule(self, sender: str, to: str) -> int:
        """Remove every rule with exactly these patterns and return their number."""
        return int((await self.call("access.remove", {"from": sender, "to": to}))["removed"])

    async def tokens(self) -> list[TokenInfo]:
        """Return every token, without its secret."""
        return await self._list(TokenInfo, "tokens.list", "tokens")

    async def add_token(self, pattern: str, note: str | None = None) -> NewToken:
        """Create a token for the subjects of a pattern; its secret is not shown again."""
        return await self._ask(NewToken, "tokens.add", given(pattern=pattern, note=note))

    async def remove_token(self, token_id: str) -> None:
        """Revoke a token."""
        await self.call("tokens.remove", {"id": token_id})

    async def jobs(self) -> list[JobState]:
        """Return every job."""
        return await self._list(JobState, "jobs.list", "jobs")

    async def run_job(self, name: str, *, wait: bool = True, arguments: JobArguments | None = None) -> JobRun:
        """Run a job now; return its outcome, or without `wait` that it was started."""
        params = {"name": name, "wait": wait} | given(arguments=wire_or_none(arguments))
        return await self._ask(JobRun, "jobs.run", params, timeout=None)

    async def cancel_job(self, name: str) -> JobRun:
        """Cancel the current run of a job and return it."""
        return await self._ask(JobRun, "jobs.cancel", {"name": name})

    async def schedules(self) -> ScheduleList:
        """Return the schedules of config.json, and errors in the file of their state."""
        return await self._ask(ScheduleList, "schedules.list")

    async def run_schedule(self, schedule_id: str) -> ScheduleRun:
        """Publish a schedule's message now and return the outcome."""
        return await self._ask(ScheduleRun, "schedules.run", {"id": schedule_id}, timeout=None)

    async def pause_schedule(self, schedule_id: str) -> ScheduleState:
        """Pause a schedule, also across restarts."""
        return await self._ask(ScheduleState, "schedules.pause", {"id": schedule_id})

    async def resume_schedule(self, schedule_id: str) -> ScheduleState:
        """Resume a schedule; the times that it missed are skipped."""
        return await self._ask(ScheduleState, "schedules.resume", {"id": schedule_id})

    async def reports(self) -> ReportList:
        """Return the nightly reports, newest first."""
        return await self._ask(ReportList, "reports.list")

    async def report(self, date: str | None = None) -> ReportContent:
        """Return the nightly report of a date, or the newest."""
        return await self._ask(ReportContent, "reports.get", given(date=date))

    async def config(self) -> ConfigState:
        """Return the configuration in force."""
        return await self._ask(ConfigState, "config.get")

    async def reload(self) -> list[str]:
        """Reload the operator's files; return errors in them."""
        return list((await self.call("config.reload"))["problems"])
