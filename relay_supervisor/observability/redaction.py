"""Redact unknown secrets: by the name of a field, and by their form in a text.

1. A named value is redacted by its name. The presence and number of secrets, and attributes of a secret (an id or a
   path), are kept: an operator needs them.
2. A text is redacted by the forms of secrets: fields, headers, URLs and the tokens of services that adapters use. In
   doubt it redacts: that costs a part of a log line, the opposite a password.
3. The result is always plain data of bounded size, computed in linear time.

`secrets.py` redacts the known secrets.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

REDACTED = "[redacted]"

_MAX_TEXT = 16_384
_MAX_DEPTH = 6
_MAX_ITEMS = 100

_SECRET_NAME = re.compile(
    "token|secret|passw(?:or)?d|passphrase|authori[sz]ation|apikey|accesskey|privatekey|signingkey"
    "|cookie|signature|credential|bearer|jwt"
)
_HARMLESS_NAME = re.compile("(?:id|count|path|file|name|pattern)$")
"""Names of attributes of a secret, such as tokenId or password_file."""

_NAME_IN_TEXT = (
    r"(?:token|secret|passw(?:or)?d|passphrase|authori[sz]ation|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|signing[_-]?key|cookie|signature|credentials?)"
)
_RANDOM = r"[A-Za-z0-9_\-]"
# Every pattern runs in linear time: none begins with an unbounded repetition.
_SECRETS_IN_TEXT: tuple[tuple[re.Pattern[str], str], ...] = (
    # A header, to the end of its line.
    (
        re.compile(
            r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie|x-[a-z-]{0,40}(?:token|secret|key|signature))"
            r"(['\"]?\s{0,4}:\s{0,4})[^\r\n]+"
        ),
        rf"\1\2{REDACTED}",
    ),
    # A field of a dict, of JSON or of a repr: 'botToken': 'x', "password":"x", secret='x', ?token=x
    (
        re.compile(
            rf"(?i)({_NAME_IN_TEXT}(?:s|[_-]?(?:value|hash|key))?)(\\{{0,8}}['\"]\s{{0,4}}:\s{{0,4}}|\s{{0,2}}=\s{{0,2}})"
            r"(?!None\b|null\b|true\b|false\b)"
            r"(?:b?'(?:[^'\\]|\\.)*'?|b?\"(?:[^\"\\]|\\.)*\"?|\\{1,8}['\"][^'\"\\]*|[^\s,;&'\"()\[\]{}]+)"
        ),
        rf"\1\2{REDACTED}",
    ),
    # The same in prose. Relay's own texts have no such name before a colon ("config.secret is not valid: ...").
    # Commas and brackets may be a part of the secret.
    (
        re.compile(
            r"(?i)(passw(?:or)?d|passphrase|secret|api[_-]?key|(?:access|auth|bot|refresh)[_-]?token)(\s{0,2}:\s{0,4})"
            r"[^\s'\"]+"
        ),
        rf"\1\2{REDACTED}",
    ),
    (re.compile(r"(?i)\b(bearer)\s{1,4}[A-Za-z0-9._~+/=\-]{8,}"), rf"\1 {REDACTED}"),
    # The password of a URL, up to the last @ before its path.
    (re.compile(r"(://[^\s/:@?#]{0,256}:)[^\s/?#]*@"), rf"\1{REDACTED}@"),
    # Relay's tokens.
    (re.compile(rf"relay_{_RANDOM}{{32,}}"), REDACTED),
    # Telegram's tokens, also in the path of a URL.
    (re.compile(rf"(?<!\d)\d{{5,16}}(?::|%3[Aa]){_RANDOM}{{30,}}"), REDACTED),
    # Keys of model providers, webhooks, code hosts and chats, and JSON web tokens.
    (re.compile(rf"(?<![A-Za-z0-9])sk[-_]{_RANDOM}{{16,}}"), REDACTED),
    (re.compile(r"whsec_[A-Za-z0-9+/=_\-]{8,}"), REDACTED),
    (re.compile(r"(?<![A-Za-z0-9])(?:gh[a-z]_|github_pat_|xox[a-z]-)[A-Za-z0-9_\-]{16,}"), REDACTED),
    (re.compile(r"(?<![A-Za-z0-9_\-])eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*"), REDACTED),
)


def redact_text(text: str) -> str:
    """Return a text with possible secrets redacted, cut to a maximum length."""
    if len(text) > 4 * _MAX_TEXT:
        text = text[: 4 * _MAX_TEXT]  # a secret that this splits is cut off below
    for pattern, replacement in _SECRETS_IN_TEXT:
        text = pattern.sub(replacement, text)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text)} characters)"


def redact(value: Any, *, depth: int = 0) -> Any:
    """Return any value as plain data (strings, numbers, lists and dicts) with secrets redacted."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping | list | tuple | set | frozenset) and depth >= _MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        items = [*value.items()][:_MAX_ITEMS]
        return {redact_text(as_text(key)): _redact_field(as_text(key), item, depth + 1) for key, item in items}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(item, depth=depth + 1) for item in [*value][:_MAX_ITEMS]]
    return redact_text(as_text(value))


def _redact_field(name: str, value: Any, depth: int) -> Any:
    # The presence and number of secrets are kept: "requireTokens: true", "tokens: 3".
    if value is None or isinstance(value, bool) or not is_secret_name(name):
        return redact(value, depth=depth)
    if isinstance(value, int | float) and name.endswith("s"):
        return redact(value)
    return REDACTED


def is_secret_name(name: str) -> bool:
    """Return True if a field with this name holds a secret."""
    plain = re.sub("[^a-z0-9]", "", name.lower())
    return _SECRET_NAME.search(plain) is not None and _HARMLESS_NAME.search(plain) is None


def as_text(value: object) -> str:
    """Return a string unchanged and any other value as its repr, even if that raises."""
    try:
        return value if isinstance(value, str) else repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
