from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from infergate.backends.remote import RemoteBackend
from infergate.config.load import parse
from infergate.core.datatypes import Datatype
from infergate.core.exchange import Exchange
from infergate.core.messages import InferRequest, InferResponse, TensorMetadata
from infergate.core.request_context import RequestContext
from infergate.core.tensor import tensor_from_array
from infergate.migration.recorded import recorded_metadata
from infergate.migration.replay import target as module
from infergate.migration.replay.target import ConfigTarget, ReplayTargetError, UrlTarget
from recordings import exchange


def spoken(protocol: str, model: str = "m") -> Exchange:
    return replace(exchange(1, model), protocol=protocol)


async def endpoints(target: UrlTarget, each: Exchange) -> tuple[str, str, str]:
    """Return the protocol, the address and the path that ``each`` is sent to."""
    gateway = await target.gateway_for(each)
    (backend,) = gateway.backends
    assert isinstance(backend, RemoteBackend)
    (stats,) = backend.endpoint_stats()
    return backend.protocol, stats.endpoint, backend.name


@pytest.mark.parametrize(
    ("protocol", "recorded", "address"),
    [
        ("", "v2-rest", ("v2-rest", "http://h:1")),
        ("", "trtis-http", ("trtis-http", "http://h:1")),
        ("", "v2-grpc", ("v2-grpc", "grpc://h:2")),
        ("", "tfs-grpc", ("tfs-grpc", "grpc://h:3")),
        ("v2-grpc", "v2-rest", ("v2-grpc", "grpc://h:2")),
    ],
)
async def test_the_protocol_selects_the_url(
    protocol: str, recorded: str, address: tuple[str, str]
) -> None:
    urls = ["http://h:1", "grpc://h:2", "tfs-grpc=grpc://h:3"]
    target = UrlTarget(urls, protocol)
    try:
        found = await endpoints(target, spoken(recorded))
        assert found[:2] == address
        assert await target.gateway_for(spoken(recorded)) is await target.gateway_for(
            spoken(recorded)
        )
    finally:
        await target.close()


@pytest.mark.parametrize(
    ("urls", "protocol", "reason"),
    [
        (["http://h:1"], "v2-grpc", "v2-grpc needs a URL with the scheme grpc or grpcs"),
        (["grpc://h:1"], "v2-rest", "v2-rest needs a URL with the scheme http"),
        (["http://h:1"], "sagemaker", "choose another protocol with --protocol: "),
        (["http://h:99999"], "v2-rest", "http://h:99999: "),
        (["http://"], "v2-rest", "http://: "),
        (["http://h:1"], "x" * 1000, "'x{64}', which servers"),
    ],
)
async def test_a_target_that_cannot_receive_an_inference_says_what_to_change(
    urls: list[str], protocol: str, reason: str
) -> None:
    with pytest.raises(ReplayTargetError, match=reason):
        await UrlTarget(urls).gateway_for(spoken(protocol))


@pytest.mark.parametrize(
    ("url", "protocol", "reason"),
    [
        ("localhost:8000", "", "localhost:8000: expected a URL that begins with one of"),
        ("ftp://h", "", "ftp://h: expected a URL"),
        ("v2-grpc=http://h", "", "one of grpc:, grpcs:, or PROTOCOL=URL"),
        ("nothing=http://h", "", "expected a URL"),
        ("http://h", "v3", "'v3' is not a protocol; expected one of: "),
    ],
)
def test_a_url_that_no_inference_could_use_is_refused_at_once(
    url: str, protocol: str, reason: str
) -> None:
    with pytest.raises(ReplayTargetError, match=reason):
        UrlTarget([url], protocol)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://127.0.0.1:8002"])
async def test_a_gateway_on_the_default_ports_is_a_target(url: str) -> None:
    target = UrlTarget([url])
    assert (await endpoints(target, spoken("v2-rest")))[1] == url
    await target.close()


async def test_a_model_in_the_url_is_quoted() -> None:
    urls: list[str] = []
    target = UrlTarget(["http://h:1/models/{model}"])
    original = module._single_backend

    def single(protocol: str, url: str, headers: list[str]) -> object:
        urls.append(url)
        return original(protocol, url, headers)

    module._single_backend = single  # type: ignore[assignment]
    try:
        await target.gateway_for(spoken("v2-rest", "a/b@evil.test"))
    finally:
        module._single_backend = original
        await target.close()
    assert urls == ["http://h:1/models/a%2Fb%40evil.test"]


async def test_the_number_of_urls_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_GATEWAYS", 1)
    target = UrlTarget(["http://h:1/{model}"])
    try:
        await target.gateway_for(spoken("v2-rest", "a"))
        with pytest.raises(ReplayTargetError, match="more than 1 models"):
            await target.gateway_for(spoken("v2-rest", "b"))
    finally:
        await target.close()


async def test_a_protocol_without_metadata_gets_that_of_the_recorded_tensors() -> None:
    target = UrlTarget(["http://127.0.0.1:9"])
    try:
        each = spoken("kserve-v1")
        gateway = await target.gateway_for(each)
        assert gateway.declared == {"m": recorded_metadata(each)}
    finally:
        await target.close()


async def test_a_configuration_is_used_with_all_its_routes_and_without_mirrors() -> None:
    config = parse(
        "backends: {b: {protocol: builtin}, c: {protocol: builtin}}\n"
        "routes: [{model: m, backend: b, mirror: {backend: c}}]",
        "routes.yaml",
        {},
    )
    target = ConfigTarget(config)
    try:
        gateway = await target.gateway_for(exchange(1))
        assert [backend.name for backend in gateway.backends] == ["b", "c"]
        assert gateway.traffic_splits == {}
        assert gateway.route_label("m", "", {}) == "m"
    finally:
        await target.close()


async def test_the_transforms_of_a_configuration_apply() -> None:
    config = parse(
        "backends: {b: {protocol: builtin}}\n"
        "routes: [{model: m, backend: b, rewrite: {model: identity},"
        " transforms: {outputs: [{rename: {OUTPUT0: y}}]}}]",
        "routes.yaml",
        {},
    )
    target = ConfigTarget(config)
    try:
        gateway = await target.gateway_for(exchange(1))
        tensor = tensor_from_array("INPUT0", Datatype.FP32, np.ones((1,)))
        response = await gateway.perform(InferRequest("m", inputs=(tensor,)), RequestContext("t"))
        assert isinstance(response, InferResponse)
        assert [each.name for each in response.outputs] == ["y"]
    finally:
        await target.close()


def test_recorded_tensors_give_metadata_with_a_variable_first_dimension() -> None:
    metadata = recorded_metadata(exchange(1))
    assert metadata.inputs == (TensorMetadata("x", "FP32", (-1,)),)
    assert metadata.outputs == (TensorMetadata("y", "FP32", (-1,)),)
