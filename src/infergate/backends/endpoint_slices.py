"""The EndpointSlices of one Kubernetes service, and the addresses that they yield (no I/O).

A service has any number of slices, and an endpoint may appear in several of them while the control
plane moves it. The addresses follow the rules of kube-proxy:

1. Ready endpoints that are not terminating are used. If there are none, terminating endpoints that
   still serve are used.
2. If all of these endpoints have topology hints and some hints are for the gateway's zone, only the
   endpoints for that zone are used.

IPv6 addresses are used only if there is no usable IPv4 address, so that a server with an address of
each family counts once.

Reference: Kubernetes' API discovery.k8s.io/v1, and KEPs 1669 (terminating endpoints) and 2433
(topology hints)."""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

MAX_SLICES: Final = 1000
MAX_ENDPOINTS: Final = 5000
"""Maximum number of endpoints of a service. Kubernetes is tested with 5000 per service."""
_MAX_SLICE_ENDPOINTS: Final = 1000
"""Maximum number of endpoints in a slice. Kubernetes has the same limit."""
_FAMILIES: Final = {"IPv4": socket.AF_INET, "IPv6": socket.AF_INET6}
"""The families in the order of preference."""

PodAddress = tuple[str, int]
"""An IP address and a port."""


class MalformedObjectError(ValueError):
    """The API server sent an object that does not have the documented form."""


class SliceEndpoint(NamedTuple):
    """An endpoint of a slice. ``is_ready`` is false for a terminating endpoint that still serves.
    ``zones`` are its topology hints."""

    address: PodAddress
    is_ready: bool
    zones: Collection[str]


_Slice = tuple[str, list[SliceEndpoint]]
"""The address family and the endpoints of a slice."""


class EndpointSlices:
    """The current slices of one service.

    ``port`` is the name or number of the pods' port. Without ``port``, ``url_port`` is used if the
    pods have that port or if their ports are unknown. Otherwise, the pods' only port is used; pods
    with several other ports are not usable.
    ``zone`` is the gateway's own zone, or an empty string.
    """

    def __init__(self, port: str | int | None, url_port: int, zone: str = "") -> None:
        self._port: Final = port
        self._url_port: Final = url_port
        self._zone: Final = zone
        self._slices: dict[str, _Slice] = {}
        self._without_port: set[str] = set()
        """The names of the slices whose endpoints do not have the expected port."""
        self.exceeded_limit = ""
        """The limit that the service has exceeded since it was last listed, such as '1000 slices',
        or empty. It stays set if the service shrinks, because ignored slices and endpoints are used
        only after the next list."""

    def empty_copy(self) -> EndpointSlices:
        """Return an object for the same port and zone, without slices."""
        return EndpointSlices(self._port, self._url_port, self._zone)

    def copy_from(self, other: EndpointSlices) -> None:
        """Replace all slices with the slices of ``other``, which has the same port and zone."""
        self._slices = dict(other._slices)
        self._without_port = set(other._without_port)
        self.exceeded_limit = other.exceeded_limit

    @property
    def has_no_port(self) -> bool:
        """Whether no endpoint is usable, but there are endpoints without the expected port."""
        return bool(self._without_port) and not any(usable for _, usable in self._slices.values())

    def update(self, item: Any) -> None:
        """Add or replace a slice. Ignore slices and endpoints beyond a limit, and set
        ``exceeded_limit``. Raises MalformedObjectError."""
        name = _slice_name(item)
        slices = self._slices
        if name not in slices and len(slices) >= MAX_SLICES:
            self.exceeded_limit = f"{MAX_SLICES} slices"
            return
        family = str(item.get("addressType"))
        endpoints = item.get("endpoints") or []
        if not isinstance(endpoints, list) or len(endpoints) > _MAX_SLICE_ENDPOINTS:
            raise MalformedObjectError(
                f"endpoints must be a list of at most {_MAX_SLICE_ENDPOINTS} objects"
            )
        port = self._find_port(item.get("ports") or [])
        usable: list[SliceEndpoint] = []
        if family in _FAMILIES and port is not None:
            parsed = (_parse_endpoint(each, _FAMILIES[family], port) for each in endpoints)
            usable = [each for each in parsed if each is not None]
        slices.pop(name, None)
        self._without_port.discard(name)
        if port is None and endpoints and family in _FAMILIES:
            self._without_port.add(name)
        capacity = MAX_ENDPOINTS * len(_FAMILIES) - sum(len(kept) for _, kept in slices.values())
        if len(usable) > capacity:
            self.exceeded_limit = f"{MAX_ENDPOINTS} endpoints"
        slices[name] = family, usable[:capacity]

    def remove(self, item: Any) -> None:
        """Remove a slice. Raises MalformedObjectError."""
        name = _slice_name(item)
        self._slices.pop(name, None)
        self._without_port.discard(name)

    def addresses(self) -> list[PodAddress]:
        """Return the addresses that may receive requests, sorted and without duplicates."""
        for family in _FAMILIES:
            endpoints = [
                endpoint
                for slice_family, usable in self._slices.values()
                if slice_family == family
                for endpoint in usable
            ]
            candidates = [each for each in endpoints if each.is_ready] or endpoints
            if candidates:
                return self._truncate(sorted({each.address for each in self._in_zone(candidates)}))
        return []

    def _in_zone(self, endpoints: list[SliceEndpoint]) -> list[SliceEndpoint]:
        if not self._zone or not all(each.zones for each in endpoints):
            return endpoints
        return [each for each in endpoints if self._zone in each.zones] or endpoints

    def _truncate(self, addresses: list[PodAddress]) -> list[PodAddress]:
        if len(addresses) > MAX_ENDPOINTS:
            self.exceeded_limit = f"{MAX_ENDPOINTS} endpoints"
        return addresses[:MAX_ENDPOINTS]

    def _find_port(self, ports: Any) -> int | None:
        """Return the port of a slice's endpoints, or None if the endpoints do not have the
        expected port. Raises MalformedObjectError."""
        if not isinstance(ports, list) or not all(isinstance(each, dict) for each in ports):
            raise MalformedObjectError("ports must be a list of objects")
        numbers = {
            str(each.get("name") or ""): each["port"]
            for each in ports
            if each.get("protocol", "TCP") == "TCP" and _is_port(each.get("port"))
        }
        if isinstance(self._port, str):
            return numbers.get(self._port)
        expected_port = self._port or self._url_port
        has_all_ports = any(each.get("port") is None for each in ports)
        if not ports or has_all_ports or expected_port in numbers.values():
            return expected_port
        return next(iter(numbers.values())) if len(numbers) == 1 and not self._port else None


def _slice_name(item: Any) -> str:
    metadata = item.get("metadata") if isinstance(item, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise MalformedObjectError("the object has no metadata.name")
    return name


def _parse_endpoint(item: Any, family: int, port: int) -> SliceEndpoint | None:
    """Return the endpoint, or None if it is neither ready nor a terminating endpoint that still
    serves. Raises MalformedObjectError."""
    if not isinstance(item, dict):
        raise MalformedObjectError("an endpoint must be an object")
    addresses, conditions = item.get("addresses"), _mapping(item.get("conditions"))
    if not isinstance(addresses, list) or not addresses or not isinstance(addresses[0], str):
        raise MalformedObjectError("an endpoint must have a list of addresses")
    try:
        socket.inet_pton(family, addresses[0])  # faster than the module ipaddress
    except (OSError, ValueError):  # ValueError: it contains a NUL byte
        raise MalformedObjectError(
            "an endpoint's address must belong to the address family of the slice"
        ) from None
    is_terminating = conditions.get("terminating") is True
    serves = conditions.get("serving") is not False if is_terminating else True
    is_ready = conditions.get("ready") is not False and not is_terminating  # null means ready
    if not is_ready and not (is_terminating and serves):
        return None
    hints = _mapping(item.get("hints")).get("forZones") or []
    if not isinstance(hints, list):
        raise MalformedObjectError("hints.forZones must be a list")
    zones = tuple(str(_mapping(each).get("name", "")) for each in hints)
    return SliceEndpoint((addresses[0], port), is_ready, zones)  # consumers use the first address


def _mapping(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedObjectError(
            "conditions, hints and each entry of hints.forZones must be objects"
        )
    return value


def _is_port(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 16
