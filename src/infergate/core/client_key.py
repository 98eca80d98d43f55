"""Identifies the client and the connection of a request for fair queues."""

from __future__ import annotations

import ipaddress

from infergate.core.request_context import ANONYMOUS, RequestContext


def client_key(context: RequestContext) -> tuple[str, str]:
    """Return the client of a request and its connection.

    A client is represented by its identity or, if it is anonymous, by its address. An IPv6
    address is reduced to its /64 network, because a single host may own this network."""
    peer, identity = context.peer, context.identity
    is_identified = identity and identity != ANONYMOUS
    return identity if is_identified else _client_network(peer.rpartition(":")[0]), peer


def _client_network(address: str) -> str:
    if not address.startswith("["):
        return address
    number = ipaddress.IPv6Address(address[1:-1].partition("%")[0])
    if number.ipv4_mapped is not None:
        return str(number.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(number), 64), strict=False))
