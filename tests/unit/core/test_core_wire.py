import pickle
from typing import Any

import pytest

from infergate.core.errors import GatewayError, Kind
from infergate.core.memory import UNLIMITED
from infergate.core.request_context import RequestContext
from infergate.core.wire import (
    NO_HEADERS,
    HttpRequest,
    HttpResponse,
    RpcRequest,
    RpcResponse,
    join_parts,
    total_size,
)


def test_one_part_is_not_copied() -> None:
    part = memoryview(b"abc")
    assert join_parts([part]) is part


@pytest.mark.parametrize(
    ("parts", "expected"),
    [((), b""), ([b"ab", b""], b"ab"), ([b"ab", memoryview(b"cd"), bytearray(b"e")], b"abcde")],
)
def test_parts_are_joined_and_their_sizes_added(parts: list[bytes], expected: bytes) -> None:
    assert join_parts(parts) == expected
    assert total_size(parts) == len(expected)


def test_messages_are_empty_by_default() -> None:
    assert HttpRequest("GET", "/v2") == HttpRequest("GET", "/v2", "", {}, ())
    assert HttpResponse(200) == HttpResponse(200, NO_HEADERS, ())
    assert RpcRequest("/a.B/C") == RpcRequest("/a.B/C", (), {})
    assert RpcResponse() == RpcResponse((), 0, "", {})
    with pytest.raises(TypeError):
        NO_HEADERS["a"] = "b"  # type: ignore[index]


def test_a_request_is_pickled_without_process_local_fields() -> None:
    unpicklable: Any = lambda: None  # noqa: E731 - a lambda cannot be pickled
    request = HttpRequest("POST", "/v2", "a=b", {"a": "b"}, (b"x",), memory=unpicklable)
    request.codec_state = unpicklable
    copied = pickle.loads(pickle.dumps(request))
    assert copied == HttpRequest("POST", "/v2", "a=b", {"a": "b"}, (b"x",))
    assert (copied.memory, copied.codec_state) == (UNLIMITED, None)
    rpc = RpcRequest("/a.B/C", (b"x",), {"a": "b"}, memory=unpicklable, deferred=unpicklable)
    rpc.codec_state = unpicklable
    unpickled = pickle.loads(pickle.dumps(rpc))
    assert unpickled == RpcRequest("/a.B/C", (b"x",), {"a": "b"})
    assert (unpickled.memory, unpickled.deferred, unpickled.codec_state) == (UNLIMITED, None, None)


@pytest.mark.parametrize(
    ("before", "requested", "after"), [(None, 5.0, 5.0), (9.0, 5.0, 5.0), (3.0, 5.0, 3.0)]
)
def test_shorten_deadline_never_extends_a_deadline(
    before: float | None, requested: float, after: float
) -> None:
    context = RequestContext("127.0.0.1", deadline=before)
    context.shorten_deadline(requested)
    assert context.deadline == after


def test_errors_are_recorded_for_log_and_metrics() -> None:
    context = RequestContext("127.0.0.1")
    context.record.record_error(
        GatewayError(Kind.CONNECT, "no endpoint answers", detail="10.0.0.7: refused")
    )
    assert (context.record.outcome, context.record.error) == ("connect", "no endpoint answers")
    assert context.record.detail == "10.0.0.7: refused"
