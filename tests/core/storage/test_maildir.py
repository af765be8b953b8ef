"""Maildir: whole files only, one claimant, never in neither place, and nothing is read that should not be."""

from __future__ import annotations

import errno
import os
import resource
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relay_core.storage.maildir import CUR, FAILED, NEW, STATES, TMP, Maildir
from relay_core.storage.stored_message import FileContent
from relay_core.storage.trusted_file import UntrustedFile, read_regular_file

ID = "01HF0000000000000000000001"
OTHER = "01HF0000000000000000000002"
LIMIT = 1000


@pytest.fixture(params=[True, False], ids=["unnamed", "named"])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Maildir:
    """Return an empty mailbox, for each of the two ways to write."""
    made = Maildir(tmp_path / "box", unnamed=request.param)
    made.create(sync=True)
    return made


@pytest.fixture
def small_files_only() -> Iterator[None]:
    """Let no file grow beyond a page, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def everything(box: Maildir) -> dict[str, list[str]]:
    return {state: names for state in (*STATES, TMP) if (names := sorted(os.listdir(box.path / state)))}


class TestWrite:
    def test_a_message_is_a_whole_private_file_in_new(self, box: Maildir) -> None:
        before = os.umask(0)
        try:
            box.write(ID, b"data" * 10_000)
        finally:
            os.umask(before)
        assert box.read(NEW, ID, limit=100_000) == b"data" * 10_000
        assert stat.S_IMODE(os.stat(f"{box.new}{ID}.json").st_mode) == 0o600
        assert everything(box) == {NEW: [f"{ID}.json"]}

    def test_the_directories_are_private(self, box: Maildir) -> None:
        for path in (box.path, box.new, box.cur, box.failed, box.tmp):
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o700

    def test_it_never_overwrites(self, box: Maildir) -> None:
        box.write(ID, b"first")
        with pytest.raises(FileExistsError):
            box.write(ID, b"second")
        assert box.read(NEW, ID, limit=LIMIT) == b"first"
        assert everything(box) == {NEW: [f"{ID}.json"]}

    def test_it_never_writes_through_a_link(self, box: Maildir, tmp_path: Path) -> None:
        precious = tmp_path / "precious"
        precious.write_bytes(b"precious")
        os.symlink(precious, f"{box.new}{ID}.json")
        with pytest.raises(FileExistsError):
            box.write(ID, b"data")
        assert precious.read_bytes() == b"precious"

    def test_our_own_writes_have_no_second_name(self, box: Maildir) -> None:
        box.write(ID, b"data")
        assert os.stat(f"{box.new}{ID}.json").st_nlink == 1

    def test_a_leftover_of_a_killed_writer_in_tmp_does_not_block_a_write(self, box: Maildir) -> None:
        Path(box.tmp, f"{ID}.json").write_bytes(b"ha")
        box.write(ID, b"whole")
        box.remove(NEW, ID)
        Path(box.tmp, f"{OTHER}.failed").write_bytes(b"ha")
        box.write_failed(OTHER, b"record")
        assert box.read(FAILED, OTHER, limit=LIMIT) == b"record"

    @pytest.mark.usefixtures("small_files_only")
    def test_a_write_that_is_cut_short_leaves_nothing(self, box: Maildir) -> None:
        for write in (box.write, box.write_failed, box.write_failed):
            with pytest.raises(OSError, match="File too large"):
                write(ID, b"x" * 10_000)
            assert everything(box) == {}

    @pytest.mark.usefixtures("small_files_only")
    def test_a_failed_dead_lettering_leaves_the_message_in_place(self, box: Maildir) -> None:
        box.write(ID, b"message")
        box.claim(ID)
        with pytest.raises(OSError, match="File too large"):
            box.move_to_failed(ID, b"x" * 10_000)
        assert everything(box) == {CUR: [f"{ID}.json"]}

    def test_a_mailbox_that_was_removed_is_an_error(self, box: Maildir) -> None:
        box.destroy()
        with pytest.raises(FileNotFoundError):
            box.write(ID, b"data")


def test_where_unnamed_files_are_not_known_the_named_way_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def old_kernel(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", old_kernel)
    box = Maildir(tmp_path / "box")
    box.create(sync=False)
    for message_id in (ID, OTHER):
        box.write(message_id, b"data")
    assert everything(box) == {NEW: [f"{ID}.json", f"{OTHER}.json"]}


class TestMoves:
    def test_of_two_claimants_exactly_one_succeeds(self, box: Maildir) -> None:
        ids = [f"01HF00000000000000000{number:05d}" for number in range(200)]
        for message_id in ids:
            box.write(message_id, b"data")
        claims: list[str] = []

        def claim_all() -> None:
            claims.extend([message_id for message_id in ids if box.claim(message_id)])

        threads = [threading.Thread(target=claim_all) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(claims) == ids
        assert box.ids(CUR) == ids

    def test_complete_removes_a_claimed_message_once(self, box: Maildir) -> None:
        box.write(ID, b"data")
        assert not box.complete(ID)
        assert box.claim(ID)
        assert box.complete(ID)
        assert not box.complete(ID)
        assert everything(box) == {}

    def test_unclaim_returns_it_to_new(self, box: Maildir) -> None:
        box.write(ID, b"data")
        assert not box.unclaim(ID)
        box.claim(ID)
        assert box.unclaim(ID)
        assert everything(box) == {NEW: [f"{ID}.json"]}

    def test_unclaim_does_not_overwrite(self, box: Maildir) -> None:
        box.write(ID, b"first")
        box.claim(ID)
        box.write(ID, b"dropped meanwhile")
        assert not box.unclaim(ID)
        assert box.read(NEW, ID, limit=LIMIT) == b"dropped meanwhile"
        assert box.read(CUR, ID, limit=LIMIT) == b"first"

    @pytest.mark.parametrize("state", [NEW, CUR, None])
    def test_move_to_failed_takes_it_from_new_or_cur(self, box: Maildir, state: str | None) -> None:
        if state is not None:
            box.write(ID, b"data")
        if state == CUR:
            box.claim(ID)
        box.move_to_failed(ID, b"record")
        assert everything(box) == {FAILED: [f"{ID}.json"]}
        assert box.read(FAILED, ID, limit=LIMIT) == b"record"

    def test_move_to_failed_writes_before_it_removes(self, box: Maildir, monkeypatch: pytest.MonkeyPatch) -> None:
        box.write(ID, b"data")
        box.claim(ID)
        seen: list[set[str]] = []
        real = os.unlink

        def watched(path: str, *, dir_fd: int | None = None) -> None:
            seen.append(box.whereabouts(ID))
            real(path, dir_fd=dir_fd)

        monkeypatch.setattr(os, "unlink", watched)
        box.move_to_failed(ID, b"record")
        assert seen[0] == {CUR, FAILED}

    def test_parking_again_replaces_the_record(self, box: Maildir) -> None:
        box.move_to_failed(ID, b"first")
        box.move_to_failed(ID, b"second")
        assert box.read(FAILED, ID, limit=LIMIT) == b"second"

    def test_set_aside_moves_without_opening(self, box: Maildir) -> None:
        os.mkfifo(f"{box.new}{ID}.json")
        box.quarantine(NEW, f"{ID}.json", ID)
        assert stat.S_ISFIFO(os.lstat(f"{box.failed}{ID}.original").st_mode)
        assert box.ids(FAILED) == []

    @pytest.mark.parametrize("kind", ["file", "fifo", "link", "directory", "full directory", "nothing"])
    def test_what_was_set_aside_can_be_removed(self, box: Maildir, tmp_path: Path, kind: str) -> None:
        path = Path(box.failed, f"{ID}.original")
        if kind == "file":
            path.write_bytes(b"x")
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(tmp_path)
        elif "directory" in kind:
            path.mkdir()
        if kind == "full directory":
            (path / "inside").write_bytes(b"x")
        box.remove_original(ID)
        assert everything(box) == {}
        assert tmp_path.exists()


@pytest.fixture(params=["pending", "file"])
def put(request: pytest.FixtureRequest, box: Maildir) -> Callable[[str, bytes], None]:
    """Return a function that adds a message to a mailbox, without or with a file."""
    return box.write if request.param == "file" else lambda id, data: box.hold(id, FileContent(data))


Put = Callable[[str, bytes], None]


class TestPending:
    """A message without a file is in new/ or cur/ for every method."""

    def test_claim_unclaim_and_complete(self, box: Maildir, put: Put) -> None:
        put(ID, b"data")
        assert not box.unclaim(ID)
        assert not box.complete(ID)
        assert box.claim(ID)
        assert not box.claim(ID)
        assert box.whereabouts(ID) == {CUR}
        assert box.unclaim(ID)
        assert box.whereabouts(ID) == {NEW}
        assert box.claim(ID)
        assert box.complete(ID)
        assert not box.complete(ID)
        box.write_pending(ID)
        assert (box.whereabouts(ID), everything(box), box.pending) == (set(), {}, {})

    def test_read_in_its_state_only(self, box: Maildir, put: Put) -> None:
        put(ID, b"data")
        assert box.read(NEW, ID, limit=LIMIT) == b"data"
        with pytest.raises(FileNotFoundError):
            box.read(CUR, ID, limit=LIMIT)
        box.claim(ID)
        assert box.read(CUR, ID, limit=LIMIT) == b"data"
        with pytest.raises(FileNotFoundError):
            box.read(NEW, ID, limit=LIMIT)

    def test_remove_from_its_state_only(self, box: Maildir, put: Put) -> None:
        put(ID, b"data")
        assert not box.remove(CUR, ID)
        assert not box.remove(FAILED, ID)
        assert box.remove(NEW, ID)
        assert box.whereabouts(ID) == set()

    @pytest.mark.parametrize("state", [NEW, CUR])
    def test_move_to_failed(self, box: Maildir, put: Put, state: str) -> None:
        put(ID, b"data")
        if state == CUR:
            box.claim(ID)
        box.move_to_failed(ID, b"record")
        box.write_pending(ID)
        assert (box.whereabouts(ID), everything(box)) == ({FAILED}, {FAILED: [f"{ID}.json"]})

    @pytest.mark.parametrize("state", [NEW, CUR])
    def test_its_file_is_made_where_it_is_by_then_whole_and_private(self, box: Maildir, put: Put, state: str) -> None:
        put(ID, b"data" * 10_000)
        if state == CUR:
            box.claim(ID)
        for _ in range(2):
            box.write_pending(ID)
            assert everything(box) == {state: [f"{ID}.json"]}
        assert box.pending == {}
        assert box.read(state, ID, limit=100_000) == b"data" * 10_000
        assert stat.S_IMODE(os.stat(f"{box.path}/{state}/{ID}.json").st_mode) == 0o600

    @pytest.mark.parametrize("put", ["pending"], indirect=True)
    def test_its_file_never_overwrites(self, box: Maildir, put: Put) -> None:
        put(ID, b"ours")
        Path(box.new, f"{ID}.json").write_bytes(b"dropped")
        with pytest.raises(FileExistsError):
            box.write_pending(ID)
        assert Path(box.new, f"{ID}.json").read_bytes() == b"dropped"
        assert ID in box.pending
        assert everything(box) == {NEW: [f"{ID}.json"]}

    @pytest.mark.usefixtures("small_files_only")
    @pytest.mark.parametrize("put", ["pending"], indirect=True)
    def test_a_write_that_is_cut_short_leaves_it_pending(self, box: Maildir, put: Put) -> None:
        put(ID, b"x" * 10_000)
        with pytest.raises(OSError, match="File too large"):
            box.write_pending(ID)
        assert everything(box) == {}
        assert box.read(NEW, ID, limit=100_000) == b"x" * 10_000

    def test_a_message_that_ends_or_is_claimed_while_it_is_written_is_never_left_behind(self, box: Maildir) -> None:
        """A thread writes while this one claims, returns and ends messages."""
        ids = [f"01HF00000000000000000{number:05d}" for number in range(300)]
        for message_id in ids:
            box.hold(message_id, FileContent(b"data"))

        def write_all() -> None:
            for message_id in ids:
                box.write_pending(message_id)

        writer = threading.Thread(target=write_all)
        writer.start()
        for number, message_id in enumerate(ids):
            assert box.claim(message_id)
            assert box.read(CUR, message_id, limit=LIMIT) == b"data"
            if number % 3 == 0:
                assert box.complete(message_id)
            elif number % 3 == 1:
                assert box.unclaim(message_id)
            else:
                box.move_to_failed(message_id, b"record")
        writer.join()
        assert box.pending == {}
        assert box.ids(NEW) == [message_id for number, message_id in enumerate(ids) if number % 3 == 1]
        assert box.ids(CUR) == []
        assert box.ids(FAILED) == [message_id for number, message_id in enumerate(ids) if number % 3 == 2]
        assert os.listdir(box.tmp) == []


class TestRead:
    def test_it_reads_up_to_the_limit(self, box: Maildir) -> None:
        box.write(ID, b"x" * LIMIT)
        assert len(box.read(NEW, ID, limit=LIMIT)) == LIMIT
        with pytest.raises(UntrustedFile, match="1000 bytes, the limit is 999"):
            box.read(NEW, ID, limit=LIMIT - 1)

    def test_what_is_not_there_is_not_found(self, box: Maildir) -> None:
        with pytest.raises(FileNotFoundError):
            box.read(NEW, ID, limit=LIMIT)

    @pytest.mark.parametrize(
        ("make", "problem"),
        [
            (lambda path: os.symlink("/etc/hostname", path), "symbolic link"),
            (lambda path: os.symlink("/nowhere", path), "symbolic link"),
            (lambda path: os.mkfifo(path), "not a regular file"),
            (lambda path: os.mkdir(path), "not a regular file"),
        ],
        ids=["link", "dangling link", "fifo", "directory"],
    )
    def test_what_is_no_plain_file_is_not_read(self, tmp_path: Path, make: object, problem: str) -> None:
        path = str(tmp_path / "file")
        make(path)  # type: ignore[operator]
        with pytest.raises(UntrustedFile, match=problem):
            read_regular_file(path, limit=LIMIT)

    def test_a_file_of_another_user_is_not_read(self, tmp_path: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        path = tmp_path / "file"
        path.write_bytes(b"data")
        os.chown(path, 12345, 12345)
        with pytest.raises(UntrustedFile, match="another user \\(uid 12345\\)"):
            read_regular_file(str(path), limit=LIMIT)

    def test_a_huge_file_is_refused_by_its_size(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        with path.open("wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(UntrustedFile, match="the limit is 1000"):
            read_regular_file(str(path), limit=LIMIT)


class TestList:
    def test_ids_are_sorted_and_hidden_files_ignored(self, box: Maildir) -> None:
        for name in (f"{OTHER}.json", f"{ID}.json", ".hidden.json", f".{ID}.json.tmp", f"{ID}.original"):
            Path(box.new, name).touch()
        assert box.ids(NEW) == [ID, OTHER]
        assert sorted(box.names(NEW)) == [f"{ID}.json", f"{ID}.original", f"{OTHER}.json"]

    def test_a_mailbox_that_is_not_there_is_empty(self, tmp_path: Path) -> None:
        assert Maildir(tmp_path / "none").ids(NEW) == []
        (tmp_path / "file").touch()
        assert Maildir(tmp_path / "file").ids(NEW) == []

    def test_whereabouts(self, box: Maildir) -> None:
        assert box.whereabouts(ID) == set()
        box.write(ID, b"data")
        assert box.whereabouts(ID) == {NEW}
        box.write_failed(ID, b"record")
        os.symlink("/nowhere", f"{box.cur}{ID}.json")
        assert box.whereabouts(ID) == {NEW, CUR, FAILED}

    def test_sweep_removes_old_files_and_leaves_directories(self, box: Maildir) -> None:
        for name, age in (("old", 100.0), ("young", 300.0)):
            path = Path(box.tmp, name)
            path.touch()
            os.utime(path, (age, age))
        Path(box.tmp, "directory").mkdir()
        os.utime(Path(box.tmp, "directory"), (100, 100))
        assert box.sweep(older_than=200) == 1
        assert sorted(os.listdir(box.tmp)) == ["directory", "young"]


class TestCreateAndDestroy:
    def test_creating_again_changes_nothing(self, box: Maildir) -> None:
        box.write(ID, b"data")
        box.create(sync=True)
        assert everything(box) == {NEW: [f"{ID}.json"]}

    def test_a_file_in_the_way_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "box").mkdir()
        (tmp_path / "box" / "new").touch()
        with pytest.raises(FileExistsError):
            Maildir(tmp_path / "box").create(sync=False)

    def test_an_empty_mailbox_is_removed(self, box: Maildir) -> None:
        (box.path / "endpoint.json").touch()
        box.destroy()
        assert not box.path.exists()

    @pytest.mark.parametrize("state", [*STATES, TMP])
    def test_a_mailbox_that_is_not_empty_stays_usable(self, box: Maildir, state: str) -> None:
        (box.path / "endpoint.json").touch()
        (box.path / state / ".anything").touch()
        with pytest.raises(OSError, match="not empty"):
            box.destroy()
        assert (box.path / "endpoint.json").exists()
        box.write(ID, b"data")
        box.claim(ID)
        box.move_to_failed(ID, b"record")
