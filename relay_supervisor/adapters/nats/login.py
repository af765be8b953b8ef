"""Credentials and TLS.

Credentials are checked before nats-py gets them: in a file that is not a .creds file it would search forever.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from nats.aio.client import RawCredentials

from relay_supervisor.adapters.nats.config import NatsConfig, TlsConfig
from relay_supervisor.adapters.nats.faults import Refusal, describe

_JWT, _SEED = "NATS USER JWT", "USER NKEY SEED"


def credentials(config: NatsConfig) -> dict[str, Any]:
    """Return the credentials as options of nats-py.

    Raises:
        Refusal: if they are invalid.
    """
    if config.token is not None:
        return {"token": config.token.reveal()}
    if config.user is not None and config.password is not None:
        return {"user": config.user, "password": config.password.reveal()}
    if config.credentials is None and config.nkey_seed is None:
        return {}
    if find_spec("nkeys") is None:
        raise Refusal("credentials and nkeySeed need the package nkeys: run \"pip install 'relay-bus[nats]'\"")
    if config.credentials is not None:
        text = config.credentials.reveal()
        jwt, seed = _block(text, _JWT), _check_seed("credentials", _block(text, _SEED))
        clean = "".join(f"-----BEGIN {name}-----\n{block}\n" for name, block in ((_JWT, jwt), (_SEED, seed)))
        return {"user_credentials": RawCredentials(clean)}
    assert config.nkey_seed is not None
    return {"nkeys_seed_str": _check_seed("nkeySeed", config.nkey_seed.reveal().strip())}


def _block(text: str, name: str) -> str:
    found = re.search(rf"BEGIN {name}-*\s+([\w.=+/-]+)", text)
    if found is None:
        raise Refusal(f"credentials contains no {name}: name a .creds file (file:/path/to/user.creds)")
    return found[1]


def _check_seed(key: str, seed: str) -> str:
    try:
        pair = import_module("nkeys").from_seed(bytearray(seed.encode()))
        is_user = pair.public_key.startswith(b"U")
    except Exception:  # of nkeys, or of the libraries that it uses
        is_user = False
    if not is_user:
        raise Refusal(f"{key} does not contain the seed of a user's nkey, which starts with SU") from None
    return seed


async def tls_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return the TLS context; raises Refusal if the certificates cannot be read."""

    def make() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file is not None:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        return context

    try:
        return await asyncio.to_thread(make)
    except (OSError, ssl.SSLError) as error:
        raise Refusal(f"tls: the certificates cannot be read: {describe(error)}") from None
