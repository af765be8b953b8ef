"""How a bridge proves who it is, and to whom."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from relay_core import RelayError
from tests.kit.servers.nats import NatsServer, config, config_for, running_server, side, talking_server
from tests.kit.servers.nats_keys import Key, creds_file, jwt_server

TOKEN = "hunter22-token"
INFO = (
    b'INFO {"server_id":"x","version":"2.10.0","max_payload":1000,"headers":true,"auth_required":true,'
    b'"nonce":"abcdefghijk"}\r\n'
)


def secrets_of(kind: str) -> dict[str, Any]:
    key = Key("USER")
    found: dict[str, dict[str, Any]] = {
        "token": {"token": TOKEN},
        "password": {"user": "ann", "password": TOKEN},
        "nkey": {"nkeySeed": key.seed},
        "creds": {"credentials": creds_file("eyJhbGciOiJl.U0VDUkVU.c2ln", key.seed)},
    }
    return found[kind]


@pytest.mark.parametrize("kind", ["token", "password", "nkey", "creds"])
async def test_not_a_word_goes_to_a_server_that_does_not_offer_tls(tmp_path: Path, kind: str) -> None:
    async with talking_server(INFO) as (url, heard):
        with pytest.raises(RelayError, match="does not offer TLS"):
            async with side(tmp_path / "1", config_for(url, tls={}, **secrets_of(kind))):
                pass

    assert heard == b""


@pytest.mark.parametrize("kind", ["token", "password", "nkey", "creds"])
async def test_without_tls_wanted_the_same_server_hears_them(tmp_path: Path, kind: str) -> None:
    async with talking_server(INFO) as (url, heard), side(tmp_path / "1", config_for(url, **secrets_of(kind))):
        pass

    sign = {"token": b"auth_token", "password": b'"pass"', "nkey": b'"nkey"', "creds": b'"jwt"'}[kind]
    assert sign in heard


async def test_with_an_nkey_it_connects(tmp_path: Path) -> None:
    key, other = Key("USER"), Key("USER")
    settings = f"authorization {{ users = [{{ nkey: {key.public} }}] }}"
    async with running_server(tmp_path / "server", settings) as server:
        async with side(tmp_path / "1", config(server, nkeySeed=f"{key.seed}\n")) as left:
            assert left.state == "connected"
            assert key.seed not in repr(left.relay.adapters())
        with pytest.raises(RelayError, match="does not accept the credentials"):
            async with side(tmp_path / "2", config(server, nkeySeed=other.seed)):
                pass


@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["unix", "windows"])
async def test_with_credentials_it_connects(tmp_path: Path, line_end: str) -> None:
    settings, creds = jwt_server()
    path = tmp_path / "user.creds"
    path.write_bytes(creds.replace("\n", line_end).encode())
    path.chmod(0o600)
    async with running_server(tmp_path / "server", settings) as server:
        async with side(tmp_path / "1", config(server, credentials=f"file:{path}")) as left:
            assert left.state == "connected"
        with pytest.raises(RelayError, match="does not accept the credentials"):
            async with side(tmp_path / "2", config(server, credentials=jwt_server()[1])):
                pass


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        pytest.param({"credentials": "hunter22"}, "name a .creds file", id="no-creds-file"),
        pytest.param({"credentials": "-----BEGIN NATS USER JWT-----\nhunter22\n"}, "USER NKEY SEED", id="no-seed"),
        pytest.param({"credentials": creds_file("a.b.c", "SUAHUNTER22")}, "starts with SU", id="bad-seed"),
        pytest.param({"nkeySeed": "SUAHUNTER22"}, "starts with SU", id="bad-nkey"),
        pytest.param({"nkeySeed": Key("ACCOUNT").seed}, "starts with SU", id="an-accounts-nkey"),
    ],
)
async def test_credentials_that_are_none_are_a_failed_start(
    server: NatsServer, tmp_path: Path, keys: dict[str, Any], text: str
) -> None:
    with pytest.raises(RelayError, match=text) as caught:
        async with side(tmp_path / "1", config(server, **keys)):
            pass
    assert "hunter22" not in caught.value.message.lower()


async def test_without_nkeys_the_error_names_the_extra(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nkeys", None)

    with pytest.raises(RelayError, match=r"pip install 'relay-bus\[nats\]'"):
        async with side(tmp_path / "1", config(server, nkeySeed=Key("USER").seed)):
            pass


async def test_over_tls_it_connects_and_knows_a_wrong_authority(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = await asyncio.create_subprocess_exec(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert),
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await make.wait() == 0
    settings = f'tls {{ cert_file: "{cert}", key_file: "{key}" }}\nauthorization {{ token: "{TOKEN}" }}'
    async with running_server(tmp_path / "server", settings) as server:
        async with side(tmp_path / "1", config(server, token=TOKEN, tls={"caFile": str(cert)})) as left:
            assert left.state == "connected"
        with pytest.raises(RelayError, match=r"TLS with .* failed"):
            async with side(tmp_path / "2", config(server, token=TOKEN, tls={})):
                pass
    first = settings.replace("tls {", "tls { handshake_first: true,")
    async with running_server(tmp_path / "first", first) as server:
        tls = {"caFile": str(cert), "handshakeFirst": True}
        async with side(tmp_path / "3", config(server, token=TOKEN, tls=tls)) as left:
            assert left.state == "connected"
