"""Tests ``engine: own`` with other HTTP/2 implementations: Envoy on both sides, grpclib as client
and as server, and nghttp."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from bench.servers import envoy
from tritonclient.grpc import service_pb2 as pb

from e2e.running import Infergate, started_infergate
from faults import h2
from faults.low_limits import message
from faults.rpc import INFER, RpcBackend, call, channel, infer_message, ok_response
from faults.watch import SECONDS, alive, logged_bugs
from peers.support.grpclib import grpclib_report, started_grpclib
from peers.support.installed import Installed

STREAM = INFER.replace("ModelInfer", "ModelStreamInfer")
BUILTIN = """
backends:
  embedded: {{protocol: builtin}}
  depot: {{protocol: v2-grpc, endpoints: ["grpc://{rpc}"], profile: triton}}
routes:
  - {{model: "depot*", backend: depot}}
  - {{model: "*", backend: embedded}}
models:
  depot: &model
    inputs: [{{name: INPUT0, datatype: INT32, shape: [1]}}]
    outputs: [{{name: OUTPUT0, datatype: INT32, shape: [1]}}]
  depot-fail: *model
  depot-slow: *model
readiness: lenient
"""
PROXIED = """
backends:
  proxy: {{protocol: v2-grpc, endpoints: ["grpc://{proxy}"], profile: infergate}}
routes: [{{model: "*", backend: proxy}}]
readiness: lenient
"""


@pytest.fixture(scope="module")
def gateway(rpc: RpcBackend) -> Iterator[Infergate]:
    with started_infergate(BUILTIN.format(rpc=rpc.address), engine="own") as running:
        yield running
        assert alive(running)
        assert logged_bugs(running) == ""


def test_nghttp(gateway: Infergate, tmp_path: Path) -> None:
    """nghttp sends five requests on one connection, with padding and with small windows."""
    tool = shutil.which("nghttp")
    if tool is None:
        pytest.skip("nghttp is not installed (Debian: nghttp2-client)")
    body = tmp_path / "body"
    body.write_bytes(h2.message(message(100_000)))
    options = ["-v", "-n", "-m5", "-w10", "-W12", "-b200", f"-d{body}"]
    headers = ["-Hcontent-type: application/grpc", "-Hte: trailers"]
    completed = subprocess.run(
        [tool, *options, *headers, f"http://{gateway.grpc}{INFER}"],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert completed.stdout.count("grpc-status: 0") == 5, completed.stdout[-3000:]
    assert "recv GOAWAY" not in completed.stdout
    assert "recv RST_STREAM" not in completed.stdout


# ---- grpclib


@pytest.fixture(scope="module")
def grpclib_result(gateway: Infergate, rpc: RpcBackend, grpclib: Installed) -> object:
    respond = rpc.respond
    rpc.respond = lambda message, context: (
        rpc.wait(message, context) if b"slow" in message else respond(message, context)
    )
    messages = {
        "good": message(4),
        "large": message(3_000_000),
        "unknown": message(model="né"),
        "slow": infer_message("depot-slow"),
    }
    return grpclib_report(grpclib, gateway.grpc, messages)


def test_grpclib_as_a_client(grpclib_result: dict[str, object]) -> None:
    good = pb.ModelInferResponse.FromString(bytes.fromhex(str(grpclib_result["good"])))
    assert good.raw_output_contents[0] == bytes(4)
    assert grpclib_result["many"] == [grpclib_result["good"]]
    assert grpclib_result["given up"] == grpclib_result["good"]
    assert isinstance(grpclib_result["large"], int)
    assert grpclib_result["large"] > 6_000_000
    assert grpclib_result["late"][0] == "DEADLINE_EXCEEDED"  # type: ignore[index]
    assert grpclib_result["unknown model"][0] == "NOT_FOUND"  # type: ignore[index]
    assert "né" in grpclib_result["unknown model"][1]  # type: ignore[index]
    assert grpclib_result["unknown method"][0] == "UNIMPLEMENTED"  # type: ignore[index]
    assert grpclib_result["no message"][0] == "INVALID_ARGUMENT"  # type: ignore[index]
    sizes = grpclib_result["stream"]
    assert isinstance(sizes, list)
    assert len(sizes) == 20
    assert len(set(sizes)) == 1
    assert grpclib_result["in turn"] == sizes


def test_grpclib_as_a_server(grpclib: Installed) -> None:
    with (
        started_grpclib(grpclib, ok_response()) as address,
        started_infergate(BUILTIN.format(rpc=address), engine="own") as running,
        channel(running.grpc) as rpc_channel,
    ):
        assert call(rpc_channel, infer_message("depot")).code is grpc.StatusCode.OK
        method = rpc_channel.unary_unary(INFER)
        pending = [method.future(infer_message("depot"), timeout=SECONDS) for _ in range(300)]
        assert len({each.result() for each in pending}) == 1
        failed = call(rpc_channel, infer_message("depot-fail"))
        assert failed.code is grpc.StatusCode.INVALID_ARGUMENT
        assert failed.details == "näh %41"
        late = call(rpc_channel, infer_message("depot-slow"), timeout=0.3)
        assert late.code is grpc.StatusCode.DEADLINE_EXCEEDED
        stream = rpc_channel.stream_stream(STREAM)
        responses = list(stream(iter([infer_message("depot")] * 20), timeout=SECONDS))
        assert len(responses) == 20
        assert logged_bugs(running) == ""


# ---- Envoy


@pytest.fixture(scope="module", params=["in front", "behind"])
def _through_envoy(
    request: pytest.FixtureRequest,
    gateway: Infergate,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """Yield the gRPC address of an Envoy in front of infergate or, with ``behind``, of an infergate
    in front of Envoy."""
    folder = tmp_path_factory.mktemp("envoy")
    if request.param == "in front":
        with envoy(gateway.http, gateway.grpc, folder) as proxy:
            yield proxy.grpc
        return
    with (
        envoy(gateway.http, gateway.grpc, folder) as proxy,
        started_infergate(PROXIED.format(proxy=proxy.grpc), engine="own") as running,
    ):
        yield running.grpc
        assert logged_bugs(running) == ""


@pytest.fixture
def through_envoy(_through_envoy: str, rpc: RpcBackend) -> Iterator[str]:
    respond = rpc.respond
    yield _through_envoy
    rpc.respond = respond
    rpc.release.clear()


@pytest.mark.peers
def test_unary_calls_through_envoy(through_envoy: str, rpc: RpcBackend) -> None:
    respond = rpc.respond
    with channel(through_envoy) as rpc_channel:
        method = rpc_channel.unary_unary(INFER)
        compressed = call(rpc_channel, message(300_000), compression=grpc.Compression.Gzip)
        assert compressed.code is grpc.StatusCode.OK
        assert len(call(rpc_channel, message(8_000_000)).message) > 16_000_000
        unknown = call(rpc_channel, message(model="né"))
        assert unknown.code is grpc.StatusCode.NOT_FOUND
        assert "né" in unknown.details

        def fail(_message: bytes, context: grpc.ServicerContext) -> bytes:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "why %41")
            raise AssertionError("abort raises")

        rpc.respond = fail
        failed = call(rpc_channel, infer_message("depot"))
        assert (failed.code, failed.details) == (grpc.StatusCode.INVALID_ARGUMENT, "why %41")
        rpc.cancelled.clear()
        rpc.late_call(rpc_channel, infer_message("depot"))
        assert rpc.cancelled.wait(SECONDS), "the deadline was not forwarded"
        rpc.entered.clear()
        rpc.cancelled.clear()
        cancelled = method.future(infer_message("depot"), timeout=SECONDS)
        assert rpc.entered.wait(SECONDS)
        cancelled.cancel()
        assert rpc.cancelled.wait(SECONDS), "the cancellation was not forwarded"
        rpc.respond = respond
        assert call(rpc_channel, infer_message("depot")).code is grpc.StatusCode.OK


@pytest.mark.peers
def test_600_calls_at_once_through_a_plain_envoy(rpc: RpcBackend, tmp_path: Path) -> None:
    """Envoy sends all pending calls on a new connection before it has received the SETTINGS, and
    does not retry refused calls."""
    with started_infergate(BUILTIN.format(rpc=rpc.address), engine="own") as running:
        for _ in range(4):
            with (
                envoy(running.http, running.grpc, tmp_path) as proxy,
                channel(proxy.grpc) as rpc_channel,
            ):
                method = rpc_channel.unary_unary(INFER)
                messages = [message(), infer_message("depot"), message(100_000)] * 200
                pending = [method.future(each, timeout=SECONDS) for each in messages]
                assert Counter(each.code() for each in pending) == {grpc.StatusCode.OK: 600}
                streams = [
                    rpc_channel.stream_stream(STREAM)(iter([message()]), timeout=SECONDS)
                    for _ in range(300)
                ]
                assert sum(len(list(each)) for each in streams) == 300
        assert alive(running)
        assert logged_bugs(running) == ""


@pytest.mark.peers
@pytest.mark.parametrize("size", [1, 50_000])
def test_streams_through_envoy(through_envoy: str, size: int) -> None:
    request = message(size)
    with channel(through_envoy) as rpc_channel:
        streams = [
            rpc_channel.stream_stream(STREAM)(iter([request] * 10), timeout=SECONDS)
            for _ in range(20)
        ]
        for each in streams:
            responses = [pb.ModelStreamInferResponse.FromString(response) for response in each]
            assert [response.error_message for response in responses] == [""] * 10
