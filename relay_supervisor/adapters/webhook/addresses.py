"""The addresses of a host name, and whether they may be used.

1. A name is resolved once per delivery, and the connection goes to the address that was checked: a name that resolves
   differently the second time (DNS rebinding) is not resolved a second time.
2. If any of a name's addresses is not public, none is used: a mixed result is an attack.
3. Public addresses are those that the whole Internet can reach. An address that contains another one (IPv4 in IPv6,
   NAT64, 6to4, ISATAP) is also checked by the inner one. So this machine, its networks and a cloud's metadata service
   are out of reach.
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
"""The bits before the IPv4 address in the lower half of an ISATAP address, in any network."""
_NEVER: tuple[Network, ...] = (
    IPv4Network("192.88.99.0/24"),  # 6to4 relays
    IPv6Network("::/96"),  # IPv4-compatible addresses, deprecated
    IPv6Network("64:ff9b:1::/48"),  # local-use NAT64
    IPv6Network("2001::/32"),  # Teredo: leads into its client's network
    IPv6Network("3fff::/20"),  # documentation; not in Python's tables yet
    IPv6Network("fec0::/10"),
)


class Unreachable(Exception):
    """A host has no address that may be used; the message says why."""


async def resolve(
    host: str, port: int, *, names: Collection[str] = (), networks: Sequence[Network] = ()
) -> list[Address]:
    """Return the addresses of a host, best first.

    Raises:
        Unreachable: if it has none, or one that may not be used.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a host name"
        raise Unreachable(f"{host} cannot be resolved: {why}") from None
    addresses = list(dict.fromkeys(ip_address(info[4][0]) for info in found))
    if host.rstrip(".").lower() not in names:
        for address in addresses:
            if not is_public(address) and not any(address in network for network in networks):
                raise Unreachable(f"{host} is at {address}, which is not public: add it to allowHosts if intended")
    if not addresses:
        raise Unreachable(f"{host} has no address")
    return addresses


def is_public(address: Address) -> bool:
    """Return True if the whole Internet can reach an address."""
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
