"""The addresses that the EndpointSlices of a service yield."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from infergate.backends import endpoint_slices
from infergate.backends.endpoint_slices import EndpointSlices, MalformedObjectError
from kubernetes_api import Slice, endpoint, endpoint_slice, ready_slice


def addresses(*slices: Slice, port: str | int | None = None, zone: str = "") -> list[str]:
    merged = EndpointSlices(port, 8001, zone)
    for each in slices:
        merged.update(each)
    return [f"{host}:{number}" for host, number in merged.addresses()]


def test_slices_are_merged_without_duplicates() -> None:
    first, second = ready_slice("a", "10.0.0.2", "10.0.0.1"), ready_slice("b", "10.0.0.2")
    assert addresses(first, second) == ["10.0.0.1:8001", "10.0.0.2:8001"]


def test_an_endpoint_that_is_ready_in_one_slice_is_ready() -> None:
    stale = endpoint_slice("a", [endpoint("10.0.0.1", ready=False)])
    assert addresses(stale, ready_slice("b", "10.0.0.1")) == ["10.0.0.1:8001"]


@pytest.mark.parametrize(
    ("conditions", "is_used"),
    [
        ({"ready": True}, True),
        ({"ready": None}, True),  # null means ready in the Kubernetes API
        ({"ready": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": True, "terminating": True}, False),  # publishNotReadyAddresses
    ],
)
def test_only_ready_endpoints_are_used_while_there_are_any(
    conditions: dict[str, bool | None], is_used: bool
) -> None:
    other = endpoint("10.0.0.9", ready=True)
    result = addresses(endpoint_slice("a", [endpoint("10.0.0.1", **conditions), other]))
    assert ("10.0.0.1:8001" in result) == is_used
    assert "10.0.0.9:8001" in result


def test_terminating_endpoints_are_used_if_no_endpoint_is_ready() -> None:
    ending = {"ready": False, "terminating": True}
    item = endpoint_slice(
        "a",
        [
            endpoint("10.0.0.1", serving=True, **ending),
            endpoint("10.0.0.2", serving=False, **ending),
            endpoint("10.0.0.3", ready=False),
        ],
    )
    assert addresses(item) == ["10.0.0.1:8001"]


def test_ipv6_is_used_only_without_ipv4() -> None:
    ipv6 = endpoint_slice("six", [endpoint("fd00::1")], family="IPv6")
    assert addresses(ipv6) == ["fd00::1:8001"]
    assert addresses(ipv6, ready_slice("four", "10.0.0.1")) == ["10.0.0.1:8001"]
    fqdn = endpoint_slice("names", [endpoint("pod.example")], family="FQDN")
    with pytest.raises(MalformedObjectError):
        addresses({**fqdn, "addressType": "IPv4"})
    assert not addresses(fqdn)


@pytest.mark.parametrize(
    ("port", "ports", "expected"),
    [
        (None, {"http": 8000, "grpc": 8001}, 8001),  # the port of the URL
        (None, {"": 9000}, 9000),  # the only port, whatever port the URL has
        (None, {"http": 8000, "metrics": 8002}, None),
        (None, {}, 8001),
        ("http", {"http": 8000, "grpc": 8001}, 8000),
        ("rest", {"http": 8000}, None),
        (9000, {"": 9000}, 9000),
        (9000, {"": 8001}, None),
    ],
)
def test_the_port_is_selected_by_name_or_number(
    port: str | int | None, ports: dict[str, int], expected: int | None
) -> None:
    item = endpoint_slice("a", [endpoint("10.0.0.1")], ports)
    assert addresses(item, port=port) == ([] if expected is None else [f"10.0.0.1:{expected}"])


def test_topology_hints_select_the_endpoints_of_the_zone() -> None:
    hinted = [endpoint("10.0.0.1", zones=["a"]), endpoint("10.0.0.2", zones=["b", "c"])]
    item = endpoint_slice("a", hinted)
    assert addresses(item, zone="a") == ["10.0.0.1:8001"]
    assert addresses(item, zone="c") == ["10.0.0.2:8001"]
    assert len(addresses(item)) == 2, "a gateway without a zone ignores hints"
    assert len(addresses(item, zone="d")) == 2, "no endpoint has a hint for the zone"
    partly = endpoint_slice("a", [*hinted, endpoint("10.0.0.3")])
    assert len(addresses(partly, zone="a")) == 3, "not all endpoints have hints"


def test_slices_are_replaced_and_removed() -> None:
    slices = EndpointSlices(None, 8001)
    slices.update(ready_slice("a", "10.0.0.1"))
    slices.update(ready_slice("b", "10.0.0.2"))
    slices.update(ready_slice("a", "10.0.0.3"))
    slices.remove(ready_slice("b"))
    assert slices.addresses() == [("10.0.0.3", 8001)]
    slices.update(endpoint_slice("a", None))  # Go's nil slice is null in JSON
    assert slices.addresses() == []
    listed = slices.empty_copy()
    listed.update(ready_slice("c", "10.0.0.4"))
    slices.copy_from(listed)
    listed.remove(ready_slice("c"))
    assert slices.addresses() == [("10.0.0.4", 8001)]


@pytest.mark.parametrize(
    "item",
    [
        None,
        [],
        {},
        {"metadata": {"name": 7}},
        {**ready_slice("a"), "endpoints": {"x": 1}},
        {**ready_slice("a"), "endpoints": ["10.0.0.1"]},
        {**ready_slice("a"), "endpoints": [{}]},
        {**ready_slice("a"), "endpoints": [{"addresses": []}]},
        {**ready_slice("a"), "endpoints": [{"addresses": ["evil.example"]}]},
        {**ready_slice("a"), "endpoints": [{"addresses": ["10.0.0.1\0"]}]},
        {**ready_slice("a"), "endpoints": [{"addresses": ["10.1"]}]},
        {**ready_slice("a"), "endpoints": [{"addresses": ["fd00::1"]}]},
        {**ready_slice("a"), "endpoints": [{"addresses": ["10.0.0.1"], "conditions": []}]},
        {**ready_slice("a"), "endpoints": [{"addresses": ["10.0.0.1"], "hints": {"forZones": 1}}]},
        {**ready_slice("a"), "ports": ["grpc"]},
        {**ready_slice("a"), "endpoints": [endpoint("10.0.0.1")] * 1001},
    ],
)
def test_an_invalid_slice_changes_nothing(item: Any) -> None:
    slices = EndpointSlices(None, 8001)
    slices.update(ready_slice("a", "10.0.0.1"))
    with pytest.raises(MalformedObjectError):
        slices.update(item)
    assert slices.addresses() == [("10.0.0.1", 8001)]


FULL: Slice = endpoint_slice(
    "a", [endpoint("10.0.0.1", zones=["z"], ready=True, terminating=False)]
)


def variants(value: Any, other: Any) -> Iterator[Any]:
    """Yield ``value`` with each of its parts replaced by ``other``."""
    yield other
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value if isinstance(value, list) else ())
    )
    for key, part in items:
        for changed in variants(part, other):
            copied = copy.copy(value)
            copied[key] = changed
            yield copied


@pytest.mark.parametrize("other", [None, True, -7, 1.5, "x", [], [[]], {}, {"name": {}}])
def test_values_of_other_types_are_accepted_or_rejected(other: Any) -> None:
    slices = EndpointSlices("grpc", 8001, "z")
    for changed in variants(FULL, other):
        with suppress(MalformedObjectError):
            slices.update(changed)
        assert slices.addresses() in ([], [("10.0.0.1", 8001)])


@pytest.mark.parametrize(("port", "expected"), [(None, 8001), (9000, 9000), ("grpc", None)])
def test_a_port_that_is_null_means_all_ports(port: str | int | None, expected: int | None) -> None:
    item = endpoint_slice("a", [endpoint("10.0.0.1")])
    for unset in ({"port": None}, {}):
        item["ports"] = [{"name": "", "protocol": "TCP", **unset}]
        assert addresses(item, port=port) == ([] if expected is None else [f"10.0.0.1:{expected}"])


def test_endpoints_without_the_port_are_reported_if_none_is_usable() -> None:
    other = endpoint_slice("a", [endpoint("10.0.0.1")], {"http": 1, "metrics": 2})
    slices = EndpointSlices("grpc", 8001)
    assert not slices.has_no_port
    slices.update(other)
    assert slices.has_no_port
    copied = slices.empty_copy()
    copied.copy_from(slices)
    assert copied.has_no_port
    slices.update(ready_slice("b", "10.0.0.2"))
    assert not slices.has_no_port
    copied.remove(other)
    assert not copied.has_no_port


def test_the_number_of_slices_and_endpoints_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_slices, "MAX_SLICES", 2)
    monkeypatch.setattr(endpoint_slices, "MAX_ENDPOINTS", 3)
    slices = EndpointSlices(None, 8001)
    slices.update(ready_slice("a", "10.0.0.1", "10.0.0.2"))
    slices.update(ready_slice("b", "10.0.0.3", "10.0.0.4"))
    assert slices.exceeded_limit == ""
    slices.update(ready_slice("c", "10.0.0.0"))
    assert slices.exceeded_limit == "2 slices"
    assert [host for host, _ in slices.addresses()] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    copied = slices.empty_copy()
    assert copied.exceeded_limit == ""
    copied.copy_from(slices)
    assert copied.exceeded_limit == "3 endpoints"
    many = EndpointSlices(None, 8001)
    for name in ("a", "b"):
        many.update(ready_slice(name, *(f"10.0.0.{number}" for number in range(5))))
    assert sum(len(each) for _, each in many._slices.values()) == 6, "three for each family"
