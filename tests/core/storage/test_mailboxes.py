"""Mailboxes: every one on disk is found again, whatever else lies there, and none goes while it holds mail."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import orjson
import pytest

from relay_core.errors import StorageError
from relay_core.messages.dead_letter import encode_dead_letter
from relay_core.messages.delivery import TargetKind
from relay_core.messages.envelope import Budget, Envelope, encode_envelope
from relay_core.messages.subjects import subject_hash
from relay_core.storage.endpoint_file import EndpointFile, read_endpoint_file, write_endpoint_file
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.mailboxes import Mailboxes
from relay_core.storage.maildir import CUR, FAILED, NEW

NOW = "2023-11-14T22:13:20.000Z"
ID = "01HF0000000000000000000001"


@pytest.fixture
def boxes(tmp_path: Path) -> Mailboxes:
    return load(tmp_path)


def load(directory: Path) -> Mailboxes:
    """Return the mailboxes as a process finds them at its start."""
    found = Mailboxes(directory / "mailboxes", read_limit=10_000, sync=True)
    found.load()
    return found


def endpoint(boxes: Mailboxes, subject: str) -> Mailbox:
    return boxes.open(subject, TargetKind.ENDPOINT, NOW, registered=True)


def stored(subject: str) -> bytes:
    return encode_envelope(
        Envelope(id=ID, subject=subject, sender="s", budget=Budget(ttl=1_800_000_000_000), created_at=NOW, payload=1)
    )


def subjects(found: list[Mailbox]) -> list[str]:
    return sorted(box.subject for box in found)


class TestOpen:
    def test_an_endpoint_survives_a_restart(self, boxes: Mailboxes, tmp_path: Path) -> None:
        made = endpoint(boxes, "a.b")
        assert made.maildir.path == tmp_path / "mailboxes" / subject_hash("a.b")
        again = load(tmp_path)
        assert [box.endpoint() for box in again.endpoints()] == [made.endpoint()]

    def test_opening_again_gives_the_same_one(self, boxes: Mailboxes) -> None:
        made = endpoint(boxes, "a.b")
        assert endpoint(boxes, "a.b") is made
        assert boxes.open("a.b", TargetKind.NONE, NOW, registered=False) is made
        assert boxes.endpoint("a.b") is made
        assert len(boxes) == 1

    def test_a_mailbox_that_merely_holds_mail_is_no_endpoint(self, boxes: Mailboxes, tmp_path: Path) -> None:
        boxes.open("a.b", TargetKind.NONE, NOW, registered=False)
        for found in (boxes, load(tmp_path)):
            assert found.endpoint("a.b") is None
            assert found.get(subject_hash("a.b")) is not None
            assert found.select("a.*") == []
            assert subjects(found.select_any("a.*")) == ["a.b"]

    def test_it_becomes_one_by_registration(self, boxes: Mailboxes, tmp_path: Path) -> None:
        made = boxes.open("a.b", TargetKind.NONE, NOW, registered=False)
        assert endpoint(boxes, "a.b") is made
        for found in (boxes, load(tmp_path)):
            assert subjects(found.endpoints()) == ["a.b"]
            assert subjects(found.select("a.*")) == ["a.b"]
            assert subjects(found.select_any(">")) == ["a.b"]

    def test_an_adapters_mail_is_heard_by_no_subscription(self, boxes: Mailboxes) -> None:
        boxes.open("relay.adapter.one", TargetKind.ADAPTER, NOW, registered=True)
        assert boxes.select_any(">") == []
        assert boxes.endpoints() == []

    def test_mail_that_was_there_already_is_known(self, boxes: Mailboxes) -> None:
        box = boxes.maildir(subject_hash("a.b"))
        box.create(sync=False)
        box.write(ID, stored("a.b"))
        assert endpoint(boxes, "a.b").depth == 1

    def test_a_disk_that_refuses_is_a_storage_error(self, boxes: Mailboxes, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(path: str, mode: int = 0o777) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

        with monkeypatch.context() as patch:
            patch.setattr(os, "mkdir", full)
            with pytest.raises(StorageError) as caught:
                endpoint(boxes, "a.b")
        assert (caught.value.code, caught.value.retryable) == ("storage_full", True)
        assert boxes.get(subject_hash("a.b")) is None
        assert endpoint(boxes, "a.b").depth == 0

    def test_one_that_was_made_by_half_is_completed(self, boxes: Mailboxes, tmp_path: Path) -> None:
        (tmp_path / "mailboxes" / subject_hash("a.b") / "new").mkdir(parents=True)
        again = load(tmp_path)
        assert len(again) == 0
        endpoint(again, "a.b")
        assert subjects(load(tmp_path).endpoints()) == ["a.b"]


class TestUnregister:
    def test_its_mail_stays(self, boxes: Mailboxes, tmp_path: Path) -> None:
        box = endpoint(boxes, "a.b")
        box.maildir.write(ID, stored("a.b"))
        boxes.unregister(box)
        for found in (boxes, load(tmp_path)):
            assert found.endpoint("a.b") is None
            assert found.select("a.b") == []
            assert found.get(box.hash) is not None
        assert box.maildir.ids(NEW) == [ID]
        assert not boxes.drop(box)

    @pytest.mark.parametrize("state", [NEW, CUR, FAILED])
    def test_a_mailbox_is_not_dropped_while_it_holds_anything(self, boxes: Mailboxes, state: str) -> None:
        box = endpoint(boxes, "a.b")
        assert not boxes.drop(box)
        boxes.unregister(box)
        path = box.maildir.path / state / f"{ID}.json"
        path.touch()
        assert not boxes.drop(box)
        path.unlink()
        box.reserved += 1
        assert not boxes.drop(box)
        box.reserved -= 1
        assert boxes.drop(box)
        assert boxes.get(box.hash) is None
        assert boxes.select_any(">") == []
        assert not box.maildir.path.exists()

    def test_one_that_cannot_be_removed_stays_in_use(self, boxes: Mailboxes) -> None:
        box = endpoint(boxes, "a.b")
        boxes.unregister(box)
        (box.maildir.path / "tmp" / "left").touch()
        with pytest.raises(OSError, match="not empty"):
            boxes.drop(box)
        assert boxes.get(box.hash) is box
        box.maildir.write(ID, stored("a.b"))


class TestLoad:
    def test_a_fresh_directory_is_private_and_empty(self, boxes: Mailboxes, tmp_path: Path) -> None:
        assert len(boxes) == 0
        assert (tmp_path / "mailboxes").stat().st_mode & 0o777 == 0o700
        assert boxes.newest() is None

    def test_the_newest_message_of_all_is_known(self, boxes: Mailboxes, tmp_path: Path) -> None:
        endpoint(boxes, "a.b").maildir.write(ID, stored("a.b"))
        newer = ID[:-1] + "7"
        endpoint(boxes, "c.d").maildir.write_failed(newer, b"{}")
        endpoint(boxes, "e.f").maildir.write_failed("not-an-id", b"{}")
        assert load(tmp_path).newest() == newer

    @pytest.mark.parametrize("kind", ["file", "link", "dangling", "fifo", "directory", "broken mailbox"])
    def test_what_is_no_mailbox_is_left_alone(self, boxes: Mailboxes, tmp_path: Path, kind: str) -> None:
        endpoint(boxes, "a.b")
        path = tmp_path / "mailboxes" / subject_hash("x.y")
        if kind == "file":
            path.touch()
        elif kind == "link":
            path.symlink_to("/etc")
        elif kind == "dangling":
            path.symlink_to("/nowhere")
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.mkdir()
        if kind == "broken mailbox":
            write_endpoint_file(path, EndpointFile(subject="x.y", registered_at=NOW), sync=False)
            (path / "new").touch()
        assert subjects(load(tmp_path).endpoints()) == ["a.b"]
        assert os.path.lexists(path)

    @pytest.mark.parametrize("state", [NEW, CUR, FAILED])
    def test_a_lost_endpoint_file_is_restored_from_the_mail(self, boxes: Mailboxes, tmp_path: Path, state: str) -> None:
        box = endpoint(boxes, "a.b")
        data = stored("a.b")
        if state == FAILED:
            data = encode_dead_letter(data, reason="no", code="x", failed_ms=0, endpoint_hash=box.hash)
        (box.maildir.path / state / f"{ID}.json").write_bytes(data)
        (box.maildir.path / state / "00000000000000000000000000.json").write_bytes(b"bad")
        (box.maildir.path / "endpoint.json").unlink()
        assert subjects(load(tmp_path).endpoints()) == ["a.b"]
        assert read_endpoint_file(box.maildir.path) is not None

    def test_one_that_cannot_be_restored_is_in_use_all_the_same(self, boxes: Mailboxes, tmp_path: Path) -> None:
        box = endpoint(boxes, "a.b")
        box.maildir.write(ID, stored("a.b"))
        (box.maildir.path / "endpoint.json").unlink()
        (box.maildir.path / "endpoint.json").mkdir()
        assert [(mailbox.subject, mailbox.depth) for mailbox in load(tmp_path)] == [("a.b", 1)]

    @pytest.mark.parametrize(
        "content",
        [b"", b"{", b"[]", b"{}", b'{"subject": "c.d", "registeredAt": "x"}', b"x" * 100_000],
        ids=["empty", "torn", "list", "no fields", "another subject", "huge"],
    )
    def test_a_damaged_endpoint_file_is_not_believed(self, boxes: Mailboxes, tmp_path: Path, content: bytes) -> None:
        box = endpoint(boxes, "a.b")
        (box.maildir.path / "endpoint.json").write_bytes(content)
        assert len(load(tmp_path)) == 0
        box.maildir.write(ID, stored("a.b"))
        assert subjects(load(tmp_path).endpoints()) == ["a.b"]

    def test_endpoint_json_names_the_subject_in_plain_json(self, boxes: Mailboxes) -> None:
        box = endpoint(boxes, "a.b")
        assert orjson.loads((box.maildir.path / "endpoint.json").read_bytes()) == {
            "subject": "a.b",
            "registeredAt": NOW,
            "registered": True,
            "kind": "endpoint",
        }
