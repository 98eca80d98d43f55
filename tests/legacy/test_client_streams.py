"""Recorded bytes of the real client, replayed: every target responds as the client requires.

The comparison itself is tested too: it reports each difference that the real client rejects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from legacy import replay
from legacy.captures import RecordedConnection, recorded_connections
from legacy.client_needs import http_differences, noticed_over_grpc, noticed_over_http
from legacy.targets import TARGETS, Target

# The targets have no shared memory to register.
HTTP = [talk for talk in recorded_connections("http") if not talk.name.startswith("http_shm")]
GRPC = [talk for talk in recorded_connections("grpc") if not talk.name.startswith("grpc_shm")]


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    with TARGETS[request.param]() as running:
        yield running


@pytest.mark.parametrize("talk", HTTP, ids=str)
def test_http(target: Target, talk: RecordedConnection) -> None:
    assert noticed_over_http(target.http, talk) == target.noticed.get(talk.name, [])


@pytest.mark.parametrize("talk", GRPC, ids=str)
def test_grpc(target: Target, talk: RecordedConnection) -> None:
    assert noticed_over_grpc(target.grpc, talk) == target.noticed.get(talk.name, [])


RECORDED = next(talk for talk in HTTP if talk.name.startswith("http_infer_simple.c02"))


def noticed(change: tuple[bytes, bytes] | None) -> list[str]:
    """Return the differences reported for a recorded response after one replacement."""
    requests = list(replay.requests_of(RECORDED.sent))
    (expected,) = replay.responses_of(RECORDED.received)
    raw = expected.raw.replace(*change) if change else expected.raw
    (given,) = replay.responses_of(raw)
    return http_differences(requests, [expected], [given])


@pytest.mark.parametrize(
    "change",
    [
        None,
        (b"NV-Status", b"nv-status"),
        (b"Content-Type: application/octet-stream\r\n", b"X: y\r\n"),
        (b'server_id: "trtis-gold"', b'server_id: "other"'),
    ],
)
def test_the_client_ignores_header_case_and_other_headers(
    change: tuple[bytes, bytes] | None,
) -> None:
    assert noticed(change) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ((b"NV-Status:", b"X-Status:"), "no NV-Status that it can read: None"),
        ((b"code: SUCCESS", b"code: SUCCESS more: 1"), "no NV-Status that it can read"),
        ((b"code: SUCCESS", b"code: INTERNAL"), "code 3, not 1"),
        ((b"200 OK", b"400 Bad Request"), "code 400 with success"),
        ((b"NV-InferResponse:", b"X:"), "no NV-InferResponse that it can read: None"),
        ((b"raw {", b"data_type: TYPE_INT32 raw {"), "no NV-InferResponse that it can read"),
        ((b"\2\0\0\0\3", b"\2\0\0\0\4"), "raw outputs"),
        ((b"\n\x06simple", b"\n\x06simplf"), "no trailer"),
    ],
)
def test_responses_that_the_client_rejects_are_reported(
    change: tuple[bytes, bytes], expected: str
) -> None:
    (line, *_) = noticed(change)
    assert expected in line


def test_a_missing_trailer_and_a_missing_response_are_reported() -> None:
    requests = list(replay.requests_of(RECORDED.sent))
    (expected,) = replay.responses_of(RECORDED.received)
    cut = replace(expected, body=expected.body[:128])
    assert "no trailer" in http_differences(requests, [expected], [cut])[0]
    assert http_differences(requests, [expected], []) == ["0 responses to 1 requests"]
