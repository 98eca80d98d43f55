"""Tests that the responses of every target to the real client's recorded requests satisfy the
client, except for the target's known differences. Also tests the comparison of responses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from legacy import replay
from legacy.captures import RecordedConnection, recorded_connections
from legacy.client_needs import differences_over_grpc, differences_over_http, http_differences
from legacy.targets import TARGETS, Target

# The targets have no shared memory to register.
HTTP, GRPC = (
    [each for each in recorded_connections(name) if not each.name.startswith(f"{name}_shm")]
    for name in ("http", "grpc")
)


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    with TARGETS[request.param]() as running:
        yield running


@pytest.mark.parametrize("connection", HTTP, ids=str)
def test_http_responses_satisfy_the_client(target: Target, connection: RecordedConnection) -> None:
    assert differences_over_http(target.http, connection) == target.known_differences.get(
        connection.name, []
    )


@pytest.mark.parametrize("connection", GRPC, ids=str)
def test_grpc_responses_satisfy_the_client(target: Target, connection: RecordedConnection) -> None:
    assert differences_over_grpc(target.grpc, connection) == target.known_differences.get(
        connection.name, []
    )


RECORDED = next(each for each in HTTP if each.name.startswith("http_infer_simple.c02"))
REQUESTS = list(replay.requests_of(RECORDED.sent))
(EXPECTED,) = replay.responses_of(RECORDED.received)


def differences_after(change: tuple[bytes, bytes] | None) -> list[str]:
    """Return the differences reported for a recorded response after one replacement."""
    raw = EXPECTED.raw.replace(*change) if change else EXPECTED.raw
    return http_differences(REQUESTS, [EXPECTED], replay.responses_of(raw))


@pytest.mark.parametrize(
    "change",
    [
        None,
        (b"NV-Status", b"nv-status"),
        (b"Content-Type: application/octet-stream\r\n", b"X: y\r\n"),
        (b'server_id: "trtis-gold"', b'server_id: "other"'),
    ],
)
def test_differences_that_the_client_ignores_are_not_reported(
    change: tuple[bytes, bytes] | None,
) -> None:
    assert differences_after(change) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ((b"NV-Status:", b"X-Status:"), "unreadable NV-Status: None"),
        ((b"code: SUCCESS", b"code: SUCCESS more: 1"), "unreadable NV-Status"),
        ((b"code: SUCCESS", b"code: INTERNAL"), "code 3, not 1"),
        ((b"200 OK", b"400 Bad Request"), "HTTP status 400 with NV-Status SUCCESS"),
        ((b"NV-InferResponse:", b"X:"), "unreadable NV-InferResponse: None"),
        ((b"raw {", b"data_type: TYPE_INT32 raw {"), "unreadable NV-InferResponse"),
        ((b"\2\0\0\0\3", b"\2\0\0\0\4"), "raw outputs"),
        ((b"\n\x06simple", b"\n\x06simplf"), "no trailer"),
    ],
)
def test_differences_that_the_client_notices_are_reported(
    change: tuple[bytes, bytes], expected: str
) -> None:
    (line, *_) = differences_after(change)
    assert expected in line


def test_a_missing_trailer_and_a_missing_response_are_reported() -> None:
    cut = replace(EXPECTED, body=EXPECTED.body[:128])
    assert "no trailer" in http_differences(REQUESTS, [EXPECTED], [cut])[0]
    assert http_differences(REQUESTS, [EXPECTED], []) == ["0 responses to 1 requests"]
