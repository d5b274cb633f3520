"""Bytes that are no request of HTTP, or a broken one, as port scanners and defective clients send
them."""

from __future__ import annotations

import socket

REQUESTS = {
    "bytes": bytes(range(256)) * 4,
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n",
    "line": b"GET\r\n\r\n",
    "version": b"GET / HTTP/9.9\r\n\r\n",
    "address": b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "large header": b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 2**20 + b"\r\n\r\n",
    "endless headers": (
        b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % number for number in range(100_000))
    ),
    "no header": b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
    "half": b"GET /metr",
    "negative length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "two lengths": (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"
    ),
    "chunks": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    "second": b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGARBAGE\x00\r\n\r\n",
}
"""By what is wrong with them."""


OPEN = ("half",)
"""Those that a server must wait for the rest of."""


def send(port: int, data: bytes, *, leave: bool = False) -> bytes:
    """Return what is answered until the server closes the connection; `leave` ends it without
    waiting."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        answered = b""
        try:
            client.sendall(data)
            while not leave and (block := client.recv(1 << 16)):
                answered += block
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server has read enough
    return answered


def send_all(port: int) -> None:
    for name, data in REQUESTS.items():
        send(port, data, leave=name in OPEN)
