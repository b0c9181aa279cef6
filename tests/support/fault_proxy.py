"""A small HTTP proxy that breaks chosen requests on their way to a real S3 server. Not a test module."""

import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Self

import attrs

_RESET = struct.pack("ii", 1, 0)  # linger zero: close sends RST


@attrs.define(slots=True)
class Fault:
    """Break the next `times` requests whose method and path match.

    Args:
        kind: what happens; see `FaultProxy._one` and `FaultProxy._answer`.
        method: HTTP method.
        path: regular expression that the path must contain.
        times: how many requests; then the fault is over.
        code: S3 error code of an `error` fault, or seconds of a `slow` or `slow_upload` one.
        status: HTTP status of an `error` fault.
    """

    kind: str
    method: str = "PUT"
    path: str = ""
    times: int = 1
    code: str = ""
    status: int = 503


class FaultProxy:
    """Listens on loopback and forwards to `port`; use as a context. `seen` lists every request line.

    `interrupt` is called in the middle of the body of an `interrupt` fault.
    """

    interrupt: Callable[[], object]

    def __init__(self, port: int, *faults: Fault) -> None:
        self.port = port
        self.faults = list(faults)
        self.seen: list[str] = []
        self.broken = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        """Where the proxy listens."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.settimeout(20)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                head = _read_head(client)
                if head:
                    self._one(client, head)
            except OSError:
                pass  # the client went away: that is what faults do

    def _one(self, client: socket.socket, head: bytes) -> None:
        line = head.split(b"\r\n", 1)[0].decode()
        fault = self._pick(*line.split()[:2])
        if b"100-continue" in head.lower():
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        length = int((re.search(rb"(?i)content-length: (\d+)", head) or [b"", b"0"])[1])
        kind = fault.kind if fault else ""
        if kind in ("reset_upload", "half_upload", "interrupt"):
            half = _read(client, length // 2)
            if kind == "interrupt":
                self.interrupt()
            if kind == "half_upload":
                with socket.create_connection(("127.0.0.1", self.port), 20) as upstream:
                    upstream.sendall(_forwarded(head) + half)
                    time.sleep(0.05)
            _reset(client)
            return
        if fault and kind == "slow_upload":
            body = _read_slowly(client, length, float(fault.code))
        else:
            body = _read(client, length)
        if kind == "corrupt_upload" and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        self._answer(client, fault, _forwarded(head) + body)

    def _answer(self, client: socket.socket, fault: Fault | None, request: bytes) -> None:
        kind = fault.kind if fault else ""
        if fault and kind == "error":
            text = f'<?xml version="1.0"?><Error><Code>{fault.code}</Code><Message>made up</Message></Error>'
            head = f"HTTP/1.1 {fault.status} X\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
            client.sendall((head + text).encode())
            return
        if kind == "late":  # the client gives up; the request arrives all the same, later
            _reset(client)
            time.sleep(0.5)
            self._upstream(request)
            return
        if kind == "duplicate":
            self._upstream(request)
        response = self._upstream(request)
        if kind == "lose_response":
            _reset(client)
            return
        if fault and kind == "slow":
            time.sleep(float(fault.code))
        if kind == "truncate":
            response = response[: -max(1, len(response.split(b"\r\n\r\n", 1)[1]) // 2)]
        if kind == "corrupt_response":
            response = response[:-1] + bytes([response[-1] ^ 1])
        client.sendall(response)

    def _upstream(self, request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), 20) as upstream:
            upstream.sendall(request)
            parts = []
            while part := upstream.recv(1 << 16):
                parts.append(part)
        return b"".join(parts)

    def _pick(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.seen.append(f"{method} {path}")
            for fault in self.faults:
                if fault.times > 0 and fault.method == method and re.search(fault.path, path):
                    fault.times -= 1
                    self.broken += 1
                    return fault
        return None


def _forwarded(head: bytes) -> bytes:
    """Return the request's head with one request a connection; neither header is part of the signature."""
    lines = [x for x in head.split(b"\r\n") if x and not x.lower().startswith((b"connection:", b"expect:"))]
    return b"\r\n".join([*lines, b"Connection: close", b"", b""])


def _read_head(client: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        byte = client.recv(1)
        if not byte:
            return b""
        data += byte
    return data


def _read(client: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = client.recv(length - len(data))
        if not part:
            raise OSError("the client ended early")
        data += part
    return bytes(data)


def _read_slowly(client: socket.socket, length: int, seconds: float) -> bytes:
    steps = [length // 20] * 20 + [length % 20]
    parts = []
    for step in steps:
        time.sleep(seconds / len(steps))
        parts.append(_read(client, step))
    return b"".join(parts)


def _reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    client.close()
