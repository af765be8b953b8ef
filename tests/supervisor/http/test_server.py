"""The limits of the HTTP server. The webhook adapter's and Prometheus' tests hold the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from relay_supervisor.http.server import Limits, mark_complete, serve

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = 32 * 1024 * 1024


async def answer(request: web.BaseRequest) -> web.StreamResponse:
    mark_complete(request)
    if request.path == "/fail":
        raise RuntimeError("secret")
    return web.Response(body=bytes(LARGE) if request.path == "/large" else b"ok")


def refuse(status: int) -> web.StreamResponse:
    return web.Response(status=status, text="refused")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    limits = Limits(max_connections=2, idle_secs=30, response_secs=0.1, shutdown_secs=0)
    async with serve(answer, refuse, "127.0.0.1", 0, limits) as port:
        yield port


async def exchange(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request.replace(b"Host: x", b"Host: x\r\nConnection: close"))
        return await reader.read()
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(
    ("request_", "status"),
    [(REQUEST, b"200"), (b"nonsense\r\n\r\n", b"400"), (REQUEST.replace(b" /", b" /fail", 1), b"500")],
    ids=["good", "not HTTP", "failing"],
)
async def test_no_response_names_the_software_or_the_error(port: int, request_: bytes, status: bytes) -> None:
    response = await exchange(port, request_)
    assert response.split(b" ")[1] == status
    assert b"Server: relay\r\n" in response
    assert b"aiohttp" not in response
    assert b"secret" not in response


async def test_clients_that_do_not_read_their_response_lock_no_other_out(port: int) -> None:
    lazy = [await asyncio.open_connection("127.0.0.1", port, limit=1) for _ in range(2)]
    for _, writer in lazy:
        writer.write(REQUEST.replace(b" /", b" /large", 1))
    async with asyncio.timeout(30):
        while True:
            try:
                assert (await exchange(port, REQUEST)).startswith(b"HTTP/1.1 200")
                break
            except ConnectionResetError:  # both are still being answered
                await asyncio.sleep(0.01)
    for _, writer in lazy:
        writer.transport.abort()
