"""Tests that the test server responds like the real v1.9.0, except for values that vary per run.

Cases that need registered shared memory are omitted, because the test server has none.
"""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from legacy import replay
from legacy.captures import Call, Exchange, calls, exchanges
from legacy.masks import masked, masked_message
from legacy.messages import SERVICE
from legacy.running import LegacyServer, started_legacy

WITH_SHARED_MEMORY = {
    *("144_shm_register", "145_shm_register_dup", "148_shm_status_one", "150_shm_infer"),
    *("149_shm_status_one_binary", "153_shm_status_after_slash_all"),
    *("061_shm_register", "063_shm_status_one", "064_shm_infer"),
}
EXCHANGES = [each for each in exchanges() if each.name not in WITH_SHARED_MEMORY]
CALLS = [each for each in calls() if each.name not in WITH_SHARED_MEMORY]


@pytest.fixture(scope="module")
def server() -> Iterator[LegacyServer]:
    with started_legacy("--id", "trtis-gold") as running:
        yield running


@pytest.fixture(scope="module")
def explicit() -> Iterator[LegacyServer]:
    with started_legacy("--id", "trtis-gold", "--hazard", "explicit") as running:
        yield running


@pytest.mark.parametrize("case", EXCHANGES, ids=str)
def test_http_responses_equal_the_recorded_responses(server: LegacyServer, case: Exchange) -> None:
    check(server, case)


@pytest.mark.parametrize("case", exchanges("http_explicit"), ids=str)
def test_explicit_model_control_equals_the_recordings(
    explicit: LegacyServer, case: Exchange
) -> None:
    check(explicit, case)


def check(server: LegacyServer, case: Exchange) -> None:
    expected = replay.responses_of(case.response)
    with replay.HTTP(server.http) as connection:
        connection.send(case.request)
        responses = [connection.response() for _ in expected]
        rest = connection.until_closed() if case.closed else connection.rest()
    assert all(responses), "the server closed the connection without a response"
    assert [masked(each) for each in responses if each] == [masked(each) for each in expected]
    assert rest == b""


@pytest.mark.parametrize("case", CALLS, ids=str)
def test_grpc_responses_equal_the_recorded_responses(server: LegacyServer, case: Call) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        responses, code, details = call(channel, case)
    assert (code, details) == (case.code, case.details)
    actual = [masked_message(case.method, each) for each in responses]
    assert actual == [masked_message(case.method, each) for each in case.responses]


def call(channel: grpc.Channel, case: Call) -> tuple[list[bytes], str, str]:
    path = f"/{SERVICE}/{case.method}"
    try:
        if case.method == "StreamInfer":
            return list(channel.stream_stream(path)(iter(case.requests), timeout=20)), "OK", ""
        (request,) = case.requests
        return [channel.unary_unary(path)(request, timeout=20)], "OK", ""
    except grpc.RpcError as error:
        return [], error.code().name, error.details() or ""
