"""Webhook signatures by four schemes, of which we sign by the first two; pure.

1. ``standard`` is Standard Webhooks: HMAC-SHA256 over ``id.timestamp.body``, in ``webhook-id``, ``webhook-timestamp``
   and ``webhook-signature``, which lists ``v1,base64`` signatures separated by spaces. One valid signature is enough.
2. ``legacy`` is HMAC-SHA256 over ``timestamp.body``, hexadecimal in ``X-Signature`` (optionally after ``sha256=``),
   with ``X-Timestamp``. It has no id, so a digest of the signed content is the id: not the signature, since each secret
   has a different one.
3. With ``both``, a request with any of the standard headers must be valid by the standard. Content that either scheme
   could have signed is refused; otherwise one scheme's signature could forge the other's message. A sender may put both
   signatures on one request, and an observer can remove either: `Signed.twin` and `Signed.mark` identify both halves as
   one message. We ourselves never sign by both.
4. An id contains no full stop (as the standard requires), so signed content has only one interpretation.
5. A repeated signing header becomes a list (joined by ``, ``), which is malformed here.
6. Anything missing, repeated, malformed, too old or too new is `Unverified`. Every key is tried with every signature,
   each in constant time.
7. ``svix`` is the standard with ``svix-id``, ``svix-timestamp`` and ``svix-signature``: the same content is signed, so
   it is the same message by either name.
8. ``github`` is HMAC-SHA256 over the body alone, hexadecimal after ``sha256=`` in ``X-Hub-Signature-256``. The id is
   ``X-GitHub-Delivery``. It is not signed and there is no time, so a repetition is recognised by its id for as long as
   that is known, and one that was captured and sent under another id is not.
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
Accepted: TypeAlias = Literal["standard", "legacy", "both", "svix", "github"]

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"
SVIX_ID = "svix-id"
SVIX_TIMESTAMP = "svix-timestamp"
SVIX_SIGNATURE = "svix-signature"
GITHUB_ID = "x-github-delivery"
GITHUB_SIGNATURE = "x-hub-signature-256"
LEGACY_TIMESTAMP = "x-timestamp"
LEGACY_SIGNATURE = "x-signature"
LEGACY_PREVIOUS = "x-signature-previous"
"""The scheme has room for one signature, so the one with the previous secret goes here."""

ID_HEADERS: dict[Accepted, str] = {"standard": ID, "legacy": ID, "both": ID, "svix": SVIX_ID, "github": GITHUB_ID}

SHORTEST_KEY = 16

_PREFIX = "whsec_"
_ID = re.compile(r"[!-\-/-~]{1,256}")  # printable ASCII without the full stop
_TIMESTAMP = re.compile(r"[0-9]{1,12}")
_HEX = re.compile(r"(?:sha256=)?([0-9A-Fa-f]{64})")
_GITHUB_ID = re.compile(r"[0-9A-Za-z_-]{1,128}")
_GITHUB_HEX = re.compile(r"sha256=([0-9A-Fa-f]{64})")
_EITHER = re.compile(rb"[0-9]{1,12}\.[0-9]{1,12}\.")
_MOST_SIGNATURES = 16
_MAC_BYTES = 32


class Unverified(Exception):
    """A request is not signed correctly; the message is for the operator, never for the sender."""


class Signed(NamedTuple):
    """The content of a valid signature."""

    id: str
    """The same for every repetition of a message."""
    timestamp: int | None
    """When it was signed, in seconds, if the scheme says."""
    scheme: Literal["standard", "legacy", "github"]
    content: str
    """A digest of time and body, the same for the standard and the legacy scheme."""

    @property
    def mark(self) -> str:
        """Return the id under which its twin looks it up; no ``webhook-id`` contains a space."""
        return f"{self.scheme} {self.content}"

    @property
    def twin(self) -> str | None:
        """Return the mark of the same time and body by the other scheme, if there is one."""
        if self.scheme == "github":
            return None
        return f"{'legacy' if self.scheme == 'standard' else 'standard'} {self.content}"


class _Claim(NamedTuple):
    """The unverified claims of a request."""

    id: str | None
    timestamp: int | None
    content: bytes
    signatures: list[bytes]


def read_key(secret: str, scheme: Accepted = "standard") -> bytes:
    """Return the key of a secret: base64 after ``whsec_``, otherwise (with ``github`` always) its UTF-8 bytes.

    Raises:
        ValueError: if it cannot be used; the message does not quote it.
    """
    if secret.startswith(_PREFIX) and scheme != "github":
        text = secret.removeprefix(_PREFIX)
        try:
            key = b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("the text after whsec_ must be base64") from None
    else:
        key = secret.encode()
    if len(key) < SHORTEST_KEY:
        raise ValueError(
            f"a secret needs at least {SHORTEST_KEY} bytes: create one with 'openssl rand -base64 32', "
            "and put whsec_ before it for Standard Webhooks"
        )
    return key


def sign(id: str, timestamp: int, body: bytes, keys: Sequence[bytes], scheme: Scheme) -> dict[str, str]:
    """Return the headers that sign a message with every key, the current one first."""
    if scheme == "standard":
        content = _content(body, id, timestamp)
        signatures = [f"v1,{b64encode(_mac(key, content)).decode()}" for key in keys]
        return {ID: id, TIMESTAMP: str(timestamp), SIGNATURE: " ".join(signatures)}
    content = _content(body, timestamp)
    macs = [_mac(key, content).hex() for key in keys]
    return {LEGACY_TIMESTAMP: str(timestamp), **dict(zip((LEGACY_SIGNATURE, LEGACY_PREVIOUS), macs, strict=False))}


def verify(
    headers: Mapping[str, str], body: bytes, keys: Sequence[bytes], scheme: Accepted, *, now_ms: int, tolerance: float
) -> Signed:
    """Return the signed content of a request (headers with lower-case names).

    Raises:
        Unverified: if no signature is valid, or the time is not within the tolerance.
    """
    claim = _read_claim(headers, body, scheme)
    if scheme == "both" and _EITHER.match(claim.content):
        raise Unverified("either scheme could have signed it: send an id that is not a number")
    if claim.timestamp is not None and abs(now_ms - claim.timestamp * 1000) > tolerance * 1000:
        raise Unverified("its time differs too much from ours")
    valid = False
    for key in keys:
        expected = _mac(key, claim.content)
        for signature in claim.signatures:
            valid |= compare_digest(expected, signature)
    if not valid:
        raise Unverified("no signature matches")
    if claim.timestamp is None:
        return Signed(f"github {claim.id}", None, "github", sha256(body).hexdigest())
    content = sha256(_content(body, claim.timestamp)).hexdigest()
    if claim.id is None:
        return Signed(f"legacy {content}", claim.timestamp, "legacy", content)
    return Signed(claim.id, claim.timestamp, "standard", content)


def _read_claim(headers: Mapping[str, str], body: bytes, scheme: Accepted) -> _Claim:
    match scheme:
        case "standard":
            return _read_standard(headers, body, ID, TIMESTAMP, SIGNATURE)
        case "svix":
            return _read_standard(headers, body, SVIX_ID, SVIX_TIMESTAMP, SVIX_SIGNATURE)
        case "github":
            return _read_github(headers, body)
        case "legacy":
            return _read_legacy(headers, body)
        case "both":
            standard = ID in headers or TIMESTAMP in headers or SIGNATURE in headers
            return _read_claim(headers, body, "standard" if standard else "legacy")


def _read_standard(
    headers: Mapping[str, str], body: bytes, id_name: str, timestamp_name: str, signature_name: str
) -> _Claim:
    id = headers.get(id_name, "")
    if not _ID.fullmatch(id):
        raise Unverified(f"it has no usable {id_name}")
    timestamp = _read_timestamp(headers, timestamp_name)
    text = headers.get(signature_name, "")
    if ", " in text:
        raise Unverified(f"its {signature_name} comes more than once")
    parts = text.split(" ")
    if len(parts) > _MOST_SIGNATURES:
        raise Unverified(f"it has more than {_MOST_SIGNATURES} signatures")
    signatures = [mac for part in parts if (mac := _read_signature(part)) is not None]
    return _Claim(id, timestamp, _content(body, id, headers[timestamp_name]), signatures)


def _read_github(headers: Mapping[str, str], body: bytes) -> _Claim:
    id = headers.get(GITHUB_ID, "")
    if not _GITHUB_ID.fullmatch(id):
        raise Unverified(f"it has no usable {GITHUB_ID}")
    found = _GITHUB_HEX.fullmatch(headers.get(GITHUB_SIGNATURE, ""))
    if found is None:
        raise Unverified(f"it has no usable {GITHUB_SIGNATURE}")
    return _Claim(id, None, body, [bytes.fromhex(found[1])])


def _read_legacy(headers: Mapping[str, str], body: bytes) -> _Claim:
    timestamp = _read_timestamp(headers, LEGACY_TIMESTAMP)
    found = _HEX.fullmatch(headers.get(LEGACY_SIGNATURE, ""))
    if found is None:
        raise Unverified(f"it has no usable {LEGACY_SIGNATURE}")
    mac = bytes.fromhex(found[1])
    return _Claim(None, timestamp, _content(body, headers[LEGACY_TIMESTAMP]), [mac])


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


def _content(body: bytes, *fields: object) -> bytes:
    return "".join(f"{field}." for field in fields).encode() + body


def _mac(key: bytes, content: bytes) -> bytes:
    return digest(key, content, "sha256")
