"""Where work is done that would keep the event loop too long."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from infergate.core.call import ANONYMOUS, Call
from infergate.core.memory import UNLIMITED, MemoryShare

T = TypeVar("T")


class Aside(Protocol):
    """Runs functions in other processes."""

    async def run(  # noqa: PLR0913 - what a job is told
        self,
        deadline: float | None,
        function: Callable[..., T],
        *arguments: Any,
        client: tuple[str, str],
        cost: int,
        memory: MemoryShare = UNLIMITED,
        size: int = 0,
    ) -> T:
        """``function(*arguments)`` done before ``deadline``, all of it pickled; the function, which
        holds nothing of one request, only now and then. ``client`` is an identity or address, and a
        connection, which processes are shared fairly between by the ``cost`` of their jobs: bytes
        that are gone through. ``size`` bytes are counted in ``memory`` while the job runs. Raises
        GatewayError: the function's own, TIMEOUT, OVERLOADED, or INTERNAL."""
        ...


def client_of(call: Call) -> tuple[str, str]:
    """Who shares helpers with others: an identity, where it tells clients apart, else an address,
    for IPv6 its network of 64 bits, all of which one host may have; and the connection."""
    peer, identity = call.peer, call.identity
    known = identity and identity != ANONYMOUS
    return identity if known else _network(peer.rpartition(":")[0]), peer


def _network(address: str) -> str:
    if not address.startswith("["):
        return address
    number = ipaddress.IPv6Address(address[1:-1].partition("%")[0])
    if number.ipv4_mapped is not None:
        return str(number.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(number), 64), strict=False))
