"""The secrets that this process knows, and texts without them.

1. What was once a secret stays one until the process ends: an adapter that was replaced may still speak of its old one.
2. A secret is found as it is, and as a URL, JSON or Python would write it; one of several lines also on one line, and
   each line by itself. What is too short to tell from ordinary text is not looked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

REDACTED = "***"
SHORTEST_SECRET = 6


class SecretRedactor:
    """Know secrets, and cut them out of texts."""

    def __init__(self) -> None:
        self._written: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def add(self, secrets: Iterable[str]) -> None:
        """Know more secrets."""
        found = {written for secret in secrets if len(secret) >= SHORTEST_SECRET for written in _ways_to_write(secret)}
        if not found <= self._written:
            self._written |= found
            longest_first = sorted(self._written, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def redact(self, text: str) -> str:
        """Return a text without the secrets in it."""
        return self._pattern.sub(REDACTED, text) if self._pattern is not None else text


def _ways_to_write(secret: str) -> set[str]:
    lines = {line.strip() for line in secret.splitlines() if len(line.strip()) >= SHORTEST_SECRET}
    as_json = {json.dumps(secret, ensure_ascii=ascii)[1:-1] for ascii in (True, False)}
    joined = " ".join(secret.split())
    return {
        secret,
        joined,
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
        repr(secret)[1:-1],
        *as_json,
        *lines,
    }
