from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar
from unittest.mock import Mock

import pytest

from infergate.backends.remote import RemoteBackend
from infergate.config.load import parse
from infergate.core.exchange import Exchange
from infergate.core.messages import InferRequest, InferResponse, TensorMetadata
from infergate.core.request_context import RequestContext
from infergate.migration.recorded import recorded_metadata
from infergate.migration.replay import target as module
from infergate.migration.replay.target import ConfigTarget, ReplayTargetError, UrlTarget
from recordings import exchange, tensor

TargetT = TypeVar("TargetT", UrlTarget, ConfigTarget)


def recorded_with(protocol: str, model: str = "m") -> Exchange:
    return replace(exchange(1, model), protocol=protocol)


@asynccontextmanager
async def closed_afterwards(target: TargetT) -> AsyncGenerator[TargetT, None]:
    try:
        yield target
    finally:
        await target.close()


async def endpoint(target: UrlTarget, each: Exchange) -> tuple[str, str]:
    """Return the protocol and the address of the backend for ``each``."""
    gateway = await target.gateway_for(each)
    (backend,) = gateway.backends
    assert isinstance(backend, RemoteBackend)
    (stats,) = backend.endpoint_stats()
    return backend.protocol, stats.endpoint


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
    urls, each = ["http://h:1", "grpc://h:2", "tfs-grpc=grpc://h:3"], recorded_with(recorded)
    async with closed_afterwards(UrlTarget(urls, protocol)) as target:
        assert await endpoint(target, each) == address
        assert await target.gateway_for(each) is await target.gateway_for(each)


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
        await UrlTarget(urls).gateway_for(recorded_with(protocol))


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
    async with closed_afterwards(UrlTarget([url])) as target:
        assert await endpoint(target, recorded_with("v2-rest")) == ("v2-rest", url)


async def test_a_model_in_the_url_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    single = Mock(side_effect=module._single_backend)
    monkeypatch.setattr(module, "_single_backend", single)
    async with closed_afterwards(UrlTarget(["http://h:1/models/{model}"])) as target:
        await target.gateway_for(recorded_with("v2-rest", "a/b@evil.test"))
    single.assert_called_once_with("v2-rest", "http://h:1/models/a%2Fb%40evil.test", ["*"])


async def test_the_number_of_urls_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_GATEWAYS", 1)
    async with closed_afterwards(UrlTarget(["http://h:1/{model}"])) as target:
        await target.gateway_for(recorded_with("v2-rest", "a"))
        with pytest.raises(ReplayTargetError, match="more than 1 models"):
            await target.gateway_for(recorded_with("v2-rest", "b"))


async def test_a_protocol_without_metadata_gets_that_of_the_recorded_tensors() -> None:
    each = recorded_with("kserve-v1")
    async with closed_afterwards(UrlTarget(["http://127.0.0.1:9"])) as target:
        gateway = await target.gateway_for(each)
        assert gateway.declared == {"m": recorded_metadata(each)}


async def test_a_configuration_is_used_with_all_its_routes_and_without_mirrors() -> None:
    config = parse(
        "backends: {b: {protocol: builtin}, c: {protocol: builtin}}\n"
        "routes: [{model: m, backend: b, mirror: {backend: c}}]",
        "routes.yaml",
        {},
    )
    async with closed_afterwards(ConfigTarget(config)) as target:
        gateway = await target.gateway_for(exchange(1))
        assert [backend.name for backend in gateway.backends] == ["b", "c"]
        assert gateway.traffic_splits == {}
        assert gateway.route_label("m", "", {}) == "m"


async def test_the_transforms_of_a_configuration_apply() -> None:
    config = parse(
        "backends: {b: {protocol: builtin}}\n"
        "routes: [{model: m, backend: b, rewrite: {model: identity},"
        " transforms: {outputs: [{rename: {OUTPUT0: y}}]}}]",
        "routes.yaml",
        {},
    )
    request = InferRequest("m", inputs=(tensor("INPUT0", 1),))
    async with closed_afterwards(ConfigTarget(config)) as target:
        gateway = await target.gateway_for(exchange(1))
        response = await gateway.perform(request, RequestContext("t"))
    assert isinstance(response, InferResponse)
    assert [each.name for each in response.outputs] == ["y"]


def test_recorded_tensors_give_metadata_with_a_variable_first_dimension() -> None:
    metadata = recorded_metadata(exchange(1))
    assert metadata.inputs == (TensorMetadata("x", "FP32", (-1,)),)
    assert metadata.outputs == (TensorMetadata("y", "FP32", (-1,)),)
