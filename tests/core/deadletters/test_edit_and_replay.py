"""Edit, then replay: an edited copy takes the place of a dead letter."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from relay_core import AccessDenied, AccessRule, InvalidPayload, NotFound, RelayCore, StorageError
from relay_core.messages.subjects import subject_hash
from tests.core.deadletters.replays import FULL, config, dead, dead_by_handler, places
from tests.kit.bus import (
    SENDER,
    UNKNOWN_ID,
    A,
    B,
    C,
    assert_counts_match_files,
    dead_ids,
    refusing_journal,
    snapshot,
    span,
)
from tests.kit.handlers import Listener

pytestmark = pytest.mark.bus(config(), endpoints=[A])


async def test_an_edited_copy_takes_the_place_of_the_dead_letter(either: RelayCore, data_dir: Path) -> None:
    listener = Listener()
    (original,) = await dead(either, {"content": "teh"}, reply_to=C)
    await either.subscribe(A, listener)
    result = await either.replays.edit(original, {"content": "the"})
    await either.idle()
    assert (result.delivered_to, result.message_id > original) == (1, True)
    (envelope,) = listener.envelopes
    assert (envelope.id, envelope.payload, envelope.reply_to) == (result.message_id, {"content": "the"}, C)
    assert (envelope.replay_of, envelope.replays, envelope.sender) == (original, 0, SENDER)
    assert (envelope.budget.hop_count, envelope.budget.ancestor_chain) == (1, (A,))
    assert places(data_dir, original) == []
    assert await dead_ids(either) == []
    assert (await span(either, original)).status == "replaced"
    copy = await span(either, result.message_id)
    assert (copy.status, copy.replay_of, copy.trace_id) == ("done", original, original)
    assert_counts_match_files(either, data_dir)


async def test_an_edited_copy_stays_in_the_conversation_of_the_original(relay: RelayCore) -> None:
    parent = await relay.publish(B, "parent", sender=SENDER)
    await relay.register_endpoint(B)
    (child,) = await dead(relay, "child", parent_id=parent.message_id)
    result = await relay.replays.edit(child, "better")
    copy = await span(relay, result.message_id)
    assert (copy.trace_id, copy.parent_id) == ((await span(relay, child)).trace_id, parent.message_id)


async def test_an_edited_message_nobody_heard_goes_to_its_subject(relay: RelayCore, data_dir: Path) -> None:
    original = await relay.publish(B, 1, sender=SENDER)
    await relay.register_endpoint(B)
    result = await relay.replays.edit(original.message_id, 2)
    assert result.delivered_to == 1
    assert [(envelope.id, envelope.payload) for envelope in await relay.inbox(B)] == [(result.message_id, 2)]
    assert (await span(relay, original.message_id, B)).status == "replaced"
    assert places(data_dir, original.message_id) == []
    assert_counts_match_files(relay, data_dir)


@pytest.mark.parametrize("payload", [float("nan"), object(), "x" * 2_000_000], ids=["NaN", "no JSON", "too large"])
async def test_a_bad_edit_changes_nothing(relay: RelayCore, data_dir: Path, payload: Any) -> None:
    (message_id,) = await dead(relay, 1)
    before = snapshot(data_dir)
    with pytest.raises(InvalidPayload):
        await relay.replays.edit(message_id, payload)
    assert snapshot(data_dir) == before
    assert (await span(relay, message_id)).status == "failed"


async def test_an_edit_that_is_refused_leaves_the_original(relay: RelayCore, data_dir: Path) -> None:
    (message_id,) = await dead(relay, 1)
    for number in range(FULL):
        await relay.publish(A, number, sender=SENDER)
    result = await relay.replays.edit(message_id, 2)
    assert [rejection.reason for rejection in result.rejected or ()] == ["backpressure"]
    assert await dead_ids(relay) == [message_id]
    assert (await span(relay, message_id)).status == "failed"
    assert_counts_match_files(relay, data_dir)


async def test_an_edit_that_the_disk_refuses_leaves_the_original(relay: RelayCore, data_dir: Path) -> None:
    (message_id,) = await dead(relay, 1)
    with refusing_journal(relay), pytest.raises(StorageError):
        await relay.replays.edit(message_id, 2)
    assert await dead_ids(relay) == [message_id]
    assert_counts_match_files(relay, data_dir)


async def test_an_edit_that_is_denied_leaves_the_original(relay: RelayCore) -> None:
    (message_id,) = await dead(relay, 1)
    await asyncio.to_thread(relay.bus.access.add_rule, AccessRule(sender=SENDER, to=A, action="deny"))
    with pytest.raises(AccessDenied):
        await relay.replays.edit(message_id, 2)
    assert await dead_ids(relay) == [message_id]


async def test_an_edit_may_be_given_a_fresh_budget(relay: RelayCore) -> None:
    original = await relay.publish(A, 1, sender=SENDER, budget={"hop_count": 5})
    result = await relay.replays.edit(original.message_id, 2, fresh_budget=True)
    assert result.delivered_to == 1
    (copy,) = await relay.inbox(A)
    assert copy.budget.hop_count == 1
    assert (copy.replays, copy.replayed_at) == (0, None)  # it is a new message
    assert await dead_ids(relay) == []


@pytest.mark.parametrize("message_id", [UNKNOWN_ID, "nonsense"])
async def test_an_edit_of_nothing_is_not_found(relay: RelayCore, message_id: str) -> None:
    with pytest.raises(NotFound):
        await relay.replays.edit(message_id, 1)


async def test_a_file_that_was_no_message_cannot_be_edited(relay: RelayCore, data_dir: Path) -> None:
    result = await relay.publish(A, 1, sender=SENDER)
    await relay.idle()
    (data_dir / "mailboxes" / subject_hash(A) / "new" / f"{result.message_id}.json").write_bytes(b"{")
    await relay.claim(A)
    with pytest.raises(NotFound, match="is not a message and cannot be replayed"):
        await relay.replays.edit(result.message_id, 1)


async def test_an_edit_and_a_replay_of_the_same_message_never_both_happen(either: RelayCore, data_dir: Path) -> None:
    listener = Listener()
    await either.subscribe(A, listener)
    ids = await dead_by_handler(either, listener, 20)
    plan = await either.plan_replay()
    results = await asyncio.gather(
        either.run_replay(plan.id),
        *(either.replays.edit(message_id, -1) for message_id in ids),
        return_exceptions=True,
    )
    await either.idle()
    edited = [result for result in results[1:] if not isinstance(result, BaseException)]
    assert all(isinstance(result, NotFound) for result in results[1:] if isinstance(result, BaseException))
    assert len(listener.envelopes) == 20
    assert listener.got.count(-1) == len(edited)
    assert await dead_ids(either) == []
    assert_counts_match_files(either, data_dir)
