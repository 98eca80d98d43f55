"""Tests gRPC streams through infergate to the embedded models, a real Triton and a real MLServer.

The fixture ``triton_gateway`` serves Triton's models as ``triton.M`` over V2 gRPC and as ``rest.M``
over V2 REST, and ``before_mlserver`` serves MLServer's models as ``mlserver.M``."""

from __future__ import annotations

import functools
import itertools
import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as tc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from e2e.running import Infergate, started_infergate
from faults.rpc import call, channel
from faults.watch import SECONDS, counted, limited_growth, logged_bugs, until
from peers.support.mlserver import MLServer
from peers.support.triton import Triton

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
EMBEDDED = """
backends:
  embedded: {protocol: builtin}
routes:
  - {model: quick, backend: embedded, timeout: 300ms, rewrite: {model: repeat}}
  - {model: steady, backend: embedded, timeout: 20s, idle_timeout: 300ms, rewrite: {model: repeat}}
  - {model: '*', backend: embedded}
"""
TRITON = """
backends:
  triton: {{protocol: v2-grpc, endpoints: ["grpc://{triton.grpc}"]}}
  rest: {{protocol: v2-rest, endpoints: ["http://{triton.http}"]}}
routes:
  - {{model: '/triton\\.(.+)/', backend: triton, rewrite: &one {{model: '\\1'}}}}
  - {{model: '/rest\\.(.+)/', backend: rest, rewrite: *one}}
  - {{model: quick, backend: triton, timeout: 300ms, rewrite: {{model: repeat_int32}}}}
  - model: steady
    backend: triton
    timeout: 20s
    idle_timeout: 300ms
    rewrite: {{model: repeat_int32}}
  - {{model: repeat, backend: triton, rewrite: {{model: repeat_int32}}}}
  - {{model: simple, backend: triton}}
  - {{model: accumulate, backend: triton}}
"""
MLSERVER = """
backends:
  mlserver: {{protocol: v2-grpc, endpoints: ["grpc://{mlserver.grpc}"]}}
routes:
  - {{model: '/mlserver\\.(.+)/', backend: mlserver, rewrite: {{model: '\\1'}}}}
"""
PLAIN = """
listeners:
  http: {{address: "127.0.0.1:{2}"}}
  grpc: {{address: "127.0.0.1:{1}", v2: {{stream: plain}}}}
  admin: {{address: "127.0.0.1:{0}"}}
"""


@pytest.fixture(scope="module")
def embedded() -> Iterator[Infergate]:
    with started_infergate(EMBEDDED) as running:
        yield running
        assert logged_bugs(running) == ""


@pytest.fixture(scope="module")
def triton_gateway(triton: Triton) -> Iterator[Infergate]:
    with started_infergate(TRITON.format(triton=triton)) as running:
        yield running
        assert logged_bugs(running) == ""


@pytest.fixture(scope="module")
def before_mlserver(mlserver: MLServer) -> Iterator[Infergate]:
    with started_infergate(MLSERVER.format(mlserver=mlserver)) as running:
        yield running
        assert logged_bugs(running) == ""


@pytest.fixture(params=["embedded", pytest.param("triton", marks=pytest.mark.triton)])
def gateway(request: pytest.FixtureRequest) -> Infergate:
    """Serve ``repeat``, ``quick``, ``simple`` and ``accumulate``, embedded or in Triton."""
    name = "triton_gateway" if request.param == "triton" else request.param
    running: Infergate = request.getfixturevalue(name)
    return running


class Streaming:
    """tritonclient with an open stream; ``next`` waits for the next result or error."""

    def __init__(self, address: str, **options: Any) -> None:
        self.client = tc.InferenceServerClient(address)
        self.results: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client.start_stream(lambda result, error: self.results.put((result, error)), **options)

    def next(self) -> Any:
        result, error = self.results.get(timeout=SECONDS)
        if error is not None:
            raise error
        return result

    def repeat(
        self, count: int, delay: int | list[int] = 0, model: str = "repeat", **fields: Any
    ) -> None:
        inputs = [
            tensor("IN", np.arange(count, dtype=np.int32)),
            tensor("DELAY", np.full(count, delay, np.uint32)),
        ]
        if self.has_wait_input():
            inputs.append(tensor("WAIT", np.zeros(1, np.uint32)))
        self.client.async_stream_infer(model, inputs, **fields)

    @functools.cache  # noqa: B019 - few objects are cached
    def has_wait_input(self) -> bool:
        """Return whether ``repeat`` is Triton's model, which has one more input."""
        metadata = self.client.get_model_metadata("repeat")
        return any(each.name == "WAIT" for each in metadata.inputs)


@contextmanager
def streaming(gateway: Infergate, **options: Any) -> Iterator[Streaming]:
    created = Streaming(gateway.grpc, **options)
    try:
        yield created
    finally:
        created.client.stop_stream(cancel_requests=True)
        created.client.close()


def tensor(name: str, array: Any) -> Any:
    datatype = {"int32": "INT32", "uint32": "UINT32", "float32": "FP32"}[array.dtype.name]
    return tc.InferInput(name, list(array.shape), datatype).set_data_from_numpy(array)


def final(result: Any) -> bool:
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


def test_a_decoupled_model_sends_responses_one_by_one(gateway: Infergate) -> None:
    with streaming(gateway) as stream:

        def first_arrival() -> float:
            """Receive all responses, and return the seconds from the request to the first."""
            start, arrivals = time.monotonic(), []
            stream.repeat(4, delay=150, request_id="mine")
            for index in range(4):
                result = stream.next()
                arrivals.append(time.monotonic() - start)
                response = result.get_response()
                assert (response.model_name, response.model_version) == ("repeat", "1")
                assert response.id == "mine"
                assert result.as_numpy("OUT").tolist() == [index]
                assert result.as_numpy("IDX").tolist() == [index]
                assert not final(result)
                assert arrivals[index] >= 0.15 * (index + 1) - 0.01
            return arrivals[0]

        assert comes_before_the_last(first_arrival), "the first response came with the last"


def comes_before_the_last(first_arrival: Callable[[], float]) -> bool:
    """Return whether the first of four responses, which are sent every 0.15 s, arrived before the
    last was due. Try ten times, because on a busy machine a response may arrive late."""
    return any(first_arrival() < 0.55 for _ in range(10))


@pytest.mark.parametrize("count", [0, 3])
def test_the_empty_final_response_is_sent_on_request(gateway: Infergate, count: int) -> None:
    with streaming(gateway) as stream:
        stream.repeat(count, request_id="a", enable_empty_final_response=True)
        assert [final(stream.next()) for _ in range(count)] == [False] * count
        last = stream.next()
        assert final(last)
        response = last.get_response()
        assert (response.id, response.model_name, len(response.outputs)) == ("a", "repeat", 0)
        stream.repeat(1)
        assert not final(stream.next())


def test_a_single_response_is_marked_as_final(gateway: Infergate) -> None:
    ones = np.ones((1, 16), np.int32)
    with streaming(gateway) as stream:
        for flag in (False, True):
            stream.client.async_stream_infer(
                "simple",
                [tensor("INPUT0", ones), tensor("INPUT1", ones)],
                request_id=f"flag {flag}",
                enable_empty_final_response=flag,
                outputs=[tc.InferRequestedOutput("OUTPUT0")],
            )
        for flag in (False, True):
            result = stream.next()
            assert result.get_response().id == f"flag {flag}"
            assert result.as_numpy("OUTPUT0").tolist() == [[2] * 16]
            assert final(result)


def test_sequences_in_a_stream(gateway: Infergate) -> None:
    with streaming(gateway) as stream:
        for sequence in (1001, "by name"):
            for value in range(1, 6):
                stream.client.async_stream_infer(
                    "accumulate",
                    [tensor("INPUT", np.array([value], np.int32))],
                    request_id=str(value),
                    sequence_id=sequence,
                    sequence_start=value == 1,
                    sequence_end=value == 5,
                )
            results = [stream.next() for _ in range(5)]
            assert [each.get_response().id for each in results] == list("12345")
            assert [int(each.as_numpy("OUTPUT")[0]) for each in results] == [1, 3, 6, 10, 15]


def test_errors_are_sent_in_the_stream(gateway: Infergate) -> None:
    with streaming(gateway) as stream:
        stream.repeat(1, model="triton.nosuch" if stream.has_wait_input() else "nosuch")
        with pytest.raises(InferenceServerException, match="nosuch"):
            stream.next()
        stream.client.async_stream_infer("simple", [tensor("INPUT0", np.ones((1, 16), np.int32))])
        with pytest.raises(InferenceServerException, match=r"INPUT1|inputs"):
            stream.next()
        stream.repeat(1)
        assert stream.next().as_numpy("OUT").tolist() == [0]


def test_an_error_ends_the_stream_on_request(gateway: Infergate) -> None:
    with streaming(gateway, headers={"triton_grpc_error": "true"}) as stream:
        stream.repeat(1)
        stream.next()
        stream.client.async_stream_infer(
            "no.route.at.all" if stream.has_wait_input() else "nosuch", []
        )
        with pytest.raises(InferenceServerException) as caught:
            stream.next()
        assert caught.value.status() == "StatusCode.NOT_FOUND"


@pytest.mark.parametrize(
    ("model", "name", "parameters"),
    [
        ("simple", "INPUT0", {}),
        ("repeat", "IN", {}),
        ("accumulate", "INPUT", {"sequence_id": 4711}),
    ],
)
def test_client_errors_have_the_status_invalid_argument(
    gateway: Infergate, model: str, name: str, parameters: dict[str, Any]
) -> None:
    """The errors are a missing input of an ordinary and of a decoupled model, and a sequence
    without a start."""
    inputs = [tensor(name, np.ones((1, 16) if model == "simple" else 1, np.int32))]
    with streaming(gateway, headers={"triton_grpc_error": "true"}) as stream:
        stream.client.async_stream_infer(model, inputs, request_id="i", **parameters)
        with pytest.raises(InferenceServerException) as caught:
            stream.next()
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize("route", ["triton", "rest"])
def test_unknown_models_have_the_status_not_found(triton_gateway: Infergate, route: str) -> None:
    with streaming(triton_gateway, headers={"triton_grpc_error": "true"}) as stream:
        stream.client.async_stream_infer(f"{route}.nosuch", [])
        with pytest.raises(InferenceServerException) as caught:
            stream.next()
        assert caught.value.status() == "StatusCode.NOT_FOUND"


def test_the_route_timeout_bounds_the_wait_for_each_response(gateway: Infergate) -> None:
    def is_complete() -> bool:
        """Return whether a stream that takes more than 300 ms has all of its responses."""
        with streaming(gateway) as stream:
            stream.repeat(4, delay=150, model="quick")
            try:
                values = [stream.next().as_numpy("OUT").tolist() for _ in range(4)]
            except InferenceServerException:
                return False
        assert values == [[0], [1], [2], [3]]
        return True

    # Try ten times, because on a busy machine any response may be late.
    assert any(is_complete() for _ in range(10)), "the timeout bounds the complete stream"
    with streaming(gateway) as stream:
        stream.repeat(1, delay=2000, model="quick", request_id="late")
        with pytest.raises(InferenceServerException, match=r"in time|deadline"):
            stream.next()
        stream.repeat(1, model="repeat")
        stream.next()


def test_the_route_timeout_bounds_the_pause_between_responses(gateway: Infergate) -> None:
    with streaming(gateway) as stream:
        stream.repeat(2, delay=[600, 4000], model="steady")
        assert stream.next().as_numpy("OUT").tolist() == [0]  # later than ``idle_timeout``
        with pytest.raises(InferenceServerException, match=r"in time|deadline"):
            stream.next()


def test_a_clients_deadline_bounds_the_stream(gateway: Infergate) -> None:
    with streaming(gateway, stream_timeout=2) as stream:  # enough for the stream to begin
        stream.repeat(100, delay=100)
        results = iter(stream.next, None)
        with pytest.raises(InferenceServerException) as caught:
            list(results)
        assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"


def repeat_message(count: int, delay: int = 0, wait: bool = False, **fields: Any) -> bytes:
    message = pb.ModelInferRequest(**{"model_name": "repeat", **fields})
    arrays = {"IN": np.arange(count, dtype="i4"), "DELAY": np.full(count, delay, "u4")}
    if wait:
        arrays["WAIT"] = np.zeros(1, "u4")
    for name, array in arrays.items():
        datatype = "INT32" if name == "IN" else "UINT32"
        message.inputs.add(name=name, datatype=datatype, shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    return bytes(message.SerializeToString())


def test_a_unary_inference_of_a_decoupled_model_is_refused(gateway: Infergate) -> None:
    with streaming(gateway) as stream:
        message = repeat_message(2, wait=stream.has_wait_input())
    with channel(gateway.grpc) as rpc_channel:
        assert call(rpc_channel, message).code is grpc.StatusCode.UNIMPLEMENTED


def results_of_twenty_requests(gateway: Infergate, model: str) -> list[Any]:
    with streaming(gateway) as stream:
        for value in range(20):
            array = np.array([value], np.int32)
            stream.client.async_stream_infer(
                model, [tensor("INPUT0", array)], request_id=str(value)
            )
        results = [stream.next() for _ in range(20)]
        assert {result.get_response().model_name for result in results} == {model}
        return results


@pytest.mark.parametrize("model", ["triton.id_INT32", "rest.id_INT32"])
def test_single_responses_keep_their_order_and_are_final(
    triton_gateway: Infergate, model: str
) -> None:
    results = results_of_twenty_requests(triton_gateway, model)
    assert [result.get_response().id for result in results] == [str(value) for value in range(20)]
    assert all(map(final, results))


def test_mlserver_responses_arrive_as_they_are_sent(before_mlserver: Infergate) -> None:
    """MLServer does not mark the last response."""
    results_of_twenty_requests(before_mlserver, "mlserver.identity")


def test_responses_in_mlservers_format_are_read(before_mlserver: Infergate) -> None:
    with streaming(before_mlserver) as stream:
        tensors = [tensor("INPUT0", np.array([3], np.int32))]
        stream.client.async_stream_infer(
            "mlserver.count", tensors, request_id="x", enable_empty_final_response=True
        )
        results = [stream.next() for _ in range(4)]
        assert [final(result) for result in results] == [False, False, False, True]
        assert [int(result.as_numpy("OUT")[0]) for result in results[:3]] == [0, 1, 2]
        assert {result.get_response().id for result in results} == {"x"}
        failing = [tensor("INPUT0", np.array([-3], np.int32))]
        stream.client.async_stream_infer("mlserver.count", failing)
        assert int(stream.next().as_numpy("OUT")[0]) == 0
        with pytest.raises(InferenceServerException, match="counted enough"):
            stream.next()


def plain_stream(address: str, messages: list[bytes]) -> list[Any]:
    """Return the responses of a stream in MLServer's format, without Triton's wrapper message."""
    with channel(address) as rpc_channel:
        responses = rpc_channel.stream_stream(METHOD)(iter(messages), timeout=SECONDS)
        return [pb.ModelInferResponse.FromString(response) for response in responses]


def test_mlservers_format_is_sent_if_configured(triton: Triton) -> None:
    with started_infergate(TRITON.format(triton=triton), PLAIN) as gateway:
        responses = plain_stream(gateway.grpc, [repeat_message(3, wait=True, id="mine")])
        assert [(each.id, each.model_name) for each in responses] == [("mine", "repeat")] * 3
        assert [each.raw_output_contents[0][0] for each in responses] == [0, 1, 2]
        assert "triton_final_response" not in responses[0].parameters
        with pytest.raises(grpc.RpcError) as caught:
            plain_stream(gateway.grpc, [repeat_message(1, model_name="triton.nosuch")])
        assert "nosuch" in caught.value.details()


def test_responses_in_mlservers_format_pass_through(mlserver: MLServer) -> None:
    with started_infergate(MLSERVER.format(mlserver=mlserver), PLAIN) as gateway:
        message = pb.ModelInferRequest(model_name="mlserver.count", id="y")
        message.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
        message.raw_input_contents.append(b"\2\0\0\0")
        direct_message = pb.ModelInferRequest()
        direct_message.CopyFrom(message)
        direct_message.model_name = "count"
        forwarded = plain_stream(gateway.grpc, [message.SerializeToString()])
        direct = plain_stream(mlserver.grpc, [direct_message.SerializeToString()])
        assert [each.id for each in forwarded] == [each.id for each in direct] == ["y", "y"]
        assert [each.raw_output_contents for each in forwarded] == [
            each.raw_output_contents for each in direct
        ]


@contextmanager
def metadata_server() -> Iterator[str]:
    """Run a server that sends two responses per stream, and metadata before and after them."""

    def serve(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        request = pb.ModelInferRequest.FromString(next(messages))
        context.send_initial_metadata((("x-first", request.id), ("y-first", "no")))
        for _ in range(2):
            yield pb.ModelInferResponse(model_name="m", id=request.id).SerializeToString()
        context.set_trailing_metadata((("x-last", request.id), ("y-last", "no")))

    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, options=[("grpc.so_reuseport", 0)])
        service, _, method = METHOD.strip("/").partition("/")
        handlers = {method: grpc.stream_stream_rpc_method_handler(serve)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(0).wait()


def test_backend_headers_are_returned_at_the_end_of_the_stream() -> None:
    with metadata_server() as address:
        text = (
            f'backends:\n  b: {{protocol: v2-grpc, endpoints: ["grpc://{address}"], '
            "return_headers: [x-*]}\nroutes:\n  - {model: m, backend: b}\n"
        )
        with started_infergate(text) as gateway, channel(gateway.grpc) as rpc_channel:
            messages = [
                pb.ModelInferRequest(model_name="m", id=each).SerializeToString()
                for each in ("one", "two")
            ]
            stream = rpc_channel.stream_stream(METHOD)(iter(messages), timeout=SECONDS)
            assert len(list(stream)) == 4
            metadata = dict(stream.trailing_metadata())
    assert metadata in ({"x-first": each, "x-last": each} for each in ("one", "two"))


def test_streams_equal_those_of_triton(triton_gateway: Infergate, triton: Triton) -> None:
    """Messages are equal, except for the prefix of the model's name."""

    def stream(address: str, flag: bool) -> list[Any]:
        message = pb.ModelInferRequest.FromString(
            repeat_message(3, wait=True, id="i", model_name="repeat_int32")
        )
        message.parameters["triton_enable_empty_final_response"].bool_param = flag
        if address == triton_gateway.grpc:
            message.model_name = "triton.repeat_int32"
        with channel(address) as rpc_channel:
            responses = rpc_channel.stream_stream(METHOD)(
                iter([message.SerializeToString()]), timeout=20
            )
            parsed = [pb.ModelStreamInferResponse.FromString(response) for response in responses]
        for each in parsed:
            each.infer_response.model_name = each.infer_response.model_name.removeprefix("triton.")
        return parsed

    for flag in (False, True):
        assert stream(triton_gateway.grpc, flag) == stream(triton.grpc, flag)


def test_a_disconnected_client_cancels_in_triton(triton_gateway: Infergate) -> None:
    def slow(seconds: float) -> list[Any]:
        return [
            tensor("INPUT0", np.ones(1, np.int32)),
            tensor("SECONDS", np.array([seconds], np.float32)),
        ]

    def cancelled_count() -> int:
        with streaming(triton_gateway) as stream:
            stream.client.async_stream_infer("triton.slow", slow(0))
            return int(stream.next().as_numpy("CANCELLED")[0])

    before = cancelled_count()
    with streaming(triton_gateway) as stream:
        stream.client.async_stream_infer("triton.slow", slow(SECONDS))
        stream.repeat(1)
        stream.next()  # the first request has been sent by now
    until(lambda: cancelled_count() == before + 1, "Triton cancels the request")
    until(
        lambda: counted(triton_gateway, operation="stream_infer", outcome="cancelled") >= 1,
        "the metrics count the cancelled stream",
    )


def test_each_request_is_logged_with_its_response_count(embedded: Infergate) -> None:
    with streaming(embedded, headers={"x-request-id": "count-test"}) as stream:
        stream.repeat(3)
        for _ in range(3):
            stream.next()
        stream.repeat(1, model="nosuch")
        with pytest.raises(InferenceServerException):
            stream.next()

    def lines() -> list[dict[str, Any]]:
        return [line for line in embedded.logged("request") if line["request_id"] == "count-test"]

    until(lambda: len(lines()) == 2, "both requests are logged")
    fields = {(line["operation"], line["model"], line["outcome"]): line for line in lines()}
    line = fields["stream_infer", "repeat", "ok"]
    assert line["messages"] == 3
    assert line["bytes_in"]
    assert line["bytes_out"]
    assert fields["stream_infer", "nosuch", "not_found"]["messages"] == 1
    until(
        lambda: "infergate_in_flight_requests 0.0" in embedded.metrics(),
        "no request is in progress",
    )


def test_a_slow_reader_costs_bounded_memory(embedded: Infergate) -> None:
    """The stream has 20,000 responses of 60 KB, of which the client reads five."""
    count, padding = 20_000, "p" * 60_000
    messages: queue.Queue[bytes | None] = queue.Queue()
    with channel(embedded.grpc) as rpc_channel, limited_growth(embedded.pid, 64 << 20):
        messages.put(repeat_message(count, id=padding))
        stream = rpc_channel.stream_stream(METHOD)(iter(messages.get, None))
        for response in itertools.islice(stream, 5):
            assert len(response) > len(padding)
        time.sleep(2)  # time for the server to send ahead
        stream.cancel()
        messages.put(None)
    until(
        lambda: "infergate_in_flight_requests 0.0" in embedded.metrics(),
        "no request is in progress",
    )


@pytest.mark.parametrize("message", [b"", b"\xff", b"\x0a\x05simpl", b"\x0a\x06simple\x2a\x01"])
def test_a_malformed_message_fails_only_its_request(embedded: Infergate, message: bytes) -> None:
    with channel(embedded.grpc) as rpc_channel:
        stream = rpc_channel.stream_stream(METHOD)
        responses = list(stream(iter([message, repeat_message(1, id="good")]), timeout=SECONDS))
    parsed = [pb.ModelStreamInferResponse.FromString(response) for response in responses]
    assert [bool(each.error_message) for each in parsed] == [True, False]
    assert parsed[1].infer_response.id == "good"


def test_an_empty_stream_gets_no_response(embedded: Infergate) -> None:
    with channel(embedded.grpc) as rpc_channel:
        assert list(rpc_channel.stream_stream(METHOD)(iter([]), timeout=SECONDS)) == []
