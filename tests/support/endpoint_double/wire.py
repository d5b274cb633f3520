"""How the embedded endpoint's replies leave: at once, after signs of life, in parts, or broken
off."""

from __future__ import annotations

import asyncio
import socket
import struct

from aiohttp import web

from tests.support.endpoint_double import stream
from tests.support.endpoint_double.faults import HttpReply

JSON = {"Content-Type": "application/json"}


def respond(reply: HttpReply) -> web.Response:
    headers = {"Content-Type": reply.content_type, **reply.headers}
    if reply.retry_after is not None:
        headers["Retry-After"] = reply.retry_after
    return web.Response(status=reply.status, body=reply.body, headers=headers)


async def after_empty_lines(
    request: web.Request, body: bytes, seconds: float
) -> web.StreamResponse:
    """Send a whole reply, and empty lines that keep the connection alive until it comes."""
    response = web.StreamResponse(headers=JSON)
    await response.prepare(request)
    for _ in range(2):
        await response.write(b"\n\n")
        if seconds:
            await asyncio.sleep(seconds / 2)
    await response.write(body)
    return response


async def in_parts(
    request: web.Request, comment: bytes, data: bytes, seconds: float
) -> web.StreamResponse:
    """Send a stream's bytes, spread over the seconds; a comment comes at once."""
    response = web.StreamResponse(headers=stream.HEADERS)
    await response.prepare(request)
    if comment:
        await response.write(comment)
    parts = stream.slices(data)
    for part, pause in zip(parts, stream.pauses(seconds, len(parts)), strict=True):
        if pause:
            await asyncio.sleep(pause)
        await response.write(part)
    return response


async def reset_within(request: web.Request, body: bytes) -> web.StreamResponse:
    """Send headers that announce all of the reply, half of it, then a reset."""
    response = web.StreamResponse(headers={**JSON, "Content-Length": str(len(body))})
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    return reset(request, response)


def reset(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """End the connection with RST. `close` and not `abort`, so that bytes written already
    arrive."""
    if (transport := request.transport) is not None:
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.close()
    return response
