"""Ambiguous names are refused in requests, and left out or refused in responses of backends."""

from dataclasses import replace
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from fakes import Memory, perform

from contexts import new_context
from gateway_errors import raises_kind
from infergate.codecs.base import RequestSummary
from infergate.codecs.profiles import GENERIC
from infergate.codecs.protos.wire_scanner import field_prefix
from infergate.codecs.registry import plugins
from infergate.codecs.trtis import messages as pb
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import (
    InferRequest,
    ModelIndex,
    ModelIndexEntry,
    ModelIndexRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelStatistics,
    ModelStatisticsRequest,
    TensorMetadata,
)
from infergate.core.name_rules import NameRule
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, RpcRequest
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import GatewayOptions, RoutingGateway
from infergate.gateway.server_control import ControlPermissions
from infergate.gateway.shared_memory import SharedMemory
from infergate.routing.table import Route, RouteTable

V2 = "/inference.GRPCInferenceService/"
OLD = "/nvidia.inferenceserver.GRPCService/"
AMBIGUOUS = {
    "dot segments": "pub-x/../secret",
    "escaped": "pub-x%2f..%2fsecret",
    "NUL": "simple\0-mine",
    "long": "n" * 1025,
    "bidi": "pub-\u202ex",
    "backslash": "pub-x\\..",
    "query": "pub-x?y",
}


def field(number: int, text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return field_prefix(number, len(data)) + data


def quoted(protocol: str, path: str, method: str = "GET") -> Any:
    return protocol, lambda name: HttpRequest(method, path.format(quote(name, safe="")))


def unquoted(protocol: str, path: str, method: str = "GET") -> Any:
    """Put the name into the path unchanged, because the legacy API decodes no paths."""
    headers = {"nv-inferrequest": "batch_size: 1"}
    return protocol, lambda name: HttpRequest(method, path.format(name), headers=headers)


def rpc(method: str, *fields: Any) -> Any:
    """Encode ``fields``, pairs of a number and a text. The text None is the name under test."""

    def wire(name: str) -> RpcRequest:
        parts = (field(number, name if text is None else text) for number, text in fields)
        if method == OLD + "Infer":
            parts = (*parts, b"\x10\x01")  # the version
        return RpcRequest(method, (b"".join(parts),))

    return "v2-grpc" if method.startswith(V2) else "trtis-grpc", wire


REQUESTS = {
    "rest metadata": quoted("v2-rest", "/v2/models/{}"),
    "rest version": quoted("v2-rest", "/v2/models/m/versions/{}"),
    "rest ready": quoted("v2-rest", "/v2/models/{}/ready"),
    "rest infer": quoted("v2-rest", "/v2/models/{}/infer", "POST"),
    "rest generate": quoted("v2-rest", "/v2/models/{}/generate", "POST"),
    "rest generate stream": quoted("v2-rest", "/v2/models/{}/generate_stream", "POST"),
    "rest stats": quoted("v2-rest", "/v2/models/{}/stats"),
    "rest config": quoted("v2-rest", "/v2/models/{}/config"),
    "rest trace": quoted("v2-rest", "/v2/models/{}/trace/setting"),
    "rest load": quoted("v2-rest", "/v2/repository/models/{}/load", "POST"),
    "rest unload": quoted("v2-rest", "/v2/repository/models/{}/unload", "POST"),
    "rest repository": quoted("v2-rest", "/v2/repository/{}/models/m/load", "POST"),
    "rest memory status": quoted("v2-rest", "/v2/systemsharedmemory/region/{}/status"),
    "rest memory unregister": quoted(
        "v2-rest", "/v2/cudasharedmemory/region/{}/unregister", method="POST"
    ),
    "grpc infer": rpc(V2 + "ModelInfer", (1, None)),
    "grpc infer version": rpc(V2 + "ModelInfer", (1, "m"), (2, None)),
    "grpc ready": rpc(V2 + "ModelReady", (1, None)),
    "grpc metadata version": rpc(V2 + "ModelMetadata", (1, "m"), (2, None)),
    "grpc config": rpc(V2 + "ModelConfig", (1, None)),
    "grpc statistics": rpc(V2 + "ModelStatistics", (1, None)),
    "grpc load": rpc(V2 + "RepositoryModelLoad", (2, None)),
    "grpc unload": rpc(V2 + "RepositoryModelUnload", (2, None)),
    "grpc repository": rpc(V2 + "RepositoryModelUnload", (1, None), (2, "m")),
    "grpc trace": rpc(V2 + "TraceSetting", (2, None)),
    "grpc memory status": rpc(V2 + "SystemSharedMemoryStatus", (1, None)),
    "grpc memory register": rpc(V2 + "SystemSharedMemoryRegister", (1, None), (2, "/k")),
    "grpc cuda unregister": rpc(V2 + "CudaSharedMemoryUnregister", (1, None)),
    "graphpipe": quoted("graphpipe", "/graphpipe/{}"),
    "graphpipe version": quoted("graphpipe", "/graphpipe/m/versions/{}"),
    "legacy infer": unquoted("trtis-http", "/api/infer/{}", "POST"),
    "legacy status": unquoted("trtis-http", "/api/status/{}"),
    "legacy load": unquoted("trtis-http", "/api/modelcontrol/load/{}", "POST"),
    "legacy memory": unquoted("trtis-http", "/api/sharedmemorycontrol/unregister/{}", "POST"),
    "legacy grpc infer": rpc(OLD + "Infer", (1, None)),
    "legacy grpc status": rpc(OLD + "Status", (1, None)),
    "legacy grpc control": rpc(OLD + "ModelControl", (1, None)),
}


class DenyAll:
    """An authorizer that must not be called."""

    async def authorize(self, summary: RequestSummary, context: RequestContext) -> RequestSummary:
        raise AssertionError(summary)

    async def authenticate(self, context: RequestContext) -> None:
        raise AssertionError


class AllowAll:
    async def authorize(self, summary: RequestSummary, context: RequestContext) -> RequestSummary:
        return summary

    async def authenticate(self, context: RequestContext) -> None: ...


def frontend(
    protocol: str, memory: Memory, authorizer: Any, names: NameRule | None = None
) -> Frontend[Any, Any]:
    memory.profile_of_all = replace(GENERIC, has_trace_settings=True, reports_statistics=True)
    created = RoutingGateway(
        RouteTable([Route("*", "b")], names or NameRule()),
        {"b": memory},
        {},
        GatewayOptions(
            shared_memory=SharedMemory(DEFAULT_LIMITS, enabled=True),
            permissions=ControlPermissions(repository=True, settings=True),
        ),
    )
    return Frontend(plugins()[protocol].create({}), created, DEFAULT_LIMITS, authorizer=authorizer)


@pytest.mark.parametrize("bad", AMBIGUOUS.values(), ids=AMBIGUOUS)
@pytest.mark.parametrize("name", REQUESTS)
async def test_ambiguous_names_are_rejected_before_rules_and_routes(name: str, bad: str) -> None:
    protocol, wire = REQUESTS[name]
    memory, context = Memory("b"), new_context()
    in_body = "memory" in name or "cuda" in name or "repository" in name
    # The complete message is read only after the rules have permitted its summary.
    authorizer = AllowAll() if in_body else DenyAll()
    await frontend(protocol, memory, authorizer).respond(wire(bad), context)
    assert memory.requests == []
    record = context.record
    if record.error.startswith("no such path"):
        assert protocol == "trtis-http"
        assert "/" in bad
        return
    assert record.outcome == Kind.BAD_REQUEST.value
    assert record.error.startswith(("the model name ", "the model version ", "the name of ")) or (
        "the repository's name " in record.error
    )
    assert record.route == ""


async def test_an_ambiguous_name_in_a_stream_is_rejected() -> None:
    memory = Memory("b")
    with pytest.raises(GatewayError, match="the model name contains"):
        await frontend("v2-grpc", memory, DenyAll()).parse_stream_request(
            RpcRequest(V2 + "ModelStreamInfer", (field(1, "a\0b"),)), new_context()
        )


@pytest.mark.parametrize("protocol", ["v2-rest", "graphpipe", "v2-grpc"])
async def test_a_slash_is_accepted_if_configured(protocol: str) -> None:
    memory, context = Memory("b"), new_context()
    wire = {
        "v2-rest": HttpRequest("GET", "/v2/models/team-a%2Fbert/ready"),
        "v2-grpc": RpcRequest(V2 + "ModelReady", (field(1, "team-a/bert"),)),
        "graphpipe": HttpRequest("GET", "/graphpipe/team-a%2Fbert"),
    }[protocol]
    await frontend(protocol, memory, AllowAll(), NameRule(allow_slash=True)).respond(wire, context)
    operations = [ModelMetadataRequest, ModelReadyRequest]
    assert [getattr(each, "model", "") for each in memory.requests if type(each) in operations] == [
        "team-a/bert"
    ]
    rest: Any = plugins()["v2-rest"].create({})
    upstream = rest.build_request(ModelReadyRequest("team-a/bert"), GENERIC)
    assert upstream.path == "/v2/models/team-a%2Fbert/ready"


@pytest.mark.parametrize("name", ["INPUT\0", "IN\u2028PUT", "n" * 1025])
async def test_ambiguous_tensor_names_are_rejected(name: str) -> None:
    body = '{"inputs":[{"name":"%s","shape":[1],"datatype":"INT8","data":[1]}]}'
    text = name.replace("\0", "\\u0000")
    messages = {
        "v2-rest": HttpRequest("POST", "/v2/models/m/infer", body=((body % text).encode(),)),
        "v2-grpc": RpcRequest(
            V2 + "ModelInfer",
            (field(1, "m") + field(5, field(1, name) + field(2, "INT8")) + field(7, b"\1"),),
        ),
    }
    for protocol, wire in messages.items():
        memory, context = Memory("b"), new_context()
        await frontend(protocol, memory, AllowAll()).respond(wire, context)
        assert context.record.outcome == Kind.BAD_REQUEST.value
        assert "name" in context.record.error
        assert memory.requests == []


@pytest.mark.parametrize("name", ["../region", "r\0", "n" * 1025])
async def test_ambiguous_region_names_are_rejected(name: str) -> None:
    """The error says that the region's name is invalid, and no backend receives the request."""
    tensor = {"name": "I", "shape": [1], "datatype": "INT8"}
    tensor["parameters"] = {"shared_memory_region": name, "shared_memory_byte_size": 1}
    header = pb.InferRequestHeader(batch_size=1)
    header.input.add(name="I").shared_memory.name = name
    message = pb.InferRequest(model_name="m", model_version=-1, meta_data=header)
    messages = {
        "v2-rest": HttpRequest(
            "POST", "/v2/models/m/infer", body=(orjson.dumps({"inputs": [tensor]}),)
        ),
        "trtis-grpc": RpcRequest(OLD + "Infer", (message.SerializeToString(),)),
    }
    for protocol, wire in messages.items():
        memory, context = Memory("b"), new_context()
        memory.description = ModelMetadata(
            "m", ("1",), inputs=(TensorMetadata("I", "INT8", (1,)),), max_batch_size=8
        )
        await frontend(protocol, memory, AllowAll()).respond(wire, context)
        assert context.record.outcome == Kind.BAD_REQUEST.value
        assert "the name of a shared memory region " in context.record.error
        assert memory.requests == []


# ---- responses of backends


async def test_an_index_leaves_out_names_that_no_client_could_use() -> None:
    listed = [ModelIndexEntry(name, "1", "READY") for name in ("m", *AMBIGUOUS.values())]
    listed.append(ModelIndexEntry("m", "../2", "READY"))
    memory = Memory("b", ModelIndex(tuple(listed)))
    created = frontend("v2-rest", memory, None).gateway
    index = await perform(created, ModelIndexRequest(), ModelIndex)
    assert [(each.name, each.version) for each in index.models] == [("m", "1")]


async def test_metadata_leaves_out_ambiguous_versions_and_refuses_ambiguous_tensors() -> None:
    tensor = TensorMetadata("model/dense:0", "INT8", (1,))
    memory = Memory("b", ModelMetadata("m", ("1", "..", "1\0"), inputs=(tensor,)))
    created = frontend("v2-rest", memory, None).gateway
    metadata = await perform(created, ModelMetadataRequest("m"), ModelMetadata)
    assert metadata.versions == ("1",)
    memory.answer = ModelMetadata("m", outputs=(tensor, replace(tensor, name="a\x1bb")))
    with raises_kind(Kind.BACKEND_GARBAGE, match=r"the name of output 1 contains .* U\+001B"):
        await created.perform(ModelMetadataRequest("m"), new_context())


async def test_statistics_leave_out_ambiguous_versions() -> None:
    models = tuple({"name": "m", "version": version} for version in ("1", "a\nb"))
    created = frontend("v2-rest", Memory("b", ModelStatistics(models)), None).gateway
    statistics = await perform(created, ModelStatisticsRequest("m"), ModelStatistics)
    assert [each["version"] for each in statistics.models] == ["1"]


def test_an_inference_has_no_region_name() -> None:
    """``NameRule.check_operation`` treats the field ``name`` as a region's name."""
    NameRule().check_operation(InferRequest("m"))
