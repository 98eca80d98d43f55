"""Tests that both engines return the same code, message and metadata for the same calls.

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
  ours: {{protocol: builtin}}
  depot:
    protocol: v2-grpc
    endpoints: ["grpc://{rpc}"]
    profile: triton
    forward_headers: ["x-*"]
    return_headers: ["x-*"]
  nobody: {{protocol: v2-grpc, endpoints: ["grpc://127.0.0.1:9"], profile: triton}}
routes:
  - {{model: depot, backend: depot}}
  - {{model: nobody, backend: nobody}}
  - {{model: "*", backend: ours}}
models:
  depot: &model
    inputs: [{{name: INPUT0, datatype: INT32, shape: [1]}}]
    outputs: [{{name: OUTPUT0, datatype: INT32, shape: [1]}}]
  nobody: *model
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
    quick = rpc.respond
    yield rpc
    rpc.respond = quick
    rpc.release.clear()


# ---- what becomes of a call

Outcome = tuple[Any, ...]
Pairs = Any
GIVEN = re.compile(r"[0-9a-f]{12}-[0-9a-f]+")
"""Matches the ID that the gateway generates for a request without an ID."""


def words(details: str | None) -> str:
    """Return ``details`` without the prefix that grpcio adds."""
    return (details or "").removeprefix("SERVER: ")


def pairs(response: Pairs) -> list[tuple[str, str | bytes]]:
    """Return the metadata that an application sees, without the library's own fields and without
    IDs that a gateway has generated."""
    return sorted(
        (key, "given" if isinstance(value, str) and GIVEN.fullmatch(value) else value)
        for key, value in response or ()
        if not key.startswith("grpc-")
    )


def unary(client: grpc.Channel, method: str, message: bytes, **more: Any) -> Outcome:
    wanted = client.unary_unary(method)
    try:
        answer, call = wanted.with_call(message, **{"timeout": SECONDS, **more})
    except grpc.RpcError as error:
        return error.code(), words(error.details()), pairs(error.trailing_metadata())
    first, last = pairs(call.initial_metadata()), pairs(call.trailing_metadata())
    return call.code(), answer, sorted(first + last)


def stream(client: grpc.Channel, messages: list[bytes], **more: Any) -> Outcome:
    call = client.stream_stream(STREAM)(iter(messages), **{"timeout": SECONDS, **more})
    got: list[bytes] = []
    try:
        got.extend(call)
    except grpc.RpcError as error:
        return error.code(), words(error.details()), got
    return call.code(), call.details(), got


def unlike() -> bytes:
    result = pb.ModelInferRequest.FromString(message())
    result.inputs[0].shape[0] = 99
    return bytes(result.SerializeToString())


Case = Callable[[grpc.Channel], Outcome]
OK, NOT_FOUND, INVALID = (
    grpc.StatusCode.OK,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,
)
UNARY: dict[str, tuple[grpc.StatusCode, Case]] = {
    "good": (OK, lambda client: unary(client, INFER, message())),
    "with an id": (OK, lambda client: unary(client, INFER, message(id="mine"))),
    "400 KB": (OK, lambda client: unary(client, INFER, message(200_000))),
    "gzip": (OK, lambda client: unary(client, INFER, message(9999), compression=GZIP)),
    "deflate": (OK, lambda client: unary(client, INFER, message(9999), compression=DEFLATE)),
    "an unknown model": (NOT_FOUND, lambda client: unary(client, INFER, message(model="né"))),
    "shape and bytes": (INVALID, lambda client: unary(client, INFER, unlike())),
    "no message": (INVALID, lambda client: unary(client, INFER, b"\xff" * 5)),
    "an empty message": (INVALID, lambda client: unary(client, INFER, b"")),
    "too much": (
        grpc.StatusCode.RESOURCE_EXHAUSTED, lambda client: unary(client, INFER, message(MIB)),
    ),
    "an unknown method": (
        grpc.StatusCode.UNIMPLEMENTED, lambda client: unary(client, f"{SERVICE}/ModelDream", b""),
    ),
    "an unknown service": (
        grpc.StatusCode.UNIMPLEMENTED, lambda client: unary(client, "/some.Service/Method", b""),
    ),
    "a method that is none": (
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
    "a backend that is not there": (
        grpc.StatusCode.UNAVAILABLE, lambda client: unary(client, INFER, infer_message("nobody")),
    ),
}  # fmt: skip


def both(gateways: list[Infergate], case: Case) -> list[Outcome]:
    found = []
    for gateway in gateways:
        with channel(gateway.grpc) as client:
            found.append(case(client))
    return found


def unnamed(answer: Any) -> Any:
    """Return ``answer`` without the name of the exceeded limit, which grpcio does not know."""
    code, details, *rest = answer
    if isinstance(details, str):
        details = details.removesuffix(" (limits.body)")
    return (code, details, *rest)


@pytest.mark.parametrize("what", UNARY)
def test_each_call_has_the_same_result(gateways: list[Infergate], what: str) -> None:
    code, case = UNARY[what]
    compat, own = both(gateways, case)
    assert unnamed(own) == compat
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
    compat, own = both(gateways, lambda client: unary(client, INFER, infer_message("depot")))
    assert own == compat
    assert own[0] is not OK


@pytest.mark.parametrize(
    "answer",
    [b"", b"\xff" * 9, b"\x0a\x01m" + b"\x2a\x04" * 3, bytes(2 * MIB)],
    ids=["nothing", "no message", "no tensor", "too much"],
)
def test_a_backends_response_has_the_same_result(
    gateways: list[Infergate], backend: RpcBackend, answer: bytes
) -> None:
    backend.respond = lambda message, context: answer
    compat, own = both(gateways, lambda client: unary(client, INFER, infer_message("depot")))
    assert own == compat


@pytest.mark.parametrize("compression", [GZIP, DEFLATE])
def test_a_compressed_response_has_the_same_result(
    gateways: list[Infergate], backend: RpcBackend, compression: grpc.Compression
) -> None:
    quick = backend.respond

    def answer(message: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_compression(compression)
        return quick(message, context)

    backend.respond = answer
    compat, own = both(gateways, lambda client: unary(client, INFER, infer_message("depot")))
    assert own == compat
    assert own[0] is OK


def test_both_engines_enforce_deadlines(gateways: list[Infergate], backend: RpcBackend) -> None:
    backend.respond = backend.wait
    compat, own = both(
        gateways, lambda client: unary(client, INFER, infer_message("depot"), timeout=0.4)
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
def test_metadata_reaches_the_backend(
    gateways: list[Infergate], backend: RpcBackend, metadata: Pairs
) -> None:
    quick, seen = backend.respond, []

    def answer(message: bytes, context: grpc.ServicerContext) -> bytes:
        seen.append([each for each in pairs(context.invocation_metadata()) if each[0][:2] == "x-"])
        context.send_initial_metadata(metadata[:1])
        context.set_trailing_metadata(metadata)
        return quick(message, context)

    backend.respond = answer
    compat, own = both(
        gateways,
        lambda client: unary(
            client,
            INFER,
            infer_message("depot"),
            metadata=[*metadata, ("x-request-id", "mine")],
        ),
    )
    assert own == compat
    assert own[0] is OK
    assert len(seen[0]) > 1
    assert seen[0] == seen[1]


def test_both_engines_reject_a_bomb(gateways: list[Infergate]) -> None:
    compat, own = both(
        gateways, lambda client: unary(client, INFER, message(MIB), compression=GZIP)
    )
    assert own[0] is compat[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_both_engines_reject_too_much_metadata(gateways: list[Infergate]) -> None:
    compat, own = both(
        gateways,
        lambda client: unary(client, INFER, message(), metadata=[("x", "y" * 60_000)]),
    )
    assert own[0] is compat[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


STREAMS: dict[str, Case] = {
    "none": lambda client: stream(client, []),
    "one": lambda client: stream(client, [message()]),
    "many": lambda client: stream(client, [message(number) for number in range(1, 50)]),
    "long ones": lambda client: stream(client, [message(100_000)] * 5),
    "compressed": lambda client: stream(client, [message(9999)] * 3, compression=GZIP),
    "good and bad": lambda client: stream(client, [message(), unlike(), message(model="né")]),
    "no message": lambda client: stream(client, [b"\xff" * 5]),
    "to a backend": lambda client: stream(client, [infer_message("nobody"), message()]),
}


@pytest.mark.parametrize("what", STREAMS)
def test_each_stream_has_the_same_result(gateways: list[Infergate], what: str) -> None:
    compat, own = both(gateways, STREAMS[what])
    assert (own[:2], sorted(own[2])) == (compat[:2], sorted(compat[2]))


def test_both_engines_reject_a_streams_message_over_the_limit(gateways: list[Infergate]) -> None:
    compat, own = both(gateways, lambda client: stream(client, [message(), message(MIB)]))
    assert own[0] is compat[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert own[1] == f"{compat[1]} (limits.body)"
