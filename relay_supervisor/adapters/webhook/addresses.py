"""Which address a host name stands for, and whether we may go there.

1. A name is resolved once per delivery, and the connection goes to the very address that was judged: a name that
   answers differently the second time (DNS rebinding) gets no second question.
2. If any of a name's addresses is not public, none is used: a mixed answer is an attempt.
3. Public is what the whole Internet can reach. An address within another one (IPv4 in IPv6, NAT64, 6to4, ISATAP) is
   judged by the inner one too. So this machine, its networks and a cloud's metadata service are out of reach.
4. The operator may allow names (whatever they resolve to) and networks.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
"""What stands before the IPv4 address in the lower half of such an address, in whatever network it is."""
_NEVER: tuple[Network, ...] = (
    IPv4Network("192.88.99.0/24"),  # relays of 6to4
    IPv6Network("::/96"),  # IPv4 in IPv6, as it was once
    IPv6Network("64:ff9b:1::/48"),  # NAT64 within one network
    IPv6Network("2001::/32"),  # Teredo: leads to whatever network its client is in
    IPv6Network("3fff::/20"),  # for documentation; Python's own table does not have it yet
    IPv6Network("fec0::/10"),
)


class Unreachable(Exception):
    """A host has no address that may be used; the text says why."""


async def resolve(
    host: str, port: int, *, names: Collection[str] = (), networks: Sequence[Network] = ()
) -> list[Address]:
    """Return the addresses of a host, best first, all of which may be used.

    Raises:
        Unreachable: if it has none, or one that may not be used.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no host name"
        raise Unreachable(f"{host} cannot be resolved: {why}") from None
    addresses = list(dict.fromkeys(ip_address(info[4][0]) for info in found))
    if host.rstrip(".").lower() not in names:
        for address in addresses:
            if not is_public(address) and not any(address in network for network in networks):
                raise Unreachable(f"{host} is at {address}, which is not public: add it to allowHosts if it is meant")
    if not addresses:
        raise Unreachable(f"{host} has no address")
    return addresses


def is_public(address: Address) -> bool:
    """Tell whether the whole Internet can reach an address."""
    if any(address in network for network in _NEVER):
        return False
    if isinstance(address, IPv6Address):
        if int(address) >> 32 & 0xFFFF_FFFF in _ISATAP and not is_public(_last(address)):
            return False
        inner = _inner(address)
        if inner is not None:
            return is_public(inner)
    if address.is_multicast or address.is_reserved or address.is_unspecified:
        return False
    return address.is_global and not address.is_link_local and not address.is_loopback


def _inner(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return _last(address)
    return address.ipv4_mapped or address.sixtofour


def _last(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFF_FFFF)
