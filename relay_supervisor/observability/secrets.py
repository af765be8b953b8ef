"""Redact the secrets that this process knows.

1. A secret is redacted until the process ends: an adapter that was replaced may still log its old one.
2. A secret is found verbatim and as URLs, JSON and Python encode it; a secret of several lines also joined to one line,
   and each of its lines. Secrets shorter than `SHORTEST_SECRET` would match ordinary text and are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

REDACTED = "***"
SHORTEST_SECRET = 6


class SecretRedactor:
    """Replace known secrets in texts."""

    def __init__(self) -> None:
        self._encodings: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def add(self, secrets: Iterable[str]) -> None:
        """Add secrets to redact."""
        found = {encoding for secret in secrets if len(secret) >= SHORTEST_SECRET for encoding in _encodings(secret)}
        if not found <= self._encodings:
            self._encodings |= found
            longest_first = sorted(self._encodings, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def redact(self, text: str) -> str:
        """Return a text with the secrets replaced."""
        return self._pattern.sub(REDACTED, text) if self._pattern is not None else text


def _encodings(secret: str) -> set[str]:
    lines = {line.strip() for line in secret.splitlines() if len(line.strip()) >= SHORTEST_SECRET}
    as_json = {json.dumps(secret, ensure_ascii=ascii)[1:-1] for ascii in (True, False)}
    as_url = {quote(secret, safe=""), quote(secret), quote_plus(secret)}
    return {secret, " ".join(secret.split()), repr(secret)[1:-1], *as_url, *as_json, *lines}
