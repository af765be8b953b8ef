"""User keys, and server settings that trust them: by nkey, and by JWTs that an operator and an account signed."""

from __future__ import annotations

import base64
import os
from importlib import import_module
from typing import Any

import orjson

nkeys: Any = import_module("nkeys")  # it has no types


class Key:
    """A key pair of an operator, an account or a user."""

    def __init__(self, kind: str) -> None:
        raw = nkeys.encode_seed(os.urandom(32), getattr(nkeys, f"PREFIX_BYTE_{kind}"))
        self.seed: str = raw.decode()
        self._pair = nkeys.from_seed(bytearray(raw))
        self.public: str = self._pair.public_key.decode()

    def sign(self, subject: Key, **claims: Any) -> str:
        """Return a JWT with claims about another key."""
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        body = {"jti": "x", "iat": 1_700_000_000, "iss": self.public, "sub": subject.public, "name": "test"}
        body["nats"] = {"version": 2, **claims}
        text = ".".join(_encode(orjson.dumps(part)) for part in (head, body))
        return f"{text}.{_encode(self._pair.sign(text.encode()))}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def creds_file(jwt: str, seed: str) -> str:
    """Return the contents of a .creds file, as nsc writes it."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        "NKEY Seed printed below can be used to sign and prove identity.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def jwt_server() -> tuple[str, str]:
    """Return the settings of a server that trusts an operator, and the .creds of a user of it."""
    operator, system, account, user = Key("OPERATOR"), Key("ACCOUNT"), Key("ACCOUNT"), Key("USER")
    free = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    store = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
    about_system = operator.sign(system, type="account", limits={**free, "wildcards": True})
    about_account = operator.sign(account, type="account", limits={**free, **store, "wildcards": True})
    about_user = account.sign(user, type="user", subs=-1, data=-1, payload=-1)
    settings = (
        f"operator: {operator.sign(operator, type='operator')}\n"
        f"system_account: {system.public}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {account.public}: {about_account}, {system.public}: {about_system} }}\n"
    )
    return settings, creds_file(about_user, user.seed)
