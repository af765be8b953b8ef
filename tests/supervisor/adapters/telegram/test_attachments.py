from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.messages.payload import Attachment
from relay_core.testing import FakeClock
from relay_supervisor.adapters.telegram.api import Api
from relay_supervisor.adapters.telegram.attachments import AttachmentRefused, Attachments, safe_name, type_of
from relay_supervisor.adapters.telegram.config import TelegramConfig
from tests.kit.servers.telegram import TOKEN, BotServer
from tests.supervisor.adapters.telegram.conftest import ADA, FastClock, bridge

PDF = {"file_id": "f1", "file_name": "../../etc/plan\x00.pdf", "mime_type": "text/html", "file_size": 5}


async def test_a_file_becomes_an_attachment_and_its_caption_the_content(server: BotServer, data_dir: Path) -> None:
    server.files["documents/f1"] = b"%PDF-"
    async with bridge(server, data_dir) as here:
        update = server.send(ADA, caption="read this", document=PDF)
        [envelope] = await here.mail(1)
        [attachment] = envelope.payload["attachments"]
        path = data_dir / "adapters" / "tg" / "attachments" / f"4242-{update}-plan.pdf"
        assert envelope.payload["content"] == "read this"
        assert attachment == {"path": str(path), "filename": "plan.pdf", "mimeType": "application/pdf", "size": 5}
        assert path.read_bytes() == b"%PDF-"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("message", "name", "kind"),
    [
        pytest.param(
            {"photo": [{"file_id": "no", "file_size": 1}, {"file_id": "f1", "file_size": 9}]},
            "photo.jpg",
            "image/jpeg",
            id="the largest photo",
        ),
        pytest.param({"voice": {"file_id": "f1"}}, "voice.ogg", "audio/ogg", id="voice"),
        pytest.param({"audio": {"file_id": "f1", "file_name": "a.MP3"}}, "a.MP3", "audio/mpeg", id="audio"),
        pytest.param({"video": {"file_id": "f1"}}, "video.mp4", "video/mp4", id="video"),
        pytest.param(
            {"document": {"file_id": "f1", "file_name": "x.tar.gz"}}, "x.tar.gz", "application/octet-stream", id="other"
        ),
    ],
)
async def test_kinds_of_files(server: BotServer, data_dir: Path, message: Any, name: str, kind: str) -> None:
    server.files["documents/f1"] = b"bytes"
    async with bridge(server, data_dir) as here:
        server.send(ADA, **message)
        [envelope] = await here.mail(1)
        [attachment] = envelope.payload["attachments"]
        assert (attachment["filename"], attachment["mimeType"]) == (name, kind)


@pytest.mark.parametrize(
    ("document", "note"),
    [
        pytest.param({"file_id": "f1", "file_size": 11}, "larger than 10 bytes", id="says that it is too large"),
        pytest.param({"file_id": "f1", "file_size": 1}, "larger than 10 bytes", id="is larger than it says"),
        pytest.param({"file_id": "gone"}, "could not be fetched", id="is gone"),
        pytest.param({}, "could not be fetched", id="has no id"),
    ],
)
async def test_a_file_that_is_not_taken_is_a_note(
    server: BotServer, data_dir: Path, document: dict[str, Any], note: str
) -> None:
    server.files["documents/f1"] = b"eleven byte"
    async with bridge(server, data_dir, FastClock(), maxAttachmentBytes=10) as here:
        server.send(ADA, caption="look", document=document)
        [envelope] = await here.mail(1)
        assert envelope.payload["content"].startswith("look\n[the file file.bin")
        assert note in envelope.payload["content"]
        assert "attachments" not in envelope.payload


async def test_what_is_no_file_and_no_text_is_named(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir) as here:
        server.send(ADA, location={"latitude": 1, "longitude": 2})
        [envelope] = await here.mail(1)
        assert envelope.payload["content"] == "[location]"


async def test_old_files_are_removed_at_the_start(server: BotServer, data_dir: Path) -> None:
    directory = data_dir / "adapters" / "tg" / "attachments"
    directory.mkdir(parents=True)
    old, new = directory / "1-old.txt", directory / "2-new.txt"
    for path in (old, new):
        path.write_text("x")
    os.utime(old, (0, 0))
    async with bridge(server, data_dir):
        assert sorted(directory.iterdir()) == [new]


async def test_a_file_from_an_allowed_directory_is_sent(server: BotServer, data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.csv").write_text("a,b")
    async with bridge(server, data_dir, FastClock(), attachmentDirs=[str(tmp_path / "out")]) as here:
        file = {"path": str(tmp_path / "out" / "report.csv"), "filename": "report.csv", "mimeType": "x/y"}
        await here.answer("here it is", attachments=[file])
        await here.relay.idle()
        assert [message["method"] for message in server.sent] == ["sendMessage", "sendDocument"]
        assert server.sent[1]["document"] == {"name": "report.csv", "data": b"a,b", "type": "text/csv"}


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        pytest.param("secret.txt", "attachmentDirs", id="outside"),
        pytest.param("out/../secret.txt", "attachmentDirs", id="outside by dots"),
        pytest.param("out/link.txt", "attachmentDirs", id="outside by a link"),
        pytest.param("out/none.txt", "does not exist", id="not there"),
        pytest.param("out", "is not a file", id="a directory"),
        pytest.param("out/pipe", "is not a file", id="a pipe"),
        pytest.param("out/empty", "is empty", id="an empty file"),
        pytest.param("out/large", "larger than", id="too large"),
    ],
)
async def test_any_other_file_refuses_the_whole_message(
    server: BotServer, data_dir: Path, tmp_path: Path, path: str, reason: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (out / "link.txt").symlink_to(tmp_path / "secret.txt")
    os.mkfifo(out / "pipe")
    (out / "empty").touch()
    (out / "large").write_text("x" * 101)
    async with bridge(server, data_dir, attachmentDirs=[str(out)], maxAttachmentBytes=100) as here:
        file = {"path": str(tmp_path / path), "filename": "a.txt", "mimeType": "text/plain"}
        await here.answer("here it is", attachments=[file])
        await here.relay.idle()
        [letter] = await here.relay.dead_letters()
        assert reason in letter.reason
        assert server.sent == []


async def test_too_many_files_refuse_the_message(server: BotServer, data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    async with bridge(server, data_dir, attachmentDirs=[str(tmp_path)]) as here:
        file = {"path": str(tmp_path / "a.txt"), "filename": "a.txt", "mimeType": "text/plain"}
        await here.answer("many", attachments=[file] * 11)
        await here.relay.idle()
        [letter] = await here.relay.dead_letters()
        assert "11 files" in letter.reason
        assert "too_many_files" in letter.reason
        assert server.sent == []


async def test_files_are_read_one_at_a_time_and_one_that_goes_says_how_far_it_came(
    server: BotServer, data_dir: Path, tmp_path: Path
) -> None:
    files = [tmp_path / f"{number}.txt" for number in range(3)]
    for path in files:
        path.write_text("before")
    async with bridge(server, data_dir, FastClock(), attachmentDirs=[str(tmp_path)]) as here:
        server.misbehave("late", "sendDocument", times=1)
        about = [{"path": str(path), "filename": path.name, "mimeType": "text/plain"} for path in files]
        answer = asyncio.gather(here.answer("three", attachments=about))
        await server.wait_for(lambda: "sendDocument" in [name for name, _ in server.calls])
        files[1].write_text("after")
        files[2].unlink()
        server.behave()
        await answer
        await here.relay.idle()
        assert [message["document"]["data"] for message in server.sent[1:]] == [b"before", b"after"]
        [letter] = await here.relay.dead_letters()
        assert "2.txt does not exist" in letter.reason
        assert "3 of 4 parts were sent" in letter.reason


async def test_a_link_that_is_put_in_after_the_judgement_is_not_followed(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for directory in ("out/sub", "secret"):
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "a.txt").write_text(directory)
    really_open = os.open

    def swap_first(path: Any, *args: Any, **more: Any) -> int:
        if not (tmp_path / "out" / "sub").is_symlink():
            (tmp_path / "out" / "sub").rename(tmp_path / "out" / "old")
            (tmp_path / "out" / "sub").symlink_to(tmp_path / "secret")
        return really_open(path, *args, **more)

    config = TelegramConfig.model_validate({"token": TOKEN, "attachmentDirs": [str(tmp_path / "out")]})
    async with Api(config.token, config.api_base, timeout=1) as api:
        attachments = Attachments(config, api, tmp_path, clock)
        file = Attachment(path=str(tmp_path / "out" / "sub" / "a.txt"), filename="a.txt", mime_type="text/plain")
        assert attachments.read(file)[1] == b"out/sub"
        monkeypatch.setattr(os, "open", swap_first)
        with pytest.raises(AttachmentRefused, match="cannot be read"):
            attachments.read(file)


@given(st.text() | st.none() | st.integers())
def test_a_safe_name_is_one(name: object) -> None:
    safe = safe_name(name, "file.bin")
    assert safe
    assert "/" not in safe
    assert not safe.startswith(".")
    assert safe.isprintable()
    assert len(safe.encode()) <= 150


def test_a_type_comes_from_the_name() -> None:
    assert (type_of("a.png"), type_of("a.html.gz"), type_of("a")) == (
        "image/png",
        "application/octet-stream",
        "application/octet-stream",
    )
