"""Files: incoming ones are stored in our directory, outgoing ones must be in an allowed directory.

In:

1. A file is stored as ``attachments/{bot}-{update}-{name}``, readable by us alone. The name has neither directories nor
   control characters, does not start with a dot, and is short. Fetching the same update again replaces it.
2. The type follows from the name's extension, never from the sender's claim.
3. A file that is too large, or cannot be fetched in three attempts, becomes a note in the text: the message goes on.
4. Files older than the config allows are removed at the start.

Out:

5. A path is resolved; the result must be a file within an allowed directory and not too large. Otherwise the whole
   message is refused before any of it has been sent (`check`).
6. The opened file is the checked one: below the allowed directory no link is followed, so none can be inserted.
7. The bytes are read when it is the file's turn, so at most one file of a message is in memory.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from dataclasses import dataclass, field
from mimetypes import MimeTypes
from pathlib import Path
from typing import Any

from relay_core.adapters.registry import private_directory
from relay_core.clock import Clock, sleep
from relay_core.messages.payload import Attachment
from relay_core.storage.atomic_file import atomic_write
from relay_supervisor.adapters.telegram.api import Api, NotSent, OutcomeUnknown, RateLimited, TelegramError, TooLarge
from relay_supervisor.adapters.telegram.chats import clean, clean_name
from relay_supervisor.adapters.telegram.config import TelegramConfig

_KINDS = {
    "document": "file.bin",
    "photo": "photo.jpg",
    "voice": "voice.ogg",
    "audio": "audio.mp3",
    "video": "video.mp4",
    "video_note": "video.mp4",
    "animation": "animation.mp4",
}
"""Telegram's names for files, and our default file names."""
_OTHERS = ("sticker", "location", "venue", "contact", "poll", "dice", "story")
_UNSAFE = re.compile(r"[^\w .()+@-]")
_LONGEST_NAME = 80
_TRIES = 3
_TYPES = MimeTypes(filenames=())
for _ending, _type in {".oga": "audio/ogg", ".ogg": "audio/ogg", ".webp": "image/webp", ".md": "text/markdown"}.items():
    _TYPES.add_type(_type, _ending)
_UNKNOWN = "application/octet-stream"
_DAY_SECS = 24 * 3600
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WAY = _FILE | os.O_DIRECTORY


class AttachmentRefused(Exception):
    """A file is not sent; the message says why."""


@dataclass(slots=True)
class Fetched:
    """The files of a message, and notes about those that are missing."""

    files: list[Attachment] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def safe_name(name: Any, default: str) -> str:
    """Return a safe file name."""
    base = clean_name(name).replace("\\", "/").rpartition("/")[2]
    base = _UNSAFE.sub("_", base).strip(" .")
    stem, ending = os.path.splitext(base)
    short = stem.encode()[: _LONGEST_NAME - len(ending[:16].encode())].decode(errors="ignore") + ending[:16]
    return short or default


def type_of(name: str) -> str:
    """Return the MIME type for a file name."""
    guessed, encoding = _TYPES.guess_type(name.lower())
    return guessed if guessed is not None and encoding is None else _UNKNOWN


class Attachments:
    """The files of one adapter."""

    def __init__(self, config: TelegramConfig, api: Api, directory: Path, clock: Clock) -> None:
        self._config = config
        self._api = api
        self._directory = directory / "attachments"
        self._clock = clock

    def open(self) -> None:
        """Create the directory, and remove old files; blocks."""
        private_directory(self._directory)
        oldest = self._clock.now_ms() / 1000 - self._config.keep_attachments_days * _DAY_SECS
        for path in self._directory.iterdir():
            about = path.lstat()
            if stat.S_ISREG(about.st_mode) and about.st_mtime < oldest:
                path.unlink(missing_ok=True)

    async def fetch(self, message: dict[str, Any], update: int) -> Fetched:
        """Download and store the files of a message; raises StorageError."""
        fetched = Fetched()
        for kind, default in _KINDS.items():
            found = message.get(kind)
            if kind == "document" and "animation" in message:
                continue  # an animation is sent as a document too
            if kind == "photo" and isinstance(found, list):
                sizes = [size for size in found if isinstance(size, dict)]
                found = max(sizes, key=lambda size: _size(size) or 0, default=None)
            if isinstance(found, dict):
                await self._fetch(found, safe_name(found.get("file_name"), default), update, fetched)
        fetched.notes += [f"[{kind.replace('_', ' ')}]" for kind in _OTHERS if kind in message]
        return fetched

    async def _fetch(self, about: dict[str, Any], name: str, update: int, fetched: Fetched) -> None:
        limit = self._config.max_attachment_bytes
        try:
            if (_size(about) or 0) > limit or limit == 0:
                raise TooLarge(name)
            data = await self._download(about, limit)
        except TooLarge:
            fetched.notes.append(f"[the file {name} was not accepted: larger than {limit} bytes]")
            return
        except TelegramError:
            fetched.notes.append(f"[the file {name} could not be fetched from Telegram]")
            return
        path = self._directory / f"{self._config.bot_id}-{update}-{name}"
        await asyncio.to_thread(atomic_write, path, data)
        fetched.files.append(Attachment(path=str(path), filename=name, mime_type=type_of(name), size=len(data)))

    async def _download(self, about: dict[str, Any], limit: int) -> bytes:
        for attempt in range(1, _TRIES + 1):
            try:
                found = await self._api.call("getFile", file_id=about.get("file_id"))
                path = found.get("file_path") if isinstance(found, dict) else None
                if not isinstance(path, str) or path.startswith("/") or ".." in path.split("/"):
                    raise OutcomeUnknown("Telegram named no file to fetch")
                return await self._api.download(path, limit)
            except (NotSent, OutcomeUnknown, RateLimited) as error:
                if attempt == _TRIES:
                    raise
                await sleep(self._clock, min(error.retry_after if isinstance(error, RateLimited) else attempt, 30))
        raise AssertionError("the last attempt returns or raises")

    def check(self, attachment: Attachment) -> None:
        """Check that a file may be sent; blocks, and raises AttachmentRefused."""
        self._read(attachment, 0)

    def read(self, attachment: Attachment) -> tuple[str, bytes, str]:
        """Return the name, the bytes and the type of a file to send; blocks, and raises AttachmentRefused."""
        name, data = self._read(attachment, self._config.max_attachment_bytes + 1)
        return name, data, type_of(name)

    def _read(self, attachment: Attachment, most: int) -> tuple[str, bytes]:
        name = safe_name(attachment.filename, "file.bin")
        limit = self._config.max_attachment_bytes
        try:
            path = Path(attachment.path).resolve(strict=True)
            allowed = [directory.resolve() for directory in self._config.attachment_dirs]
        except (OSError, RuntimeError, ValueError):
            raise AttachmentRefused(f"the file {name} does not exist") from None
        home = next((directory for directory in allowed if path.is_relative_to(directory)), None)
        if home is None:
            raise AttachmentRefused(
                f"the file {name} is in no directory of attachmentDirs: add its directory to the adapter's config"
            )
        try:
            descriptor = _open_within(home, path.relative_to(home))
            try:
                about = os.fstat(descriptor)
                if not stat.S_ISREG(about.st_mode):
                    raise AttachmentRefused(f"{name} is not a file")
                with open(descriptor, "rb", closefd=False) as file:
                    data = file.read(most)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise AttachmentRefused(f"the file {name} cannot be read: {error.strerror}") from None
        size = max(about.st_size, len(data))
        if size > limit:
            raise AttachmentRefused(f"the file {name} is larger than {limit} bytes (maxAttachmentBytes)")
        if not (size if most == 0 else data):
            raise AttachmentRefused(f"the file {name} is empty, which Telegram refuses")
        return name, data


def _open_within(home: Path, path: Path) -> int:
    """Open a file below a directory without following links."""
    directory = os.open(home, _WAY)
    try:
        for part in path.parts[:-1]:
            inner = os.open(part, _WAY, dir_fd=directory)
            os.close(directory)
            directory = inner
        return os.open(path.name or ".", _FILE, dir_fd=directory)
    finally:
        os.close(directory)


def content_of(message: dict[str, Any], notes: list[str]) -> str:
    """Return the text or caption of a message, and the notes about its files."""
    text = clean(message.get("text") or message.get("caption"))
    return "\n".join(part for part in (text, *notes) if part)


def _size(about: dict[str, Any]) -> int | None:
    size = about.get("file_size")
    return size if type(size) is int else None
