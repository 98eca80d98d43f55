"""Codec work that frontends and backends offload to helpers, and the memory charged for it."""

import gzip
import json
import zlib
from dataclasses import replace
from typing import Any

import pytest
from fakes import WireBackend

from contexts import new_context
from infergate.backends.codec_offload import BackendCodecOffload
from infergate.codecs.base import ParsedRequest, Profile
from infergate.codecs.registry import plugins
from infergate.codecs.trtis import messages as pb
from infergate.codecs.trtis.grpc_methods import INFER
from infergate.codecs.trtis.text_format import to_line
from infergate.codecs.v2_grpc import messages as v2
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS, KIB, MIB, Limits, NeedsOffloadError
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.request_context import ANONYMOUS, RequestContext
from infergate.core.route_policy import RetryPolicy
from infergate.core.tensor import Tensor, pack_bytes
from infergate.core.wire import (
    HttpRequest,
    HttpResponse,
    RpcRequest,
    RpcResponse,
    join_parts,
    total_size,
)
from infergate.gateway.codec_offload import CodecOffload
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import RoutingGateway
from infergate.routing.table import Route, RouteTable
from inline_offload import InlineOffload
from memory_budget import Budget

PATH = "/v2/models/m/infer"
HEADER = "inference-header-content-length"
MODEL = ModelMetadata(
    "m",
    inputs=(TensorMetadata("I", "UINT8", (1,)),),
    outputs=(TensorMetadata("O", "FP32", (-1,)),),
    max_batch_size=0,
)
CLASSES = pb.InferRequestHeader(batch_size=1)
CLASSES.input.add(name="I")
CLASSES.output.add(name="O").cls.count = 1


class _Rest(WireBackend):
    protocol = "v2-rest"

    def __init__(self, reply: HttpResponse) -> None:
        super().__init__("b", plugins()["v2-rest"].create({}))
        self.reply = reply  # type: ignore[assignment]

    fixed_profile = None

    async def request_profile(self, context: RequestContext) -> Profile:
        return Profile("any", supports_binary=True)


def _compressed(elements: int) -> HttpRequest:
    fields = {"name": "INPUT0", "datatype": "UINT8", "shape": [elements],
            "parameters": {"binary_data_size": elements}}  # fmt: skip
    head = json.dumps({"inputs": [fields]}).encode()
    headers = {HEADER: str(len(head)), "content-encoding": "gzip", "accept-encoding": "gzip"}
    return HttpRequest("POST", PATH, "", headers, (gzip.compress(head + bytes(elements)),))


def _reply(elements: int) -> HttpResponse:
    fields = {"model_name": "m", "outputs": [{"name": "O", "datatype": "BYTES", "shape": [1],
            "data": ["x" * elements]}]}  # fmt: skip
    return HttpResponse(200, {"content-type": "application/json"}, [json.dumps(fields).encode()])


def _frontend(offload: InlineOffload, reply: HttpResponse, **route: Any) -> Frontend[Any, Any]:
    table = RouteTable([Route("m", "b", **route)])
    gateway = RoutingGateway(table, {"b": _Rest(reply)}, {})
    return Frontend(plugins()["v2-rest"].create({}), gateway, DEFAULT_LIMITS, offload)


async def test_a_helper_inflates_long_bodies_and_memory_is_counted() -> None:
    offload, memory = InlineOffload(), Budget(64 * MIB)
    wire = _compressed(4 * MIB)
    cost = len(gzip.decompress(join_parts(wire.body)))
    response = await _frontend(offload, _reply(1)).respond(wire, new_context(memory=memory))
    assert response.status == 200
    (job,) = offload.jobs
    assert (job.name, job.client, job.cost) == ("validate", ("", "test"), cost)
    assert cost - total_size(wire.body) <= memory.peak < cost + 5 * MIB
    assert 4 * MIB < memory.held < 5 * MIB  # the body of the response


async def test_no_inflation_without_memory() -> None:
    offload = InlineOffload()
    response = await _frontend(offload, _reply(1)).respond(
        _compressed(4 * MIB), new_context(memory=Budget(MIB))
    )
    assert (response.status, offload.jobs) == (503, [])


def _json(elements: int, encoding: str, members: int = 1) -> HttpRequest:
    data = b"1," * (elements - 1) + b"1"
    text = b'{"inputs": [{"name": "INPUT0", "datatype": "UINT8", "shape": [%d], "data": [%b]}]}'
    body = text % (elements, data)
    if encoding == "deflate":
        packed = zlib.compress(body)
    else:
        step = -(-len(body) // members)
        parts = [body[start : start + step] for start in range(0, len(body), step)]
        packed = b"".join(map(gzip.compress, parts))
    return HttpRequest("POST", PATH, "", {"content-encoding": encoding}, (packed,))


@pytest.mark.parametrize(
    ("wire", "maximum"),
    [
        (_json(MIB, "gzip"), 3 * MIB),
        (_json(MIB, "gzip", members=3), 3 * MIB),
        (_json(MIB, "deflate"), 5 * MIB),  # the inflated length is unknown
    ],
)
async def test_inflated_json_is_counted_by_its_parsing_memory(
    wire: HttpRequest, maximum: int
) -> None:
    memory = Budget(1024 * MIB)
    context = new_context(memory=memory)
    response = await _frontend(InlineOffload(), _reply(1)).respond(wire, context)
    assert response.status == 200
    is_gzip = wire.headers["content-encoding"] == "gzip"
    inflated_bytes = (
        len(gzip.decompress(join_parts(wire.body))) if is_gzip else total_size(wire.body) * 1032
    )
    assert inflated_bytes + 20 * 2 * MIB <= memory.peak + total_size(wire.body)
    assert memory.peak <= inflated_bytes + 20 * maximum


@pytest.mark.parametrize(("elements", "jobs"), [(100 * KIB, []), (300 * KIB, ["rewrite_response"])])
async def test_a_helper_compresses_long_passed_through_responses(
    elements: int, jobs: list[str]
) -> None:
    offload = InlineOffload()
    wire = replace(_compressed(1), headers={HEADER: "0", "accept-encoding": "gzip"}, body=(b"",))
    frontend = _frontend(offload, _reply(elements), validate=False)
    response = await frontend.respond(wire, new_context())
    assert response.headers["content-encoding"] == "gzip"
    assert b"x" * elements in gzip.decompress(bytes(join_parts(response.body)))
    assert [each.name for each in offload.jobs] == jobs
    assert not jobs or offload.jobs[0].arguments[1].body == ()  # no tensors are sent


async def test_a_helper_finds_the_sequence_of_unchecked_messages() -> None:
    offload = InlineOffload()
    frontend = _frontend(offload, _reply(1), validate=False, retry=RetryPolicy(is_idempotent=True))
    response = await frontend.respond(_compressed(MIB), new_context())
    assert response.status == 200
    assert [each.name for each in offload.jobs] == ["sequence_of"]


@pytest.mark.parametrize(
    ("peer", "identity", "client"),
    [
        ("10.0.0.1:5", "key:a", "key:a"),
        ("10.0.0.1:5", ANONYMOUS, "10.0.0.1"),
        ("[2001:db8:0:1:2::3]:5", "", "2001:db8:0:1::/64"),
        ("[fe80::1%eth0]:5", "", "fe80::/64"),
        ("[::ffff:10.0.0.1]:5", "", "10.0.0.1"),
        ("unix", "", ""),
    ],
)
async def test_helpers_group_jobs_by_identity_or_address(
    peer: str, identity: str, client: str
) -> None:
    class Permit:
        def __init__(self) -> None:
            self.identity = identity

        def allows(self, operation: type, model: str) -> bool:
            return True

    offload, context = InlineOffload(), new_context(permit=Permit())
    context.peer = peer
    await _frontend(offload, _reply(1)).respond(_compressed(MIB), context)
    assert offload.jobs[0].client == (client, peer)


def _number_over_rpc(wire: Any) -> int:
    return int(pb.InferResponse.FromString(join_parts(wire.message)).request_status.request_id)


def _number_over_http(wire: Any) -> int:
    return int(wire.headers["NV-Status"].rpartition(" ")[2])


@pytest.mark.parametrize(
    ("protocol", "request_", "number"),
    [
        (
            "trtis-grpc",
            RpcRequest(
                INFER,
                (
                    pb.InferRequest(
                        model_name="m", model_version=-1, meta_data=CLASSES, raw_input=[b"\0"]
                    ).SerializeToString(),
                ),
            ),
            _number_over_rpc,
        ),
        (
            "trtis-http",
            HttpRequest(
                "POST", "/api/infer/m", "", {"nv-inferrequest": to_line(CLASSES)}, (b"\0",)
            ),
            _number_over_http,
        ),
    ],
)
async def test_responses_written_by_a_helper_are_numbered(
    protocol: str, request_: Any, number: Any
) -> None:
    codec: Any = plugins()[protocol].create({})
    offload = InlineOffload()
    codec_offload = CodecOffload(codec, DEFAULT_LIMITS, offload)
    parsed = codec.parse_request(request_, codec_offload.limits).complete(MODEL)
    numbers = []
    for length in (1, 40 * KIB, 1, 40 * KIB):
        label = pack_bytes([b"1.5:0:" + b"x" * length])
        response = InferResponse("m", "1", outputs=(Tensor("O", Datatype.BYTES, (1,), label),))
        wire, _ = await codec_offload.write_response(
            new_context(), codec.build_response, response, parsed
        )
        numbers.append(number(wire))
    assert numbers == [1, 2, 3, 4]
    assert [each.name for each in offload.jobs] == ["build_response"] * 2


async def test_a_helper_rewrites_a_legacy_response_of_many_fields() -> None:
    codec: Any = plugins()["trtis-grpc"].create({})
    codec_offload = CodecOffload(codec, DEFAULT_LIMITS, InlineOffload())
    header = pb.InferRequestHeader(batch_size=1, id=7)
    header.input.add(name="I")
    header.output.add(name="O")
    message = pb.InferRequest(model_name="m", model_version=-1, meta_data=header, raw_input=[b"\0"])
    wire = RpcRequest(INFER, (message.SerializeToString(),))
    checked = codec.validate(wire, codec_offload.limits).complete(MODEL)
    reply = pb.InferResponse(raw_output=[bytes(4)])
    reply.request_status.code = 1
    output = reply.meta_data.output.add(name="O")
    output.raw.batch_byte_size = 4
    output.raw.dims.append(1)
    fields = b"\x2a\x00" * 80_000
    size = len(fields)
    prefix = b"\x12" + bytes((size & 127 | 128, size >> 7 & 127 | 128, size >> 14))
    arguments = RpcResponse((reply.SerializeToString() + prefix + fields,)), checked, "", ""
    with pytest.raises(NeedsOffloadError):
        codec.rewrite_response(*arguments, codec_offload.limits)
    response = await codec_offload.build_in_helper(
        new_context(), codec.rewrite_response, *arguments, codec_offload.limits
    )
    assert _number_over_rpc(response) == 1
    assert pb.InferResponse.FromString(join_parts(response.message)).meta_data.id == 7


@pytest.mark.parametrize("stream", ["triton", "plain"])
@pytest.mark.parametrize(
    ("datatype", "elements", "jobs"),
    [(Datatype.INT8, 1, 0), (Datatype.INT8, 300 * KIB, 1), (Datatype.FP32, 300 * KIB, 0)],
)
async def test_a_helper_writes_long_typed_contents(
    stream: str, datatype: Datatype, elements: int, jobs: int
) -> None:
    codec: Any = plugins()["v2-grpc"].create({"contents": "typed", "stream": stream})
    offload = InlineOffload()
    codec_offload = CodecOffload(codec, DEFAULT_LIMITS, offload)
    request = v2.ModelInferRequest(model_name="m").SerializeToString()
    parsed = codec.parse_request(
        RpcRequest(codec.streaming_method, (request,)), codec_offload.limits
    )
    data = Tensor("O", datatype, (elements,), bytes(datatype.itemsize * elements))
    response = InferResponse("m", "1", outputs=(data,))
    for build in (codec.build_response, codec.build_stream_response):
        wire, _ = await codec_offload.write_response(new_context(), build, response, parsed)
        assert join_parts(wire.message) == join_parts(build(response, parsed).message)
    assert len(offload.jobs) == 2 * jobs


@pytest.mark.parametrize("datatype", [Datatype.INT8, Datatype.FP32, Datatype.FP64])
async def test_typed_contents_are_charged_while_they_are_held(datatype: Datatype) -> None:
    codec: Any = plugins()["v2-grpc"].create({"contents": "typed"})
    offload = CodecOffload(codec, DEFAULT_LIMITS, InlineOffload())
    request = v2.ModelInferRequest(model_name="m").SerializeToString()
    parsed = codec.parse_request(RpcRequest(codec.streaming_method, (request,)), offload.limits)
    data = b"\xff" * 5 * MIB
    tensor = Tensor("O", datatype, (len(data) // datatype.itemsize,), data)
    response, memory = InferResponse("m", "1", outputs=(tensor,)), Budget(64 * MIB)
    wire, charged = await offload.write_response(
        new_context(memory=memory), codec.build_stream_response, response, parsed
    )
    written = total_size(wire.message)
    assert memory.held == charged
    assert written - 100 < charged <= written  # the charge may omit the names


LONG = Tensor("O", Datatype.FP32, (300 * KIB,), b"\0\0\x80\x3e" * 300 * KIB)
"""Each element (0.25) takes more bytes in JSON than the shortest float does."""


def _offload(limits: Limits = DEFAULT_LIMITS) -> tuple[CodecOffload[Any, Any], list[int], Any]:
    """Return the offload of V2 REST without helpers, a list, and a function that writes a response
    and appends its size to the list.
    """
    codec: Any = plugins()["v2-rest"].create({})
    sizes: list[int] = []

    def build(response: Any, parsed: Any) -> Any:
        wire = codec.build_response(response, parsed)
        sizes.append(total_size(wire.body))
        return wire

    return CodecOffload(codec, limits, None), sizes, build


async def test_a_response_is_counted_before_it_is_written() -> None:
    offload, sizes, build = _offload()
    parsed = ParsedRequest(InferRequest("m"))
    response = InferResponse("m", "1", outputs=(LONG,))
    memory = Budget(64 * MIB)
    _, size = await offload.write_response(new_context(memory=memory), build, response, parsed)
    assert [size] == [memory.held] == sizes
    assert memory.peak >= size > MIB
    with pytest.raises(GatewayError, match="full"):
        await offload.write_response(new_context(memory=Budget(MIB)), build, response, parsed)
    assert len(sizes) == 1  # the second response was not written


async def test_a_response_over_the_limit_is_refused_before_and_after_it_is_written() -> None:
    parsed = ParsedRequest(InferRequest("m"))
    response = InferResponse("m", "1", outputs=(LONG,))
    minimum, _ = plugins()["v2-rest"].create({}).response_size(response, parsed)  # type: ignore[attr-defined]
    for limit, written in ((minimum - 1, 0), (minimum + 1, 1)):
        offload, sizes, build = _offload(replace(DEFAULT_LIMITS, body=limit))
        with pytest.raises(GatewayError, match=r"limits\.body") as caught:
            await offload.write_response(new_context(), build, response, parsed)
        assert (caught.value.kind, len(sizes)) == (Kind.TOO_LARGE, written)


def test_a_backend_request_is_counted_before_it_is_written() -> None:
    offload: Any = BackendCodecOffload("b", plugins()["v2-rest"].create({}), DEFAULT_LIMITS, None)
    request, profile = InferRequest("m", inputs=(LONG,)), Profile("any", supports_binary=False)
    memory = Budget(64 * MIB)
    wire = offload.write_inline(request, profile, new_context(memory=memory))
    assert total_size(wire.body) <= memory.held + KIB
    with pytest.raises(GatewayError, match="full"):
        offload.write_inline(request, profile, new_context(memory=Budget(MIB)))


def test_memory_for_a_backends_response_is_counted() -> None:
    offload: Any = BackendCodecOffload("b", plugins()["v2-rest"].create({}), DEFAULT_LIMITS, None)
    request = InferRequest("m")
    fields = {"name": "O", "datatype": "FP64", "shape": [KIB * 100], "data": [1] * 100 * KIB}
    text = json.dumps({"model_name": "m", "outputs": [fields]})
    response = HttpResponse(200, {}, [text.encode()])
    memory = Budget(MIB)
    offload.read_inline(response, request, new_context(memory=memory))
    assert memory.held == 800 * KIB
    with pytest.raises(GatewayError, match="full"):
        offload.read_inline(response, request, new_context(memory=Budget(MIB // 2)))
