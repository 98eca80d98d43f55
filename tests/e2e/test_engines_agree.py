"""Tests that both engines return equal codes, messages and metadata for the same calls.

Decision 14 lists the intended differences, which are not tested here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from e2e.running import Infergate, started_infergate
from faults.low_limits import message
from faults.rpc import INFER, RpcBackend, channel, infer_message
from faults.watch import SECONDS, alive, logged_bugs

MIB = 1 << 20
CONFIG = """
backends:
  embedded: {{protocol: builtin}}
  remote:
    protocol: v2-grpc
    endpoints: ["grpc://{rpc}"]
    profile: triton
    forward_headers: ["x-*"]
    return_headers: ["x-*"]
  closed: {{protocol: v2-grpc, endpoints: ["grpc://127.0.0.1:9"], profile: triton}}
routes:
  - {{model: remote, backend: remote}}
  - {{model: closed, backend: closed}}
  - {{model: "*", backend: embedded}}
models:
  remote: &model
    inputs: [{{name: INPUT0, datatype: INT32, shape: [1]}}]
    outputs: [{{name: OUTPUT0, datatype: INT32, shape: [1]}}]
  closed: *model
limits: {{body: 1MiB}}
"""
SERVICE = INFER.rpartition("/")[0]
STREAM = f"{SERVICE}/ModelStreamInfer"
GZIP, DEFLATE = grpc.Compression.Gzip, grpc.Compression.Deflate


@pytest.fixture(scope="module")
def gateways(rpc: RpcBackend) -> Iterator[list[Infergate]]:
    config = CONFIG.format(rpc=rpc.address)
    with (
        started_infergate(config, engine="compat") as compat,
        started_infergate(config, engine="own") as own,
    ):
        yield [compat, own]
        for each in (compat, own):
            assert alive(each)
            assert logged_bugs(each) == ""


@pytest.fixture
def backend(rpc: RpcBackend) -> Iterator[RpcBackend]:
    respond = rpc.respond
    yield rpc
    rpc.respond = respond
    rpc.release.clear()


# ---- the outcome of a call

Outcome = tuple[Any, ...]
GENERATED_ID = re.compile(r"[0-9a-f]{12}-[0-9a-f]+")
"""Matches the ID that the gateway generates for a request without an ID."""


def without_prefix(details: str | None) -> str:
    """Return ``details`` without the prefix that grpcio adds."""
    return (details or "").removeprefix("SERVER: ")


def pairs(metadata: Any) -> list[tuple[str, str | bytes]]:
    """Return the sorted metadata without the fields of grpcio. Replace IDs that a gateway has
    generated."""
    return sorted(
        (key, "generated" if isinstance(value, str) and GENERATED_ID.fullmatch(value) else value)
        for key, value in metadata or ()
        if not key.startswith("grpc-")
    )


def unary(client: grpc.Channel, method: str, message: bytes, **options: Any) -> Outcome:
    send = client.unary_unary(method)
    try:
        response, call = send.with_call(message, **{"timeout": SECONDS, **options})
    except grpc.RpcError as error:
        return error.code(), without_prefix(error.details()), pairs(error.trailing_metadata())
    initial, trailing = pairs(call.initial_metadata()), pairs(call.trailing_metadata())
    return call.code(), response, sorted(initial + trailing)


def stream(client: grpc.Channel, messages: list[bytes], **options: Any) -> Outcome:
    call = client.stream_stream(STREAM)(iter(messages), **{"timeout": SECONDS, **options})
    responses: list[bytes] = []
    try:
        responses.extend(call)
    except grpc.RpcError as error:
        return error.code(), without_prefix(error.details()), responses
    return call.code(), call.details(), responses


def mismatched() -> bytes:
    request = pb.ModelInferRequest.FromString(message())
    request.inputs[0].shape[0] = 99
    return bytes(request.SerializeToString())


Case = Callable[[grpc.Channel], Outcome]
OK, NOT_FOUND, INVALID = (
    grpc.StatusCode.OK,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,
)
UNARY: dict[str, tuple[grpc.StatusCode, Case]] = {
    "an inference": (OK, lambda client: unary(client, INFER, message())),
    "with an id": (OK, lambda client: unary(client, INFER, message(id="mine"))),
    "400 KB": (OK, lambda client: unary(client, INFER, message(200_000))),
    "gzip": (OK, lambda client: unary(client, INFER, message(9999), compression=GZIP)),
    "deflate": (OK, lambda client: unary(client, INFER, message(9999), compression=DEFLATE)),
    "an unknown model": (NOT_FOUND, lambda client: unary(client, INFER, message(model="né"))),
    "a mismatched shape": (INVALID, lambda client: unary(client, INFER, mismatched())),
    "an invalid message": (INVALID, lambda client: unary(client, INFER, b"\xff" * 5)),
    "an empty message": (INVALID, lambda client: unary(client, INFER, b"")),
    "a message over the limit": (
        grpc.StatusCode.RESOURCE_EXHAUSTED, lambda client: unary(client, INFER, message(MIB)),
    ),
    "an unknown method": (
        grpc.StatusCode.UNIMPLEMENTED, lambda client: unary(client, f"{SERVICE}/ModelDream", b""),
    ),
    "an unknown service": (
        grpc.StatusCode.UNIMPLEMENTED, lambda client: unary(client, "/some.Service/Method", b""),
    ),
    "an empty method name": (
        grpc.StatusCode.UNIMPLEMENTED, lambda client: unary(client, "/", b""),
    ),
    "live": (OK, lambda client: unary(client, f"{SERVICE}/ServerLive", b"")),
    "metadata": (
        OK,
        lambda client: unary(
            client,
            f"{SERVICE}/ModelMetadata",
            pb.ModelMetadataRequest(name="simple").SerializeToString(),
        ),
    ),
    "health": (OK, lambda client: unary(client, "/grpc.health.v1.Health/Check", b"")),
    "an unreachable backend": (
        grpc.StatusCode.UNAVAILABLE, lambda client: unary(client, INFER, infer_message("closed")),
    ),
}  # fmt: skip


def call_both(gateways: list[Infergate], case: Case) -> list[Outcome]:
    outcomes = []
    for gateway in gateways:
        with channel(gateway.grpc) as client:
            outcomes.append(case(client))
    return outcomes


def without_limit_name(outcome: Any) -> Any:
    """Return ``outcome`` without the name of the exceeded limit, which grpcio does not know."""
    code, details, *rest = outcome
    if isinstance(details, str):
        details = details.removesuffix(" (limits.body)")
    return (code, details, *rest)


@pytest.mark.parametrize("name", UNARY)
def test_each_call_has_the_same_result(gateways: list[Infergate], name: str) -> None:
    code, case = UNARY[name]
    compat, own = call_both(gateways, case)
    assert without_limit_name(own) == compat
    assert own[0] is code


CODES = [code for code in grpc.StatusCode if code is not OK]


@pytest.mark.parametrize("details", ["", "why: näh %41 \n{}", "x" * 3000])
@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_a_backends_status_has_the_same_result(
    gateways: list[Infergate], backend: RpcBackend, code: grpc.StatusCode, details: str
) -> None:
    def fail(_message: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata((("x-why", "because"), ("x-raw-bin", b"\0\xff")))
        context.abort(code, details)
        raise AssertionError("abort raises")

    backend.respond = fail
    compat, own = call_both(gateways, lambda client: unary(client, INFER, infer_message("remote")))
    assert own == compat
    assert own[0] is not OK


@pytest.mark.parametrize(
    "response",
    [b"", b"\xff" * 9, b"\x0a\x01m" + b"\x2a\x04" * 3, bytes(2 * MIB)],
    ids=["empty", "invalid message", "invalid tensor", "over the limit"],
)
def test_a_backends_response_has_the_same_result(
    gateways: list[Infergate], backend: RpcBackend, response: bytes
) -> None:
    backend.respond = lambda message, context: response
    compat, own = call_both(gateways, lambda client: unary(client, INFER, infer_message("remote")))
    assert own == compat


@pytest.mark.parametrize("compression", [GZIP, DEFLATE])
def test_a_compressed_response_has_the_same_result(
    gateways: list[Infergate], backend: RpcBackend, compression: grpc.Compression
) -> None:
    normal = backend.respond

    def respond(message: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_compression(compression)
        return normal(message, context)

    backend.respond = respond
    compat, own = call_both(gateways, lambda client: unary(client, INFER, infer_message("remote")))
    assert own == compat
    assert own[0] is OK


def test_both_engines_enforce_deadlines(gateways: list[Infergate], backend: RpcBackend) -> None:
    backend.respond = backend.wait
    compat, own = call_both(
        gateways, lambda client: unary(client, INFER, infer_message("remote"), timeout=0.4)
    )
    assert own[0] is compat[0] is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    "metadata",
    [
        [("x-many", "a"), ("x-many", "b")],
        [("x-raw-bin", b"\0\1\xff"), ("x-raw-bin", b"")],
        [("x-empty", ""), ("x-sign", "a=b; c, d~")],
        [("x-long", "y" * 7000)],
    ],
)
def test_both_engines_forward_metadata_in_both_directions(
    gateways: list[Infergate], backend: RpcBackend, metadata: Any
) -> None:
    normal, received = backend.respond, []

    def respond(message: bytes, context: grpc.ServicerContext) -> bytes:
        received.append(
            [each for each in pairs(context.invocation_metadata()) if each[0][:2] == "x-"]
        )
        context.send_initial_metadata(metadata[:1])
        context.set_trailing_metadata(metadata)
        return normal(message, context)

    backend.respond = respond
    compat, own = call_both(
        gateways,
        lambda client: unary(
            client,
            INFER,
            infer_message("remote"),
            metadata=[*metadata, ("x-request-id", "mine")],
        ),
    )
    assert own == compat
    assert own[0] is OK
    assert len(received[0]) > 1
    assert received[0] == received[1]


def test_both_engines_limit_the_inflated_size(gateways: list[Infergate]) -> None:
    compat, own = call_both(
        gateways, lambda client: unary(client, INFER, message(MIB), compression=GZIP)
    )
    assert own[0] is compat[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_both_engines_reject_too_much_metadata(gateways: list[Infergate]) -> None:
    compat, own = call_both(
        gateways,
        lambda client: unary(client, INFER, message(), metadata=[("x", "y" * 60_000)]),
    )
    assert own[0] is compat[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


STREAMS: dict[str, Case] = {
    "no messages": lambda client: stream(client, []),
    "one message": lambda client: stream(client, [message()]),
    "many messages": lambda client: stream(client, [message(number) for number in range(1, 50)]),
    "long messages": lambda client: stream(client, [message(100_000)] * 5),
    "compressed": lambda client: stream(client, [message(9999)] * 3, compression=GZIP),
    "some invalid": lambda client: stream(client, [message(), mismatched(), message(model="né")]),
    "an invalid message": lambda client: stream(client, [b"\xff" * 5]),
    "an unreachable backend": lambda client: stream(client, [infer_message("closed"), message()]),
}


@pytest.mark.parametrize("name", STREAMS)
def test_each_stream_has_the_same_result(gateways: list[Infergate], name: str) -> None:
    compat, own = call_both(gateways, STREAMS[name])
    assert (own[:2], sorted(own[2])) == (compat[:2], sorted(compat[2]))


def test_both_engines_reject_a_streams_message_over_the_limit(gateways: list[Infergate]) -> None:
    compat, own = call_both(gateways, lambda client: stream(client, [message(), message(MIB)]))
    assert own[0] is compat[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert own[1] == f"{compat[1]} (limits.body)"
