"""The client: every verb comes back as the bus would have it, and a lost connection costs nothing but time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from relay_core import (
    AccessDenied,
    AccessRule,
    Closed,
    DeadLetter,
    Endpoint,
    Envelope,
    InvalidPayload,
    InvalidSubject,
    NotFound,
    ProtocolError,
    PublishResult,
    RelayError,
    ReplayOutcome,
    ReplayPlan,
    Span,
    StorageError,
    SupervisorUnavailable,
)
from relay_core.client.client import RelayClient
from relay_core.messages.dead_letter import Code, DeadLetterFilter, DeadLetterGroup
from relay_core.messages.delivery import TraceSearch
from relay_core.messages.envelope import BudgetOverrides
from relay_core.messages.operator_views import JobArguments, JobRun, JobState, TokenInfo
from relay_core.protocol.deadletters import DeadLetterPage, Replay
from relay_core.protocol.methods import METHODS, ONCE, has_trait
from relay_core.protocol.operating import AccessRules, AdapterList, NewToken
from relay_core.protocol.reporting import ReportList
from relay_core.protocol.serving import ConfigState, ServerInfo, ServerStatus
from relay_core.protocol.state import MailboxState, TargetBreaker
from relay_core.records.metrics import MetricsSnapshot
from relay_core.rules.rate_limit import SenderUsage
from relay_supervisor.supervisor import Supervisor
from tests.kit.bus import A, B
from tests.kit.daemon import a_daemon
from tests.kit.servers.proxy import Wire, a_wire
from tests.kit.supervisor import a_client, a_supervisor
from tests.kit.waiting import until

# Verbs


async def test_a_message_goes_round_as_the_same_models(client: RelayClient) -> None:
    endpoint = await client.register_endpoint(A)
    assert isinstance(endpoint, Endpoint)
    assert await client.endpoints() == [endpoint]
    result = await client.publish(
        A,
        {"content": "hi"},
        sender=B,
        reply_to="relay.agent.c",
        budget=BudgetOverrides(max_hops=3),
        dedupe_id="once",
    )
    assert isinstance(result, PublishResult)
    assert result.delivered_to == 1
    assert result == await client.publish(A, {"content": "hi"}, sender=B, dedupe_id="once")
    (seen,) = await client.inbox(A)
    assert isinstance(seen, Envelope)
    assert (seen.id, seen.subject, seen.sender, seen.reply_to) == (result.message_id, A, B, "relay.agent.c")
    assert (seen.payload, seen.budget.max_hops) == ({"content": "hi"}, 3)
    assert await client.claim(A) == [seen]
    (mailbox,) = await client.mailboxes()
    assert isinstance(mailbox, MailboxState)
    assert (mailbox.depth, mailbox.claimed) == (0, 1)
    await client.complete(A, seen.id)
    (span,) = await client.trace(seen.id)
    assert isinstance(span, Span)
    assert await client.conversation(span.trace_id) == [span]
    await client.unregister_endpoint(A)
    assert await client.endpoints() == []


async def test_a_dead_letter_is_listed_planned_replayed_edited_and_purged(client: RelayClient) -> None:
    await client.register_endpoint(A)
    for content in ("x", "y", "z"):
        await client.publish(A, {"content": content}, sender=B)
        (taken,) = await client.claim(A)
        await client.fail(A, taken.id, "no ink")
    letters = await client.dead_letters()
    assert all(isinstance(letter, DeadLetter) for letter in letters)
    assert [letter.envelope.payload["content"] for letter in letters if letter.envelope] == ["x", "y", "z"]
    assert {(letter.code, letter.reason) for letter in letters} == {(Code.CONSUMER_FAILED, "no ink")}
    page = await client.dead_letter_page(limit=1)
    assert isinstance(page, DeadLetterPage)
    assert (page.total, page.dead_letters) == (3, letters[-1:])
    assert await client.dead_letter(letters[0].message_id) == letters[0]
    assert await client.dead_letters(A) == letters
    assert await client.dead_letters(filter=DeadLetterFilter(reason="paper")) == []
    (group,) = await client.dead_letter_groups()
    assert isinstance(group, DeadLetterGroup)
    assert [line async for line in client.export_dead_letters()] != []
    summaries = await client.dead_letter_summaries(filter=DeadLetterFilter(where="reason~INK"), limit=2)
    assert ([row.cursor for row in summaries.rows], summaries.total) == ([row.cursor for row in letters[:0:-1]], 3)
    rest = await client.dead_letter_summaries(cursor=summaries.cursor)
    assert ([row.cursor for row in rest.rows], rest.cursor) == ([letters[0].cursor], None)
    head = await client.freeze_replay(filter=DeadLetterFilter(where="z"))
    assert (head.total, head.counts) == (1, {"will_deliver": 1})
    assert [item.message_id for item in (await client.plan_items(head.id)).items] == [letters[2].message_id]
    assert len([line async for line in client.export_dead_letters(plan_id=head.id)]) == 1
    plan = await client.plan_replay([letters[0].cursor])
    assert isinstance(plan, ReplayPlan)
    assert [item.message_id for item in plan.items] == [letters[0].message_id]
    outcome = await client.run_replay(plan.id)
    assert isinstance(outcome, ReplayOutcome)
    assert outcome.delivered == 1
    (run,) = await client.replays()
    assert isinstance(run, Replay)
    assert isinstance(await client.edit_replay(letters[1].message_id, {"content": "!"}), PublishResult)
    assert await client.purge_dead_letters(timedelta(days=1)) == 0
    assert await client.purge_dead_letters(plan_id=head.id) == 1
    assert await client.dead_letters() == []
    assert [message.payload["content"] for message in await client.inbox(A)] == ["x", "!"]


async def test_a_plan_of_any_length_comes_whole(client: RelayClient) -> None:
    await client.publish_many(
        [{"subject": "relay.agent.x", "payload": n, "sender": f"relay.s{n // 50}"} for n in range(1203)]
    )
    plan = await client.plan_replay()
    letters = await client.dead_letters()
    assert [item.message_id for item in plan.items] == [letter.message_id for letter in letters]
    assert len(plan.items) == 1203


async def test_traces_are_searched(client: RelayClient) -> None:
    await client.register_endpoint(A)
    sent = [(await client.publish(A, n, sender=B)).message_id for n in range(3)]
    page = await client.search_traces(TraceSearch(subject=A.upper(), sender="relay.>", status="new", since=0, limit=2))
    assert ([row.message_id for row in page.rows], page.complete) == (sent[:0:-1], True)
    rest = await client.search_traces(TraceSearch(cursor=page.cursor))
    assert ([row.message_id for row in rest.rows], rest.cursor) == (sent[:1], None)
    assert (await client.search_traces(TraceSearch(id=sent[1]))).rows == page.rows[1:]
    assert (await client.search_traces(TraceSearch(until=0))).rows == []


async def _reset_breaker(client: RelayClient) -> list[TargetBreaker]:
    await client.register_endpoint(A)
    await client.publish(A, 1, sender=B)
    await client.force_breaker(A, "OPEN", "repairs")
    held = await client.breakers()
    await client.reset_breaker(A)
    return held


async def _remove_rule(client: RelayClient) -> AccessRules:
    rules = await client.add_access_rule(AccessRule.model_validate({"from": A, "to": B, "action": "deny"}))
    assert await client.remove_access_rule(A, B) == 1
    return rules


async def _remove_token(client: RelayClient) -> NewToken:
    made = await client.add_token("relay.agent.x", "for x")
    (listed,) = await client.tokens()
    assert isinstance(listed, TokenInfo)
    await client.remove_token(listed.id)
    assert await client.tokens() == []
    return made


async def _senders(client: RelayClient) -> list[SenderUsage]:
    await client.publish(A, 1, sender=B)
    return await client.senders()


async def _cancel_job(client: RelayClient) -> JobRun:
    await client.run_job("metrics", wait=False, arguments=JobArguments(date="2026-01-31"))
    return await client.cancel_job("metrics")


VERBS: dict[str, tuple[Callable[[RelayClient], Awaitable[Any]], type]] = {
    "info": (RelayClient.info, ServerInfo),
    "status": (RelayClient.status, ServerStatus),
    "metrics": (RelayClient.metrics, MetricsSnapshot),
    "breakers": (_reset_breaker, TargetBreaker),
    "senders": (_senders, SenderUsage),
    "adapters": (RelayClient.adapters, AdapterList),
    "reload_adapters": (RelayClient.reload_adapters, AdapterList),
    "access_rules": (RelayClient.access_rules, AccessRules),
    "change access": (_remove_rule, AccessRules),
    "tokens": (_remove_token, NewToken),
    "jobs": (RelayClient.jobs, JobState),
    "run_job": (lambda client: client.run_job("expire"), JobRun),
    "cancel_job": (_cancel_job, JobRun),
    "reports": (RelayClient.reports, ReportList),
    "config": (RelayClient.config, ConfigState),
    "reload": (RelayClient.reload, list),
}


@pytest.mark.parametrize(("verb", "model"), VERBS.values(), ids=list(VERBS))
async def test_a_verb_returns_its_model(
    data_dir: Path, verb: Callable[[RelayClient], Awaitable[Any]], model: type
) -> None:
    # Senders are only counted where they are limited.
    limited = {"durability": "os", "jobs": {"metrics": {"command": ["sleep", "600"]}}}
    async with a_supervisor(data_dir, limited) as supervisor, a_client(supervisor) as client:
        found = await verb(client)
        for one in found if isinstance(found, list) and model is not list else [found]:
            assert isinstance(one, model)
        assert found or model is list


async def test_a_request_whose_consumer_fails_gets_the_failure_notice(
    supervisor: Supervisor, client: RelayClient
) -> None:
    async with a_client(supervisor) as other, await other.subscribe(A) as questions, asyncio.TaskGroup() as group:
        asking = group.create_task(client.request(A, "what?", sender=B))
        async for _ in questions:
            questions.fail("no idea")
            break
        answer = await asking
    assert answer.sender == "relay.system.bus"
    assert answer.payload["performative"] == "failure"
    assert "no idea" in answer.payload["content"]


async def test_a_client_of_another_data_directory_is_told_so(supervisor: Supervisor, tmp_path: Path) -> None:
    with pytest.raises(SupervisorUnavailable, match="--socket") as caught:
        async with RelayClient(supervisor.socket, data_dir=tmp_path / "other"):
            pass
    assert caught.value.code == "other_data_dir"
    async with RelayClient(supervisor.socket):  # without a data directory
        pass


async def test_publish_many_takes_as_many_frames_as_it_needs(client: RelayClient) -> None:
    await client.register_endpoint(A)
    large = [{"subject": A, "payload": f"{n}" + "x" * 900_000, "sender": B} for n in range(6)]
    small = [{"subject": A, "payload": n, "sender": B} for n in range(1100)]
    bad = {"subject": A, "payload": {1, 2}, "sender": B}
    results = await client.publish_many([*large, bad, *small])
    assert [isinstance(result, InvalidPayload) for result in results] == [n == 6 for n in range(1107)]
    waiting = await client.inbox(A, 3)
    assert [message.payload[0] for message in waiting] == ["0", "1"]  # what fits into one answer
    ids = [result.message_id for result in results if isinstance(result, PublishResult)]
    assert ids == sorted(ids)
    (mailbox,) = await client.mailboxes()
    assert mailbox.depth == len(set(ids)) == 1106


async def test_publish_many_returns_results_and_errors_in_order(client: RelayClient) -> None:
    await client.register_endpoint(A)
    first, second, third, fourth = await client.publish_many(
        [
            {"subject": A, "payload": 1, "sender": B},
            {"subject": "not..valid", "payload": 2, "sender": B},
            {"subject": A, "payload": 3, "from": B, "dedupeId": "three"},
            {"subject": A, "payload": 4, "sender": "relay.system.me"},
        ]
    )
    assert isinstance(first, PublishResult)
    assert isinstance(second, InvalidSubject)
    assert second.subject == "not..valid"
    assert isinstance(third, PublishResult)
    assert isinstance(fourth, AccessDenied)
    assert [message.id for message in await client.inbox(A)] == [first.message_id, third.message_id]
    assert await client.publish_many([{"subject": A, "payload": 3, "sender": B, "dedupe_id": "three"}]) == [third]


# Errors

ERRORS: dict[str, tuple[Callable[[RelayClient], Awaitable[Any]], type[RelayError], dict[str, Any]]] = {
    "invalid subject": (
        lambda client: client.publish("a..b", 1, sender=B),
        InvalidSubject,
        {"code": "invalid_subject", "subject": "a..b"},
    ),
    "invalid payload": (
        lambda client: client.publish(A, "x" * 2_000_000, sender=B),
        InvalidPayload,
        {"size": 2_000_002, "limit": 1_048_576},
    ),
    "access denied": (
        lambda client: client.publish(A, 1, sender="relay.agent.banned"),
        AccessDenied,
        {"sender": "relay.agent.banned", "subject": A},
    ),
    "not found": (lambda client: client.complete(A, "01HZZZZZZZZZZZZZZZZZZZZZZZ"), NotFound, {"code": "not_found"}),
    "no adapter": (lambda client: client.change_adapter("nobody", "enable"), NotFound, {"what": "nobody"}),
    "unknown method": (lambda client: client.call("no.such"), ProtocolError, {"code": "unknown_method"}),
    "too large for a frame": (
        lambda client: client.publish(A, "x" * 5_000_000, sender=B),
        InvalidPayload,
        {"code": "payload_too_large"},
    ),
    "no JSON": (
        lambda client: client.publish(A, [float("nan")], sender=B),
        InvalidPayload,
        {"code": "payload_not_json"},
    ),
}


@pytest.mark.parametrize(("act", "kind", "fields"), ERRORS.values(), ids=list(ERRORS))
async def test_an_error_comes_back_as_the_class_that_was_raised(
    client: RelayClient,
    act: Callable[[RelayClient], Awaitable[Any]],
    kind: type[RelayError],
    fields: dict[str, Any],
) -> None:
    await client.register_endpoint(A)
    await client.add_access_rule(AccessRule.model_validate({"from": "relay.agent.banned", "to": ">", "action": "deny"}))
    with pytest.raises(kind) as caught:
        await act(client)
    assert type(caught.value) is kind
    assert {name: getattr(caught.value, name) for name in fields} == fields
    assert (await client.publish(A, "still there", sender=B)).delivered_to == 1


async def test_a_storage_error_says_that_it_can_be_retried(supervisor: Supervisor, client: RelayClient) -> None:
    await client.register_endpoint(A)
    mailboxes = supervisor.context.relay.data_dir.path / "mailboxes"
    mailboxes.rename(mailboxes.with_name("elsewhere"))
    mailboxes.touch()
    with pytest.raises(StorageError) as caught:
        await client.register_endpoint("relay.agent.new")
    assert caught.value.path is not None
    mailboxes.unlink()
    mailboxes.with_name("elsewhere").rename(mailboxes)


# No supervisor


def _stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        pytest.param(lambda path: None, "no supervisor is running: start one with 'relay-supervisor run'", id="none"),
        pytest.param(_stale_socket, "is gone: start one with 'relay-supervisor run'", id="stale"),
        pytest.param(Path.touch, "start one with", id="no-socket"),
    ],
)
async def test_a_missing_supervisor_is_reported_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: Callable[[Path], None], hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("relay.sock")
    make(path)
    with pytest.raises(SupervisorUnavailable, match=hint) as caught:
        async with RelayClient(path):
            pass
    assert (caught.value.code, caught.value.socket) == ("unavailable", str(tmp_path / path))


async def test_a_path_that_is_too_long_is_said(tmp_path: Path) -> None:
    with pytest.raises(SupervisorUnavailable, match="too long"):
        async with RelayClient(tmp_path / ("x" * 120)):
            pass


async def test_a_token_that_is_not_known_is_refused(supervisor: Supervisor) -> None:
    with pytest.raises(AccessDenied, match="unknown token"):
        async with a_client(supervisor, token="relay_" + "x" * 43):
            pass


async def test_a_supervisor_that_does_not_answer_is_not_waited_for_longer_than_the_timeout(
    supervisor: Supervisor,
) -> None:
    async with a_wire(supervisor.socket) as (path, wire):
        wire.held.clear()
        with pytest.raises(SupervisorUnavailable, match=r"no answer to server.hello within 0.05 s"):
            async with RelayClient(path, timeout=0.05):
                pass
        wire.held.set()
        async with RelayClient(path, timeout=20) as client:
            wire.held.clear()
            with pytest.raises(SupervisorUnavailable, match=r"no answer to publish within 0.05 s"):
                await client.call("publish", {"subject": A, "from": B, "payload": 1}, timeout=0.05)
            wire.held.set()
            assert (await client.info()).socket == str(supervisor.socket)


async def test_a_timeout_says_why_the_connection_could_not_be_made_again(data_dir: Path) -> None:
    async with a_supervisor(data_dir) as supervisor:
        client = await a_client(supervisor, timeout=0.2).__aenter__()
    with pytest.raises(SupervisorUnavailable, match="no supervisor is running: start one"):
        await client.publish(A, 1, sender=B)
    await client.close()


# Lost connections


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("losses", [1, 3])
async def test_a_publish_whose_answer_is_lost_is_published_once(data_dir: Path, durability: str, losses: int) -> None:
    async with (
        a_supervisor(data_dir, {"durability": durability}) as supervisor,
        a_wire(supervisor.socket) as (path, wire),
        RelayClient(path, timeout=20) as client,
    ):
        await client.register_endpoint(A)
        wire.cut_answers_to["publish"] = losses
        result = await client.publish(A, "once", sender=B)
        assert wire.asked.count("publish") == losses + 1
        assert [message.id for message in await client.inbox(A)] == [result.message_id]
        assert supervisor.context.relay.metrics().publishes == 1


async def test_publishes_of_two_clients_are_not_taken_for_retries(supervisor: Supervisor, client: RelayClient) -> None:
    await client.register_endpoint(A)
    async with a_client(supervisor) as other:
        results = [await each.publish(A, "same", sender=B) for each in (client, other) * 2]
    assert len({result.message_id for result in results}) == 4


async def test_many_publishes_in_flight_survive_cuts_and_are_published_once(
    wired: tuple[RelayClient, Wire],
) -> None:
    client, wire = wired
    await client.register_endpoint(A)
    wire.cut_answers_to["publish"] = 5
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.publish(A, number, sender=B)) for number in range(200)]
    stored = await client.inbox(A, limit=500)
    assert sorted(message.payload for message in stored) == list(range(200))
    assert {task.result().message_id for task in tasks} == {message.id for message in stored}
    assert wire.cut_answers_to["publish"] < 5


async def test_a_batch_whose_answer_is_lost_is_published_once(wired: tuple[RelayClient, Wire]) -> None:
    client, wire = wired
    await client.register_endpoint(A)
    wire.cut_answers_to["publish.batch"] = 1
    results = await client.publish_many({"subject": A, "payload": number, "sender": B} for number in range(10))
    assert [result.message_id for result in results if isinstance(result, PublishResult)] == [
        message.id for message in await client.inbox(A)
    ]
    assert len(results) == 10


@pytest.mark.parametrize("method", [name for name in METHODS if has_trait(name, ONCE)])
async def test_what_must_not_be_done_twice_is_not_asked_twice(wired: tuple[RelayClient, Wire], method: str) -> None:
    client, wire = wired
    await client.register_endpoint(A)
    for number in range(2):
        await client.publish(A, number, sender=B)
    taken, dead = await client.claim(A, 2, lease=timedelta(hours=1))
    await client.fail(A, dead.id, "no")
    plan = await client.plan_replay([dead.id])
    params: dict[str, dict[str, Any]] = {
        "deadletters.run": {"planId": plan.id},
        "deadletters.edit": {"id": dead.id, "payload": 7},
        "tokens.add": {"pattern": "relay.agent.x"},
        "agents.remove": {"subject": A},
        "jobs.run": {"name": "expire"},
        "schedules.run": {"id": "none"},
        "inbox.complete": {"subject": A, "id": taken.id},
        "inbox.fail": {"subject": A, "id": taken.id, "reason": "no"},
        "server.stop": {},
    }
    wire.asked.clear()
    wire.cut_answers_to[method] = 1
    with pytest.raises(SupervisorUnavailable, match="check whether it was done") as caught:
        await client.call(method, params[method])
    assert caught.value.code == "outcome_unknown"
    assert wire.asked.count(method) == 1


async def test_reading_is_asked_again(wired: tuple[RelayClient, Wire]) -> None:
    client, wire = wired
    await client.register_endpoint(A)
    wire.cut_answers_to["endpoints.list"] = 2
    assert [endpoint.subject for endpoint in await client.endpoints()] == [A]
    assert wire.connections == 3


async def test_a_claim_whose_answer_is_lost_parks_what_it_took(wired: tuple[RelayClient, Wire]) -> None:
    client, wire = wired
    await client.register_endpoint(A)
    for number in range(2):
        await client.publish(A, number, sender=B)
    wire.cut_answers_to["inbox.claim"] = 1
    (taken,) = await client.claim(A)
    assert taken.payload == 1
    letters: list[DeadLetter] = []
    while not letters:
        letters = await client.dead_letters()
    assert [(letter.code, letter.envelope and letter.envelope.payload) for letter in letters] == [
        (Code.DISCONNECTED, 0)
    ]


async def test_a_client_is_used_before_during_and_after_a_restart(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, daemon.client() as client:
        first = client.hello
        await client.register_endpoint(A)
        await client.publish(A, "before", sender=B)
        await daemon.kill()
        async with asyncio.TaskGroup() as group:
            meanwhile = [group.create_task(client.publish(A, f"during {n}", sender=B)) for n in range(10)]
            await asyncio.sleep(0)
            await daemon.launch()
        await client.publish(A, "after", sender=B)
        stored = [message.payload for message in await client.inbox(A)]
        assert (stored[0], stored[-1]) == ("before", "after")
        assert sorted(stored[1:-1]) == [f"during {n}" for n in range(10)]
        assert all(task.result().delivered_to == 1 for task in meanwhile)
        assert first is not None
        assert client.hello is not None
        assert client.hello.pid == daemon.pid != first.pid


# Cancelling and closing


async def test_a_cancelled_call_leaves_nothing_behind(wired: tuple[RelayClient, Wire]) -> None:
    client, wire = wired
    wire.held.clear()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await client.info()
    wire.held.set()
    assert (await client.info()).protocol == 1
    assert client._connection is not None
    assert client._connection._waiting == {}
    assert wire.connections == 1


async def test_a_cancelled_claim_dead_letters_its_messages(wired: tuple[RelayClient, Wire]) -> None:
    client, wire = wired
    await client.register_endpoint(A)
    await client.publish(A, 1, sender=B)
    wire.held.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.claim(A, lease=timedelta(hours=1))
    assert "inbox.claim" in wire.asked
    wire.held.set()
    letters: list[DeadLetter] = []
    while not letters:
        letters = await client.dead_letters()
    assert "cancelled" in letters[0].reason


async def test_a_cancelled_connecting_leaves_no_connection(supervisor: Supervisor) -> None:
    async with a_wire(supervisor.socket) as (path, wire):
        wire.held.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await RelayClient(path).__aenter__()
        assert wire.connections == 1
        wire.held.set()
        await until(lambda: not supervisor.context.connections)


async def test_a_closed_client_says_so(supervisor: Supervisor) -> None:
    async with a_client(supervisor) as client:
        pass
    with pytest.raises(Closed):
        await client.info()
    await client.close()
    await until(lambda: not supervisor.context.connections)


async def test_a_client_that_is_closed_while_it_reconnects_leaves_no_connection(supervisor: Supervisor) -> None:
    async with (
        a_wire(supervisor.socket) as (path, wire),
        RelayClient(path, timeout=20) as client,
        asyncio.TaskGroup() as group,
    ):
        wire.held.clear()
        wire.cut()
        asking = group.create_task(_expect_closed(client))
        await until(lambda: wire.connections == 2)
        await client.close()
        wire.held.set()
        await asking
        await until(lambda: not supervisor.context.connections)


async def _expect_closed(client: RelayClient) -> None:
    with pytest.raises(Closed):
        await client.info()


# Requests


async def answer(client: RelayClient, subject: str, *, with_reply: bool = True) -> None:
    """Answer requests."""
    async with client.subscribe(subject) as questions:
        async for question in questions:
            if with_reply and question.reply_to is not None:
                await client.publish(
                    question.reply_to, {"echo": question.payload}, sender=subject, parent_id=question.id
                )


async def test_a_request_gets_its_reply_and_its_mailbox_is_gone_afterwards(
    supervisor: Supervisor, client: RelayClient
) -> None:
    async with a_client(supervisor) as other, asyncio.TaskGroup() as group:
        await other.register_endpoint(A)
        answering = group.create_task(answer(other, A))
        reply = await client.request(A, "ping", sender=B, timeout=20)
        answering.cancel()
    assert (reply.sender, reply.payload) == (A, {"echo": "ping"})
    assert [endpoint.subject for endpoint in supervisor.context.relay.endpoints()] == [A]
    assert supervisor.context.relay.subscriptions() == []
    assert await client.dead_letters() == []


async def test_a_token_holder_has_a_private_mailbox_for_the_reply(supervisor: Supervisor, client: RelayClient) -> None:
    await client.register_endpoint(A)
    token = (await client.add_token(B)).token
    async with a_client(supervisor, token=token) as holder, asyncio.TaskGroup() as group:
        answering = group.create_task(answer(client, A))
        assert (await holder.request(A, "ping", sender=B, timeout=20)).payload == {"echo": "ping"}
        answering.cancel()
    assert [endpoint.subject for endpoint in supervisor.context.relay.endpoints()] == [A]


async def test_a_request_without_an_answer_times_out(supervisor: Supervisor, client: RelayClient) -> None:
    await client.register_endpoint(A)
    with pytest.raises(TimeoutError):
        await client.request(A, "ping", sender=B, timeout=0.1)
    assert [endpoint.subject for endpoint in supervisor.context.relay.endpoints()] == [A]
    assert supervisor.context.relay.subscriptions() == []


async def test_a_request_without_a_consumer_is_refused(supervisor: Supervisor, client: RelayClient) -> None:
    with pytest.raises(RelayError, match="no endpoint or consumer matches") as caught:
        await client.request(A, "ping", sender=B)
    assert caught.value.code == "not_delivered"
    assert supervisor.context.relay.endpoints() == []


async def test_a_request_that_is_denied_says_so(client: RelayClient) -> None:
    await client.register_endpoint(A)
    await client.add_access_rule(AccessRule.model_validate({"from": B, "to": A, "action": "deny"}))
    with pytest.raises(AccessDenied):
        await client.request(A, "ping", sender=B)


@pytest.mark.parametrize("cut", ["connection", "supervisor"])
async def test_a_request_outlives_a_lost_connection(tmp_path: Path, cut: str) -> None:
    async with (
        a_daemon(tmp_path) as daemon,
        a_wire(daemon.socket) as (path, wire),
        RelayClient(path, data_dir=daemon.data_dir) as client,
        daemon.client() as other,
    ):
        await other.register_endpoint(A)
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(client.request(A, "ping", sender=B, timeout=60))
            question: list[Envelope] = []
            while not question:
                question = await other.claim(A, lease=timedelta(hours=1))
            if cut == "supervisor":
                await daemon.kill()
                await daemon.start()
            else:
                wire.cut()
            before = wire.asked.count("subscribe")
            await until(lambda: wire.asked.count("subscribe") == before + 1 or before == 2)
            assert question[0].reply_to is not None
            while not (await other.publish(question[0].reply_to, "pong", sender=A)).delivered_to:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # until the other has subscribed again
        assert asking.result().payload == "pong"
        with suppress(NotFound):
            await other.complete(A, question[0].id)
