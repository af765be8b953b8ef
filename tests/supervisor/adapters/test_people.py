"""Over the socket, too, no client can write to a person who is not bound to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay_core import AccessDenied, Binding, Signal, SignalType
from tests.kit.adapters import SampleAdapter
from tests.kit.supervisor import a_client, a_supervisor

CHAT, AGENT = "relay.human.chat.c.1", "relay.agent.a"


async def test_neither_a_message_nor_a_signal_reaches_a_person_without_a_binding(data_dir: Path) -> None:
    adapter = SampleAdapter("c", patterns=["relay.human.chat.c.>"])
    adapter.bound = True  # type: ignore[attr-defined]
    signal = Signal(
        type=SignalType.PROGRESS, state="working", endpoint_subject=AGENT, timestamp="2026-11-16T00:00:00.000Z"
    )
    async with a_supervisor(data_dir) as supervisor, a_client(supervisor) as client:
        relay = supervisor.context.relay
        await relay.add_adapter(adapter)
        seen: list[str] = []
        relay.on_signal(CHAT, lambda subject, signal: seen.append(signal.state))
        with pytest.raises(AccessDenied, match="is not bound to") as caught:
            await client.publish(CHAT, "psst", sender=AGENT)
        assert caught.value.code == "not_bound"
        with pytest.raises(AccessDenied, match="is not bound to"):
            await client.signal(CHAT, signal)
        relay.set_bindings([Binding(chat=CHAT, agent=AGENT, start="both")])
        await client.publish(CHAT, "hello", sender=AGENT)
        await client.signal(CHAT, signal)
        assert (adapter.got, seen) == (["hello"], ["working"])
