"""Who was added, who is connected, and what their names and tokens are good for."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from relay_core.client.client import RelayClient
from relay_core.errors import AccessDenied, ConfigError, InvalidSubject, NotFound, StorageError
from relay_core.testing import FakeClock
from relay_supervisor.supervisor import Supervisor
from tests.kit.bus import A, B, C
from tests.kit.supervisor import a_client, a_supervisor
from tests.kit.waiting import until

BOUND = """{"adapters": [], "bindings": [
    {"chat": "relay.human.telegram.tg.7", "agent": "relay.agent.a", "start": "both"},
    {"chat": "relay.human.telegram.tg.8", "agent": "relay.agent.a"},
    {"chat": "relay.human.telegram.tg.*", "agent": "relay.agent.b", "start": "both"}]}"""


@pytest.fixture
async def supervisor(data_dir: Path, clock: FakeClock) -> AsyncIterator[Supervisor]:
    async with a_supervisor(data_dir, clock=clock) as supervisor:
        yield supervisor


@pytest.fixture
async def operator(supervisor: Supervisor) -> AsyncIterator[RelayClient]:
    async with a_client(supervisor) as client:
        yield client


def read(path: str | Path) -> str:
    return Path(path).read_text()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(text)


def mode(path: str | Path) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


async def row(client: RelayClient, subject: str) -> dict[str, Any]:
    (found,) = [one for one in await client.agents() if one.subject == subject]
    return found.to_wire()


async def test_an_added_agent_has_a_mailbox_and_a_token_for_its_name_alone(
    operator: RelayClient, supervisor: Supervisor, clock: FakeClock
) -> None:
    added = await operator.add_agent(A, description="writes", cwd="/home/me/site")
    assert (mode(added.token_file), mode(Path(added.token_file).parent)) == (0o600, 0o700)
    async with a_client(supervisor, token=read(added.token_file).strip()) as agent:
        assert agent.hello is not None
        assert (agent.hello.operator, agent.hello.pattern) == (False, A)
        await agent.publish(A, {"content": "a note"}, sender=A)
        assert [one.sender for one in await agent.inbox(A)] == [A]
        with pytest.raises(AccessDenied, match=r"not for relay\.agent\.b"):
            await agent.publish(A, {"content": "hello"}, sender=B)
        with pytest.raises(AccessDenied, match="is for the operator"):
            await agent.add_agent(B)
    assert await row(operator, A) == {
        "subject": A,
        "description": "writes",
        "cwd": "/home/me/site",
        "connected": 0,
        "lastSeen": clock.now_ms(),
        "unread": 1,
        "added": True,
    }


async def test_a_token_for_one_name_says_who_is_connected(operator: RelayClient, supervisor: Supervisor) -> None:
    added = await operator.add_agent(A)
    wider = await operator.add_token("relay.agent.*")
    async with a_client(supervisor, token=added.token), a_client(supervisor, token=wider.token):
        assert [(one.subject, one.connected) for one in await operator.agents()] == [(A, 1)]
    await until(lambda: supervisor.context.agents.state(A).connected == 0)


async def test_adding_again_keeps_the_token_and_what_is_not_said_anew(operator: RelayClient) -> None:
    first = await operator.add_agent(A, description="writes", cwd="/one")
    again = await operator.add_agent(A, cwd="/two")
    assert (again.token, again.agent.description, again.agent.cwd) == (first.token, "writes", "/two")
    assert len(await operator.tokens()) == 1


async def test_a_token_that_is_not_good_any_more_is_made_anew(operator: RelayClient) -> None:
    first = await operator.add_agent(A)
    (token,) = await operator.tokens()
    await operator.remove_token(token.id)
    again = await operator.add_agent(A)
    assert again.token != first.token
    assert read(again.token_file).strip() == again.token


@pytest.mark.parametrize("harm", ["gone", "empty", "another's", "for all to read", "a pipe"])
async def test_a_token_whose_file_is_not_good_is_made_anew_and_the_old_one_ends(
    operator: RelayClient, supervisor: Supervisor, harm: str
) -> None:
    first = await operator.add_agent(A)
    path = Path(first.token_file)
    others = (await operator.add_agent(B)).token
    match harm:
        case "gone":
            os.unlink(path)
        case "empty":
            write(path, "")
        case "another's":
            write(path, others)
        case "for all to read":
            os.chmod(path, 0o644)
        case _:
            os.unlink(path)
            os.mkfifo(path)
    async with a_client(supervisor, token=first.token) as agent:
        again = await operator.add_agent(A)
        await until(lambda: not agent.connected)
    assert again.token not in (first.token, others)
    assert (read(path).strip(), mode(path)) == (again.token, 0o600)
    assert sorted(one.pattern for one in await operator.tokens()) == [A, B]


async def test_what_cannot_be_removed_is_said_and_the_token_is_worthless_all_the_same(
    operator: RelayClient, supervisor: Supervisor
) -> None:
    added = await operator.add_agent(A)
    path = Path(added.token_file)
    async with a_client(supervisor, token=added.token) as agent:
        os.unlink(path)
        os.mkdir(path)
        with pytest.raises(StorageError, match="cannot remove"):
            await operator.remove_agent(A)
        await until(lambda: not agent.connected)
    os.rmdir(path)
    await operator.remove_agent(A)
    assert await operator.agents() == []


async def test_no_agent_is_removed_while_its_token_cannot_be(
    operator: RelayClient, supervisor: Supervisor, data_dir: Path
) -> None:
    added = await operator.add_agent(A)
    os.chmod(data_dir / "tokens.json", 0o644)
    await operator.call("config.reload")
    with pytest.raises(ConfigError, match="repair the file"):
        await operator.remove_agent(A)
    assert read(added.token_file).strip() == added.token
    os.chmod(data_dir / "tokens.json", 0o600)
    await operator.remove_agent(A)
    assert await operator.tokens() == []
    with pytest.raises(AccessDenied):
        async with a_client(supervisor, token=added.token):
            pass


async def test_a_removed_agent_loses_its_name_its_connections_and_none_of_its_mail(
    operator: RelayClient, supervisor: Supervisor
) -> None:
    added = await operator.add_agent(A)
    await operator.publish(A, {"content": "hi"}, sender=B)
    async with a_client(supervisor, token=added.token) as agent:
        assert agent.connected
        await operator.remove_agent(A)
        await until(lambda: not agent.connected)
    with pytest.raises(FileNotFoundError):
        read(added.token_file)
    with pytest.raises(AccessDenied):
        async with a_client(supervisor, token=added.token):
            pass
    assert (await operator.agents(), await operator.tokens()) == ([], [])
    assert [one.payload for one in await operator.inbox(A)] == [{"content": "hi"}]
    with pytest.raises(NotFound, match="relay agent list"):
        await operator.remove_agent(A)


@pytest.mark.parametrize(
    "subject", ["relay.agent.*", "no spaces", "relay.system.bus", "relay.adapter.tg", "relay.reply.x"]
)
async def test_what_is_no_name_for_an_agent_is_not_added(operator: RelayClient, subject: str) -> None:
    with pytest.raises(InvalidSubject):
        await operator.add_agent(subject)
    assert await operator.agents() == []


async def test_who_is_connected_and_who_was_last_seen_when(
    operator: RelayClient, supervisor: Supervisor, clock: FakeClock, data_dir: Path
) -> None:
    added = await operator.add_agent(A)
    hello = {"agent": A, "token": added.token}
    async with a_client(supervisor) as one, a_client(supervisor) as other:
        await one.call("server.hello", hello)
        await one.call("server.hello", hello)  # said twice, it is still one
        came = clock.now_ms()
        await other.call("server.hello", hello)
        assert ((await row(operator, A))["connected"], (await row(operator, A))["lastSeen"]) == (2, came)
        clock.advance(90)
    await until(lambda: supervisor.context.agents.state(A).connected == 0)
    assert (await row(operator, A))["lastSeen"] == came + 90_000


async def test_when_an_agent_was_last_seen_survives_a_restart(data_dir: Path, clock: FakeClock) -> None:
    async with a_supervisor(data_dir, clock=clock) as supervisor, a_client(supervisor) as operator:
        added = await operator.add_agent(A, description="writes")
        async with a_client(supervisor) as agent:
            await agent.call("server.hello", {"agent": A, "token": added.token})
        seen = clock.now_ms()
    clock.advance(3600)
    async with a_supervisor(data_dir, clock=clock) as supervisor, a_client(supervisor) as operator:
        found = await row(operator, A)
        assert (found["lastSeen"], found["description"], found["connected"]) == (seen, "writes", 0)
        assert (await operator.add_agent(A)).token == added.token


async def test_nobody_acts_for_an_agent_with_the_token_of_another(
    operator: RelayClient, supervisor: Supervisor
) -> None:
    added = await operator.add_agent(A)
    await operator.add_agent(B)
    async with a_client(supervisor, token=added.token) as agent:
        with pytest.raises(AccessDenied, match=r"not for relay\.agent\.b"):
            await agent.call("server.hello", {"agent": B})
    assert (await row(operator, B))["connected"] == 0


async def test_an_agent_sees_whom_it_may_write_to_and_not_where_they_work(
    operator: RelayClient, supervisor: Supervisor, data_dir: Path
) -> None:
    tokens = [(await operator.add_agent(subject, cwd="/secret")).token for subject in (A, B, C)]
    await operator.call("access.add", {"rule": {"from": A, "to": C, "action": "deny", "priority": 1}})
    async with a_client(supervisor, token=tokens[0]) as agent:
        assert [(one.subject, one.cwd) for one in await agent.agents()] == [(A, None), (B, None)]
    async with a_client(supervisor, token=tokens[1]) as agent:
        assert [one.subject for one in await agent.agents()] == [A, B, C]


async def test_the_people_of_an_agent_are_those_it_may_write_to(data_dir: Path) -> None:
    write(data_dir / "adapters.json", BOUND)
    async with a_supervisor(data_dir) as supervisor, a_client(supervisor) as operator:
        token = (await operator.add_agent(A)).token
        assert await operator.people(A) == ["relay.human.telegram.tg.7"]
        assert await operator.people(B) == []
        bindings = supervisor.context.relay.bus.bindings
        bindings.begin("relay.human.telegram.tg.9", bindings.all()[2])
        assert await operator.people(B) == ["relay.human.telegram.tg.9"]
        async with a_client(supervisor, token=token) as agent:
            with pytest.raises(AccessDenied):
                await agent.people(B)


@pytest.mark.parametrize("content", ["{", "[1]", '[{"subject": "relay.agent.a", "tokn": 1}]'])
async def test_a_broken_file_costs_the_descriptions_is_told_and_stays_as_it_is(data_dir: Path, content: str) -> None:
    async with a_supervisor(data_dir) as supervisor, a_client(supervisor) as operator:
        await operator.add_agent(A)
    write(data_dir / "agents.json", content)
    async with a_supervisor(data_dir) as supervisor, a_client(supervisor) as operator:
        assert any("agents.json" in problem for problem in (await operator.status()).problems)
        assert (await row(operator, A))["added"] is False
        with pytest.raises(ConfigError, match="repair the file"):
            await operator.add_agent(B)
        assert await operator.endpoints() == [one for one in await operator.endpoints() if one.subject == A]
    assert read(data_dir / "agents.json") == content


async def test_whoever_waits_for_mail_and_hangs_up_is_gone_at_once(
    operator: RelayClient, supervisor: Supervisor
) -> None:
    added = await operator.add_agent(A)
    _, writer = await asyncio.open_unix_connection(str(supervisor.socket))
    for id, method, params in (
        (1, "server.hello", {"agent": A, "token": added.token}),
        (2, "inbox.wait", {"subject": A, "timeoutMs": 600_000}),
    ):
        writer.write(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n")
    await until(lambda: supervisor.context.agents.state(A).connected == 1)
    writer.close()
    await until(lambda: supervisor.context.agents.state(A).connected == 0)


async def test_what_comes_with_a_token_that_is_not_known_is_not_done_as_the_operator(supervisor: Supervisor) -> None:
    reader, writer = await asyncio.open_unix_connection(str(supervisor.socket))
    for id, method, params in ((1, "server.hello", {"token": "relay_wrong"}), (2, "agents.list", {})):
        writer.write(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n")
    answers = [json.loads(await reader.readline()) for _ in range(2)]
    assert [one["error"]["data"]["code"] for one in answers] == ["bad_token", "token_required"]
    writer.close()
    await writer.wait_closed()
