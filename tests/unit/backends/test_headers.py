"""The headers that are forwarded to backends, their sizes, and the number of hops."""

from __future__ import annotations

import pytest

from infergate.backends.header_filter import HeaderFilter, field_bytes
from infergate.core.errors import GatewayError, Kind
from infergate.core.hops import FIRST_HOP, HOPS_HEADER, MAX_HOPS
from infergate.core.limits import FORWARDED_HEADER_BYTES


def test_only_matching_names_pass() -> None:
    rule = HeaderFilter(["traceparent", "X-Team-*"])
    assert rule.select({"traceparent": "00-a", "x-team-id": "7", "authorization": "secret"}) == {
        "traceparent": "00-a",
        "x-team-id": "7",
    }


@pytest.mark.parametrize(
    "name",
    ["host", "connection", "content-length", "content-encoding", "te", "grpc-timeout", "expect"],
)
def test_hop_by_hop_headers_are_never_forwarded(name: str) -> None:
    assert HeaderFilter(["*"]).select({name: "x", "x-other": "y"}) == {"x-other": "y"}


def test_without_globs_no_header_is_forwarded() -> None:
    assert HeaderFilter([]).select({"traceparent": "00-a"}) == {}


def test_the_number_of_cached_header_names_is_bounded() -> None:
    rule = HeaderFilter(["x-*"])
    for number in range(5000):
        assert rule.select({f"x-{number}": "1"})
    assert len(rule._selections) <= 1024


def test_globs_do_not_forward_credentials() -> None:
    headers = {"authorization": "s", "x-api-key": "s", "cookie": "s", "x-team": "7"}
    assert HeaderFilter(["*"]).select(headers) == {"x-team": "7"}
    assert HeaderFilter(["x-*", "auth*", "cooki?"]).select(headers) == {"x-team": "7"}
    assert HeaderFilter(["*", "Authorization"]).select(headers) == {
        "authorization": "s",
        "x-team": "7",
    }


# ---- headers named by Connection, and the sizes of headers

PARENT = f"00-{1:032x}-{1:016x}-01"


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        ("close", {"x-a", "x-b"}),
        ("keep-alive", {"x-a", "x-b"}),
        ("X-A", {"x-b"}),
        ("close,\tx-b , x-a", set()),
        ("x-c", {"x-a", "x-b"}),
    ],
)
def test_headers_named_by_connection_are_not_forwarded(connection: str, expected: set[str]) -> None:
    headers = {"x-a": "1", "connection": connection, "x-b": "2"}
    assert set(HeaderFilter(["*"]).select(headers)) == expected
    assert set(HeaderFilter(["*"], FORWARDED_HEADER_BYTES).select(headers)) == expected


@pytest.mark.parametrize(
    ("value", "is_valid"),
    [
        (PARENT, True),
        (PARENT.replace("00-", "cc-", 1), True),
        (PARENT.replace("00-", "cc-", 1) + "-what-will-come", True),
        (PARENT + "-what-will-come", False),
        (PARENT.replace("00-", "cc-", 1) + "-" + "x" * 8000, False),
        (PARENT.replace("00-", "ff-", 1), False),
        (PARENT[:-1], False),
        (PARENT.upper().replace("1", "A"), False),
        (f"00-{0:032x}-{1:016x}-01", False),
        (f"00-{1:032x}-{0:016x}-01", False),
        (PARENT + "\n", False),
        ("x" * 9000, False),
    ],
)
def test_an_invalid_traceparent_is_dropped(value: str, is_valid: bool) -> None:
    headers = {"traceparent": value, "tracestate": "a=1"}
    forwarded = HeaderFilter(["trace*"], FORWARDED_HEADER_BYTES).select(headers)
    assert forwarded == (headers if is_valid else {})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("tracestate", "a=1,b=2", "a=1,b=2"),
        ("tracestate", ",".join(["a=1"] * 40), ",".join(["a=1"] * 32)),
        ("tracestate", f"a=1,b={'x' * 500},c={'y' * 100}", f"a=1,c={'y' * 100}"),
        ("tracestate", ",".join(["a=" + "x" * 98] * 9), ",".join(["a=" + "x" * 98] * 5)),
        ("tracestate", "a" * 9000, None),
        ("baggage", ",".join(["a=1"] * 80), ",".join(["a=1"] * 64)),
        ("baggage", ",".join(["a=" + "x" * 998] * 9), ",".join(["a=" + "x" * 998] * 7)),
        ("baggage", "a" * 9000, None),
    ],
)
def test_trace_headers_are_truncated_by_whole_members(
    name: str, value: str, expected: str | None
) -> None:
    forwarded = HeaderFilter([name], FORWARDED_HEADER_BYTES).select({name: value})
    assert forwarded.get(name) == expected
    assert field_bytes(forwarded) <= FORWARDED_HEADER_BYTES


def test_a_larger_budget_does_not_raise_the_limit_on_baggage() -> None:
    """W3C Baggage, 3.3.2 limits baggage to 8192 bytes."""
    members = ["a=" + "x" * 998] * 12
    selected = HeaderFilter(["baggage"], 2 * FORWARDED_HEADER_BYTES).select(
        {"baggage": ",".join(members)}
    )
    assert selected == {"baggage": ",".join(members[:8])}


@pytest.mark.parametrize("letter", ["é", "\N{GRINNING FACE}"])
def test_header_sizes_are_counted_in_encoded_bytes(letter: str) -> None:
    rule = HeaderFilter(["*"], FORWARDED_HEADER_BYTES)
    result = rule.select({"baggage": ",".join(["a=" + letter * 250] * 60)})
    assert result["baggage"].startswith(f"a={letter}")
    assert {*result["baggage"].split(",")} == {"a=" + letter * 250}
    assert len(result["baggage"].encode()) <= FORWARDED_HEADER_BYTES
    state = {"traceparent": PARENT, "tracestate": ",".join(["a=" + letter * 60] * 8)}
    assert len(rule.select(state)["tracestate"].encode()) <= 512
    with pytest.raises(GatewayError) as caught:
        rule.select({"x-a": letter * 4000})
    assert caught.value.kind is Kind.TOO_LARGE


def test_baggage_is_limited_to_the_remaining_size() -> None:
    rule = HeaderFilter(["*"], 1000)
    result = rule.select({"baggage": ",".join(["a=1"] * 60), "x-a": "1" * 800})
    assert result == {"x-a": "1" * 800, "baggage": ",".join(["a=1"] * 31)}
    assert field_bytes(result) <= 1000


def test_requests_beyond_the_header_budget_are_rejected() -> None:
    with pytest.raises(GatewayError) as caught:
        HeaderFilter(["*"], 1000).select({"x-a": "1" * 500, "x-b": "2" * 500})
    assert (caught.value.kind, caught.value.limit) == (Kind.TOO_LARGE, "forwarded_headers")
    assert len(HeaderFilter(["*"]).select({"x-a": "1" * 500, "x-b": "2" * 500})) == 2


# ---- hops


@pytest.mark.parametrize("globs", [[], ["x-*"]])
def test_the_hops_of_a_request_are_counted_whatever_headers_are_forwarded(globs: list[str]) -> None:
    rule = HeaderFilter(globs, FORWARDED_HEADER_BYTES, counts_hops=True)
    assert rule.select({"accept": "*/*"}) == {}
    assert rule.select({HOPS_HEADER: "1"}) == {HOPS_HEADER: "2"}
    assert rule.select({HOPS_HEADER: str(MAX_HOPS - 1)}) == {HOPS_HEADER: str(MAX_HOPS)}
    for hops in (MAX_HOPS, 9999):
        with pytest.raises(GatewayError, match=f"has passed {hops} gateways") as caught:
            rule.select({HOPS_HEADER: str(hops)})
        assert caught.value.kind is Kind.TOO_MANY_HOPS


@pytest.mark.parametrize("value", ["", "many", "-1", "1, 1", "9" * 5000, "٣"])
def test_an_invalid_hop_header_restarts_the_count(value: str) -> None:
    rule = HeaderFilter([], counts_hops=True)
    assert rule.select({HOPS_HEADER: value}) == {HOPS_HEADER: FIRST_HOP}


def test_hops_are_not_returned_to_clients() -> None:
    assert HeaderFilter(["x-*"]).select({HOPS_HEADER: "9"}) == {}
