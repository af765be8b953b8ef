"""Files that another user may have placed: refused by name, whichever way they came, and never half trusted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from relay_core import AccessDenied, RelayConfig, RelayCore, RelayError
from relay_core.adapters.secret import resolve_secret
from relay_core.errors import StorageError
from relay_core.messages.subjects import subject_hash
from relay_core.storage.data_dir import DataDir
from relay_core.storage.trusted_file import UntrustedFile, check_path, read_trusted
from tests.kit.adapters import SampleAdapter
from tests.kit.bus import SENDER, A

STRANGER = 12345
CONFIG = RelayConfig(durability="os")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
not_root = pytest.mark.skipif(os.geteuid() == 0, reason="root can look into every directory")


def outside(path: Path) -> Path:
    """Return a place beside the data directory, which every test here calls `relay`."""
    data_dir = next(above for above in path.parents if above.name == "relay")
    return data_dir.with_name(f"elsewhere-{path.name}")


def swap(data_dir: Path, other: Path, *, by_link: bool) -> None:
    """Put another directory in the place of the data directory."""
    data_dir.rename(data_dir.with_name("away"))
    if by_link:
        data_dir.symlink_to(other)
    else:
        other.rename(data_dir)


def swap_back(data_dir: Path, other: Path, *, by_link: bool) -> None:
    if by_link:
        data_dir.unlink()
    else:
        data_dir.rename(other)
    data_dir.with_name("away").rename(data_dir)


def link(path: Path) -> None:
    """Put a link in a file's place, to the very same bytes."""
    path.rename(outside(path))
    path.symlink_to(outside(path))


def hard_link(path: Path) -> None:
    os.link(path, outside(path))


def give_away(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


PLANTING = [
    pytest.param(link, id="link"),
    pytest.param(hard_link, id="hard link"),
    pytest.param(give_away, id="another user's", marks=as_root),
]
Planting = Callable[[Path], None]


def refused(path: Path) -> StorageError:
    with pytest.raises(StorageError) as caught:
        DataDir(path).acquire()
    assert caught.value.code == "insecure_data_dir"
    return caught.value


def works(path: Path) -> None:
    place = DataDir(path)
    place.acquire()
    place.release()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.fixture
def usual_umask() -> Iterator[None]:
    """Make directories as where every user has a group of their own."""
    before = os.umask(0o002)
    yield
    os.umask(before)


class TestTheDirectoryItself:
    def test_a_link_is_refused_and_the_directory_is_named(self, data_dir: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(data_dir)
        error = refused(tmp_path / "link")
        assert f"{tmp_path / 'link'} is a symbolic link" in error.message
        assert f"--data-dir {data_dir}" in error.message

    def test_an_empty_one_is_closed_to_others(self, data_dir: Path) -> None:
        data_dir.chmod(0o777)
        works(data_dir)
        assert mode(data_dir) == 0o700

    def test_one_with_files_that_only_the_user_can_have_made_is_closed_to_others(self, data_dir: Path) -> None:
        data_dir.chmod(0o775)
        (data_dir / "config.json").write_text("{}")
        (data_dir / "config.json").chmod(0o644)
        works(data_dir)
        assert mode(data_dir) == 0o700

    @pytest.mark.parametrize(
        ("plant", "why"),
        [
            pytest.param(link, "it is a symbolic link", id="link"),
            pytest.param(hard_link, "has 2 names (hard links)", id="hard link"),
            pytest.param(give_away, f"belongs to another user (uid {STRANGER}", id="another user's", marks=as_root),
            pytest.param(lambda path: path.chmod(0o666), "others can write to", id="world-writable"),
            pytest.param(lambda path: path.chmod(0o660), "others can write to", id="group-writable"),
        ],
    )
    @pytest.mark.parametrize("name", ["config.json", "plugins/mine.py"])
    def test_one_that_was_writable_is_refused_with_what_others_may_have_placed(
        self, data_dir: Path, plant: Planting, why: str, name: str
    ) -> None:
        file = data_dir / name
        file.parent.mkdir(mode=0o700, exist_ok=True)
        file.write_text("{}")
        file.chmod(0o600)
        plant(file)
        data_dir.chmod(0o777)
        error = refused(data_dir)
        assert str(file) in error.message
        assert why in error.message
        assert f"ls -laR {data_dir}" in error.message
        assert f"chmod -R go-rwx {data_dir}" in error.message
        assert mode(data_dir) == 0o777  # it is for the operator to look at it first

    @not_root
    def test_one_that_was_writable_is_refused_if_not_all_of_it_can_be_looked_at(self, data_dir: Path) -> None:
        (data_dir / "shut").mkdir(mode=0)
        data_dir.chmod(0o777)
        assert f"cannot inspect {data_dir / 'shut'}" in refused(data_dir).message

    def test_one_in_a_directory_that_others_can_write_is_refused(self, data_dir: Path, tmp_path: Path) -> None:
        tmp_path.chmod(0o777)
        error = refused(data_dir)
        assert f"others can write to the directory {tmp_path}; run 'chmod go-w {tmp_path}'" in error.message
        tmp_path.chmod(0o1777)  # as /tmp
        works(data_dir)

    def test_all_directories_that_others_can_write_are_named_at_once(self, tmp_path: Path) -> None:
        first, second = tmp_path / "projects", tmp_path / "projects" / "a checkout"
        second.mkdir(parents=True)
        first.chmod(0o775)
        second.chmod(0o775)
        error = refused(second / "data")
        assert f"the directories {first} and {second}; run 'chmod go-w {first} '{second}'' (mode 0775, 0775)" in (
            error.message
        )
        first.chmod(0o755)
        second.chmod(0o755)
        works(second / "data")

    def test_a_name_chosen_by_others_runs_no_command_and_prints_no_control_characters(self, data_dir: Path) -> None:
        data_dir.chmod(0o777)
        hostile = data_dir / "x; echo \x1b[2J\n$(id)"
        hostile.write_text("")
        hostile.chmod(0o666)
        error = refused(data_dir)
        shown = f"{data_dir}/x; echo ?[2J?$(id)"
        assert shown in error.message
        assert f"chmod go-w '{shown}'" in error.message
        assert error.message.isprintable()

    @as_root
    def test_one_in_a_directory_of_another_user_is_refused(self, data_dir: Path, tmp_path: Path) -> None:
        give_away(tmp_path)
        assert f"{tmp_path} belongs to uid {STRANGER}, not to you or to root" in refused(data_dir).message

    @pytest.mark.parametrize("target", ["real", "./aside/../real", "{}/real"], ids=["relative", "dots", "absolute"])
    def test_the_users_own_link_above_it_is_followed_and_anothers_is_not(self, tmp_path: Path, target: str) -> None:
        for name in ("real", "aside"):
            (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / "above").symlink_to(target.format(tmp_path))
        works(tmp_path / "above" / "relay")
        assert (tmp_path / "real" / "relay" / "relay.lock").exists()
        if os.geteuid() == 0:
            give_away(tmp_path / "above")
            error = refused(tmp_path / "above" / "relay")
            assert f"{tmp_path / 'above'} belongs to uid {STRANGER}" in error.message

    def test_a_loop_of_links_above_it_ends(self, tmp_path: Path) -> None:
        (tmp_path / "loop").symlink_to("loop")
        with pytest.raises(OSError, match="Too many levels"):
            check_path(tmp_path / "loop" / "relay")

    @pytest.mark.usefixtures("usual_umask")
    def test_created_directories_are_not_writable_by_others(self, tmp_path: Path) -> None:
        works(tmp_path / "one" / "two" / "relay")
        works(tmp_path / "one" / "two" / "relay")
        assert {mode(tmp_path / name) for name in ("one", "one/two", "one/two/relay")} == {0o700}

    @as_root
    def test_root_uses_no_directory_of_another_user(self, data_dir: Path) -> None:
        give_away(data_dir)
        assert f"belongs to uid {STRANGER}, not to uid 0" in refused(data_dir).message


class TestWhatIsInIt:
    @pytest.mark.parametrize("plant", PLANTING[::2])
    @pytest.mark.parametrize("name", ["adapters", "agents", "events", "journal", "mailboxes", "reports"])
    def test_a_planted_directory_stops_the_start(self, data_dir: Path, name: str, plant: Planting) -> None:
        (data_dir / name).mkdir(mode=0o700)
        plant(data_dir / name)
        assert str(data_dir / name) in refused(data_dir).message
        assert not any((data_dir / name).iterdir())

    @pytest.mark.parametrize("plant", PLANTING[::2])
    @pytest.mark.parametrize(
        "name",
        [
            "access-rules.json",
            "adapters.json",
            "agents.json",
            "config.json",
            "conversations.json",
            "operator.token",
            "relay.lock",
            "relay.sock.lock",
            "schedule-state.json",
            "tokens.json",
        ],
    )
    def test_a_planted_file_stops_the_start(self, data_dir: Path, name: str, plant: Planting) -> None:
        (data_dir / name).write_text("as it was")
        (data_dir / name).chmod(0o600)
        plant(data_dir / name)
        assert str(data_dir / name) in refused(data_dir).message
        assert (data_dir / name).read_text() == "as it was"

    @pytest.mark.parametrize("plant", PLANTING)
    @pytest.mark.parametrize("name", ["config.json", "access-rules.json", "conversations.json"])
    async def test_a_planted_file_is_not_believed(self, data_dir: Path, name: str, plant: Planting) -> None:
        path = data_dir / name
        path.write_text("[]" if name != "config.json" else "{}")
        plant(path)
        try:
            async with RelayCore(data_dir, CONFIG) as relay:
                # A hard link to an own file: what cannot be read as good is as if it were broken.
                assert name != "config.json"
                if name == "access-rules.json":
                    assert str(path) in str(relay.bus.access.broken)
        except RelayError as error:
            assert str(path) in error.message  # noqa: PT017 - some are refused at the start, some later
        with pytest.raises(UntrustedFile, match=str(path)):
            read_trusted(path)

    @pytest.mark.parametrize("plant", PLANTING[::2])
    async def test_a_planted_mailbox_is_not_used(self, data_dir: Path, tmp_path: Path, plant: Planting) -> None:
        async with RelayCore(data_dir, CONFIG) as relay:
            await relay.register_endpoint(A)
        box = data_dir / "mailboxes" / subject_hash(A)
        plant(box)
        async with RelayCore(data_dir, CONFIG) as relay:
            assert relay.endpoints() == []
            with pytest.raises(StorageError, match=str(box)):
                await relay.register_endpoint(A)

    @pytest.mark.parametrize("plant", PLANTING[::2])
    async def test_an_adapter_gets_no_planted_directory(self, data_dir: Path, plant: Planting) -> None:
        home = data_dir / "adapters" / "sample"
        home.mkdir(mode=0o700, parents=True)
        home.chmod(0o755)
        plant(home)
        async with RelayCore(data_dir, CONFIG) as relay:
            with pytest.raises(StorageError, match=str(home)):
                await relay.add_adapter(SampleAdapter())
        assert mode(home) == 0o755

    @pytest.mark.parametrize("plant", PLANTING[::2])
    @pytest.mark.parametrize("name", ["index.db", "index.db-shm", "index.db-wal"])
    def test_a_planted_index_is_removed_and_nothing_it_leads_to(
        self, data_dir: Path, name: str, plant: Planting
    ) -> None:
        path = data_dir / name
        path.write_text("precious")
        plant(path)
        works(data_dir)
        assert not os.path.lexists(path)
        if plant is link:
            assert outside(path).read_text() == "precious"

    def test_ones_own_index_stays(self, data_dir: Path) -> None:
        (data_dir / "index.db").write_text("mine")
        works(data_dir)
        assert (data_dir / "index.db").read_text() == "mine"


class TestOneFile:
    """What `read_trusted` looks at: the directory first, then the file, both as they are opened."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "place" / "file"
        path.parent.mkdir(mode=0o700)
        path.write_text("four")
        assert read_trusted(path) == b"four"
        return path

    def test_a_directory_that_is_a_link_is_not_followed(self, file: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(file.parent)
        with pytest.raises(UntrustedFile, match=f"{tmp_path / 'link'}: it is a symbolic link"):
            read_trusted(tmp_path / "link" / "file")

    def test_a_directory_that_others_can_write_is_not_used(self, file: Path) -> None:
        file.parent.chmod(0o770)
        with pytest.raises(UntrustedFile, match=f"others can write to {file.parent} "):
            read_trusted(file)

    @as_root
    def test_a_directory_of_another_user_is_not_used(self, file: Path) -> None:
        give_away(file.parent)
        with pytest.raises(UntrustedFile, match=f"{file.parent} belongs to another user"):
            read_trusted(file)

    def test_a_pipe_is_not_waited_for(self, file: Path) -> None:
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(UntrustedFile, match=f"{file} is not a file"):
            read_trusted(file)

    def test_a_file_that_is_too_long_is_not_read(self, file: Path) -> None:
        assert read_trusted(file, limit=4) == b"four"
        with pytest.raises(UntrustedFile, match=f"{file}: 4 bytes, the limit is 3"):
            read_trusted(file, limit=3)

    def test_a_missing_file_or_a_directory_is_reported_as_such(self, file: Path) -> None:
        with pytest.raises(FileNotFoundError):
            read_trusted(file.with_name("missing"))
        with pytest.raises(IsADirectoryError):
            read_trusted(file.parent)


class TestWhileItRuns:
    @pytest.mark.parametrize("plant", PLANTING)
    async def test_a_planted_config_leaves_the_last_good_one_in_force(self, data_dir: Path, plant: Planting) -> None:
        path = data_dir / "config.json"
        path.write_bytes(orjson.dumps({"budget": {"maxHops": 3}}))
        async with RelayCore(data_dir, CONFIG) as relay:
            path.write_bytes(orjson.dumps({"budget": {"maxHops": 4}, "jobs": {"metrics": {"command": ["evil"]}}}))
            plant(path)
            relay.bus.reload()
            assert (relay.bus.config.budget.max_hops, relay.bus.config.jobs.metrics.command) == (3, None)
            assert str(path) in str(relay.bus.settings.problem)

    @pytest.mark.parametrize("plant", PLANTING)
    async def test_planted_rules_deny_everything(self, data_dir: Path, plant: Planting) -> None:
        path = data_dir / "access-rules.json"
        async with RelayCore(data_dir, CONFIG) as relay:
            await relay.register_endpoint(A)
            path.write_bytes(orjson.dumps([{"from": ">", "to": ">", "action": "allow"}]))
            plant(path)
            relay.bus.reload()
            with pytest.raises(AccessDenied, match=str(path)):
                await relay.publish(A, 1, sender=SENDER)

    @pytest.mark.parametrize("by_link", [False, True], ids=["directory", "link"])
    async def test_nothing_is_read_from_a_directory_that_was_swapped(
        self, data_dir: Path, tmp_path: Path, by_link: bool
    ) -> None:
        other = tmp_path / "other"
        other.mkdir(mode=0o700)
        (other / "config.json").write_bytes(orjson.dumps({"budget": {"maxHops": 4}}))
        for place in (data_dir, other):
            (place / "access-rules.json").write_bytes(b"[]")
        async with RelayCore(data_dir, CONFIG) as relay:
            swap(data_dir, other, by_link=by_link)
            relay.bus.reload()
            assert relay.bus.config.budget.max_hops == CONFIG.budget.max_hops
            for said in (relay.bus.settings.problem, relay.bus.access.broken):
                assert str(data_dir) in str(said)
            swap_back(data_dir, other, by_link=by_link)
            relay.bus.reload()
            assert (relay.bus.settings.problem, relay.bus.access.broken) == (None, None)

    async def test_nothing_is_read_while_others_can_write_to_it(self, data_dir: Path) -> None:
        async with RelayCore(data_dir, CONFIG) as relay:
            os.chmod(data_dir, 0o777)
            relay.bus.reload()
            assert f"chmod 700 {data_dir}" in str(relay.bus.settings.problem)
            os.chmod(data_dir, 0o700)
            relay.bus.reload()
            assert relay.bus.settings.problem is None


class TestSecrets:
    def test_a_secret_in_a_directory_that_others_can_write_is_not_used(self, tmp_path: Path) -> None:
        place = tmp_path / "open"
        place.mkdir()
        (place / "token").write_text("sesame")
        (place / "token").chmod(0o600)
        assert resolve_secret(f"file:{place / 'token'}").reveal() == "sesame"
        place.chmod(0o777)
        with pytest.raises(ValueError, match=f"others can write to the directory {place}"):
            resolve_secret(f"file:{place / 'token'}")

    @as_root
    def test_a_secret_behind_anothers_link_or_directory_is_not_used(self, tmp_path: Path) -> None:
        place = tmp_path / "theirs"
        place.mkdir(mode=0o755)
        (place / "token").write_text("sesame")
        (place / "token").chmod(0o600)
        (tmp_path / "link").symlink_to(place / "token")
        assert resolve_secret("file:link", directory=tmp_path).reveal() == "sesame"
        for planted in (tmp_path / "link", place):
            give_away(planted)
            with pytest.raises(ValueError, match=f"{planted} belongs to uid {STRANGER}"):
                resolve_secret("file:link", directory=tmp_path)
            os.chown(planted, 0, 0, follow_symlinks=False)
