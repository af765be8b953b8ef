"""Every method of the protocol, one row each: the server, the client and docs/protocol.md read this table.

A row holds the method's name, its parameters and result (models in the modules beside this one), a sentence for the
documentation, and its traits: who may call it and how it is scheduled, resent and drained. Nothing else in the code
lists methods by name, except the server's handlers, which a test compares with this table.

1. A connection may begin with `server.hello`, to identify itself and agree on a version. The first answer on every
   connection carries the server's version and the protocol's under `relay`.
2. Requests are pipelined. They begin in order, and an `ORDERED` one ends before the next begins. Answers arrive in any
   order; the id matches them to requests.
3. Parameters are strict: an unknown key or a value of another type is an error that names it.
4. A token's holder may call the methods marked `AGENTS`; the others are the operator's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from pydantic import ValidationError

from relay_core.config import explain_unknown
from relay_core.errors import ProtocolError
from relay_core.messages.base import WireModel
from relay_core.messages.dead_letter import DeadLetter
from relay_core.messages.delivery import TracePage
from relay_core.messages.operator_views import ConfiguredAdapter, JobRun
from relay_core.messages.replay_plan import PlanHead
from relay_core.messages.results import PublishResult
from relay_core.protocol.base import Done, IdParams, ListParams, Nothing, Params, PatternParams, SubjectParams
from relay_core.protocol.consuming import (
    ClaimParams,
    Completed,
    CompleteParams,
    DeliveryParams,
    FailDeliveryParams,
    FailParams,
    MessageIds,
    MessageNote,
    Messages,
    PeekParams,
    SignalNote,
    SignalParams,
    Subscribed,
    SubscribeParams,
    SubscriptionList,
    SubscriptionParams,
    WaitParams,
)
from relay_core.protocol.deadletters import (
    DeadLetterGroups,
    DeadLetterPage,
    DeadLetterParams,
    DeadLettersParams,
    DeadLetterSummaries,
    EditParams,
    Exported,
    ExportParams,
    PlanIdParams,
    PlanItems,
    PlanItemsParams,
    PlanParams,
    Purged,
    PurgeParams,
    Replay,
    ReplayList,
    RunParams,
)
from relay_core.protocol.endpoints import (
    AddAgentParams,
    AgentList,
    EndpointList,
    MailboxList,
    NewAgent,
    OpenReplyParams,
    People,
    ReplyMailbox,
)
from relay_core.protocol.operating import (
    AccessRules,
    AdapterList,
    AdapterParams,
    AddRuleParams,
    AddTokenParams,
    BreakerList,
    ForceBreakerParams,
    NewToken,
    ReloadAdaptersParams,
    Removed,
    RemoveRuleParams,
    ResetBreakerParams,
    SenderList,
    TokenList,
)
from relay_core.protocol.publishing import BatchParams, BatchResult, PublishParams
from relay_core.protocol.reporting import (
    JobList,
    JobParams,
    ReportContent,
    ReportList,
    ReportParams,
    RunJobParams,
    Spans,
    TracesParams,
)
from relay_core.protocol.scheduling import ScheduleList, ScheduleParams, ScheduleRun, ScheduleState
from relay_core.protocol.serving import (
    ClosingNote,
    ConfigState,
    Hello,
    HelloParams,
    Reloaded,
    ServerInfo,
    ServerStatus,
    StateNote,
    Watching,
    WatchParams,
)
from relay_core.records.metrics import MetricsSnapshot
from relay_core.storage.endpoint_file import Endpoint

M = TypeVar("M", bound=WireModel)


class Trait(Enum):
    """A property of a method that server and client act on; the value explains it in docs/protocol.md."""

    AGENTS = "agents"
    """A token's holder may call it, within the token's pattern."""
    ORDERED = "ordered"
    """It is quick and later requests may rely on it: the next request begins when it has ended."""
    LARGE = "large"
    """The result may be megabytes: one connection gets one at a time."""
    LONG_POLL = "long poll"
    """It waits for an event that may never happen: it ends with the connection and does not delay a shutdown."""
    WATCHES_TASK = "waits"
    """It waits for work that continues without it: it does not delay a shutdown."""
    ONCE = "not idempotent"
    """A client must not resend it after a lost connection, since it could be carried out twice."""
    STOPPING = "while stopping"
    """It is answered while the supervisor is stopping."""


AGENTS, ORDERED, LARGE, LONG_POLL, WATCHES_TASK, ONCE, STOPPING = Trait


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the protocol."""

    name: str
    params: type[Params]
    result: type[WireModel]
    summary: str
    traits: frozenset[Trait] | set[Trait] = frozenset()


_TABLE = (
    Method("server.hello", HelloParams, Hello, "Identify the client; agree on a version.", {AGENTS, STOPPING}),
    Method("server.info", Nothing, ServerInfo, "Return the supervisor's identity.", {AGENTS, STOPPING}),
    Method("server.ping", Nothing, Done, "Do nothing.", {AGENTS, STOPPING}),
    Method("server.status", Nothing, ServerStatus, "Return the state of the whole supervisor."),
    Method("server.stop", Nothing, Done, "Stop the supervisor, as SIGTERM does.", {ONCE}),
    Method("publish", PublishParams, PublishResult, "Publish a message.", {AGENTS}),
    Method("publish.batch", BatchParams, BatchResult, "Publish many messages in one frame.", {AGENTS}),
    Method("subscribe", SubscribeParams, Subscribed, "Receive `message` notifications.", {AGENTS, ORDERED}),
    Method("unsubscribe", SubscriptionParams, Done, "End a subscription.", {AGENTS, ORDERED}),
    Method("subscriptions.list", ListParams, SubscriptionList, "List live subscriptions; a token's own.", {AGENTS}),
    Method("start", DeliveryParams, Done, "Report that handling begins (see `starts`).", {AGENTS, STOPPING}),
    Method("ack", DeliveryParams, Done, "Acknowledge a delivery that was handled.", {AGENTS, STOPPING}),
    Method("fail", FailDeliveryParams, Done, "Report that a delivery failed.", {AGENTS, STOPPING}),
    Method("inbox.peek", PeekParams, Messages, "Return waiting messages, oldest first.", {AGENTS, ORDERED, LARGE}),
    Method("inbox.claim", ClaimParams, Messages, "Claim waiting messages.", {AGENTS, ORDERED, LARGE}),
    Method("inbox.wait", WaitParams, MessageIds, "Answer once messages are waiting.", {AGENTS, LONG_POLL}),
    Method("inbox.complete", CompleteParams, Completed, "Finish a claimed message.", {AGENTS, ORDERED, ONCE, STOPPING}),
    Method("inbox.fail", FailParams, Done, "Dead-letter a claimed message.", {AGENTS, ORDERED, ONCE, STOPPING}),
    Method("signal.send", SignalParams, Done, "Send a signal to current listeners.", {AGENTS}),
    Method("signal.subscribe", PatternParams, Subscribed, "Receive `signal` notifications.", {AGENTS}),
    Method("signal.unsubscribe", SubscriptionParams, Done, "End a subscription to signals.", {AGENTS}),
    Method("endpoints.register", SubjectParams, Endpoint, "Give a subject a durable mailbox.", {AGENTS, ORDERED}),
    Method("endpoints.unregister", SubjectParams, Done, "Stop routing to it; its messages stay.", {AGENTS, ORDERED}),
    Method("endpoints.list", ListParams, EndpointList, "List the endpoints.", {AGENTS}),
    Method("replies.open", OpenReplyParams, ReplyMailbox, "Open a private mailbox for answers.", {AGENTS, ORDERED}),
    Method("mailboxes.list", Nothing, MailboxList, "List the mailboxes and their state, by subject."),
    Method("agents.add", AddAgentParams, NewAgent, "Create an agent's mailbox and token.", {ORDERED}),
    Method("agents.remove", SubjectParams, Done, "Remove an agent; its messages stay.", {ORDERED, ONCE}),
    Method("agents.list", ListParams, AgentList, "List agents and endpoints.", {AGENTS}),
    Method("agents.people", SubjectParams, People, "List the people an agent may write to.", {AGENTS}),
    Method("deadletters.list", DeadLettersParams, DeadLetterPage, "List dead letters, newest first.", {LARGE}),
    Method("deadletters.summaries", DeadLettersParams, DeadLetterSummaries, "List them without messages.", {LARGE}),
    Method("deadletters.groups", Nothing, DeadLetterGroups, "Count dead letters by code and target, largest first."),
    Method("deadletters.get", DeadLetterParams, DeadLetter, "Return one dead letter.", {LARGE}),
    Method("deadletters.plan", PlanParams, PlanHead, "Freeze a selection; predict each outcome."),
    Method("deadletters.items", PlanItemsParams, PlanItems, "List a plan's messages, each with its verdict.", {LARGE}),
    Method("deadletters.run", RunParams, Replay, "Start a replay.", {ONCE}),
    Method("deadletters.wait", PlanIdParams, Replay, "Answer when a replay has ended.", {WATCHES_TASK}),
    Method("deadletters.runs", Nothing, ReplayList, "List the newest replays, oldest first."),
    Method("deadletters.pause", PlanIdParams, Replay, "Pause a replay."),
    Method("deadletters.resume", PlanIdParams, Replay, "Resume a replay."),
    Method("deadletters.cancel", PlanIdParams, Replay, "Cancel a replay; the rest stay dead letters."),
    Method("deadletters.edit", EditParams, PublishResult, "Publish an edited copy in its place.", {ONCE}),
    Method("deadletters.purge", PurgeParams, Purged, "Remove dead letters."),
    Method("deadletters.export", ExportParams, Exported, "Return dead letters as JSON lines, page by page.", {LARGE}),
    Method("breakers.list", Nothing, BreakerList, "List the breakers."),
    Method("breakers.reset", ResetBreakerParams, Done, "Close a breaker."),
    Method("breakers.force", ForceBreakerParams, Done, "Hold a breaker open, or close it."),
    Method("senders.list", Nothing, SenderList, "List the rate-limit usage of each sender, busiest first."),
    Method("adapters.list", Nothing, AdapterList, "List the adapters."),
    Method("adapters.enable", AdapterParams, ConfiguredAdapter, "Start an adapter and keep it enabled."),
    Method("adapters.disable", AdapterParams, ConfiguredAdapter, "Stop an adapter; its messages wait."),
    Method("adapters.test", AdapterParams, ConfiguredAdapter, "Run an adapter's health probe."),
    Method("adapters.reload", ReloadAdaptersParams, AdapterList, "Reload adapters.json, or recreate one adapter."),
    Method("access.list", Nothing, AccessRules, "List the access rules."),
    Method("access.add", AddRuleParams, AccessRules, "Add an access rule.", {ORDERED}),
    Method("access.remove", RemoveRuleParams, Removed, "Remove access rules.", {ORDERED}),
    Method("tokens.list", Nothing, TokenList, "List the tokens."),
    Method("tokens.add", AddTokenParams, NewToken, "Create a token.", {ORDERED, ONCE}),
    Method("tokens.remove", IdParams, Done, "Revoke a token, on open connections too.", {ORDERED}),
    Method("traces.search", TracesParams, TracePage, "Search messages and their status, newest first.", {LARGE}),
    Method("traces.get", IdParams, Spans, "Return the spans of a message.", {LARGE}),
    Method("traces.conversation", IdParams, Spans, "Return the spans of a whole conversation.", {LARGE}),
    Method("metrics", Nothing, MetricsSnapshot, "Return the counters since the start."),
    Method("state.watch", Nothing, Watching, "Receive the state, then changes, at most 5/s."),
    Method("state.unwatch", WatchParams, Done, "End a state stream."),
    Method("jobs.list", Nothing, JobList, "List the jobs."),
    Method("jobs.run", RunJobParams, JobRun, "Run a job now.", {WATCHES_TASK, ONCE}),
    Method("jobs.cancel", JobParams, JobRun, "Cancel the current run of a job."),
    Method("schedules.list", Nothing, ScheduleList, "List the schedules of config.json."),
    Method("schedules.run", ScheduleParams, ScheduleRun, "Publish a schedule's message now.", {ONCE}),
    Method("schedules.pause", ScheduleParams, ScheduleState, "Pause a schedule, also across restarts."),
    Method("schedules.resume", ScheduleParams, ScheduleState, "Resume a schedule; missed times are skipped."),
    Method("reports.list", Nothing, ReportList, "List the nightly reports, newest first."),
    Method("reports.get", ReportParams, ReportContent, "Return a nightly report.", {LARGE}),
    Method("config.get", Nothing, ConfigState, "Return the configuration in force."),
    Method("config.reload", Nothing, Reloaded, "Reload the operator's files, as SIGHUP does."),
)

METHODS: dict[str, Method] = {method.name: method for method in _TABLE}
"""Every method, in the order of the documentation."""

NOTIFICATIONS: dict[str, type[WireModel]] = {
    "message": MessageNote,
    "signal": SignalNote,
    "state": StateNote,
    "closing": ClosingNote,
}
"""The notifications that the server sends."""


def has_trait(name: str, trait: Trait) -> bool:
    """Return True if there is a method with this name and trait."""
    method = METHODS.get(name)
    return method is not None and trait in method.traits


def parse_answer(model: type[M], method: str, answer: Any) -> M:
    """Return an answer as the model it should be.

    Raises:
        ProtocolError: with code `bad_answer`, if the other side is not a supervisor of this version.
    """
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:80] for part in first["loc"])
        text = f"unexpected response to {method} ({': '.join(filter(None, [where, first['msg']]))})"
        raise ProtocolError(text, code="bad_answer") from None


def parse_params(method: Method, params: dict[str, Any]) -> Params:
    """Return a method's parameters.

    Raises:
        ProtocolError: with code `invalid_params`; the text names the key at fault.
    """
    try:
        # Not through `model_validate`, which takes as long again.
        parsed: Params = method.params.__pydantic_validator__.validate_python(params, by_alias=True, by_name=False)
        return parsed
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        # A misspelt key also makes a key missing: the misspelling explains more.
        first = next((problem for problem in errors if problem["type"] == "extra_forbidden"), errors[0])
        *within, key = [str(part)[:80] for part in first["loc"]] or [""]
        if first["type"] == "extra_forbidden":
            known = [] if within else [str(field.alias) for field in method.params.model_fields.values()]
            text = explain_unknown(key, known) if known else f"unknown key {key!r}"
        else:
            within.append(key)
            text = first["msg"].removeprefix("Value error, ")
        where = ".".join(within)
        raise ProtocolError(": ".join(filter(None, [method.name, where, text])), code="invalid_params") from None
