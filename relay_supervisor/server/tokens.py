"""The tokens in tokens.json, and the operator's own token.

1. A token is ``relay_`` and 256 random bits. It is shown once, when it is created; the file holds only its SHA-256. A
   slow hash would add nothing: 2^256 secrets cannot be tried.
2. The file is accepted as a whole or not at all. It is *broken* if it is not JSON, has an unknown key or an invalid or
   reserved pattern, is a link, belongs to another user or can be read by others. While it is broken no token is
   accepted, since it may have been read or changed. No file means no tokens.
3. A token's pattern must not match any reserved sender: only the bus and its adapters publish under their own names.
4. A change is written durably before it is applied, and starts from the current file.
5. The duration of a check reveals nothing about a token: it is looked up by the first half of its hash, which an
   attacker cannot choose, and the whole hash is compared with `hmac.compare_digest`.

`check` runs on the event loop, all else may run in a thread: the tokens are one immutable table, replaced by one
assignment.
"""

from __future__ import annotations

import hmac
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from secrets import token_hex, token_urlsafe
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from relay_core.clock import Clock, iso
from relay_core.errors import ConfigError, InvalidSubject, NotFound, StorageError
from relay_core.messages.operator_views import TokenInfo
from relay_core.messages.subjects import validate_subject
from relay_core.rules.entries import parse_entries, validate_strictly
from relay_core.storage.atomic_file import FileReader, atomic_write
from relay_core.storage.trusted_file import UntrustedFile, read_trusted

logger = logging.getLogger(__name__)

TOKENS_FILE = "tokens.json"
PREFIX = "relay_"
RESERVED = ("relay.system.>", "relay.adapter.>")
"""Senders that no token may have."""
MAX_NOTE = 200

_BYTES = 32
_KEYS = ["id", "pattern", "note", "createdAt", "sha256"]
_HASH = re.compile("[0-9a-f]{64}")
_OPERATOR_TOKEN = re.compile(PREFIX + "[A-Za-z0-9_-]{43}")

_HALF = 32


class _StoredToken(NamedTuple):
    sha256: str
    info: TokenInfo


_Table = Mapping[str, _StoredToken]
"""The tokens by the first half of their hash, in file order."""
_NONE: _Table = MappingProxyType({})


class Tokens:
    """Check, add and remove the tokens in the operator's file."""

    def __init__(self, path: Path, clock: Clock, read: FileReader = read_trusted) -> None:
        self._path = path
        self._read = read
        self._clock = clock
        self._lock = threading.RLock()
        self._table = _NONE
        self.broken: str | None = f"{path} has not been loaded yet"
        """The error in the file, or None."""

    def list(self) -> list[TokenInfo]:
        """Return every token, in file order."""
        return [stored.info for stored in self._table.values()]

    def check(self, token: str) -> TokenInfo | None:
        """Return the entry of a token, or None if it is unknown."""
        digest = _digest(token)
        stored = self._table.get(digest[:_HALF])
        return stored.info if stored is not None and hmac.compare_digest(stored.sha256, digest) else None

    def is_valid(self, info: TokenInfo) -> bool:
        """Return True if an entry that `check` returned is still valid, for connections that outlive a change."""
        return any(stored.info == info for stored in self._table.values())

    def load(self) -> None:
        """Read the file; `broken` holds an error in it; blocks."""
        with self._lock:
            try:
                table, broken = _parse(self._read(self._path, private=True)), None
            except FileNotFoundError:
                table, broken = _NONE, None
            except OSError as error:
                table, broken = _NONE, f"cannot read {self._path}: {error.strerror}"
            except UntrustedFile as error:
                table, broken = _NONE, str(error)
            except ValueError as error:
                table, broken = _NONE, f"{self._path}: {error}"
            self._table, self.broken = table, broken

    def add(self, pattern: str, note: str | None = None) -> tuple[TokenInfo, str]:
        """Create a token for the senders that a pattern matches, and return its secret; blocks.

        Raises:
            InvalidSubject: if the pattern is invalid, or matches a reserved sender.
            ConfigError: if the note is too long or not plain text, or while the file is broken.
            StorageError: if the file cannot be written; the tokens are unchanged.
        """
        check_pattern(pattern)
        _check_note(note)
        with self._lock:
            table = self._current()
            taken = {stored.info.id for stored in table.values()}
            while (id := token_hex(4)) in taken:
                pass
            token = PREFIX + token_urlsafe(_BYTES)
            info = TokenInfo(id=id, pattern=pattern, note=note, created_at=iso(self._clock.now_ms()))
            self._store([*table.values(), _StoredToken(_digest(token), info)])
            return info, token

    def remove(self, id: str) -> None:
        """Revoke a token; blocks.

        Raises:
            NotFound: if no token has this id.
            ConfigError: while the file is broken.
            StorageError: if the file cannot be written; the tokens are unchanged.
        """
        with self._lock:
            table = self._current()
            kept = [stored for stored in table.values() if stored.info.id != id]
            if len(kept) == len(table):
                raise NotFound(f"no token {id}", what=id)
            self._store(kept)

    def revoke(self, pattern: str, note: str) -> None:
        """Revoke every token with a pattern and a note; blocks.

        Raises:
            ConfigError: while the file is broken: its tokens would be valid again once it is repaired.
            StorageError: if the file cannot be written; the tokens are unchanged.
        """
        with self._lock:
            table = self._current()
            kept = [stored for stored in table.values() if (stored.info.pattern, stored.info.note) != (pattern, note)]
            if len(kept) < len(table):
                self._store(kept)

    def _current(self) -> _Table:
        self.load()
        if self.broken is not None:
            raise ConfigError(f"repair the file first: {self.broken}", path=str(self._path))
        return self._table

    def _store(self, tokens: Sequence[_StoredToken]) -> None:
        entries = [{**stored.info.to_wire(), "sha256": stored.sha256} for stored in tokens]
        data = orjson.dumps(entries, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        atomic_write(self._path, data)
        self._table = _build(tokens)


def write_operator_token(path: Path) -> str:
    """Replace the token in the operator's file and return the new one; blocks.

    On a full disk the previous token stays valid if its file is private and intact. Otherwise no client can read
    the new one, and the operator can connect only if no token is required.

    Raises:
        StorageError: if the file cannot be written for any other reason.
    """
    token = PREFIX + token_urlsafe(_BYTES)
    try:
        # It need not survive a power loss: the next start creates another.
        atomic_write(path, f"{token}\n".encode(), sync=False)
    except StorageError as error:
        if error.code != "storage_full":
            raise
        kept = _last_operator_token(path)
        logger.warning(
            "%s; %s", error.message, "the previous token stays valid" if kept else "no operator token is on disk"
        )
        return kept or token
    return token


def _last_operator_token(path: Path) -> str | None:
    """Return the token of the previous start, if no other user can have seen or written it."""
    try:
        token = read_trusted(path, private=True).decode().removesuffix("\n")
    except (OSError, ValueError):
        return None
    return token if _OPERATOR_TOKEN.fullmatch(token) else None


def _digest(token: str) -> str:
    return sha256(token.encode(errors="surrogatepass")).hexdigest()


def check_pattern(pattern: str) -> None:
    """Check that a pattern matches no reserved sender.

    Raises:
        InvalidSubject: if it does, or is invalid.
    """
    validate_subject(pattern, allow_wildcards=True)
    for reserved in RESERVED:
        if _overlap(pattern, reserved):
            raise InvalidSubject(
                f"{pattern!r} would let its holder publish as {reserved}, which is reserved: choose another",
                subject=pattern,
            )


def _overlap(pattern: str, other: str) -> bool:
    """Return True if some subject matches both patterns."""
    for left, right in zip_longest(pattern.split("."), other.split(".")):
        if left is None or right is None:
            return False
        if ">" in (left, right):
            return True
        if left != right and "*" not in (left, right):
            return False
    return True


def _check_note(note: str | None) -> None:
    if note is not None and (len(note) > MAX_NOTE or not note.isprintable()):
        raise ConfigError(f"a note is one line of at most {MAX_NOTE} printable characters", key="note")


def _parse(data: bytes) -> _Table:
    tokens = parse_entries(data, "token", _KEYS, _parse_token)
    table = _build(tokens)
    if len(table) < len(tokens) or len({stored.info.id for stored in tokens}) < len(tokens):
        raise ValueError("contains a token twice")
    return table


def _build(tokens: Sequence[_StoredToken]) -> _Table:
    return MappingProxyType({stored.sha256[:_HALF]: stored for stored in tokens})


def _parse_token(entry: dict[str, Any]) -> _StoredToken:
    digest = entry.get("sha256")
    if not isinstance(digest, str) or not _HASH.fullmatch(digest):
        raise ValueError("sha256 is not a hexadecimal SHA-256")
    info = validate_strictly(TokenInfo, entry)
    check_pattern(info.pattern)
    return _StoredToken(digest, info)
