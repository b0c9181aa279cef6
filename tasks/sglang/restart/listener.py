"""The sockets that answer at a loopback URL: their port is the URL's, and so is their address.

Equal ports of two addresses are two places: a tunnel may have 127.0.0.2, another server 127.0.0.1.
"""

import ipaddress
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import attrs
import psutil

from tasks.errors import SurroundingsError

LOCALHOST: Final = ("127.0.0.1", "::1")
"""Addresses that the name `localhost` may stand for."""

WILDCARDS: Final = {4: ("0.0.0.0", "::"), 6: ("::",)}
"""Listeners that answer at every address of an IP version; `::` takes IPv4 as well, unless told not to."""


@attrs.frozen(slots=True)
class Listener:
    """One listening socket.

    Args:
        address: its address, as the kernel shows it.
        port: its TCP port.
        pid: a process that has it open; None when it is another user's.
    """

    address: str
    port: int
    pid: int | None

    def __str__(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        owner = "of another user" if self.pid is None else f"of process {self.pid}"
        return f"{address}:{self.port} {owner}"


def port_of(url: str) -> int:
    """Return the TCP port of a URL."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def is_loopback(url: str) -> bool:
    """Whether a URL names this host itself."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listeners_of(url: str) -> list[Listener]:
    """Return the sockets that answer at a loopback URL; those of just its address before wildcards.

    Raises:
        SurroundingsError: the sockets of this host cannot be read.
    """
    return _answering(url, _on_port(url))


def pids_of(url: str) -> list[int]:
    """Return the processes that listen at a loopback URL, each once.

    Raises:
        SurroundingsError: none of this user's does; carries what listens on the port instead.
    """
    on_port = _on_port(url)
    answering = _answering(url, on_port)
    pids = sorted({each.pid for each in answering if each.pid is not None})
    if pids:
        return pids
    seen = ", ".join(map(str, answering or on_port)) or "nothing"
    raise SurroundingsError(
        f"{url}: expected a server of this user listening at {urlsplit(url).hostname}:{port_of(url)}, "
        f"found {seen}; write the address that the server listens at"
    )


def _on_port(url: str) -> list[Listener]:
    try:
        sockets = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied as error:
        raise SurroundingsError(
            f"{url}: the listening sockets of this host cannot be read: {error}"
        ) from error
    port = port_of(url)
    return [
        Listener(s.laddr.ip, port, s.pid)
        for s in sockets
        if s.status == psutil.CONN_LISTEN and s.laddr and s.laddr.port == port
    ]


def _answering(url: str, listeners: Sequence[Listener]) -> list[Listener]:
    host = urlsplit(url).hostname or ""
    found: list[Listener] = []
    for address in LOCALHOST if host == "localhost" else (host,):
        wanted = _plain(address)
        exact = [each for each in listeners if _plain(each.address) == wanted]
        wild = [each for each in listeners if each.address in WILDCARDS[wanted.version]]
        found += [each for each in exact or wild if each not in found]
    return found


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address without a zone, an IPv4 one that is written as IPv6 as IPv4."""
    plain = ipaddress.ip_address(address.partition("%")[0])
    return (plain.ipv4_mapped or plain) if isinstance(plain, ipaddress.IPv6Address) else plain
