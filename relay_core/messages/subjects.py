"""Subjects: dot-separated names, and patterns over them.

1. A token is ``[A-Za-z0-9_-]+``; at most 16 tokens and 255 characters.
2. In a pattern, ``*`` stands for exactly one token and ``>``, only as the last token, for one or more.
3. Matching is case-sensitive. A wildcard is a whole token, never part of one.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256

from relay_core.errors import InvalidSubject

ADAPTER_PREFIX = "relay.adapter."
"""Subjects of the adapters' mailboxes, reserved for them."""
SYSTEM_PREFIX = "relay.system."
"""Senders reserved for the bus itself."""
BUS_SENDER = f"{SYSTEM_PREFIX}bus"
"""The sender of the bus's own messages."""
REPLY_PREFIX = "relay.reply."
"""Subjects of reply mailboxes, each private to its owner (rules/replies.py): no pattern matches them."""
MAX_TOKENS = 16
MAX_LENGTH = 255
_REMEMBERED = 4096
"""Cached subjects: enough for those in use, and bounded when thousands come and go."""

_SUBJECT = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


def validate_subject(subject: str, *, allow_wildcards: bool = False) -> None:
    """Check a subject, or a pattern where wildcards are allowed.

    Raises:
        InvalidSubject: the message names the offending part.
    """
    if not isinstance(subject, str) or not is_subject(subject):
        _explain(subject, allow_wildcards)


def adapter_subject(adapter_id: str) -> str:
    """Return the subject of an adapter's main mailbox."""
    return f"{ADAPTER_PREFIX}{adapter_id}"


def adapter_of(subject: str) -> str:
    """Return the id of the adapter that a subject below ``relay.adapter.`` belongs to."""
    return subject.removeprefix(ADAPTER_PREFIX).partition(".")[0]


def is_of_bus(sender: str) -> bool:
    """Return True if a sender is the bus itself or one of its adapters."""
    return sender == BUS_SENDER or sender.startswith(ADAPTER_PREFIX)


def is_subject(subject: str) -> bool:
    """Return True if the text is a valid concrete subject."""
    return len(subject) <= MAX_LENGTH and _is_subject(subject)  # long texts must not fill the cache


@lru_cache(maxsize=_REMEMBERED)
def _is_subject(subject: str) -> bool:
    return subject.count(".") < MAX_TOKENS and _SUBJECT.fullmatch(subject) is not None


def is_pattern(subject: str) -> bool:
    """Return True if a valid subject has wildcards."""
    return "*" in subject or ">" in subject


def is_reply(subject: str) -> bool:
    """Return True for the subject of a reply mailbox, or a pattern that matches nothing else."""
    return subject.startswith(REPLY_PREFIX)


def matches_pattern(subject: str, pattern: str) -> bool:
    """Return True if a subject matches a pattern."""
    tokens = subject.split(".")
    wanted = pattern.split(".")
    for position, want in enumerate(wanted):
        if want == ">":
            return len(tokens) > position
        if position >= len(tokens) or (want != "*" and want != tokens[position]):
            return False
    return len(tokens) == len(wanted)


def pattern_covers(outer: str, inner: str) -> bool:
    """Return True if every subject that `inner` (a subject or a pattern) matches also matches `outer`.

    Limits on length are ignored: a pattern stands for subjects of any length.
    """
    # As a subject, `inner` matches if each of its tokens does. Only its '>' stands for more than one token.
    return matches_pattern(inner, outer) and (not inner.endswith(">") or outer.endswith(">"))


def subject_hash(subject: str) -> str:
    """Return the name of the subject's mailbox directory."""
    return _subject_hash(subject) if len(subject) <= MAX_LENGTH else _subject_hash.__wrapped__(subject)


@lru_cache(maxsize=_REMEMBERED)
def _subject_hash(subject: str) -> str:
    return sha256(subject.encode(errors="surrogatepass")).hexdigest()[:12]


def _explain(subject: str, allow_wildcards: bool) -> None:
    if not isinstance(subject, str):
        raise InvalidSubject(f"a subject must be text, not {type(subject).__name__}")
    shown = subject if len(subject) <= 80 else subject[:77] + "..."
    if not subject:
        raise InvalidSubject("a subject must not be empty", subject=subject)
    if len(subject) > MAX_LENGTH:
        raise InvalidSubject(
            f"subject {shown!r} has {len(subject)} characters, the limit is {MAX_LENGTH}", subject=subject
        )
    tokens = subject.split(".")
    if len(tokens) > MAX_TOKENS:
        raise InvalidSubject(f"subject {shown!r} has {len(tokens)} tokens, the limit is {MAX_TOKENS}", subject=subject)
    for position, token in enumerate(tokens):
        if not token:
            raise InvalidSubject(f"subject {shown!r} has an empty token: remove the extra dot", subject=subject)
        if token in ("*", ">"):
            if not allow_wildcards:
                raise InvalidSubject(f"subject {shown!r} must not contain the wildcard {token!r}", subject=subject)
            if token == ">" and position != len(tokens) - 1:
                raise InvalidSubject(f"in pattern {shown!r} '>' must be the last token", subject=subject)
        elif not _TOKEN.fullmatch(token):
            raise InvalidSubject(
                f"subject {shown!r} has the token {token!r}: only letters, digits, '_' and '-' are allowed",
                subject=subject,
            )
