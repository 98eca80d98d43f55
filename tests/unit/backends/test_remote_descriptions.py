"""How RemoteBackend uses models' metadata and the detected kind of server."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
import remote_kit
from remote_kit import FakeCodec, FakeUpstream

from gateway_errors import raises_kind
from infergate.backends import remote as remote_module
from infergate.backends.remote import RemoteBackend
from infergate.codecs.base import Capabilities, Profile
from infergate.codecs.profiles import GENERIC, INFERGATE, KSERVE, MLSERVER, TRITON, detect_profile
from infergate.core import messages
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, ModelMetadata, ModelMetadataRequest, Operation
from infergate.core.request_context import RequestContext
from infergate.core.route_policy import RoutePolicy
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.transport.base import Endpoint

pytestmark = pytest.mark.usefixtures("virtual_time")

MODEL = ModelMetadata("m", ("1",))


def call(seconds: float = 60.0) -> RequestContext:
    return RequestContext("test", time.monotonic() + seconds)


def error_from_server(kind: Kind) -> GatewayError:
    return GatewayError(kind, kind.value, origin=Origin.BACKEND)


class DescribingCodec(FakeCodec):
    """The codec of a Triton server. It rejects inferences with the metadata ``rejected_model``."""

    def __init__(self, *, needs_metadata: bool = False) -> None:
        super().__init__(
            {
                messages.ServerMetadataRequest: messages.ServerMetadata("triton", "2"),
                ModelMetadataRequest: MODEL,
                messages.ModelConfigRequest: messages.ModelConfig("m", {"max_batch_size": 8}),
                InferRequest: messages.InferResponse("m"),
            }
        )
        self.needs_metadata = needs_metadata
        self.rejected_model: ModelMetadata | None = None
        self.rejection_kind = Kind.BAD_REQUEST
        self.used_models: list[Any] = []

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> RpcRequest:
        if isinstance(operation, InferRequest):
            self.used_models.append((profile.name, model))
            if model is not None and model == self.rejected_model:
                raise GatewayError(self.rejection_kind, "does not fit")
        return super().build_request(operation, profile, model)

    def parse_response(
        self,
        wire: RpcResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> messages.Response:
        if isinstance(operation, InferRequest):
            self.used_models.append(model)
        return super().parse_response(wire, operation, limits, model)

    def count(self, kind: type) -> int:
        return sum(isinstance(each, kind) for each in self.requests)


def backend(codec: FakeCodec, profile: Profile | None = None) -> RemoteBackend[Any, Any]:
    return remote_kit.backend(FakeUpstream(), codec, endpoints=[Endpoint("a", 1)], profile=profile)


async def test_the_model_configuration_has_the_maximum_batch_size() -> None:
    codec = DescribingCodec()
    remote = backend(codec)
    description = replace(MODEL, max_batch_size=8, decoupled=False)
    tasks = [remote.describe("m", "1", call()) for _ in range(5)]
    assert await asyncio.gather(*tasks) == [description] * 5
    assert codec.requests == [
        ModelMetadataRequest("m", "1"),
        messages.ServerMetadataRequest(),
        messages.ModelConfigRequest("m", "1"),
    ]


@pytest.mark.parametrize(
    ("settings", "size"),
    [({}, 0), ({"max_batch_size": 0}, 0), ({"max_batch_size": "8"}, None)]
    + [({"max_batch_size": invalid}, None) for invalid in (-1, True, 1.0, None)],
)
async def test_invalid_batch_sizes_are_ignored(settings: dict[str, Any], size: int | None) -> None:
    codec = DescribingCodec()
    codec.responses[messages.ModelConfigRequest] = messages.ModelConfig("m", settings)
    assert (await backend(codec, TRITON).describe("m", "", call())).max_batch_size == size


@pytest.mark.parametrize("profile", [GENERIC, MLSERVER, KSERVE, INFERGATE])
async def test_other_servers_get_no_configuration_request(profile: Profile) -> None:
    codec = DescribingCodec()
    assert await backend(codec, profile).describe("m", "", call()) == MODEL
    assert codec.requests == [ModelMetadataRequest("m")]


async def test_metadata_with_a_batch_size_needs_no_configuration() -> None:
    codec = DescribingCodec()
    metadata = codec.responses[ModelMetadataRequest] = replace(MODEL, max_batch_size=0)
    assert await backend(codec).describe("m", "", call()) == metadata
    assert codec.requests == [ModelMetadataRequest("m")]


@pytest.mark.parametrize(
    ("kind", "expected_requests"),
    [(Kind.FORBIDDEN, 1), (Kind.UNSUPPORTED, 1), (Kind.NO_BACKEND, 2), (Kind.TIMEOUT, 2)],
)
async def test_a_missing_configuration_is_not_an_error(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, expected_requests: int
) -> None:
    """A failed query for the configuration is soon repeated unless its error is permanent."""
    monkeypatch.setattr(remote_module, "STALE_SECONDS", 0.0)
    codec = DescribingCodec()
    codec.responses[messages.ModelConfigRequest] = error_from_server(kind)
    remote = backend(codec, TRITON)
    for _ in range(2):
        assert await remote.describe("m", "", call()) == MODEL
    assert codec.count(messages.ModelConfigRequest) == expected_requests


async def test_an_undetected_server_still_describes_its_models() -> None:
    codec = DescribingCodec()
    codec.responses[messages.ServerMetadataRequest] = error_from_server(Kind.NO_BACKEND)
    assert await backend(codec).describe("m", "", call()) == MODEL


async def test_unavailable_metadata_is_an_error() -> None:
    codec = DescribingCodec()
    codec.responses[ModelMetadataRequest] = error_from_server(Kind.NOT_FOUND)
    with raises_kind(Kind.NOT_FOUND):
        await backend(codec).describe("m", "", call())


async def test_waiting_for_a_description_ends_at_the_deadline() -> None:
    class Silent(FakeUpstream):
        async def exchange(
            self, wire: RpcRequest, endpoint: Endpoint, timeout: float
        ) -> RpcResponse:
            await silent.wait()
            return RpcResponse()

    silent = asyncio.Event()
    remote = backend(DescribingCodec(), TRITON)
    remote._sender._upstream = Silent()  # type: ignore[misc]
    first = asyncio.create_task(remote.describe("m", "", call()))
    await asyncio.sleep(0)
    with raises_kind(Kind.TIMEOUT, match="backend 'b1': the deadline has passed"):
        await remote.describe("m", "", call(0.02))
    silent.set()
    assert (await first).max_batch_size == 8


# ---- codecs that need descriptions --------------------------------------------------------------


async def test_only_codecs_that_need_descriptions_get_them() -> None:
    for needs_metadata in (False, True):
        codec = DescribingCodec(needs_metadata=needs_metadata)
        await backend(codec, TRITON).perform(InferRequest("m", "1"), call())
        model = replace(MODEL, max_batch_size=8, decoupled=False) if needs_metadata else None
        assert codec.used_models == [("triton", model), model]


async def change_metadata(
    codec: FakeCodec, remote_backend: RemoteBackend[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> ModelMetadata:
    """Cache metadata, advance the clock by two seconds, and return the server's new metadata."""
    old = await remote_backend.describe("m", "", call())
    began = time.monotonic()
    for entry in remote_backend._metadata_cache._entries.values():
        monkeypatch.setattr(entry, "_clock", lambda: began + 2)
    new = codec.responses[ModelMetadataRequest] = ModelMetadata("m", ("2",), max_batch_size=4)
    assert await remote_backend.describe("m", "", call()) == old
    return new


@pytest.mark.parametrize("kind", [Kind.BAD_REQUEST, Kind.NO_BACKEND])
async def test_a_mismatching_request_is_checked_with_refreshed_metadata(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that becomes ready must not be rejected for the minute that metadata is cached."""
    codec = DescribingCodec(needs_metadata=True)
    codec.rejection_kind = kind
    codec.rejected_model = codec.responses[ModelMetadataRequest] = replace(MODEL, max_batch_size=8)
    remote = backend(codec)
    new = await change_metadata(codec, remote, monkeypatch)
    assert await remote.perform(InferRequest("m"), call()) == messages.InferResponse("m")
    assert [model for model in codec.used_models if isinstance(model, ModelMetadata)] == [new]


async def test_a_request_that_contradicts_refreshed_metadata_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mismatch causes metadata to be fetched again, but at most once a second."""
    codec = DescribingCodec(needs_metadata=True)
    codec.rejected_model = codec.responses[ModelMetadataRequest] = replace(MODEL, max_batch_size=8)
    remote = backend(codec)
    for _ in range(3):
        with pytest.raises(GatewayError, match="does not fit"):
            await remote.perform(InferRequest("m"), call())
    assert codec.count(ModelMetadataRequest) == 1
    new = await change_metadata(codec, remote, monkeypatch)
    codec.rejected_model = new
    assert await remote.describe("m", "", call(), refresh=True) == new
    with pytest.raises(GatewayError, match="does not fit"):
        await remote.perform(InferRequest("m"), call())
    assert codec.count(ModelMetadataRequest) == 2


async def test_errors_unrelated_to_metadata_are_reported_immediately() -> None:
    class RejectingCodec(DescribingCodec):
        def build_request(
            self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
        ) -> RpcRequest:
            if isinstance(operation, InferRequest):
                raise GatewayError(Kind.UNSUPPORTED, "no such datatype")
            return super().build_request(operation, profile, model)

    codec = RejectingCodec(needs_metadata=True)
    with pytest.raises(GatewayError, match="no such datatype"):
        await backend(codec, TRITON).perform(InferRequest("m"), call())
    assert codec.count(ModelMetadataRequest) == 1


@pytest.mark.parametrize(
    ("kind", "is_refreshed"),
    [
        (Kind.BAD_REQUEST, True),
        (Kind.NOT_FOUND, True),
        (Kind.BACKEND_GARBAGE, True),
        (Kind.BACKEND_ERROR, False),
    ],
)
async def test_a_mismatching_response_invalidates_the_metadata(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, is_refreshed: bool
) -> None:
    codec = DescribingCodec(needs_metadata=True)
    codec.responses[ModelMetadataRequest] = replace(MODEL, max_batch_size=8)
    codec.responses[InferRequest] = error_from_server(kind)
    remote = backend(codec)
    new = await change_metadata(codec, remote, monkeypatch)
    with raises_kind(kind):
        await remote.perform(InferRequest("m"), call())
    assert (await remote.describe("m", "", call()) == new) is is_refreshed


@pytest.mark.parametrize(
    ("batching", "expected"), [({"direct": {}}, {"direct": {}}), ({}, {}), (5, None), (None, None)]
)
async def test_sequence_batching_must_be_an_object(batching: Any, expected: Any) -> None:
    codec = DescribingCodec()
    settings = {"max_batch_size": 0, "sequence_batching": batching}
    codec.responses[messages.ModelConfigRequest] = messages.ModelConfig("m", settings)
    assert (await backend(codec, TRITON).describe("m", "", call())).sequence_batching == expected


@pytest.mark.parametrize("capability", ["reports_config", "reports_statistics"])
async def test_a_protocol_may_have_a_capability_for_every_server(capability: str) -> None:
    codec = DescribingCodec()
    assert await backend(codec, GENERIC).server_profile(call()) == GENERIC
    enabled: dict[str, Any] = {capability: True}
    codec.capabilities = Capabilities(frozenset(), **enabled)
    profile = await backend(codec, GENERIC).server_profile(call())
    assert profile == replace(GENERIC, **enabled)


# ---- classes ------------------------------------------------------------------------------------


async def test_a_protocol_may_support_classes_for_every_server() -> None:
    codec = DescribingCodec()
    codec.capabilities = Capabilities(frozenset(), supports_classification=True)
    assert await backend(codec).supports_classification(call())
    assert codec.requests == []


@pytest.mark.parametrize(
    ("profile", "expected"),
    [(TRITON, True), (INFERGATE, True), (GENERIC, False), (MLSERVER, False), (KSERVE, False)],
)
async def test_the_profile_decides_whether_classes_are_supported(
    profile: Profile, expected: bool
) -> None:
    assert await backend(DescribingCodec(), profile).supports_classification(call()) is expected


async def test_an_unprofiled_server_is_detected_only_for_classifications() -> None:
    """Pass-through reads the profile for each request and must not wait for a server."""
    codec = DescribingCodec()
    remote = backend(codec)
    assert await remote.request_profile(call()) is GENERIC
    assert codec.requests == []
    assert await remote.supports_classification(call())
    assert await remote.supports_classification(call())
    assert codec.count(messages.ServerMetadataRequest) == 1
    assert await remote.request_profile(call()) == TRITON
    assert await backend(codec, KSERVE).request_profile(call()) is KSERVE


@pytest.mark.parametrize(
    ("name", "extensions", "expected"),
    [
        ("triton", (), TRITON),
        ("Triton", (), TRITON),
        ("my-server", (), GENERIC),
        (
            "my-server",
            ("binary_tensor_data", "classification", "model_configuration"),
            Profile(
                "generic", supports_binary=True, supports_classification=True, reports_config=True
            ),
        ),
        ("my-server", ("classification",), Profile("generic", supports_classification=True)),
    ],
)
def test_servers_are_detected_by_name_or_extensions(
    name: str, extensions: tuple[str, ...], expected: Profile
) -> None:
    assert detect_profile(messages.ServerMetadata(name, "1", extensions)) == expected


# ---- declared models ---------------------------------------------------------------------------


async def test_no_metadata_is_requested_for_a_declared_model() -> None:
    codec = DescribingCodec(needs_metadata=True)
    context = call()
    declared = ModelMetadata("declared")
    context.policy = RoutePolicy(declared_metadata=declared)
    await backend(codec, KSERVE).perform(InferRequest("m"), context)
    assert codec.used_models == [("kserve", declared), declared]
    assert codec.count(ModelMetadataRequest) == 0


async def test_requests_that_contradict_a_declared_model_are_rejected() -> None:
    codec = DescribingCodec(needs_metadata=True)
    context = call()
    codec.rejected_model = ModelMetadata("declared")
    context.policy = RoutePolicy(declared_metadata=codec.rejected_model)
    with pytest.raises(GatewayError, match="does not fit"):
        await backend(codec, KSERVE).perform(InferRequest("m"), context)
    assert codec.count(ModelMetadataRequest) == 0


# ---- alternative requests ----------------------------------------------------------------------


class AlternativeCodec(DescribingCodec):
    """Has an alternative for each request except inferences; it returns ``alternative_result``."""

    def __init__(self) -> None:
        super().__init__(needs_metadata=True)
        self.alternative_result: messages.Response | GatewayError = MODEL
        self.has_alternative = True
        self.alternative_requests = 0

    def build_alternative_request(
        self, operation: Operation, error_kind: Kind
    ) -> RpcRequest | None:
        if isinstance(operation, InferRequest) or not self.has_alternative:
            return None
        return RpcRequest("again")

    def parse_response(
        self,
        wire: RpcResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> messages.Response:
        if wire.details != "again":
            return super().parse_response(wire, operation, limits, model)
        self.alternative_requests += 1
        if isinstance(self.alternative_result, GatewayError):
            raise self.alternative_result
        return self.alternative_result


def codec_and_backend() -> tuple[AlternativeCodec, RemoteBackend[Any, Any]]:
    codec = AlternativeCodec()
    return codec, backend(codec, KSERVE)


NOT_UNDERSTOOD = [
    Kind.BAD_REQUEST,
    Kind.NOT_FOUND,
    Kind.METHOD_NOT_ALLOWED,
    Kind.UNSUPPORTED,
    Kind.BACKEND_GARBAGE,
    Kind.BACKEND_ERROR,
]


@pytest.mark.parametrize("kind", NOT_UNDERSTOOD)
async def test_a_request_that_is_not_understood_is_sent_in_another_form(kind: Kind) -> None:
    codec, remote = codec_and_backend()
    codec.responses[ModelMetadataRequest] = error_from_server(kind)
    assert await remote.describe("m", "", call()) == MODEL
    assert codec.alternative_requests == 1


@pytest.mark.parametrize("kind", sorted(set(Kind) - set(NOT_UNDERSTOOD), key=lambda k: k.value))
async def test_other_failures_are_reported_without_another_request(kind: Kind) -> None:
    codec, remote = codec_and_backend()
    codec.responses[ModelMetadataRequest] = error_from_server(kind)
    with raises_kind(kind):
        await remote.describe("m", "", call())
    assert codec.alternative_requests == 0


@pytest.mark.parametrize(("name", "declared"), [("", "m"), ("renamed", "renamed")])
async def test_metadata_that_the_server_does_not_implement_needs_a_declaration(
    name: str, declared: str
) -> None:
    """The suggested declaration uses the model name that clients send."""
    codec, remote = codec_and_backend()
    codec.has_alternative = False
    codec.responses[ModelMetadataRequest] = error_from_server(Kind.UNSUPPORTED)
    context = call()
    context.record.model = name
    text = rf'model .m.; declare .* models: \{{"{declared}": \{{inputs:'
    with raises_kind(Kind.UNSUPPORTED, match=text):
        await remote.describe("m", "", context)


async def test_an_inference_is_never_sent_in_another_form() -> None:
    codec, remote = codec_and_backend()
    codec.responses[InferRequest] = error_from_server(Kind.BACKEND_ERROR)
    with pytest.raises(GatewayError):
        await remote.perform(InferRequest("m"), call())
    assert codec.alternative_requests == 0


@pytest.mark.parametrize("kind", NOT_UNDERSTOOD)
async def test_a_server_without_metadata_needs_a_declaration(kind: Kind) -> None:
    codec, remote = codec_and_backend()
    codec.responses[ModelMetadataRequest] = error_from_server(Kind.BACKEND_GARBAGE)
    codec.alternative_result = error_from_server(kind)
    with raises_kind(Kind.UNSUPPORTED) as caught:
        await remote.perform(InferRequest("m"), call())
    assert caught.value.public == (
        "backend 'b1' does not provide the metadata of model 'm'; declare it under 'models' "
        "in the gateway's configuration, for example: models: "
        '{"m": {inputs: [{name: x, datatype: FP32, shape: [-1, 3]}], '
        "outputs: [{name: y, datatype: FP32, shape: [-1]}]}}"
    )
    context = call()
    context.policy = RoutePolicy(declared_metadata=MODEL)
    assert await remote.perform(InferRequest("m"), context) == messages.InferResponse("m")


@pytest.mark.parametrize("kind", NOT_UNDERSTOOD)
async def test_only_a_model_unknown_to_both_requests_is_not_found(kind: Kind) -> None:
    codec, remote = codec_and_backend()
    codec.responses[ModelMetadataRequest] = error_from_server(Kind.NOT_FOUND)
    codec.alternative_result = error_from_server(kind)
    with pytest.raises(
        GatewayError, match=r"does not provide the metadata .* declare it"
    ) as caught:
        await remote.perform(InferRequest("m"), call())
    assert caught.value.kind is (kind if kind is Kind.NOT_FOUND else Kind.UNSUPPORTED)


async def test_other_operations_report_the_first_failure() -> None:
    codec, remote = codec_and_backend()
    codec.responses[messages.ServerMetadataRequest] = error_from_server(Kind.BACKEND_GARBAGE)
    codec.alternative_result = error_from_server(Kind.UNSUPPORTED)
    with raises_kind(Kind.BACKEND_GARBAGE):
        await remote.perform(messages.ServerMetadataRequest(), call())


async def test_a_server_that_disappeared_is_reported() -> None:
    codec, remote = codec_and_backend()
    codec.responses[ModelMetadataRequest] = error_from_server(Kind.BACKEND_GARBAGE)
    codec.alternative_result = error_from_server(Kind.CONNECT)
    with raises_kind(Kind.CONNECT):
        await remote.describe("m", "", call())
