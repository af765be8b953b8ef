"""Signatures: what the reference implementation makes we accept, what we make it accepts, and nothing else passes."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from relay_core.clock import SystemClock
from relay_supervisor.adapters.webhook.signing import Accepted, Scheme, Signed, Unverified, read_key, sign, verify
from tests.kit.servers.webhook import OLD_SECRET, SECRET, TEXT_SECRET

KEY, OLD_KEY = read_key(SECRET), read_key(OLD_SECRET)
NOW = 1_700_000_000
BODY = b'{"content":"hello"}'


def check(
    headers: dict[str, str],
    body: bytes = BODY,
    keys: tuple[bytes, ...] = (KEY,),
    scheme: Accepted = "standard",
    now_ms: int = NOW * 1000,
) -> Signed:
    return verify(headers, body, keys, scheme, now_ms=now_ms, tolerance=300)


def standard(**changes: str) -> dict[str, str]:
    headers = sign("msg_1", NOW, BODY, [KEY], "standard")
    return {**headers, **{f"webhook-{name}": value for name, value in changes.items()}}


def legacy(timestamp: int = NOW, body: bytes = BODY, key: bytes = KEY) -> dict[str, str]:
    mac = hmac.new(key, f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return {"x-signature": mac, "x-timestamp": str(timestamp)}


GOOD = standard()["webhook-signature"]


@pytest.mark.parametrize("secret", [SECRET, OLD_SECRET])
def test_the_reference_implementation_accepts_what_we_sign(secret: str) -> None:
    now = SystemClock().now_ms() // 1000
    headers = sign("msg_1", now, BODY, [read_key(OLD_SECRET), read_key(SECRET)], "standard")
    assert Webhook(secret).verify(BODY, headers) == {"content": "hello"}


@pytest.mark.parametrize("secret", [SECRET, SECRET.rstrip("=")])
def test_we_accept_what_the_reference_implementation_signs(secret: str) -> None:
    signature = Webhook(secret).sign("msg_1", datetime.fromtimestamp(NOW, UTC), BODY.decode())
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(NOW), "webhook-signature": signature}
    signed = check(headers, keys=(read_key(secret),))
    assert (signed.id, signed.timestamp) == ("msg_1", NOW)


def test_a_secret_without_the_prefix_is_its_own_bytes() -> None:
    assert read_key(TEXT_SECRET) == TEXT_SECRET.encode()


@pytest.mark.parametrize(
    "secret",
    ["whsec_" + "not base64!" * 4, "whsec_c2hvcnQ=", "short", ""],
    ids=["no-base64", "short-key", "short", "empty"],
)
def test_a_secret_that_cannot_be_used_is_refused_without_being_quoted(secret: str) -> None:
    with pytest.raises(ValueError, match=r"base64|at least 16 bytes") as caught:
        read_key(secret)
    assert not secret or secret not in str(caught.value)


def test_one_good_signature_among_several_is_enough() -> None:
    good = sign("msg_1", NOW, BODY, [KEY], "standard")["webhook-signature"]
    noise = "v1a,AAAA v2,zzz v1,%%% v1 v1,AAAA"
    assert check(standard(signature=f"{noise} {good}")).id == "msg_1"
    both = sign("msg_1", NOW, BODY, [KEY, OLD_KEY], "standard")
    assert both["webhook-signature"].count("v1,") == 2
    for keys in ((KEY,), (OLD_KEY,), (OLD_KEY, KEY)):
        assert check(both, keys=keys).id == "msg_1"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        standard(id=""),
        standard(id="msg_2"),
        standard(id="msg 1"),
        standard(id="msg.1"),
        standard(id="m\u00e9"),
        standard(id="m" * 257),
        standard(timestamp=""),
        standard(timestamp="now"),
        standard(timestamp=str(NOW + 1)),
        standard(timestamp=f" {NOW}"),
        standard(timestamp=f"{NOW}.0"),
        standard(timestamp=f"+{NOW}"),
        standard(timestamp="\u0661\u0667"),
        standard(timestamp="1" * 400),
        standard(timestamp=f"-{NOW}"),
        standard(signature=""),
        standard(signature="v1"),
        standard(signature="v1,"),
        standard(signature="v1," + base64.b64encode(b"\0" * 32).decode()),
        standard(signature="v1,\u00e9"),
        standard(signature=sign("msg_1", NOW, BODY, [KEY], "standard")["webhook-signature"][:-4]),
        standard(signature=sign("msg_1", NOW, BODY, [KEY], "standard")["webhook-signature"].replace("v1", "v2")),
        standard(signature=sign("msg_1", NOW, BODY, [OLD_KEY], "standard")["webhook-signature"]),
        standard(signature="v1,AAAA " * 16 + sign("msg_1", NOW, BODY, [KEY], "standard")["webhook-signature"]),
        legacy(),
    ],
    ids=lambda headers: " ".join(ascii(value)[:24] for value in headers.values()) or "none",
)
def test_what_is_missing_misshapen_or_wrong_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(Unverified):
        check(headers)


@pytest.mark.parametrize("others", ["v1,!!!, {}", "{}, {}", ", {}", "{}, "])
def test_a_signature_header_that_comes_twice_is_refused_although_one_is_good(others: str) -> None:
    with pytest.raises(Unverified, match="more than once"):
        check(standard(signature=others.format(GOOD, GOOD)))


@pytest.mark.parametrize(("away", "good"), [(-301, False), (-300, True), (0, True), (300, True), (301, False)])
@pytest.mark.parametrize("scheme", ["standard", "legacy"])
def test_a_time_more_than_five_minutes_away_is_refused(scheme: Scheme, away: int, good: bool) -> None:
    headers = sign("msg_1", NOW, BODY, [KEY], scheme)
    if good:
        assert check(headers, scheme=scheme, now_ms=(NOW + away) * 1000).timestamp == NOW
    else:
        with pytest.raises(Unverified, match="time"):
            check(headers, scheme=scheme, now_ms=(NOW + away) * 1000)


def test_an_id_with_a_full_stop_is_refused_although_it_is_signed() -> None:
    """Else ``a.NOW`` + ``NOW.body`` could be presented as ``a`` + ``NOW`` + ``NOW.body``."""
    with pytest.raises(Unverified, match="webhook-id"):
        check(sign(f"a.{NOW}", NOW, BODY, [KEY], "standard"))


def test_the_body_is_signed_to_the_last_byte() -> None:
    for body in (BODY + b" ", BODY[:-1], b""):
        with pytest.raises(Unverified):
            check(standard(), body)


def test_the_legacy_form_is_taken_with_and_without_prefix_and_its_id_is_what_was_signed() -> None:
    headers = legacy()
    signed = check(headers, scheme="legacy")
    assert signed.id == "legacy " + hashlib.sha256(f"{NOW}.".encode() + BODY).hexdigest()
    assert check(legacy(key=OLD_KEY), keys=(KEY, OLD_KEY), scheme="legacy") == signed, "by either secret"
    assert check(legacy(NOW + 1), scheme="legacy").id != signed.id
    assert check(legacy(body=b"{}"), b"{}", scheme="legacy").id != signed.id
    shouted = {**headers, "x-signature": "sha256=" + headers["x-signature"].upper()}
    assert check(shouted, scheme="legacy") == signed, "another way to write it is no other message"


def test_we_sign_the_legacy_form_as_its_receivers_expect() -> None:
    headers = sign("msg_1", NOW, BODY, [KEY, OLD_KEY], "legacy")
    assert headers == {**legacy(), "x-signature-previous": legacy(key=OLD_KEY)["x-signature"]}


@pytest.mark.parametrize("scheme", ["standard", "both"])
def test_a_good_legacy_signature_does_not_help_a_bad_standard_one(scheme: Accepted) -> None:
    with pytest.raises(Unverified):
        check({**legacy(), **standard(id="other")}, scheme=scheme)


def test_with_both_schemes_each_is_taken() -> None:
    assert check(standard(), scheme="both").id == "msg_1"
    assert check(legacy(), scheme="both") == check(legacy(), scheme="legacy")


def test_the_same_time_and_body_by_the_other_scheme_is_the_twin() -> None:
    first, other = check(standard(), scheme="both"), check(legacy(), scheme="both")
    assert (first.twin, first.mark) == (other.mark, other.twin)
    assert other.id == other.mark
    for signed in (check(legacy(NOW + 1), scheme="both"), check(legacy(body=b"{}"), b"{}", scheme="both")):
        assert signed.mark != other.mark


def test_one_schemes_signature_cannot_be_presented_as_the_others() -> None:
    """Signed were ``NOW.NOW.body``: as id, time and body, or as time and a body that begins with digits."""
    genuine = sign(str(NOW), NOW, BODY, [KEY], "standard")
    assert check(genuine).id == str(NOW)
    turned = {
        "x-timestamp": str(NOW),
        "x-signature": base64.b64decode(genuine["webhook-signature"].removeprefix("v1,")).hex(),
    }
    for headers, body in ((genuine, BODY), (turned, f"{NOW}.".encode() + BODY)):
        with pytest.raises(Unverified, match="either"):
            check(headers, body, scheme="both")


TEXT = st.text(max_size=40) | st.sampled_from(["v1,", "v1,AAAA", str(NOW), "msg_1", "sha256=", "a" * 64])


@given(
    headers=st.dictionaries(
        st.sampled_from(["webhook-id", "webhook-timestamp", "webhook-signature", "x-signature", "x-timestamp"]), TEXT
    ),
    scheme=st.sampled_from(["standard", "legacy", "both"]),
    body=st.binary(max_size=40),
)
def test_headers_of_any_kind_are_refused_and_never_an_error(
    headers: dict[str, str], scheme: Accepted, body: bytes
) -> None:
    with pytest.raises(Unverified):
        check(headers, body, scheme=scheme)


@given(
    body=st.binary(max_size=100),
    id=st.from_regex(r"[!-\-/-~]{1,256}", fullmatch=True),
    stamp=st.integers(0, 10**12 - 1),
)
def test_what_we_sign_we_accept(body: bytes, id: str, stamp: int) -> None:
    headers = sign(id, stamp, body, [KEY], "standard")
    signed = check(headers, body, now_ms=stamp * 1000)
    assert (signed.id, signed.timestamp) == (id, stamp)
