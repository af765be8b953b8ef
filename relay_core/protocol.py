"""The protocol of the socket: every method with its parameters and its result, said once.

Server, client and dashboard share these models, docs/protocol.md is generated from them, and a test holds the
server's handlers to the table at the end. How a line of bytes becomes a request is in frames.py. The module is
long because it is one flat list.

Rules:

1. A connection may begin with `server.hello`, to say who it is and which version it speaks; the first answer on
   every connection carries the server's version and the protocol's beside it, under `relay`.
2. Requests are pipelined: they are begun in their order, and what changes endpoints, subscriptions or an inbox is done
   before the next is begun. Answers come as they are ready, in any order; the id tells which is which.
3. Parameters are strict: an unknown key or a value of another type is an error that names it.
4. What a token's holder may call is marked in the table; everything else is the operator's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from relay_core.access import AccessRule
from relay_core.bindings import Binding
from relay_core.config import explain_unknown
from relay_core.deadletters import DeadLetter, DeadLetterFilter, DeadLetterGroup, DeadLetterSummary
from relay_core.delivery import Span, TraceSummary
from relay_core.endpoints import Endpoint
from relay_core.envelope import BudgetOverrides, Envelope
from relay_core.errors import ProtocolError
from relay_core.frames import MAX_FRAME, FrameBuffer, decode, encode_error, encode_notification, encode_request
from relay_core.frames import encode_result as encode
from relay_core.live_state import StateUpdate
from relay_core.metrics import MetricsSnapshot
from relay_core.model import WireModel
from relay_core.operations import AgentState, ConfiguredAdapter, JobArguments, JobRun, JobState, TokenInfo
from relay_core.ratelimit import SenderUsage
from relay_core.replay_plan import PlanHead, PlanItem, ReplayOutcome
from relay_core.results import PublishResult
from relay_core.signals import Signal
from relay_core.state import MailboxState, TargetBreaker

__all__ = [
    "MAX_FRAME",
    "METHODS",
    "NOTIFICATIONS",
    "PROTOCOL_VERSION",
    "FrameBuffer",
    "Method",
    "decode",
    "encode",
    "encode_error",
    "encode_notification",
    "encode_request",
    "parse_answer",
    "parse_params",
]

PROTOCOL_VERSION = 1

MAX_BATCH = 1000
MAX_PAGE = 1000
LIST_PAGE = 500

M = TypeVar("M", bound=WireModel)


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line of printable characters")
    return text


Description = Annotated[str, Field(max_length=300), AfterValidator(_one_line)]
"""What an agent is good at, in one line."""
Limit = Annotated[int, Field(ge=1, le=MAX_PAGE)]


class Params(WireModel):
    """What a method is called with."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, defer_build=True)


class Result(WireModel):
    """What a method answers."""

    model_config: ClassVar[ConfigDict] = ConfigDict(defer_build=True)


class Nothing(Params):
    """No parameters."""


class Done(Result):
    """It is done; there is nothing to say about it."""


# The server


class HelloParams(Params):
    """Who connects, and what it speaks."""

    protocol: int = PROTOCOL_VERSION
    """The newest version that the client speaks."""
    token: str | None = None
    """A token made with `relay token add`, or the operator's own."""
    client: Annotated[str, Field(max_length=200)] | None = None
    """A name for logs and listings."""
    agent: str | None = None
    """The endpoint that this connection acts for, and that is listed as connected until it ends."""


class Hello(Result):
    """What the server speaks, and what the connection may do."""

    protocol: int
    """The version that the server speaks."""
    version: str
    """Of the server itself."""
    pid: int
    data_dir: str
    """Whose messages these are."""
    operator: bool
    """Whether every method may be called."""
    pattern: str | None = None
    """The subjects that a token's holder may publish as and read."""


class ServerInfo(Result):
    """Which supervisor this is."""

    version: str
    protocol: int
    """The version of the protocol that it speaks."""
    pid: int
    durability: str
    """`fsync` or `os`."""
    promise: str
    """What an acknowledged publish survives, in words."""
    data_dir: str
    socket: str
    started_at: int
    """Wall time in milliseconds."""
    uptime_secs: float


class Promise:
    """What an acknowledged publish survives."""

    FSYNC = "an acknowledged publish survives power loss"
    OS = "an acknowledged publish survives kill -9, not power loss"


class ServerStatus(Result):
    """How everything is doing."""

    server: ServerInfo
    endpoints: int
    subscriptions: int
    """To messages, not to signals."""
    connections: int
    """Open on the socket."""
    waiting: int
    """Messages in all mailboxes."""
    pressure: list[MailboxState]
    """The mailboxes at or above the warning, fullest first."""
    breakers: list[TargetBreaker]
    """Those that are not closed."""
    rates: MetricsSnapshot
    """Counted since the start."""
    dead_letters: list[DeadLetterGroup]
    """Largest group first."""
    adapters: list[ConfiguredAdapter]
    jobs: list[JobState]
    problems: list[str]
    """What is wrong with the operator's files."""


class Reloaded(Result):
    """What is wrong with the operator's files, after reading them again."""

    problems: list[str]
    """Empty if all is well."""


# Publishing and subscribing


class PublishParams(Params):
    """A message to publish."""

    subject: str
    """Where to, or a pattern: then it goes to every endpoint that matches."""
    sender: Annotated[str, Field(alias="from")]
    """Who says it."""
    payload: Any
    """The message itself: any JSON, up to the operator's limit."""
    reply_to: str | None = None
    """Where answers are to go."""
    budget: BudgetOverrides | None = None
    """Less than the operator's ceilings."""
    parent_id: str | None = None
    """The message that this one follows from: what its budget has left is inherited."""
    dedupe_id: Annotated[str, Field(max_length=200)] | None = None
    """A retry with the same id, by the same sender, returns the first outcome instead of publishing again."""


class BatchParams(Params):
    """Messages to publish; each stands for itself."""

    messages: Annotated[list[PublishParams], Field(max_length=MAX_BATCH)]


class WireError(Result):
    """An error, as JSON-RPC has it."""

    code: int
    """JSON-RPC's number; the word for programs is `code` in `data`."""
    message: str
    """A sentence for people."""
    data: dict[str, Any] = Field(default_factory=dict)
    """The class (`error`), the word (`code`) and the fields of the error."""


class BatchOutcome(Result):
    """What became of one message of a batch: one of the two."""

    result: PublishResult | None = None
    error: WireError | None = None
    """What the message alone would have been answered with."""


class BatchResult(Result):
    """What became of a batch, in its order."""

    results: list[BatchOutcome]


class PatternParams(Params):
    """A subject, or a pattern over subjects."""

    pattern: str
    """`*` stands for one part of a subject, `>` at the end for all that follow."""


class SubscribeParams(PatternParams):
    """What to receive, and how much at a time."""

    max_in_flight: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Messages in hand at a time over all mailboxes; without it, one of each mailbox, and one in all in a queue."""
    queue: str | None = None
    """Subscriptions with the same queue (a name like one part of a subject) share the messages: each goes to one."""
    starts: bool = False
    """A promise to say `start` before a delivery is begun, and to leave it alone if the answer is an error. What was
    not begun when the client goes away, or within the handler timeout, is offered again instead of being parked. The
    handler timeout of what was begun counts from `start`. A member of a queue that says nothing about a delivery in
    time is given no other in its place until it does."""


class Subscribed(Result):
    """A subscription that belongs to this connection."""

    subscription_id: str
    """Its name in notifications, and for ending it."""


class SubscriptionParams(Params):
    """A subscription of this connection."""

    subscription_id: str
    """As the answer to subscribing has named it."""


class DeliveryParams(Params):
    """A delivery that this connection holds."""

    delivery_id: str
    """As its `message` notification says."""


class FailDeliveryParams(DeliveryParams):
    """A delivery that this connection could not handle."""

    reason: str
    """For whoever reads the dead letter."""
    put_back: bool = False
    """Nobody has begun it after all: it is offered again instead of being parked."""


# Pull consumers, endpoints, signals


class SubjectParams(Params):
    """A subject."""

    subject: str
    """Of an endpoint; not a pattern."""


class PeekParams(SubjectParams):
    """Whose waiting messages to look at."""

    limit: Limit = 50
    """As many as fit into a frame come at most."""
    after: str | None = None
    """Only messages whose id comes after this one."""


class WaitParams(SubjectParams):
    """Whose messages to wait for."""

    limit: Limit = 50
    """Ids to return at most."""
    after: str | None = None
    """Only messages whose id comes after this one."""
    answer_to: str | None = None
    """Only answers to this message: those that follow from it, or have its id as their correlation id."""
    timeout_ms: Annotated[int, Field(ge=1, le=600_000)] = 30_000
    """When to answer that there is nothing."""


class ClaimParams(SubjectParams):
    """Whose waiting messages to take."""

    limit: Limit = 1
    """As many as fit into a frame come at most."""
    lease_ms: Annotated[int, Field(ge=1000, le=86_400_000)] | None = None
    """Keep the claim for so long whatever becomes of the connection; without it, it ends with the connection."""
    ids: Annotated[list[str], Field(max_length=MAX_PAGE)] | None = None
    """Exactly these messages, as far as they still wait; `limit` does not count then."""


class ClaimedParams(SubjectParams):
    """A claimed message."""

    id: str
    """The message's."""


class CompleteParams(ClaimedParams):
    """A claimed message that was handled."""

    late: bool = False
    """Also one that was parked meanwhile because its consumer was gone: the dead letter ends then."""


class FailParams(ClaimedParams):
    """A claimed message that could not be handled."""

    reason: str
    """For whoever reads the dead letter."""


class Messages(Result):
    """Messages, oldest first."""

    messages: list[Envelope]


class MessageIds(Result):
    """Messages that wait, oldest first; none if the time is over."""

    ids: list[str]


class Completed(Result):
    """The message is finished."""

    late: bool | None = None
    """True if it had been parked, and the dead letter has ended now."""


class ListParams(Params):
    """Which page of a list."""

    limit: Limit = LIST_PAGE
    cursor: str | None = None
    """The cursor of the page before."""


class Endpoints(Result):
    """A page of the registered endpoints but reply mailboxes, by subject."""

    endpoints: list[Endpoint]
    cursor: str | None = None
    """Where the next page begins; missing on the last one."""


class OpenReplyParams(Params):
    """A reply mailbox."""

    key: Annotated[str, Field(min_length=32, max_length=200)] | None = None
    """The key of a mailbox that the client had on an earlier connection, to have it again."""


class ReplyMailbox(Result):
    """A private mailbox for answers, which is the connection's until it ends."""

    subject: str
    """What to give as `replyTo`."""
    key: str
    """What proves that the mailbox is yours. Keep it to yourself; it also works after a restart."""


class Mailboxes(Result):
    """Every mailbox, by subject."""

    mailboxes: list[MailboxState]


class SignalParams(Params):
    """A signal to send."""

    subject: str
    """Where to; not a pattern."""
    signal: Signal
    """What it says, and about whom: an endpoint that the connection may publish as."""


# Agents


class AddAgentParams(SubjectParams):
    """An agent to add."""

    description: Description | None = None
    """What it can be asked for: the other agents read it."""
    cwd: Annotated[str, Field(max_length=4096), AfterValidator(_one_line)] | None = None
    """Where it works."""


class NewAgent(Result):
    """An agent and how it proves who it is."""

    agent: AgentState
    token: str
    """The secret itself."""
    token_file: str
    """Where it lies, for `relay mcp` and `relay hook`."""


class AgentList(Result):
    """A page of the agents that were added and every other endpoint, by subject."""

    agents: list[AgentState]
    """Fewer than the limit, or none, where a token may not see all of them; the cursor says whether more follow."""
    cursor: str | None = None
    """Where the next page begins; missing on the last one."""


class People(Result):
    """The persons to whom an agent may write, by subject."""

    people: list[str]


# Dead letters and replay


class DeadLettersParams(Params):
    """Which dead letters to list."""

    filter: DeadLetterFilter | None = None
    """Without it, all of them."""
    limit: Limit = 100
    """As many as fit into a frame come at most."""
    cursor: str | None = None
    """Where the page before this one ended."""


class DeadLetters(Result):
    """A page of dead letters, newest first."""

    dead_letters: list[DeadLetter]
    total: int
    """Of all pages."""
    cursor: str | None = None
    """Where the next page begins, if there is one."""


class DeadLetterSummaries(Result):
    """A page of dead letters without their messages, newest first."""

    rows: list[DeadLetterSummary]
    total: int | None = None
    """Of all pages; None if the filter asks for a body, which is looked for piece by piece."""
    cursor: str | None = None
    """Where to go on. A search for a body may end with few rows or none, and yet have more to look through."""


class DeadLetterGroups(Result):
    """Dead letters by code and target, largest group first."""

    groups: list[DeadLetterGroup]


class DeadLetterParams(Params):
    """One dead letter."""

    id: str
    """The message's."""
    endpoint: str | None = None
    """Which target's, if it failed at several: subject or hash."""


class PlanParams(Params):
    """What to replay: by id, or by filter, or everything."""

    ids: list[str] | None = None
    """Messages, or one target's copy of a message as `ID/HASH`."""
    filter: DeadLetterFilter | None = None
    """Without it and without `ids`, all of them."""
    fresh_budget: bool = False
    """Whether hops, chain and calls begin anew."""


class PlanItemsParams(Params):
    """Which part of a plan to list."""

    plan_id: str
    """As `deadletters.plan` has named it."""
    limit: Limit = 100
    cursor: str | None = None
    """Where the page before this one ended."""


class PlanItems(Result):
    """A page of a plan, oldest message first."""

    items: list[PlanItem]
    cursor: str | None = None
    """Where the next page begins, if there is one."""


class RunParams(Params):
    """How to carry out a plan."""

    plan_id: str
    """As `deadletters.plan` has named it."""
    rate: Annotated[float, Field(gt=0)] | None = None
    """Messages a second, at most."""
    canary: bool = False
    """Try 1, then 10, then the rest, and stop if any of the first eleven fails."""


class PlanIdParams(Params):
    """A plan that was started."""

    plan_id: str
    """As `deadletters.plan` has named it."""


class Replay(Result):
    """A plan under way, or ended."""

    plan_id: str
    """As `deadletters.plan` has named it."""
    outcome: ReplayOutcome


class Replays(Result):
    """The newest runs, oldest first."""

    replays: list[Replay]


class EditParams(DeadLetterParams):
    """A dead letter, and the payload that a copy of it is to be published with."""

    payload: Any
    """In place of the one that failed."""
    fresh_budget: bool = False
    """Whether hops, chain and calls begin anew."""


class PurgeParams(Params):
    """Which dead letters to remove; every condition given must hold, and without any it is all of them."""

    ids: list[str] | None = None
    """Messages, or one target's copy of a message as `ID/HASH`."""
    older_than: int | None = None
    """Wall time in milliseconds before which they failed."""
    filter: DeadLetterFilter | None = None
    plan_id: str | None = None
    """Those of this plan and no others, as it has frozen them."""


class Purged(Result):
    """How many dead letters were removed."""

    purged: int


class ExportParams(Params):
    """Which dead letters to export."""

    filter: DeadLetterFilter | None = None
    plan_id: str | None = None
    """Those of this plan and no others, as it has frozen them."""
    limit: Limit = 100
    """As many as fit into a frame come at most."""
    cursor: str | None = None
    """Where the part before this one ended."""


class Exported(Result):
    """JSON lines, one dead letter each, oldest first."""

    lines: list[str]
    cursor: str | None = None
    """Where the next part begins, if there is one."""


# What operators look at and change


class Breakers(Result):
    """Every breaker."""

    breakers: list[TargetBreaker]


class ResetBreakerParams(Params):
    """A breaker to close, by its target's subject or hash."""

    target: str
    """Subject or hash."""
    reason: str = "reset by the operator"
    """For the breaker's history."""


class ForceBreakerParams(Params):
    """A breaker to hold open, or to close, until it is reset."""

    target: str
    """Subject or hash."""
    state: Literal["OPEN", "CLOSED"]
    """`OPEN` holds it, against probes too, until it is reset; `CLOSED` is a reset."""
    reason: str
    """For the breaker's history."""


class Senders(Result):
    """What each sender has used of its limit, busiest first."""

    senders: list[SenderUsage]


class Adapters(Result):
    """Every adapter in adapters.json, by id."""

    adapters: list[ConfiguredAdapter]
    bindings: list[Binding] = Field(default_factory=list)
    """Which agents belong to which chats, in the order of the file."""
    problem: str | None = None
    """What is wrong with the file as a whole, or with a binding."""


class AdapterParams(Params):
    """An adapter in adapters.json."""

    id: str


class ReloadAdaptersParams(Params):
    """An adapter to make anew; without an id adapters.json is read again and what changed is applied."""

    id: str | None = None


class AccessRules(Result):
    """The access rules, in the order of the file."""

    rules: list[AccessRule]
    broken: str | None = None
    """What is wrong with the file; everything is denied until it is repaired."""


class AddRuleParams(Params):
    """A rule to append."""

    rule: AccessRule


class RemoveRuleParams(Params):
    """The rules with exactly these patterns."""

    sender: Annotated[str, Field(alias="from")]
    """Its pattern for senders."""
    to: str
    """Its pattern for subjects."""


class Removed(Result):
    """How many there were."""

    removed: int


class Tokens(Result):
    """Every token, without its secret."""

    tokens: list[TokenInfo]
    broken: str | None = None
    """What is wrong with the file; no token is accepted until it is repaired."""


class AddTokenParams(Params):
    """Whom a token is for."""

    pattern: str
    """The subjects that its holder may publish as and read."""
    note: Annotated[str, Field(max_length=200)] | None = None
    """For listings."""


class NewToken(Result):
    """A token, shown this once."""

    token: str
    """The secret itself."""
    info: TokenInfo


class IdParams(Params):
    """Which one."""

    id: str
    """A token's id, or a message's; of a conversation, the id of its first message (`traceId`)."""


class Spans(Result):
    """What became of messages, one span per target."""

    spans: list[Span]


class TracesParams(Params):
    """Which messages to list; every part given must hold."""

    id: str | None = None
    """How the message's id begins."""
    subject: str | None = None
    """Part of the subject in any case, or a pattern."""
    sender: str | None = None
    """Part of the sender in any case, or a pattern."""
    status: str | None = None
    """The worst of its spans, such as `failed`, `refused` or `done`."""
    since: int | None = None
    """Wall time in milliseconds: made then or later."""
    until: int | None = None
    """Wall time in milliseconds: made before."""
    limit: Limit = 100
    cursor: str | None = None
    """Where the page before this one ended."""


class Traces(Result):
    """A page of messages, newest first."""

    rows: list[TraceSummary]
    complete: bool
    """False if the search has stopped for now with fewer rows than there may be: go on from the cursor."""
    cursor: str | None = None
    """Where to go on, if there is anything left to look through."""


class Watching(Result):
    """A stream of `state` notifications that belongs to this connection."""

    watch_id: str
    """Its name in notifications, and for ending it."""


class WatchParams(Params):
    """A stream of this connection."""

    watch_id: str
    """As `state.watch` has named it."""


class Jobs(Result):
    """Every job."""

    jobs: list[JobState]


class JobParams(Params):
    """A job."""

    name: str
    """As `jobs.list` has it."""


class RunJobParams(JobParams):
    """A job to run now; one that is under way is joined, if it was asked for the same."""

    wait: bool = True
    """Whether the answer comes when the job has ended."""
    arguments: JobArguments | None = None
    """For the nightly job alone."""


class Report(Result):
    """A nightly report, by its day."""

    date: str
    """As YYYY-MM-DD."""
    made_at: int
    """Wall time in milliseconds."""
    bytes: int
    """Size of report.json."""
    complete: bool | None = None
    """Whether the day was over when it was made; this and what follows is None if the report does not say."""
    events: int | None = None
    """How many events it was made from."""
    attention: int | None = None
    """How many things in it need attention."""


class Reports(Result):
    """The nightly reports, newest first."""

    reports: list[Report]


class ReportParams(Params):
    """A report to read; without a date the newest."""

    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = None


class ReportContent(Result):
    """What is in report.json."""

    date: str
    """As YYYY-MM-DD."""
    report: dict[str, Any]


class ConfigState(Result):
    """The configuration in force."""

    path: str
    """Where config.json is, or would be."""
    config: dict[str, Any]
    """Every key, defaults included."""
    problem: str | None = None
    """Why the file that is there is not in force."""


# Notifications, from server to client


class MessageNote(Result):
    """A message for a subscription; it waits for `ack` or `fail`."""

    subscription_id: str
    """As `subscribe` has named it."""
    delivery_id: str
    """For `start`, `ack` and `fail`, on this connection."""
    envelope: Envelope


class SignalNote(Result):
    """A signal for a subscription."""

    subscription_id: str
    """As `signal.subscribe` has named it."""
    subject: str
    """Where it was sent to."""
    signal: Signal


class StateNote(StateUpdate):
    """The whole state, or what has changed since the note before."""

    watch_id: str
    """As `state.watch` has named it."""


class ClosingNote(Result):
    """The server is about to close: publish elsewhere, or come back."""

    reason: str


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the protocol."""

    name: str
    params: type[Params]
    result: type[WireModel]
    summary: str
    for_agents: bool = False
    """Whether a token's holder may call it, within its pattern."""


AGENTS = True

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("server.hello", HelloParams, Hello, "Say who connects and agree on a version.", AGENTS),
        Method("server.info", Nothing, ServerInfo, "Tell which supervisor this is.", AGENTS),
        Method("server.ping", Nothing, Done, "Answer.", AGENTS),
        Method("server.status", Nothing, ServerStatus, "Tell how everything is doing."),
        Method("server.stop", Nothing, Done, "Stop the supervisor, as SIGTERM does."),
        Method("publish", PublishParams, PublishResult, "Publish a message.", AGENTS),
        Method("publish.batch", BatchParams, BatchResult, "Publish many messages in one frame.", AGENTS),
        Method("subscribe", SubscribeParams, Subscribed, "Receive messages as `message` notifications.", AGENTS),
        Method("unsubscribe", SubscriptionParams, Done, "Receive no more of them.", AGENTS),
        Method("start", DeliveryParams, Done, "Say that a delivery is being begun, where that was promised.", AGENTS),
        Method("ack", DeliveryParams, Done, "Say that a delivery was handled.", AGENTS),
        Method("fail", FailDeliveryParams, Done, "Say that a delivery could not be handled.", AGENTS),
        Method("inbox.peek", PeekParams, Messages, "Look at waiting messages.", AGENTS),
        Method("inbox.claim", ClaimParams, Messages, "Take waiting messages.", AGENTS),
        Method("inbox.wait", WaitParams, MessageIds, "Answer when messages wait; none is taken.", AGENTS),
        Method("inbox.complete", CompleteParams, Completed, "Finish a claimed message.", AGENTS),
        Method("inbox.fail", FailParams, Done, "Make a dead letter of a claimed message.", AGENTS),
        Method("signal.send", SignalParams, Done, "Send a signal to whoever listens right now.", AGENTS),
        Method("signal.subscribe", PatternParams, Subscribed, "Receive signals as `signal` notifications.", AGENTS),
        Method("signal.unsubscribe", SubscriptionParams, Done, "Receive no more of them.", AGENTS),
        Method("endpoints.register", SubjectParams, Endpoint, "Give a subject a mailbox that lasts.", AGENTS),
        Method("endpoints.unregister", SubjectParams, Done, "Stop routing to a subject; its mail stays.", AGENTS),
        Method("endpoints.list", ListParams, Endpoints, "List the endpoints.", AGENTS),
        Method("replies.open", OpenReplyParams, ReplyMailbox, "Make a private mailbox for answers.", AGENTS),
        Method("mailboxes.list", Nothing, Mailboxes, "Tell how every mailbox is doing."),
        Method("agents.add", AddAgentParams, NewAgent, "Give an agent its mailbox and its token."),
        Method("agents.remove", SubjectParams, Done, "Take an agent away; its mail stays."),
        Method("agents.list", ListParams, AgentList, "Tell who is there.", AGENTS),
        Method("agents.people", SubjectParams, People, "List the persons to whom an agent may write.", AGENTS),
        Method("deadletters.list", DeadLettersParams, DeadLetters, "List dead letters, newest first."),
        Method(
            "deadletters.summaries", DeadLettersParams, DeadLetterSummaries, "List dead letters without their messages."
        ),
        Method("deadletters.groups", Nothing, DeadLetterGroups, "Count dead letters by code and target."),
        Method("deadletters.get", DeadLetterParams, DeadLetter, "Return one dead letter."),
        Method("deadletters.plan", PlanParams, PlanHead, "Freeze a selection and judge each message of it."),
        Method("deadletters.items", PlanItemsParams, PlanItems, "List a plan's messages and the verdict on each."),
        Method("deadletters.run", RunParams, Replay, "Begin to carry out a plan."),
        Method("deadletters.wait", PlanIdParams, Replay, "Answer when a run has ended."),
        Method("deadletters.runs", Nothing, Replays, "List the newest runs."),
        Method("deadletters.pause", PlanIdParams, Replay, "Replay nothing more for now."),
        Method("deadletters.resume", PlanIdParams, Replay, "Go on."),
        Method("deadletters.cancel", PlanIdParams, Replay, "Leave the rest as dead letters."),
        Method("deadletters.edit", EditParams, PublishResult, "Publish an edited copy in the place of a dead letter."),
        Method("deadletters.purge", PurgeParams, Purged, "Remove dead letters."),
        Method("deadletters.export", ExportParams, Exported, "Return dead letters as JSON lines, part by part."),
        Method("breakers.list", Nothing, Breakers, "List the breakers."),
        Method("breakers.reset", ResetBreakerParams, Done, "Close a breaker."),
        Method("breakers.force", ForceBreakerParams, Done, "Hold a breaker open, or close it."),
        Method("senders.list", Nothing, Senders, "Tell what each sender has used of its limit."),
        Method("adapters.list", Nothing, Adapters, "List the adapters."),
        Method("adapters.enable", AdapterParams, ConfiguredAdapter, "Run an adapter from now on."),
        Method("adapters.disable", AdapterParams, ConfiguredAdapter, "Run an adapter no longer; its mail waits."),
        Method("adapters.test", AdapterParams, ConfiguredAdapter, "Ask an adapter whether it is well."),
        Method("adapters.reload", ReloadAdaptersParams, Adapters, "Read adapters.json again, or make one anew."),
        Method("access.list", Nothing, AccessRules, "List the access rules."),
        Method("access.add", AddRuleParams, AccessRules, "Add an access rule."),
        Method("access.remove", RemoveRuleParams, Removed, "Remove access rules."),
        Method("tokens.list", Nothing, Tokens, "List the tokens."),
        Method("tokens.add", AddTokenParams, NewToken, "Make a token."),
        Method("tokens.remove", IdParams, Done, "Make a token worthless, also on open connections."),
        Method("traces.search", TracesParams, Traces, "List messages and what became of them, newest first."),
        Method("traces.get", IdParams, Spans, "Tell what became of a message."),
        Method("traces.conversation", IdParams, Spans, "Tell what became of every message that followed from one."),
        Method("metrics", Nothing, MetricsSnapshot, "Return what has been counted since the start."),
        Method(
            "state.watch", Nothing, Watching, "Receive the whole state, then what changes, at most 5 times a second."
        ),
        Method("state.unwatch", WatchParams, Done, "Receive no more of it."),
        Method("jobs.list", Nothing, Jobs, "List the jobs."),
        Method("jobs.run", RunJobParams, JobRun, "Run a job now."),
        Method("jobs.cancel", JobParams, JobRun, "Break off the run that is under way."),
        Method("reports.list", Nothing, Reports, "List the nightly reports."),
        Method("reports.get", ReportParams, ReportContent, "Return a nightly report."),
        Method("config.get", Nothing, ConfigState, "Return the configuration in force."),
        Method("config.reload", Nothing, Reloaded, "Read the operator's files again, as SIGHUP does."),
    )
}
"""Every method, in the order of the documentation."""

NOTIFICATIONS: dict[str, type[WireModel]] = {
    "message": MessageNote,
    "signal": SignalNote,
    "state": StateNote,
    "closing": ClosingNote,
}
"""What the server sends by itself."""


def parse_answer(model: type[M], method: str, answer: Any) -> M:
    """Return an answer as what it should be.

    Raises:
        ProtocolError: with code `bad_answer`; whoever answers there is no supervisor, or one of another version.
    """
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:80] for part in first["loc"])
        text = f"the answer to {method} makes no sense here ({': '.join(filter(None, [where, first['msg']]))})"
        raise ProtocolError(text, code="bad_answer") from None


def parse_params(method: Method, params: dict[str, Any]) -> Params:
    """Return a method's parameters.

    Raises:
        ProtocolError: with code `invalid_params`; the text names the key at fault.
    """
    try:
        return method.params.model_validate(params, by_alias=True, by_name=False)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        # A misspelt key is also a missing one: the misspelling is the better news.
        first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
        *within, key = [str(part)[:80] for part in first["loc"]] or [""]
        if first["type"] == "extra_forbidden":
            known = [] if within else [str(field.alias) for field in method.params.model_fields.values()]
            text = explain_unknown(key, known) if known else f"unknown key {key!r}"
        else:
            within.append(key)
            text = first["msg"].removeprefix("Value error, ")
        where = ".".join(within)
        raise ProtocolError(": ".join(filter(None, [method.name, where, text])), code="invalid_params") from None
