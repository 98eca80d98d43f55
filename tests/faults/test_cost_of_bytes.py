"""Tests the cost of the most expensive messages for the event loop, for memory, and for concurrent
clients.

A few bytes can cause a lot of work. No message within the limits may block the event loop for more
than 50 ms of CPU. Helper processes do longer work. ``faults.costly`` has the most expensive known
message of each loop; ``make test-peers`` also searches for more expensive messages, which are then
added there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings, target
from hypothesis import strategies as st

from faults.costly import INLINE, MANY, METADATA, WORST, flatbuffer
from faults.costs import (
    MAX_SECONDS,
    TRIES,
    UNIT,
    Timed,
    Worst,
    check_callback_time,
    check_other_clients,
    good,
    started_timed,
)
from faults.timed import calibrated
from faults.watch import MIB, counted, unharmed
from infergate.codecs.base import PartialInferRequest, SupportsPassThrough
from infergate.codecs.registry import plugins
from infergate.core.errors import GatewayError
from infergate.core.limits import DEFAULT_LIMITS, KIB, NeedsOffloadError, event_loop_limits
from infergate.core.wire import HttpRequest, RpcRequest
from legacy.messages import SERVICE

ATTACKERS = 4
MAX_NEW_CONNECTIONS = 24
"""Maximum number of connections that the gateway opens to itself and keeps."""


@pytest.fixture(scope="module")
def timed() -> Iterator[Timed]:
    with started_timed() as gateway:
        with ThreadPoolExecutor(ATTACKERS) as threads:  # this starts all helpers
            list(threads.map(WORST["v2-rest, translated"]().send, [gateway] * ATTACKERS))
        yield gateway


def _allowed(worst: Worst) -> int:
    """Return the maximum memory in bytes that a message costs the gateway while it is served."""
    return 64 * MIB + 4 * worst.size


def _watched(timed: Timed, max_growth: int) -> AbstractContextManager[None]:
    """Watch the gateway. Its helpers keep memory for 30 s for the next message (docs/limits.md)."""
    return unharmed(
        timed,
        lambda: good(timed),
        max_growth=max_growth,
        max_retained=max_growth,
        max_new_descriptors=MAX_NEW_CONNECTIONS,
    )


@pytest.mark.parametrize("name", WORST)
def test_no_callback_blocks_the_event_loop(timed: Timed, name: str) -> None:
    worst, before = WORST[name](), counted(timed, outcome="ok")
    with _watched(timed, _allowed(worst)):
        check_callback_time(timed, lambda: worst.send(timed))
    assert counted(timed, outcome="ok") > before


EXPENSIVE = (
    "v2-rest, to JSON",
    "v2-grpc, very many typed",
    "graphpipe, very many empty texts",
    "trtis-http, forwarded",
    "trtis-grpc, forwarded",
)
"""Expensive messages of five protocols. The others run only in ``make test-peers``."""


@pytest.mark.parametrize(
    "name",
    [each if each in EXPENSIVE else pytest.param(each, marks=pytest.mark.peers) for each in WORST],
)
def test_other_clients_are_hardly_delayed(timed: Timed, name: str) -> None:
    """Four connections send the message. The test also checks memory."""
    worst, before = WORST[name](), counted(timed, outcome="ok")
    with _watched(timed, ATTACKERS * _allowed(worst)):
        check_other_clients(timed, worst, ATTACKERS)
    assert counted(timed, outcome="ok") > before


# ---- the search --------------------------------------------------------------------------------

LIMITS = event_loop_limits(DEFAULT_LIMITS)
HEADERS = 64 * KIB
"""Maximum header size of ``listeners.http``, which includes NV-InferRequest."""


def _rest(body: bytes) -> Any:
    return HttpRequest("POST", "/v2/models/texts/infer", body=(body,))


def _rows(body: bytes) -> Any:
    return HttpRequest("POST", "/v1/models/texts:predict", body=(body,))


def _rpc(message: bytes) -> Any:
    return RpcRequest("/inference.GRPCInferenceService/ModelInfer", (b"\x0a\x01m" + message,))


def _old_rpc(message: bytes) -> Any:
    return RpcRequest(f"/{SERVICE}/Infer", (b"\x0a\x05texts" + message,))


def _old_http(header: bytes) -> Any:
    text = header[:HEADERS].decode()
    return HttpRequest("POST", "/api/infer/texts", headers={"nv-inferrequest": text})


def _graphpipe(data: bytes) -> Any:
    count = min(len(data), MANY)
    strings = b"".join(bytes((each & 3, 0, 0, 0)) + b"abc"[: each & 3] for each in data[:count])
    return HttpRequest("POST", "/graphpipe/texts", body=(flatbuffer(strings, count),))


_TENSOR = b'{"name":"INPUT0","datatype":"%s","shape":[%d],"data":['
SEARCHED: dict[str, tuple[Any, list[bytes], list[bytes], list[bytes]]] = {
    "v2-rest": (
        _rest,
        [
            b'{"inputs":[',
            b'{"outputs":[',
            b'{"parameters":{',
            b"{",
            *[
                b'{"inputs":[' + _TENSOR % (kind, count)
                for kind in (b"BYTES", b"BOOL", b"FP16", b"FP32", b"INT8")
                for count in (MANY, 10 * MANY)
            ],
        ],
        [
            b'"",', b'"\\u00e9",', b"0,", b"-1.5e300,", b"true,", b"null,", b"NaN,", b"[],",
            b"[0],", b"{},", b'{"a":[]},', b'"a":1,', b'"b":{},', b"[", b'{"name":"x"},', b" ",
            _TENSOR % (b"FP16", 1) + b"1]},", _TENSOR % (b"BYTES", 0) + b"]},",
        ],
        [b"0]}]}", b'""]}]}', b"]}", b"{}]}", b'"z":1}}', b""],
    ),
    "tfs-rest": (
        _rows,
        [b'{"instances":[', b'{"inputs":[', b'{"inputs":{"INPUT0":[', b"{", b'{"instances":[{'],
        [
            b'"",', b'",",', b'"\\u00e9",', b"0,", b"true,", b"null,", b"NaN,", b"[],", b"[0],",
            b'[""],', b"{},", b'{"INPUT0":""},', b'{"INPUT0":[""]},', b'{"b64":""},', b'"a":1,',
            b"[", b'"\xff",',
        ],
        [b'""]}', b"]}", b'"INPUT0":""}]}', b"0]}}", b""],
    ),
    "v2-grpc": (
        _rpc,
        [b"", b"\x2a\x02\x0a\x00", b"\x22\x04\x0a\x00\x12\x00"],
        [
            b"\x2a\x00", b"\x32\x00", b"\x3a\x00", b"\x22\x00", b"\x1a\x00", b"\x12\x00",
            b"\x38\x01", b"\x2a\x04\x22\x00\x22\x00", b"\x2a\x03\x1a\x01\x01", b"\x32\x02\x12\x00",
            b"\x2a\x04\x2a\x02\x42\x00", b"\x2a\x09\x0a\x01a\x12\x04BOOL",
            b"\x2a" + b"\x42\x22\x00" * 33, b"\x2a\x7e" + b"\x2a\x00" * 63,
        ],
        [b"", b"\x3a\x04\0\0\0\0", b"\x2a"],
    ),
    "trtis-grpc": (
        _old_rpc,
        [b"", b"\x1a\x02\x08\x01"],
        [
            b"\x1a\x00", b"\x22\x00", b"\x1a\x02\x12\x00", b"\x1a\x02\x1a\x00", b"\x28\x01",
            b"\x1a\x7e" + b"\x12\x00" * 63, b"\x1a\x7e" + b"\x28\x01" * 63,
        ],
        [b"", b"\x22\x04\0\0\0\0"],
    ),
    "trtis-http": (
        _old_http,
        [b"", b"batch_size: 1 ", b'input { name: "INPUT0" dims: [', b"id: 7 "],
        [
            b"input{}", b"output{}", b"dims:1 ", b"1,", b'"" ', b"{", b"}", b"#\n", b"\\x41", b"'",
            b"input{dims:[1,1]}", b"output{name:'a'}", b"id:1 ", b" ", b"flags:1;",
        ],
        [b"", b"1] }", b"}", b'"'],
    ),
    "graphpipe": (
        _graphpipe,
        [b"\x00", b"\x03"],
        [b"\x00", b"\x01", b"\x02\x03", b"\x00\x03\x01"],
        [b""],
    ),
}  # fmt: skip
"""By protocol: how to make a request, and its possible starts, repeated parts and ends."""


def _parse(codec: Any, wire: Any) -> None:
    parsed = codec.parse_request(wire, LIMITS)
    if isinstance(parsed, PartialInferRequest):
        parsed.complete(METADATA)


def _validate(codec: Any, wire: Any) -> None:
    if isinstance(codec, SupportsPassThrough):
        codec.validate(wire, LIMITS)


def _seconds(codec: Any, make: Any, data: bytes) -> float:
    """Return the CPU seconds that the event loop spends on a request before its first wait: the
    maximum of parsing and validating the request."""
    longest = 0.0
    for read in (_parse, _validate):
        wire = make(data)
        began = time.thread_time()
        try:
            codec.summarize(wire)
            read(codec, wire)
        except NeedsOffloadError:
            pass
        except GatewayError as error:
            codec.build_error(error, wire)
        longest = max(longest, time.thread_time() - began)
    return longest


SEARCH_MARGIN = 1.5
"""The factor by which a search may exceed 50 ms. The limits on fields are set so that an idle
machine takes 50 ms, and a search finds exactly such messages. The search therefore only detects
messages that no limit bounds. The rows above are compared with 50 ms."""


@pytest.mark.peers
@pytest.mark.parametrize("protocol", SEARCHED)
def test_no_more_expensive_message_is_found(timed: Timed, protocol: str) -> None:
    make, begins, middles, ends = SEARCHED[protocol]
    codec = plugins()[protocol].create({})

    @seed(17)
    @settings(
        max_examples=240, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(
        st.sampled_from(begins),
        st.one_of(
            st.sampled_from(middles).map(lambda each: [each]),
            st.lists(st.sampled_from(middles), min_size=2, max_size=3),
        ),
        st.sampled_from([2 * INLINE, INLINE, 64 * KIB, 8 * KIB]),
        st.sampled_from(ends),
    )
    def search(begin: bytes, middle: list[bytes], size: int, end: bytes) -> None:
        each = b"".join(middle)
        data = begin + each * ((size - len(begin) - len(end)) // len(each)) + end
        if protocol in ("v2-rest", "tfs-rest") and len(data) > INLINE:
            data = begin + each * ((INLINE - len(begin) - len(end)) // len(each)) + end
        seconds = _seconds(codec, make, data)
        target(seconds)
        tries = 1
        # The cost is the minimum of several attempts, because other processes only add to it.
        while (limit := SEARCH_MARGIN * _scaled_limit()) < seconds and tries < 4 * TRIES:
            seconds = min(seconds, _seconds(codec, make, data))
            tries += 1
        assert seconds <= limit, f"{1000 * seconds:.0f} ms: {begin!r} {each!r} {size} {end!r}"

    with unharmed(timed, lambda: good(timed)):
        search()
    assert counted(timed, outcome="internal") == 0


def _scaled_limit() -> float:
    return MAX_SECONDS * max(1.0, calibrated() / UNIT)
