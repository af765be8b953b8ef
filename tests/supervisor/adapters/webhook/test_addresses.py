"""Which addresses may be reached: the public ones, whatever they are wrapped in, and what the operator allows."""

from __future__ import annotations

import socket
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_supervisor.adapters.webhook.addresses import Unreachable, is_public, resolve


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "93.184.216.34",
        "2606:4700:4700::1111",
        "64:ff9b::1.1.1.1",
        "::ffff:8.8.8.8",
        "2606:4700::5efe:101:101",
    ],
)
def test_the_internet_is_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.0.1",
        "192.0.2.1",
        "192.88.99.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "2001::1",
        "2001:db8::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "3fff::1",
        "3fff:fff:ffff::1",
        "2606:4700::5efe:7f00:1",
        "2606:4700::200:5efe:a9fe:a9fe",
        "fe80::5efe:101:101",
        "2002:101:101::5efe:7f00:1",
        "ff02::1",
    ],
)
def test_what_only_some_can_reach_is_not(address: str) -> None:
    assert not is_public(ip_address(address))


@given(st.ip_addresses(v=4))
def test_an_address_within_another_is_judged_by_the_inner_one(address: object) -> None:
    inner = ip_address(str(address))
    for outer in (f"::ffff:{inner}", f"64:ff9b::{inner}"):
        assert is_public(ip_address(outer)) == is_public(inner)


async def test_a_host_that_is_not_public_is_refused_with_the_remedy() -> None:
    for host in ("127.0.0.1", "localhost", "2130706433", "0x7f.1", "::1"):
        with pytest.raises(Unreachable, match="allowHosts"):
            await resolve(host, 80)


async def test_names_and_networks_can_be_allowed() -> None:
    assert await resolve("LocalHost", 80, names={"localhost"})
    assert await resolve("127.0.0.1", 80, networks=[ip_network("127.0.0.0/8")]) == [ip_address("127.0.0.1")]
    with pytest.raises(Unreachable):
        await resolve("127.0.0.1", 80, networks=[ip_network("10.0.0.0/8")])


async def test_one_bad_address_among_good_ones_spoils_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*args: object, **options: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 443)) for ip in ("1.1.1.1", "169.254.169.254")]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    with pytest.raises(Unreachable, match=r"169\.254\.169\.254"):
        await resolve("rebind.example", 443)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".example", "x..y"])
async def test_a_name_that_stands_for_nothing_is_unreachable(host: str) -> None:
    with pytest.raises(Unreachable, match="cannot be resolved"):
        await resolve(host, 443)
