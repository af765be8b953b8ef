"""Files that other processes put into a mailbox, and take out of it."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from pathlib import Path

from relay_core import RelayCore
from relay_core.messages.ids import UlidFactory
from relay_core.messages.subjects import subject_hash
from relay_core.testing import FakeClock
from tests.kit.bus import A, assert_counts_match_files, codes, config, drop, envelope_json, files, publish_all
from tests.kit.handlers import Listener
from tests.kit.waiting import until

# Mail that other processes drop


DROPPER = """
    import os, sys
    box = sys.argv[1]
    for line in sys.stdin.buffer:
        name = line[7:33].decode() + ".json"
        with open(f"{box}/tmp/{name}", "wb") as file:
            file.write(line)
        os.rename(f"{box}/tmp/{name}", f"{box}/new/{name}")
"""


async def test_files_that_another_process_drops_are_delivered_in_order(data_dir: Path) -> None:
    listener = Listener()
    async with RelayCore(data_dir, config()) as relay:
        await relay.register_endpoint(A)
        await relay.subscribe(A, listener)
        assert relay.bus.drops.polled == []  # watched, not polled
        box = data_dir / "mailboxes" / subject_hash(A)
        new_id = UlidFactory(relay.bus.clock)
        lines = [envelope_json(new_id(), A, number, relay.bus.clock) for number in range(50)]
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", textwrap.dedent(DROPPER), str(box), stdin=asyncio.subprocess.PIPE
        )
        await child.communicate(b"\n".join(lines) + b"\n")
        assert child.returncode == 0
        await until(lambda: len(listener.got) == 50)
        await relay.idle()
        assert listener.got == list(range(50))
        assert files(data_dir, A, "new") == files(data_dir, A, "cur") == files(data_dir, A, "failed") == []
        assert_counts_match_files(relay, data_dir)


async def test_a_dropped_file_waits_its_turn_and_counts_as_depth(relay: RelayCore, data_dir: Path) -> None:
    await relay.register_endpoint(A)
    await publish_all(relay, A, [1])
    drop(data_dir, A, 2, relay.bus.clock)
    await until(lambda: relay.mailboxes()[0].depth == 2)
    await publish_all(relay, A, [3])
    assert_counts_match_files(relay, data_dir)
    listener = Listener()
    await relay.subscribe(A, listener)
    await relay.idle()
    assert listener.got == [1, 2, 3]


async def test_what_was_dropped_while_no_bus_ran_is_found_at_the_start(data_dir: Path, clock: FakeClock) -> None:
    listener = Listener()
    async with RelayCore(data_dir, config(), clock) as relay:
        await relay.register_endpoint(A)
        await publish_all(relay, A, [1])
    clock.advance(1)
    drop(data_dir, A, 2, clock)
    async with RelayCore(data_dir, config(), clock) as relay:
        await relay.subscribe(A, listener)
        await relay.idle()
        assert listener.got == [1, 2]


async def test_a_malformed_dropped_file_is_dead_lettered_and_blocks_no_other(relay: RelayCore, data_dir: Path) -> None:
    listener = Listener()
    await relay.register_endpoint(A)
    await relay.subscribe(A, listener)
    box = data_dir / "mailboxes" / subject_hash(A)
    for name, data in ((f"{UlidFactory(relay.bus.clock)()}.json", b"{}"), ("hello.txt", b"hello")):
        (box / "tmp" / name).write_bytes(data)
        (box / "tmp" / name).rename(box / "new" / name)
    await until(lambda: relay.mailboxes()[0].failed >= 2)
    await publish_all(relay, A, [1])
    await relay.idle()
    assert listener.got == [1]
    assert await codes(relay) == ["malformed", "malformed"]
    assert files(data_dir, A, "new") == files(data_dir, A, "cur") == []


# Claims


async def test_a_message_that_another_process_takes_is_not_delivered_here(relay: RelayCore, data_dir: Path) -> None:
    await relay.register_endpoint(A)
    first, _ = await publish_all(relay, A, [1, 2])
    await relay.idle()
    box = data_dir / "mailboxes" / subject_hash(A)
    (box / "new" / f"{first}.json").rename(box / "cur" / f"{first}.json")
    listener = Listener()
    await relay.subscribe(A, listener)
    await relay.idle()
    assert listener.got == [2]
    assert (relay.mailboxes()[0].depth, await relay.dead_letters()) == (0, [])


async def test_a_disk_that_refuses_a_claim_holds_the_mail_up_and_loses_none(
    relay: RelayCore, data_dir: Path, clock: FakeClock
) -> None:
    listener = Listener()
    await relay.register_endpoint(A)
    await publish_all(relay, A, [1, 2])
    await relay.idle()
    box = data_dir / "mailboxes" / subject_hash(A)
    (box / "cur").rename(box / "cur.away")
    (box / "cur").write_bytes(b"")  # renaming into it is an error that is not "gone"
    await relay.subscribe(A, listener)
    await relay.idle()
    assert listener.got == []
    assert relay.mailboxes()[0].depth == 2
    (box / "cur").unlink()
    (box / "cur.away").rename(box / "cur")
    clock.advance(1)
    await relay.idle()
    assert listener.got == [1, 2]
    assert_counts_match_files(relay, data_dir)
