"""Who a connection may speak for: the operator's tokens in tokens.json, and the operator's own.

1. A token is ``relay_`` and 256 random bits. It is shown once, when it is made; the file has only its
   SHA-256. That is enough: nobody can try 2^256 secrets, so a slow hash would protect nothing.
2. The file is taken as a whole or not at all. One that is not JSON, has an unknown key, a bad or a
   reserved pattern, is a link, is another user's or can be read by others is *broken*: whoever could
   read or change it may have, so while it is broken no token is good. No file means no tokens.
3. A token's pattern may match no reserved sender, neither all of them nor one: what the bus and its
   adapters say in their own name cannot be said by anyone else.
4. A change is written durably first and applied second, and it starts from the file as it stands.
5. How long a check takes tells nothing of a token: it is looked up by the first half of its hash,
   which nobody can steer, and the whole hash is compared with `hmac.compare_digest`.

`check` runs on the event loop and everything else may run in a thread: the tokens are one immutable
table, replaced by one assignment.
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
from pydantic import ValidationError

from relay_core.clock import Clock, iso
from relay_core.config import explain_unknown
from relay_core.errors import ConfigError, InvalidSubject, NotFound, StorageError
from relay_core.files import Reader, atomic_write
from relay_core.model import first_problem
from relay_core.operations import TokenInfo
from relay_core.own_files import Unreadable, read_own
from relay_core.subjects import validate_subject

logger = logging.getLogger(__name__)

TOKENS_FILE = "tokens.json"
PREFIX = "relay_"
RESERVED = ("relay.system.>", "relay.adapter.>")
"""Senders that nobody can be given."""
MAX_NOTE = 200

_BYTES = 32
_KEYS = ["id", "pattern", "note", "createdAt", "sha256"]
_HASH = re.compile("[0-9a-f]{64}")
_OPERATOR_TOKEN = re.compile(PREFIX + "[A-Za-z0-9_-]{43}")

_HALF = 32


class _Known(NamedTuple):
    sha256: str
    info: TokenInfo


_Table = Mapping[str, _Known]
"""The tokens by the first half of their hash, in the order of the file."""
_NONE: _Table = MappingProxyType({})


class Tokens:
    """Check tokens against the operator's file and keep the two in step."""

    def __init__(self, path: Path, clock: Clock, read: Reader = read_own) -> None:
        self._path = path
        self._read = read
        self._clock = clock
        self._lock = threading.RLock()
        self._table = _NONE
        self.broken: str | None = f"{path} has not been loaded yet"
        """What is wrong with the file, or None."""

    def list(self) -> list[TokenInfo]:
        """Return every token, in the order of the file."""
        return [known.info for known in self._table.values()]

    def check(self, token: str) -> TokenInfo | None:
        """Return what a token is good for, or None if it is none of ours."""
        digest = _digest(token)
        known = self._table.get(digest[:_HALF])
        return known.info if known is not None and hmac.compare_digest(known.sha256, digest) else None

    def is_good(self, info: TokenInfo) -> bool:
        """Tell whether what `check` returned earlier still holds, for connections that outlive a change."""
        return any(known.info == info for known in self._table.values())

    def load(self) -> None:
        """Read the file; what is wrong with it is told by `broken`; blocks."""
        with self._lock:
            try:
                table, broken = _parse(self._read(self._path, private=True)), None
            except FileNotFoundError:
                table, broken = _NONE, None
            except OSError as error:
                table, broken = _NONE, f"cannot read {self._path}: {error.strerror}"
            except Unreadable as error:
                table, broken = _NONE, str(error)
            except ValueError as error:
                table, broken = _NONE, f"{self._path}: {error}"
            self._table, self.broken = table, broken

    def add(self, pattern: str, note: str | None = None) -> tuple[TokenInfo, str]:
        """Make a token for the senders a pattern matches, and return it for the first and last time; blocks.

        Raises:
            InvalidSubject: if the pattern is none, or matches a reserved sender.
            ConfigError: if the note is too long or not plain text, or while the file is broken.
            StorageError: if the file cannot be written; the tokens stay as they were.
        """
        check_pattern(pattern)
        _check_note(note)
        with self._lock:
            table = self._current()
            taken = {known.info.id for known in table.values()}
            while (id := token_hex(4)) in taken:
                pass
            token = PREFIX + token_urlsafe(_BYTES)
            info = TokenInfo(id=id, pattern=pattern, note=note, created_at=iso(self._clock.now_ms()))
            self._store([*table.values(), _Known(_digest(token), info)])
            return info, token

    def remove(self, id: str) -> None:
        """Make a token worthless; blocks.

        Raises:
            NotFound: if there is none with this id.
            ConfigError: while the file is broken.
            StorageError: if the file cannot be written; the tokens stay as they were.
        """
        with self._lock:
            table = self._current()
            kept = [known for known in table.values() if known.info.id != id]
            if len(kept) == len(table):
                raise NotFound(f"no token {id}", what=id)
            self._store(kept)

    def revoke(self, pattern: str, note: str) -> None:
        """Make every token with a pattern and a note worthless; blocks.

        Raises:
            ConfigError: while the file is broken: what is in it now would be good again once it is repaired.
            StorageError: if the file cannot be written; the tokens stay as they were.
        """
        with self._lock:
            table = self._current()
            kept = [one for one in table.values() if (one.info.pattern, one.info.note) != (pattern, note)]
            if len(kept) < len(table):
                self._store(kept)

    def _current(self) -> _Table:
        self.load()
        if self.broken is not None:
            raise ConfigError(f"repair the file first: {self.broken}", path=str(self._path))
        return self._table

    def _store(self, tokens: Sequence[_Known]) -> None:
        entries = [{**known.info.to_wire(), "sha256": known.sha256} for known in tokens]
        data = orjson.dumps(entries, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        atomic_write(self._path, data)
        self._table = _build(tokens)


def write_operator_token(path: Path) -> str:
    """Put a new token in the operator's file, in place of the last start's, and return it; blocks.

    On a full disk the last start's token stays good if its file is private and whole. Otherwise no client knows the new
    one, and only an operator who needs no token gets in.

    Raises:
        StorageError: if the file cannot be written for any other reason.
    """
    token = PREFIX + token_urlsafe(_BYTES)
    try:
        # It need not survive a power loss: the next start makes another.
        atomic_write(path, f"{token}\n".encode(), sync=False)
    except StorageError as error:
        if error.code != "storage_full":
            raise
        kept = _last_operator_token(path)
        logger.warning("%s; %s", error.message, "the last start's token stays good" if kept else "there is none now")
        return kept or token
    return token


def _last_operator_token(path: Path) -> str | None:
    """Return the token of an earlier start, if nobody else can have seen or made it."""
    try:
        found = read_own(path, private=True).decode().removesuffix("\n")
    except (OSError, ValueError):
        return None
    return found if _OPERATOR_TOKEN.fullmatch(found) else None


def _digest(token: str) -> str:
    return sha256(token.encode(errors="surrogatepass")).hexdigest()


def check_pattern(pattern: str) -> None:
    """Check that a pattern matches no reserved sender.

    Raises:
        InvalidSubject: if it does, or is no pattern.
    """
    validate_subject(pattern, allow_wildcards=True)
    for reserved in RESERVED:
        if _overlap(pattern, reserved):
            raise InvalidSubject(
                f"{pattern!r} would let its owner speak as {reserved}, which is reserved: choose another",
                subject=pattern,
            )


def _overlap(one: str, other: str) -> bool:
    """Tell whether some subject matches both patterns."""
    for left, right in zip_longest(one.split("."), other.split(".")):
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
    try:
        entries = orjson.loads(data)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(entries, list):
        raise ValueError("must hold one JSON array of tokens")
    tokens = [_parse_token(number, entry) for number, entry in enumerate(entries, start=1)]
    table = _build(tokens)
    if len(table) < len(tokens) or len({known.info.id for known in tokens}) < len(tokens):
        raise ValueError("holds a token twice")
    return table


def _build(tokens: Sequence[_Known]) -> _Table:
    return MappingProxyType({known.sha256[:_HALF]: known for known in tokens})


def _parse_token(number: int, entry: Any) -> _Known:
    if not isinstance(entry, dict):
        raise ValueError(f"token {number} is not an object")
    for key in entry:
        if key not in _KEYS:
            raise ValueError(f"token {number}: {explain_unknown(key, _KEYS)}")
    digest = entry.get("sha256")
    if not isinstance(digest, str) or not _HASH.fullmatch(digest):
        raise ValueError(f"token {number}: sha256 is no SHA-256 in hexadecimal")
    try:
        # Strict: a guess could widen what a token is good for.
        info = TokenInfo.model_validate(entry, strict=True, by_alias=True, by_name=False)
        check_pattern(info.pattern)
    except ValidationError as error:
        where, problem = first_problem(error)
        raise ValueError(f"token {number}: {where}: {problem}") from error
    except InvalidSubject as error:
        raise ValueError(f"token {number}: {error.message}") from error
    return _Known(digest, info)
