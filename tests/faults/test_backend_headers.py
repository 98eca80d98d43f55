"""Tests that only selected headers and metadata of a backend's response are passed on, and that
interim responses are skipped."""

from __future__ import annotations

import pytest

from e2e.running import ENGINE
from faults import h2
from faults.peer import GOOD_BODY, http_answer
from faults.rpc import INFER, infer_message
from faults.scripted_backends import (
    END,
    MESSAGE,
    Harness,
    data_frame,
    respond_with,
    send_frames,
    trailers,
)


def test_interim_responses_are_skipped(harness: Harness) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    harness.rest.use(respond_with(interim + http_answer(GOOD_BODY)))
    harness.good("rest.fwd")


def test_hop_by_hop_headers_are_not_forwarded(harness: Harness) -> None:
    sent = (
        "Connection: keep-alive, X-Secret\r\nKeep-Alive: timeout=5\r\nX-Secret: 1\r\n"
        "Set-Cookie: a=b\r\nServer: shop\r\nProxy-Authenticate: Basic\r\nTrailer: X-End\r\n"
        "Upgrade: h2c\r\nX-Own: 1\r\nEndpoint-Load-Metrics: cpu=1\r\n"
    )
    harness.rest.use(respond_with(http_answer(GOOD_BODY, headers=sent)))
    for model in ("rest.fwd", "rest.tr"):
        with harness.serves(model):
            response = harness.send_rest(model)
        assert response.status == 200
        assert set(response.headers) <= {
            "server", "date", "content-type", "content-length", "endpoint-load-metrics",
        }  # fmt: skip
        assert response.headers["server"] == "infergate"
        assert response.headers["endpoint-load-metrics"] == "cpu=1"  # returned by default


@pytest.mark.skipif(ENGINE == "compat", reason="grpcio treats interim headers as the response")
def test_interim_headers_over_grpc_are_skipped(harness: Harness) -> None:
    interim = h2.fields((":status", "103"), ("link", "</x>"))
    begin = lambda stream: h2.headers(stream, interim)  # noqa: E731
    harness.rpc.use(send_frames(begin, begin, h2.headers, data_frame(MESSAGE), END))
    harness.good("grpc.fwd")
    harness.good("grpc.tr")


def test_unselected_metadata_is_not_forwarded(harness: Harness) -> None:
    """A backend's trailers and headers are returned only if a rule selects them."""
    sent = h2.fields(
        (":status", "200"), ("content-type", "application/grpc"), ("server", "depot"),
        ("set-cookie", "a=b"), ("x-own", "1"), ("endpoint-load-metrics", "cpu=1"),
    )  # fmt: skip
    end = trailers(("grpc-status", "0"), ("x-end", "1"))
    harness.rpc.use(send_frames(lambda stream: h2.headers(stream, sent), data_frame(MESSAGE), end))
    for model in ("grpc.fwd", "grpc.tr"):
        with harness.serves(model):
            response, rpc = harness.channel.unary_unary(INFER).with_call(infer_message(model))
        assert response
        metadata = {**dict(rpc.initial_metadata()), **dict(rpc.trailing_metadata())}
        assert not {"server", "set-cookie", "x-own", "x-end"} & set(metadata)
