"""Signatures of webhooks: made and checked, by two schemes. Pure.

1. ``standard`` is Standard Webhooks: HMAC-SHA256 over ``id.timestamp.body``, in ``webhook-id``, ``webhook-timestamp``
   and ``webhook-signature``, which lists ``v1,base64`` signatures with spaces between them. One good one is enough.
2. ``legacy`` is HMAC-SHA256 over ``timestamp.body``, hexadecimal in ``X-Signature`` (``sha256=`` may stand before it),
   with ``X-Timestamp``. It has no id, so a digest of what was signed is the id: not the signature, of which there is
   one for each secret.
3. With ``both``, a request with any of the standard headers must be good by the standard. What can be read as
   signed content of either scheme is refused, else one scheme's signature would serve to forge the other's message.
   A sender may put both signatures on one request, and who has seen it can leave either away: `Signed.twin` and
   `Signed.mark` let both halves be known as one message. We ourselves never sign by both.
4. An id has no full stop (as the standard asks), so the parts of what was signed can only be cut in one way.
5. A signing header that comes twice is a list to HTTP (``, `` in between), and that is misshapen here.
6. Whatever is missing, repeated, misshapen, too old or too new is `Unverified`. Every key is tried with every
   signature, each in constant time.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest, digest
from typing import Literal, NamedTuple, TypeAlias

Scheme: TypeAlias = Literal["standard", "legacy"]
Accepted: TypeAlias = Literal["standard", "legacy", "both"]

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"
LEGACY_TIMESTAMP = "x-timestamp"
LEGACY_SIGNATURE = "x-signature"
LEGACY_PREVIOUS = "x-signature-previous"
"""That scheme has room for one signature: the one with the previous secret goes here."""

SHORTEST_KEY = 16

_PREFIX = "whsec_"
_ID = re.compile(r"[!-\-/-~]{1,256}")  # what is printed in ASCII, but no full stop
_TIMESTAMP = re.compile(r"[0-9]{1,12}")
_HEX = re.compile(r"(?:sha256=)?([0-9A-Fa-f]{64})")
_EITHER = re.compile(rb"[0-9]{1,12}\.[0-9]{1,12}\.")
_MOST_SIGNATURES = 16
_MAC_BYTES = 32


class Unverified(Exception):
    """A request is not signed as it should be; the text is for the operator, never for the sender."""


class Signed(NamedTuple):
    """What a good signature vouches for."""

    id: str
    """What a repetition of the same message has in common with it."""
    timestamp: int
    """When it was signed, in seconds."""
    scheme: Scheme
    content: str
    """A digest of its time and body, the same by either scheme."""

    @property
    def mark(self) -> str:
        """Return the id under which its twin looks for it; a space is in no ``webhook-id``."""
        return f"{self.scheme} {self.content}"

    @property
    def twin(self) -> str:
        """Return the mark of the same time and body by the other scheme."""
        return f"{'legacy' if self.scheme == 'standard' else 'standard'} {self.content}"


class _Claim(NamedTuple):
    """What a request says of itself."""

    id: str | None
    timestamp: int
    content: bytes
    given: list[bytes]


def read_key(secret: str) -> bytes:
    """Return the key that a secret stands for: base64 after ``whsec_``, else its own UTF-8 bytes.

    Raises:
        ValueError: if it cannot be used; the text does not quote it.
    """
    if secret.startswith(_PREFIX):
        text = secret.removeprefix(_PREFIX)
        try:
            key = b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("what follows whsec_ must be base64") from None
    else:
        key = secret.encode()
    if len(key) < SHORTEST_KEY:
        raise ValueError(
            f"a secret needs at least {SHORTEST_KEY} bytes: make one with 'openssl rand -base64 32', "
            "and put whsec_ before it for Standard Webhooks"
        )
    return key


def sign(id: str, timestamp: int, body: bytes, keys: Sequence[bytes], scheme: Scheme) -> dict[str, str]:
    """Return the headers that sign a message with every key, the current one first."""
    headers: dict[str, str] = {}
    if scheme == "standard":
        content = _standard_content(id, timestamp, body)
        signatures = [f"v1,{b64encode(_mac(key, content)).decode()}" for key in keys]
        headers |= {ID: id, TIMESTAMP: str(timestamp), SIGNATURE: " ".join(signatures)}
    else:
        content = _legacy_content(timestamp, body)
        headers |= {LEGACY_TIMESTAMP: str(timestamp), LEGACY_SIGNATURE: _mac(keys[0], content).hex()}
        if len(keys) > 1:
            headers[LEGACY_PREVIOUS] = _mac(keys[1], content).hex()
    return headers


def verify(
    headers: Mapping[str, str], body: bytes, keys: Sequence[bytes], scheme: Accepted, *, now_ms: int, tolerance: float
) -> Signed:
    """Return what a request (headers with lower-case names) is signed for.

    Raises:
        Unverified: if no signature is good, or the time is not within the tolerance.
    """
    if scheme == "both":
        standard = ID in headers or TIMESTAMP in headers or SIGNATURE in headers
    else:
        standard = scheme == "standard"
    claim = _read_standard(headers, body) if standard else _read_legacy(headers, body)
    if scheme == "both" and _EITHER.match(claim.content):
        raise Unverified("it can be read by either scheme: send an id that is not a number")
    if abs(now_ms - claim.timestamp * 1000) > tolerance * 1000:
        raise Unverified("its time is too far from ours")
    good = False
    for key in keys:
        wanted = _mac(key, claim.content)
        for one in claim.given:
            good |= compare_digest(wanted, one)
    if not good:
        raise Unverified("its signature is not ours")
    content = _digest(claim.timestamp, body)
    if claim.id is None:
        return Signed(f"legacy {content}", claim.timestamp, "legacy", content)
    return Signed(claim.id, claim.timestamp, "standard", content)


def _read_standard(headers: Mapping[str, str], body: bytes) -> _Claim:
    id = headers.get(ID, "")
    if not _ID.fullmatch(id):
        raise Unverified(f"it has no usable {ID}")
    timestamp = _read_timestamp(headers, TIMESTAMP)
    text = headers.get(SIGNATURE, "")
    if ", " in text:
        raise Unverified(f"its {SIGNATURE} comes more than once")
    parts = text.split(" ")
    if len(parts) > _MOST_SIGNATURES:
        raise Unverified(f"it has more than {_MOST_SIGNATURES} signatures")
    given = [mac for part in parts if (mac := _read_signature(part)) is not None]
    return _Claim(id, timestamp, _standard_content(id, timestamp, body, headers[TIMESTAMP]), given)


def _read_legacy(headers: Mapping[str, str], body: bytes) -> _Claim:
    timestamp = _read_timestamp(headers, LEGACY_TIMESTAMP)
    found = _HEX.fullmatch(headers.get(LEGACY_SIGNATURE, ""))
    if found is None:
        raise Unverified(f"it has no usable {LEGACY_SIGNATURE}")
    mac = bytes.fromhex(found[1])
    return _Claim(None, timestamp, _legacy_content(timestamp, body, headers[LEGACY_TIMESTAMP]), [mac])


def _read_timestamp(headers: Mapping[str, str], name: str) -> int:
    text = headers.get(name, "")
    if not _TIMESTAMP.fullmatch(text):
        raise Unverified(f"it has no usable {name}")
    return int(text)


def _read_signature(part: str) -> bytes | None:
    version, _, text = part.partition(",")
    if version != "v1":  # other versions are for other keys
        return None
    try:
        mac = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return mac if len(mac) == _MAC_BYTES else None


def _standard_content(id: str, timestamp: int, body: bytes, written: str | None = None) -> bytes:
    return f"{id}.{written or timestamp}.".encode() + body


def _legacy_content(timestamp: int, body: bytes, written: str | None = None) -> bytes:
    return f"{written or timestamp}.".encode() + body


def _digest(timestamp: int, body: bytes) -> str:
    return sha256(_legacy_content(timestamp, body)).hexdigest()


def _mac(key: bytes, content: bytes) -> bytes:
    return digest(key, content, "sha256")
