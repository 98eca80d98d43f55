"""Integers of any size, from clients or servers, are accepted or refused with a declared error."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from infergate.codecs.profiles import MLSERVER, TRITON
from infergate.codecs.registry import plugins
from infergate.codecs.trtis.grpc_methods import SHARED_MEMORY
from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.region_ref import RegionRef
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest, RpcRequest
from infergate.testing.vectors import completed

BITS = (31, 32, 63, 64)
EDGES = (-1, 0, *(2**bits - 1 for bits in BITS), *(2**bits for bits in BITS), 10**19, 10**40)
REFUSED = frozenset({Kind.BAD_REQUEST, Kind.UNSUPPORTED, Kind.TOO_LARGE})
TENSOR_METADATA = messages.TensorMetadata("X", "FP32", (-1, -1, -1))
MODEL = messages.ModelMetadata(
    "m",
    inputs=(TENSOR_METADATA,),
    outputs=(replace(TENSOR_METADATA, name="Y"),),
    max_batch_size=8,
    supports_scheduling=True,
)
INPUT = Tensor("X", Datatype.FP32, (1, 0, 3), b"")
REQUEST = messages.InferRequest("m", inputs=(INPUT,))
CODECS = pytest.mark.parametrize("name", sorted(plugins()))
EDGE = pytest.mark.parametrize("number", EDGES)


def requests_with(number: int) -> Iterator[messages.Operation]:
    if 0 <= number < 2**63:
        for shape in ((number, 0, 3), (1, 0, number)):
            yield replace(REQUEST, inputs=(replace(INPUT, shape=shape),))
    for name in ("sequence_id", "priority", "timeout", "other"):
        yield replace(REQUEST, parameters={name: number})
    yield replace(REQUEST, id=str(number))
    yield replace(REQUEST, version=str(number))
    yield replace(REQUEST, inputs=(replace(INPUT, parameters={"other": number}),))
    for parameters in ({"classification": number}, {"other": number}):
        yield replace(REQUEST, outputs=(messages.RequestedOutput("Y", parameters),))
    if 0 <= number < 2**64:
        for region in (RegionRef("r", number, 0), RegionRef("r", 0, number)):
            yield replace(REQUEST, inputs=(replace(INPUT, shared_memory=region),))
            yield replace(REQUEST, outputs=(messages.RequestedOutput("Y", {}, region),))
    for name in ("offset", "size"):
        yield messages.SharedMemoryRegisterRequest(**{"name": "r", "key": "/k", name: number})
    for name in ("size", "device"):
        fields = {"name": "r", "size": 1, "device": 0, "handle": b"h", name: number}
        yield messages.SharedMemoryRegisterRequest(**fields)
    yield messages.TraceSettingsRequest("m", {"trace_rate": str(number)})


def error_kind(function: Callable[..., Any], *arguments: Any) -> Kind:
    """Return the kind of the error that ``function`` raises, or BAD_REQUEST if it raises none."""
    try:
        function(*arguments)
    except GatewayError as error:
        return error.kind
    return Kind.BAD_REQUEST


@CODECS
@EDGE
@pytest.mark.parametrize("profile", [TRITON, MLSERVER], ids=lambda profile: profile.name)
def test_every_integer_is_written_or_refused(name: str, number: int, profile: Any) -> None:
    codec = plugins()[name].create({})
    for operation in requests_with(number):
        assert error_kind(codec.build_request, operation, profile, MODEL) in REFUSED, operation


def responses_with(number: int) -> Iterator[tuple[messages.Operation, messages.Response]]:
    shape = (max(number, 0), 0, 3)
    outputs = (Tensor("Y", Datatype.FP32, shape, b""),)
    yield REQUEST, messages.InferResponse("m", str(number), outputs=outputs)
    metadata = replace(MODEL, max_batch_size=number, versions=(str(number),))
    metadata = replace(metadata, inputs=(replace(TENSOR_METADATA, shape=(number,)),))
    yield messages.ModelMetadataRequest("m"), metadata
    duration = {"count": number, "ns": number}
    statistics = {
        "name": "m",
        "version": str(number),
        "last_inference": number,
        "execution_count": number,
        "inference_stats": dict.fromkeys(("success", "queue", "compute_infer"), duration),
        "batch_stats": [{"batch_size": number, "compute_infer": duration}],
    }
    yield messages.ModelStatisticsRequest("m"), messages.ModelStatistics((statistics,))
    versions = (messages.ModelIndexEntry("m", str(number), "READY"),)
    models = (messages.ModelStatus(metadata, versions, (statistics,)),)
    yield messages.ServerStatusRequest(), messages.ServerStatus("s", "1", ready=True, models=models)
    if not 0 <= number < 2**64:
        return  # no region can have such an offset or size
    for region in (
        messages.SharedMemoryRegion("r", "/k", number, number),
        messages.SharedMemoryRegion("r", size=number, device=number % 2**31),
    ):
        request = messages.SharedMemoryStatusRequest(cuda=region.device is not None)
        yield request, messages.SharedMemoryStatus((region,))


QUERIES = {
    "trtis-http": HttpRequest("GET", "/api/sharedmemorycontrol/status"),
    "trtis-grpc": RpcRequest(SHARED_MEMORY, (b"\x22\0",)),
}
"""Clients' requests for an operation that the codecs cannot send to backends."""


@CODECS
@EDGE
def test_every_integer_gets_a_response_or_a_declared_error(name: str, number: int) -> None:
    codec = plugins()[name].create({})
    for operation, response in responses_with(number):
        try:
            wire = codec.build_request(operation, TRITON, MODEL)
        except GatewayError:
            if name not in QUERIES or not isinstance(operation, messages.SharedMemoryStatusRequest):
                continue
            wire = QUERIES[name]
        with contextlib.suppress(GatewayError):
            parsed = completed(codec.parse_request(wire, DEFAULT_LIMITS), MODEL)
            codec.build_response(response, parsed)


TYPES = tuple(datatype for datatype in Datatype if datatype is not Datatype.BYTES)


@EDGE
@pytest.mark.parametrize("datatype", TYPES, ids=lambda datatype: datatype.value)
def test_integers_in_json_are_parsed_or_rejected(datatype: Datatype, number: int) -> None:
    codec = plugins()["v2-rest"].create({})
    for shape, data in (([3], [number, 0, 3]), ([number, 0, 3], []), ([1], [number])):
        tensor = {"name": "X", "datatype": datatype.value, "shape": shape, "data": data}
        for members in ({}, {"parameters": {"binary_data_size": number}}):
            body = json.dumps({"inputs": [{**tensor, **members}]}).encode()
            wire = HttpRequest("POST", "/v2/models/m/infer", "", {}, [body])
            assert error_kind(codec.parse_request, wire, DEFAULT_LIMITS) in REFUSED
