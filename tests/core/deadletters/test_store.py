"""Dead letters on disk and in the index: both tell the same, page by page, whatever lies in ``failed/``."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay_core import DeadLetter, DeadLetterFilter, RelayConfig, RelayCore
from relay_core.clock import parse_iso
from relay_core.config import RateLimitConfig, ReliabilityConfig
from relay_core.deadletters import replay
from relay_core.deadletters import store as deadletter_store
from relay_core.errors import NotFound
from relay_core.messages.dead_letter import DeadLetterSummary, count_dead
from relay_core.messages.delivery import TraceSearch
from relay_core.messages.envelope import Envelope
from relay_core.messages.subjects import subject_hash
from relay_core.storage.mailbox import Mailbox
from relay_core.testing import FakeClock
from tests.kit.adapters import SampleAdapter, refuse
from tests.kit.bus import SENDER, A, B, C
from tests.kit.waiting import tasks_ended

CONFIG = RelayConfig(durability="os", reliability=ReliabilityConfig(rate_limit=RateLimitConfig(enabled=False)))

pytestmark = pytest.mark.bus(endpoints=[A, B, C])


async def fail(relay: RelayCore, subject: str, reason: str = "no", sender: str = SENDER, payload: object = None) -> str:
    """Make a dead letter of an endpoint and return its id."""
    result = await relay.publish(subject, payload, sender=sender)
    for message in await relay.claim(subject, limit=100):
        await relay.fail(subject, message.id, reason)
    return result.message_id


async def every_kind(relay: RelayCore, clock: FakeClock, data_dir: Path) -> None:
    """Make dead letters of every kind, a second apart."""
    for number in range(5):
        await fail(relay, A, f"reason {number % 2}", payload={"n": number})
        await fail(relay, B, "other", sender="relay.human.h")
        await relay.publish("relay.agent.nobody", number, sender=SENDER)
        clock.advance(1)
    await relay.publish("relay.agent.*", "to all", sender=SENDER)
    for subject in (A, B, C):
        (message,) = await relay.claim(subject)
        await relay.fail(subject, message.id, "broadcast")
    await relay.publish(A, "over", sender=SENDER, budget={"call_budget_remaining": 0})
    (failed(data_dir, A).parent / "new" / "no-ulid.json").write_bytes(b"hello")
    relay.bus.intake.rescan()
    await tasks_ended("rescan")


def failed(data_dir: Path, subject: str) -> Path:
    return data_dir / "mailboxes" / subject_hash(subject) / "failed"


async def pages(relay: RelayCore, size: int, filter: DeadLetterFilter | None = None) -> list[DeadLetterSummary]:
    """Return every page, one after the other."""
    found: list[DeadLetterSummary] = []
    after, first_total = None, None
    while True:
        page, total, after = await relay.dead_letter_page(filter, after=after, limit=size)
        first_total = total if first_total is None else first_total
        assert total == first_total
        assert len(page) <= size
        found += page
        if after is None:
            assert len(found) == total
            return found


def keys(letters: list[DeadLetter]) -> list[tuple[str, str]]:
    return [(letter.message_id, letter.endpoint_hash) for letter in letters]


async def test_the_index_lists_what_lies_on_disk(relay: RelayCore, clock: FakeClock, data_dir: Path) -> None:
    await every_kind(relay, clock, data_dir)
    letters = await relay.dead_letters()
    assert len(letters) == 20
    assert keys(letters) == sorted(keys(letters))
    listed = await pages(relay, 7)
    assert [(letter.message_id, letter.endpoint_hash) for letter in listed] == keys(letters)[::-1]
    by_key = {(letter.message_id, letter.endpoint_hash): letter for letter in letters}
    for row in listed:
        letter = by_key[row.message_id, row.endpoint_hash]
        assert (row.code, row.reason, row.replays) == (letter.code, letter.reason, letter.replays)
        if letter.envelope is not None:
            assert (row.subject, row.sender) == (letter.envelope.subject, letter.envelope.sender)
            assert row.size == len(orjson.dumps(letter.envelope.payload))


async def test_groups_are_by_code_and_target_largest_first(relay: RelayCore, clock: FakeClock, data_dir: Path) -> None:
    start = clock.now_ms()
    await every_kind(relay, clock, data_dir)
    groups = await relay.dead_letter_groups()
    counts = Counter((letter.code, letter.endpoint_hash) for letter in await relay.dead_letters())
    assert {(group.code, group.endpoint_hash): group.count for group in groups} == counts
    assert [group.count for group in groups] == sorted((group.count for group in groups), reverse=True)
    of_nobody = next(group for group in groups if group.code == "no_match")
    assert of_nobody.endpoint_subject == "relay.agent.nobody"
    assert (of_nobody.oldest_at, of_nobody.newest_at) == (start, start + 4000)
    assert of_nobody.sample_reason == "no matching endpoints or adapters"


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_pages_of_one_endpoint(size: int, relay: RelayCore, clock: FakeClock, data_dir: Path) -> None:
    await every_kind(relay, clock, data_dir)
    for endpoint in (A, subject_hash(A)):
        listed = await pages(relay, size, DeadLetterFilter(endpoint=endpoint))
        assert [row.message_id for row in listed] == [letter.message_id for letter in await relay.dead_letters(A)][::-1]


async def test_pages_by_code_and_their_totals(relay: RelayCore, clock: FakeClock, data_dir: Path) -> None:
    await every_kind(relay, clock, data_dir)
    for code, total in (("no_match", 5), ("consumer_failed", 13), ("call_budget", 1), ("malformed", 1), ("none", 0)):
        page, found, _ = await relay.dead_letter_page(DeadLetterFilter(code=code), limit=4)
        assert (len(page), found) == (min(total, 4), total)
    page, found, _ = await relay.dead_letter_page(DeadLetterFilter(code="consumer_failed", endpoint=B), limit=2)
    assert (len(page), found) == (2, 6)


async def test_a_message_dead_at_several_targets_is_not_cut_off_by_a_page(relay: RelayCore) -> None:
    result = await relay.publish("relay.agent.*", 1, sender=SENDER)
    for subject in (A, B, C):
        await relay.claim(subject)
        await relay.fail(subject, result.message_id, "no")
    assert [row.endpoint_hash for row in await pages(relay, 1)] == sorted(map(subject_hash, (A, B, C)), reverse=True)
    rest, total, _ = await relay.dead_letter_page(after=result.message_id)
    assert (rest, total) == ([], 3)  # a bare id passes over all of that message


async def test_a_page_that_begins_after_what_was_purged_goes_on(relay: RelayCore) -> None:
    ids = [await fail(relay, A) for _ in range(4)]
    page, _, cursor = await relay.dead_letter_page(limit=2)
    assert cursor == page[-1].cursor
    await relay.purge_dead_letters(ids=[ids[2]])
    rest, total, _ = await relay.dead_letter_page(after=cursor)
    assert ([letter.message_id for letter in rest], total) == ([ids[1], ids[0]], 3)


WANTED = [
    DeadLetterFilter(),
    DeadLetterFilter(code="no_match"),
    DeadLetterFilter(reason="reason 1"),
    DeadLetterFilter(endpoint="relay.agent.*"),
    DeadLetterFilter(endpoint=A, reason="reason"),
    DeadLetterFilter(sender="relay.human.>"),
    DeadLetterFilter(text='"n":3'),
    DeadLetterFilter(failed_before=1_700_000_002_000),
    DeadLetterFilter(failed_after=1_700_000_001_000, failed_before=1_700_000_004_000),
]


@pytest.mark.parametrize("wanted", WANTED, ids=lambda wanted: str(wanted.model_dump(exclude_defaults=True)))
async def test_a_filter_and_its_opposite_divide_the_dead_letters(
    wanted: DeadLetterFilter, relay: RelayCore, clock: FakeClock, data_dir: Path
) -> None:
    await every_kind(relay, clock, data_dir)
    everything = await relay.dead_letters()
    those = await relay.dead_letters(filter=wanted)
    others = await relay.dead_letters(filter=wanted.model_copy(update={"exclude": True}))
    assert sorted(keys(those) + keys(others)) == keys(everything)
    assert those
    purged = await relay.purge_dead_letters(filter=wanted)
    assert purged == len(those)
    assert keys(await relay.dead_letters()) == keys(others)
    assert (await relay.dead_letter_page())[1] == len(others)


async def test_purge_by_ids_age_and_all(relay: RelayCore, clock: FakeClock, data_dir: Path) -> None:
    ids = []
    for _ in range(6):
        ids.append(await fail(relay, A))
        clock.advance(10)
    assert await relay.purge_dead_letters(ids=iter([ids[0], "unknown"])) == 1
    assert await relay.purge_dead_letters(older_than=timedelta(seconds=50)) == 0
    assert await relay.purge_dead_letters(older_than=timedelta(seconds=49)) == 1
    assert await relay.purge_dead_letters(older_than=clock.now_ms() - 30_000, ids=ids[3:]) == 0
    assert await relay.purge_dead_letters(older_than=clock.now_ms() - 29_999, ids=ids[3:]) == 1
    assert [letter.message_id for letter in await relay.dead_letters()] == [ids[2], ids[4], ids[5]]
    assert await relay.purge_dead_letters() == 3
    assert await relay.purge_dead_letters() == 0
    assert os.listdir(failed(data_dir, A)) == []
    assert [span.status for span in await relay.trace(ids[2])] == ["purged"]
    assert await relay.dead_letter_groups() == []


async def test_purging_what_is_no_message_removes_its_bytes_and_its_row(relay: RelayCore, data_dir: Path) -> None:
    (failed(data_dir, A).parent / "new" / "stray").mkdir()
    relay.bus.intake.rescan()
    await tasks_ended("rescan")
    assert (await relay.dead_letter_page())[1] == 1
    assert len(os.listdir(failed(data_dir, A))) == 2
    assert await relay.purge_dead_letters() == 1
    assert os.listdir(failed(data_dir, A)) == []
    assert await relay.dead_letter_page() == ([], 0, None)
    assert next(state.failed for state in relay.mailboxes() if state.subject == A) == 0


async def test_a_letter_that_was_replayed_meanwhile_is_not_purged(data_dir: Path, clock: FakeClock) -> None:
    """Nor does the journal say that it is gone, which would lose it at the next start after a power loss."""
    config = CONFIG.model_copy(update={"durability": "fsync"})
    async with RelayCore(data_dir, config, clock) as relay:
        await relay.register_endpoint(A)
        message_id = await fail(relay, A)
        mailbox, letter = await asyncio.to_thread(relay.bus.dead_letters.find, message_id)
        await relay.run_replay((await relay.plan_replay([message_id])).id)
        assert not relay.bus.dead_letters.remove(mailbox, letter, "purged")
        journal = b"".join(path.read_bytes() for path in sorted((data_dir / "journal").iterdir()))
        assert journal.rfind(b'"gone"') < journal.rfind(b'"again"')
        assert [message.id for message in await relay.inbox(A)] == [message_id]


async def test_copies_kept_aside_are_listed_only_when_asked_for(relay: RelayCore, data_dir: Path) -> None:
    message_id = await fail(relay, A)
    path = failed(data_dir, A) / f"{message_id}.json"
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), "partial": True}))
    assert await relay.dead_letters() == []
    assert [letter.message_id for letter in await relay.dead_letters(include_partial=True)] == [message_id]
    assert await relay.purge_dead_letters() == 1


async def test_the_kept_copy_of_a_partial_delivery_is_listed_grouped_planned_exported_and_purged(
    relay: RelayCore,
) -> None:
    await fail(relay, A)
    await relay.add_adapter(SampleAdapter(patterns=[B], platform=refuse))
    partial = (await relay.publish(B, {"content": "needle"}, sender=SENDER)).message_id
    (found,) = (await relay.search_traces(TraceSearch(status="partial"))).rows
    assert (found.message_id, found.status) == (partial, "partial")
    assert partial not in [letter.message_id for letter in await relay.dead_letters()]
    only = DeadLetterFilter(where="partial=yes")
    assert [letter.message_id for letter in await relay.dead_letters(include_partial=True, filter=only)] == [partial]
    for chosen in (only, DeadLetterFilter(where="needle")):
        rows, _, _ = await relay.dead_letter_page(chosen)
        assert [(letter.message_id, letter.partial) for letter in rows] == [(partial, True)]
        plan = await relay.plan_replay(filter=chosen)
        assert [(item.message_id, item.partial) for item in plan.items] == [(partial, True)]
        assert (plan.head().total, plan.head().partial) == (1, 1)
        exported, _ = await relay.export_dead_letters(chosen, room=1_000_000)
        assert [(letter.message_id, letter.partial) for letter in exported] == [(partial, True)]
    rows, total, _ = await relay.dead_letter_page()
    assert (total, sorted(letter.partial for letter in rows)) == (2, [False, True])
    groups = await relay.dead_letter_groups()
    assert {(group.endpoint_subject, group.partial, group.count) for group in groups} == {
        (A, False, 1),
        ("relay.adapter.sample", True, 1),
    }
    assert count_dead(groups) == 1
    assert await relay.purge_dead_letters(filter=DeadLetterFilter(where="partial=no")) == 1
    assert [letter.message_id for letter in await relay.dead_letters(include_partial=True)] == [partial]
    assert await relay.purge_dead_letters(filter=only) == 1
    assert await relay.dead_letter_groups() == []


async def test_one_dead_letter_is_found_by_id_and_target(relay: RelayCore) -> None:
    message_id = (await relay.publish("relay.agent.*", 1, sender=SENDER)).message_id
    for subject in (A, B):
        await relay.claim(subject)
        await relay.fail(subject, message_id, f"at {subject}")
    store = relay.bus.dead_letters
    for endpoint in (B, subject_hash(B)):
        mailbox, letter = await asyncio.to_thread(store.find, message_id, endpoint)
        assert (mailbox.subject, letter.reason) == (B, f"at {B}")
    for endpoint in (C, "relay.agent.unknown"):
        with pytest.raises(NotFound):
            await asyncio.to_thread(store.find, message_id, endpoint)
    with pytest.raises(NotFound, match="no dead letter 01HF7YAT0A8CDKSYBCF7B20000"):
        await asyncio.to_thread(store.find, "01HF7YAT0A8CDKSYBCF7B20000")


async def test_every_kind_of_dead_letter_survives_its_wire_form(
    relay: RelayCore, clock: FakeClock, data_dir: Path
) -> None:
    await every_kind(relay, clock, data_dir)
    letters = await relay.dead_letters()
    assert [DeadLetter.model_validate(orjson.loads(orjson.dumps(letter.to_wire()))) for letter in letters] == letters


async def test_a_broadcast_nobody_heard_is_a_dead_letter_that_can_be_read(relay: RelayCore) -> None:
    await relay.publish("relay.nobody.*", {"n": 1}, sender=SENDER)
    (letter,) = await relay.dead_letters()
    assert letter.code == "no_match"
    assert letter.envelope is not None
    assert (letter.envelope.subject, letter.envelope.payload) == ("relay.nobody.*", {"n": 1})


def damage(path: Path, how: str) -> None:
    match how:
        case "garbage":
            path.write_bytes(b"\xff\x00 garbage")
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(path.read_bytes()[:-20])
        case "bad time":
            path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), "failedAt": "yesterday"}))
        case "other id":
            record = orjson.loads(path.read_bytes())
            record["envelope"]["id"] = "01HF7YAT0A8CDKSYBCF7B20000"
            path.write_bytes(orjson.dumps(record))
        case "link":
            path.unlink()
            path.symlink_to("/etc/passwd")
        case "fifo":
            path.unlink()
            os.mkfifo(path)
        case "directory":
            path.unlink()
            path.mkdir()
        case "huge":
            with path.open("ab") as file:
                file.truncate(1 << 30)


HOW = ["garbage", "empty", "cut", "bad time", "other id", "link", "fifo", "directory", "huge"]


@pytest.mark.parametrize("how", HOW)
async def test_a_damaged_record_is_listed_as_malformed_and_harms_no_other(
    how: str, relay: RelayCore, data_dir: Path
) -> None:
    bad, good = await fail(relay, A), await fail(relay, A)
    damage(failed(data_dir, A) / f"{bad}.json", how)
    letters = await relay.dead_letters()
    assert [(letter.message_id, letter.code) for letter in letters] == [(bad, "malformed"), (good, "consumer_failed")]
    assert letters[0].reason.startswith("the record is damaged: ")
    assert letters[0].envelope is None
    assert keys(await relay.dead_letters(filter=DeadLetterFilter(failed_after=0))) == keys(letters)
    assert keys(await relay.dead_letters(filter=DeadLetterFilter(code="malformed"))) == keys(letters[:1])
    plan = await relay.plan_replay()
    assert [item.verdict for item in plan.items] == ["malformed", "will_deliver"]
    await relay.rebuild_index()
    assert (await relay.dead_letter_page())[1] == 2
    assert await relay.purge_dead_letters() == (1 if how == "directory" else 2)
    assert keys(await relay.dead_letters()) == (keys(letters[:1]) if how == "directory" else [])


async def test_a_name_that_is_no_id_is_passed_over(relay: RelayCore, data_dir: Path) -> None:
    good = await fail(relay, A)
    (failed(data_dir, A) / "notes.json").write_text("{}")
    (failed(data_dir, A) / ("7" + "Z" * 25 + ".json")).write_text("{}")
    assert [letter.message_id for letter in await relay.dead_letters()] == [good, "7" + "Z" * 25]
    await relay.rebuild_index()
    assert (await relay.dead_letter_page())[1] == 2


async def test_where_a_record_lies_decides_whose_it_is(relay: RelayCore, data_dir: Path) -> None:
    message_id = await fail(relay, A)
    shutil.move(failed(data_dir, A) / f"{message_id}.json", failed(data_dir, B))
    relay.bus.mailboxes.get(subject_hash(B)).dead += 1  # type: ignore[union-attr]
    (letter,) = await relay.dead_letters()
    assert letter.endpoint_hash == subject_hash(B)
    assert await relay.purge_dead_letters() == 1


async def test_listing_while_letters_come_and_go_never_fails(relay: RelayCore) -> None:
    async def handle(envelope: Envelope) -> None:
        raise ValueError

    await relay.subscribe("relay.agent.*", handle)
    for _ in range(20):
        await relay.publish(A, 1, sender=SENDER)
        await relay.publish(B, 1, sender=SENDER)
        listed, purged, _ = await asyncio.gather(
            relay.dead_letters(), relay.purge_dead_letters(), relay.dead_letter_page()
        )
        assert len(listed) <= 4
        assert purged <= 4
    await relay.idle()
    await relay.purge_dead_letters()
    assert await relay.dead_letters() == []
    assert await relay.dead_letter_page() == ([], 0, None)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from([A, B, "relay.agent.nobody", "relay.agent.*"]), st.integers(0, 3)), max_size=12
    ),
    size=st.integers(1, 5),
)
def test_pages_put_together_are_the_whole(steps: list[tuple[str, int]], size: int, data_dir: Path) -> None:
    async def check() -> None:
        clock = FakeClock()
        async with RelayCore(data_dir / "law", CONFIG, clock) as relay:
            await relay.register_endpoint(A)
            await relay.register_endpoint(B)
            for subject, purge in steps:
                await relay.publish(subject, 1, sender=SENDER)
                for mailbox in (A, B):
                    for message in await relay.claim(mailbox, limit=10):
                        await relay.fail(mailbox, message.id, "no")
                if purge == 3 and (letters := await relay.dead_letters()):
                    await relay.purge_dead_letters(ids=[letters[len(letters) // 2].message_id])
            letters = await relay.dead_letters()
            listed = await pages(relay, size)
            assert [(letter.message_id, letter.endpoint_hash) for letter in listed] == keys(letters)[::-1]

    try:
        asyncio.run(check())
    finally:
        shutil.rmtree(data_dir / "law", ignore_errors=True)


async def browse(
    relay: RelayCore,
    filter: DeadLetterFilter | None = None,
    *,
    size: int = 100,
    room: int = 10**6,
    oldest: bool = False,
) -> tuple[list[DeadLetter], list[int]]:
    """Return every part, one after the other, and how long each was."""
    found: list[DeadLetter] = []
    lengths: list[int] = []
    cursor, totals = None, set()
    while True:
        if oldest:
            part, cursor = await relay.export_dead_letters(filter, after=cursor, limit=size, room=room)
        else:
            part, total, cursor = await relay.bus.dead_letters.browse(filter, after=cursor, limit=size, room=room)
            totals.add(total)
        found += part
        lengths.append(len(part))
        if cursor is None:
            assert oldest or totals == {len(found)}
            return found, lengths


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("oldest", [False, True])
@pytest.mark.parametrize(
    "filter",
    [
        pytest.param(None, id="all"),
        pytest.param(DeadLetterFilter(code="no_match"), id="by-code"),
        pytest.param(DeadLetterFilter(endpoint=A), id="by-endpoint"),
        pytest.param(DeadLetterFilter(endpoint="relay.agent.*", sender="relay.human.>"), id="by-pattern"),
        pytest.param(DeadLetterFilter(reason="reason 1"), id="by-reason"),
        pytest.param(DeadLetterFilter(code="no_match", exclude=True), id="all-but"),
        pytest.param(DeadLetterFilter(text='"N":'), id="by-body"),
    ],
)
async def test_browsing_shows_each_whole_dead_letter_once_in_order(
    relay: RelayCore, clock: FakeClock, data_dir: Path, filter: DeadLetterFilter | None, oldest: bool, size: int
) -> None:
    await every_kind(relay, clock, data_dir)
    expected = await relay.dead_letters(filter=filter)
    assert expected
    found, lengths = await browse(relay, filter, size=size, oldest=oldest)
    assert found == (expected if oldest else expected[::-1])
    assert max(lengths) <= size


@pytest.mark.parametrize("oldest", [False, True])
async def test_a_part_ends_where_its_room_does_but_holds_one_at_least(relay: RelayCore, oldest: bool) -> None:
    for number in range(6):
        await fail(relay, A, payload="x" * 1000 * (number + 1))
    found, lengths = await browse(relay, room=4000, oldest=oldest)
    assert len(found) == 6
    assert lengths == ([2, 1, 1, 1, 1] if oldest else [1, 1, 1, 1, 2])


LANGUAGE = [
    "reason~REASON",
    "!reason~reason",
    "code=no_match",
    "to=relay.agent.* from=relay.human.>",
    "to~nobody",
    "subject=relay.*.nobody",
    "!subject=relay.agent.a age<10s",
    "replays=0 !code=malformed",
    "age>2s",
]


@pytest.mark.parametrize("where", LANGUAGE)
async def test_listing_planning_exporting_and_purging_mean_the_same_dead_letters(
    where: str, relay: RelayCore, clock: FakeClock, data_dir: Path
) -> None:
    await every_kind(relay, clock, data_dir)
    wanted = DeadLetterFilter(where=where)
    everything = await relay.dead_letters()
    meant = relay.bus.dead_letters.select(wanted)
    subjects = {mailbox.hash: mailbox.subject for mailbox in relay.bus.mailboxes}
    expected = [
        letter
        for letter in everything
        if meant.accepts(letter, subjects[letter.endpoint_hash], parse_iso(letter.failed_at))
    ]
    assert 0 < len(expected) < len(everything)
    assert await relay.dead_letters(filter=wanted) == expected
    assert [row.cursor for row in await pages(relay, 3, wanted)] == [letter.cursor for letter in expected[::-1]]
    plan = await relay.plan_replay(filter=wanted)
    assert plan.keys() == keys(expected)
    assert (await relay.export_dead_letters(wanted, room=10**6))[0] == expected
    assert (await relay.export_dead_letters(plan_id=plan.id, room=10**6))[0] == expected
    assert await relay.purge_dead_letters(filter=wanted) == len(expected)
    assert await relay.dead_letters() == [letter for letter in everything if letter not in expected]


async def test_bodies_are_searched_piece_by_piece(relay: RelayCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadletter_store, "_SEARCH_ROWS", 4)
    ids = [await fail(relay, A, payload={"text": "Rare" if number in (1, 8) else "common"}) for number in range(10)]
    wanted = DeadLetterFilter(where="RARE code=consumer_failed")
    found: list[str] = []
    cursors = []
    after = None
    while True:
        rows, total, after = await relay.dead_letter_page(wanted, after=after, limit=5)
        assert total is None
        found += [row.message_id for row in rows]
        if after is None:
            break
        cursors.append(after.partition("/")[0])
    assert found == [ids[8], ids[1]]
    assert cursors == [ids[6], ids[2]]


async def test_a_search_in_bodies_ends_with_its_time_and_with_a_full_page(
    relay: RelayCore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await fail(relay, A, payload="word") for _ in range(5)]
    wanted = DeadLetterFilter(where="word")
    rows, _, cursor = await relay.dead_letter_page(wanted, limit=2)
    assert ([row.message_id for row in rows], cursor) == (ids[:2:-1], rows[-1].cursor)
    monkeypatch.setattr(deadletter_store, "_SEARCH_SECS", -1)
    rows, _, cursor = await relay.dead_letter_page(wanted, after=cursor)
    assert ([row.message_id for row in rows], cursor) == ([ids[2]], rows[-1].cursor)
    rows, _, cursor = await relay.dead_letter_page(DeadLetterFilter(where="nowhere"), after=f"{ids[0]}/")
    assert (rows, cursor) == ([], None)


async def test_only_the_files_are_read_that_the_index_points_to(
    relay: RelayCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await fail(relay, A, sender=f"relay.agent.s{number}") for number in range(5)]
    await tasks_ended("check index")
    read: list[str] = []
    original = deadletter_store.DeadLetterStore._read

    def note(self: deadletter_store.DeadLetterStore, mailbox: Mailbox, message_id: str) -> DeadLetter | None:
        read.append(message_id)
        return original(self, mailbox, message_id)

    monkeypatch.setattr(deadletter_store.DeadLetterStore, "_read", note)
    plan = await relay.plan_replay(filter=DeadLetterFilter(where="from~s3"))
    assert [item.message_id for item in plan.items] == read == [ids[3]]


async def test_an_index_that_is_behind_is_not_asked_where_to_look(relay: RelayCore) -> None:
    message_id = await fail(relay, A)
    await tasks_ended("check index")
    await relay.bus.index.run(lambda db: db.execute("DELETE FROM deliveries").fetchall())
    assert await relay.dead_letters(filter=DeadLetterFilter(code="consumer_failed")) == []
    relay.bus.index.dirty = True
    (letter,) = await relay.dead_letters(filter=DeadLetterFilter(code="consumer_failed"))
    assert letter.message_id == message_id


async def test_what_was_confirmed_is_what_is_purged(relay: RelayCore) -> None:
    wanted = DeadLetterFilter(where="to~agent")
    ids = [await fail(relay, A), await fail(relay, B)]
    plan = await relay.plan_replay(filter=wanted)
    later = await fail(relay, A)
    await relay.purge_dead_letters(ids=ids[:1])
    assert await relay.purge_dead_letters(plan_id=plan.id) == 1
    assert [letter.message_id for letter in await relay.dead_letters()] == [later]
    assert await relay.purge_dead_letters(plan_id=plan.id) == 0
    with pytest.raises(NotFound, match="no replay plan nonsense"):
        await relay.purge_dead_letters(plan_id="nonsense")


async def exported(relay: RelayCore, plan_id: str) -> list[str]:
    found, _ = await relay.export_dead_letters(plan_id=plan_id, room=1 << 20)
    return [letter.message_id for letter in found]


async def test_a_letter_that_has_failed_again_is_not_the_one_that_was_frozen(relay: RelayCore) -> None:
    again, still = await fail(relay, A), await fail(relay, B)
    plan = await relay.plan_replay()
    assert await exported(relay, plan.id) == [again, still]
    await relay.run_replay((await relay.plan_replay([again])).id)
    (message,) = await relay.claim(A)
    await relay.fail(A, message.id, "for another reason")
    assert await exported(relay, plan.id) == [still]
    assert await relay.purge_dead_letters(plan_id=plan.id) == 1
    assert [letter.reason for letter in await relay.dead_letters()] == ["for another reason"]


async def test_what_grows_old_enough_after_the_plan_is_not_in_it(relay: RelayCore, clock: FakeClock) -> None:
    old = await fail(relay, A)
    clock.advance(10)
    young = await fail(relay, A)
    plan = await relay.plan_replay(filter=DeadLetterFilter(where="age>6s"))
    clock.advance(10)
    assert await exported(relay, plan.id) == [old]
    assert await relay.purge_dead_letters(plan_id=plan.id) == 1
    assert [letter.message_id for letter in await relay.dead_letters()] == [young]


async def test_a_plan_means_nothing_of_what_was_gone_when_it_was_frozen(relay: RelayCore) -> None:
    message_id = await fail(relay, A)
    await relay.run_replay((await relay.plan_replay([message_id])).id)
    plan = await relay.plan_replay([message_id])
    assert [(item.verdict, item.failed_at) for item in plan.items] == [("already_replayed", None)]
    (message,) = await relay.claim(A)
    await relay.fail(A, message.id, "again")
    assert await exported(relay, plan.id) == []
    assert await relay.purge_dead_letters(plan_id=plan.id) == 0
    assert len(await relay.dead_letters()) == 1


async def test_a_plan_by_ids_is_exported_in_parts_whatever_their_order(relay: RelayCore) -> None:
    ids = [await fail(relay, A) for _ in range(7)]
    plan = await relay.plan_replay([ids[n] for n in (3, 0, 6, 2, 5, 1, 4)])
    found: list[str] = []
    after = None
    while True:
        part, after = await relay.export_dead_letters(plan_id=plan.id, after=after, limit=2, room=1 << 20)
        found += [letter.message_id for letter in part]
        if after is None:
            break
    assert found == ids


async def test_keys_are_in_order_however_many_are_sorted_at_a_time(
    relay: RelayCore, clock: FakeClock, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await every_kind(relay, clock, data_dir)
    monkeypatch.setattr(deadletter_store, "_SORTED", 3)
    found = keys(await relay.dead_letters())
    assert len(found) == 20
    assert found == sorted(found)


async def test_a_message_dead_at_two_targets_is_marked_at_one(relay: RelayCore) -> None:
    message_id = (await relay.publish("relay.agent.*", 1, sender=SENDER)).message_id
    for subject in (A, B, C):
        await relay.claim(subject)
        await relay.fail(subject, message_id, "no")
    at_a, at_b, at_c = (f"{message_id}/{subject_hash(subject)}" for subject in (A, B, C))
    plan = await relay.plan_replay([at_b])
    assert [item.endpoint_subject for item in plan.items] == [B]
    plan = await relay.plan_replay([at_b, message_id, at_b])
    assert plan.items[0].endpoint_subject == B
    assert sorted(item.endpoint_subject for item in plan.items) == [A, B, C]
    assert await relay.purge_dead_letters(ids=[at_b, at_c]) == 2
    assert await relay.purge_dead_letters(filter=DeadLetterFilter(ids=(at_b,))) == 0
    assert [letter.cursor for letter in await relay.dead_letters(filter=DeadLetterFilter(ids=(at_a,)))] == [at_a]
    plan = await relay.plan_replay([at_a, at_b])
    assert [(item.endpoint_subject, item.verdict) for item in plan.items] == [
        (A, "will_deliver"),
        (B, "already_replayed"),
    ]
    with pytest.raises(NotFound, match=f"no dead letter {message_id}/nonsense"):
        await relay.plan_replay([f"{message_id}/nonsense"])


async def test_plans_are_forgotten_by_how_much_they_hold(relay: RelayCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_KEPT_ITEMS", 5)
    for _ in range(3):
        await fail(relay, A)
    plans = [await relay.plan_replay() for _ in range(2)]
    with pytest.raises(NotFound):
        relay.replays.frozen(plans[0].id)
    assert relay.replays.frozen(plans[1].id) is plans[1]
    await relay.run_replay(plans[1].id)
    assert relay.replays.frozen(plans[1].id) is plans[1]  # also when it has been run


async def test_the_head_of_a_plan_counts_its_verdicts(relay: RelayCore) -> None:
    await fail(relay, A)
    await fail(relay, A)
    await relay.publish("relay.agent.nobody", 1, sender=SENDER)
    head = (await relay.plan_replay()).head()
    assert (head.total, list(head.counts.items())) == (3, [("will_deliver", 2), ("no_target", 1)])


@pytest.mark.parametrize("how", ["long", "NUL", "no Unicode"])
async def test_a_strange_reason_is_the_same_in_the_record_and_in_the_index(how: str, relay: RelayCore) -> None:
    reason = {"long": "x" * 3000, "NUL": "a\0b", "no Unicode": "a\udcffb"}[how]
    await fail(relay, A, reason)
    (letter,) = await relay.dead_letters()
    (row,), _, _ = await relay.dead_letter_page()
    assert (row.reason, row.failed_at) == (letter.reason, parse_iso(letter.failed_at))
    (found,), _, _ = await relay.dead_letter_page(DeadLetterFilter(where=f'reason="{letter.reason}"'))
    assert found == row
