"""The state of the bus as operators see it."""

from __future__ import annotations

from relay_core import RelayCore
from relay_core.journal.usage import read_usage
from relay_core.messages.subjects import subject_hash
from relay_core.testing import FakeClock
from tests.kit.bus import A, B
from tests.kit.waiting import until


async def test_the_journal_tells_its_size_and_its_last_checkpoint(relay: RelayCore, clock: FakeClock) -> None:
    await relay.register_endpoint(A)
    before = relay.journal()
    await relay.publish(A, "x" * 100_000, sender=B)
    await relay.idle()
    clock.advance(5)
    after = relay.journal()
    assert after.bytes >= before.bytes + 100_000
    assert (after.pending, after.oldest_pending_ms) == (0, None)
    assert after.checkpointed_at == before.checkpointed_at  # that of the start
    relay.bus.commits.checkpoints.run()
    assert relay.journal().checkpointed_at == clock.now_ms()


async def test_a_message_that_is_not_a_file_is_counted_with_its_age(relay: RelayCore, clock: FakeClock) -> None:
    await relay.register_endpoint(A)
    new = relay.data_dir.mailboxes / subject_hash(A) / "new"
    new.rmdir()
    new.touch()  # so that no file can be made
    for _ in range(2):
        await relay.publish(A, {}, sender=B)
    await relay.idle()
    clock.advance(3)
    state = relay.journal()
    assert (state.pending, state.oldest_pending_ms) == (2, 3000)
    assert "2 messages not yet files, the oldest for 3.0s" in state.describe(clock.now_ms())
    new.unlink()
    await until(lambda: relay.journal().pending == 0)
    assert relay.journal().oldest_pending_ms is None
    assert len(list(new.iterdir())) == 2


async def test_a_stopped_bus_leaves_no_segment_that_a_start_would_read(relay: RelayCore) -> None:
    await relay.register_endpoint(A)
    await relay.publish(A, {}, sender=B)
    directory = relay.data_dir.journal
    await relay.close()
    usage = read_usage(directory)
    assert usage.bytes == 0
    assert usage.kept_bytes > 0
    assert usage.closed_ms is not None


async def test_without_closed_segments_the_last_checkpoint_of_a_stopped_bus_is_unknown(relay: RelayCore) -> None:
    assert read_usage(relay.data_dir.path / "none") == (0, 0, None)
