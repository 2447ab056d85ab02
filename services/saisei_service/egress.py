"""Where requests may go that follow other people's input: tenants' `fetch` and artifact sources (MW-26, AR-12).

A name is resolved once, each address is judged, and the connection goes to the very address that was judged: a name
that changes its mind between the check and the connection gains nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

import httpcore

_NAT64 = IPv6Network("64:ff9b::/96")
# What the address classes of some Python versions let pass: metadata services at public addresses (168.63.129.16,
# 192.0.0.192), relays, local NAT64, site-local and documentation.
_NOT_PUBLIC = tuple(
    ip_network(text)
    for text in (
        "168.63.129.16/32",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "64:ff9b:1::/48",
        "3fff::/20",
        "5f00::/16",
        "fec0::/10",
    )
)

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Name and port to addresses, in the order to try them. Raises OSError or UnicodeError: there are none."""


async def resolve(name: str, port: int) -> list[str]:
    """The machine's own resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))


class EgressRefused(Exception):  # noqa: N818 - a refusal, not a fault
    """The policy lets nothing go to `host`."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"requests to {host} are refused: it is no public address, and the operator has not allowed it"
        )
        self.host = host


def is_public(address: str) -> bool:
    """False for loopback, private, link-local (cloud metadata), shared, multicast, reserved, and what embeds such."""
    found = ip_address(address)
    if isinstance(found, IPv6Address):
        inner = _embedded(found)
        if inner is not None:
            return is_public(str(inner))
    if any(found in network for network in _NOT_PUBLIC):
        return False
    return found.is_global and not found.is_multicast and not found.is_reserved and not found.is_unspecified


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that a translating network would send this one to."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """`allowed_hosts`: names or addresses, as URLs write them in lower case, that may be private all the same."""

    allowed_hosts: frozenset[str] = frozenset()

    def permits(self, host: str, address: str) -> bool:
        return host.lower().rstrip(".") in self.allowed_hosts or is_public(address)


class PinnedBackend(httpcore.AsyncNetworkBackend):
    """A network for httpcore that connects to judged addresses only. Raises EgressRefused."""

    def __init__(self, policy: EgressPolicy, resolver: Resolve = resolve) -> None:
        self._policy = policy
        self._resolve = resolver
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        name = host.strip("[]")
        try:
            addresses = await self._resolve(name, port)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"the name {name} cannot be resolved") from error
        permitted = [address for address in addresses if self._policy.permits(name, address)]
        if not permitted:
            raise EgressRefused(name)
        for address in permitted[:-1]:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._network.connect_tcp(permitted[-1], port, timeout, local_address, socket_options)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        raise EgressRefused(path)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
