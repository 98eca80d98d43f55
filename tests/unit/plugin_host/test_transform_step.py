"""Transforms of plug-ins as steps of a route."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

import plugin_kit
from gateway_errors import raises_kind
from infergate.config.load import parse
from infergate.config.mistakes import ConfigError
from infergate.config.schema import Config
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    TensorMetadata,
)
from infergate.core.request_context import RequestContext
from infergate.core.tensor import tensor_from_array
from infergate.plugin_host import transform_step
from infergate.runtime.assemble import assemble
from infergate.runtime.running import RunningGateway


@pytest.fixture(autouse=True)
def release_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Prevents a timeout on a slow machine.
    monkeypatch.setattr(transform_step, "_MAX_DESCRIBE_SECONDS", 60.0)
    plugin_kit.RELEASE.clear()
    yield
    plugin_kit.RELEASE.set()


def config(outcome: str = "", **changes: Any) -> Config:
    step = {
        "transform": "plugin_kit:Lengths",
        "options": {"outcome": outcome},
        "timeout": "100ms" if outcome in ("hangs", "forgets") else "60s",
    }
    inputs = {"plugin": step}, {"scale": {"tensor": "X", "factor": 10}}
    route = {"model": "double", "backend": "py", "transforms": {"inputs": inputs}}
    fields = {
        "log": {"access": False},
        "helpers": 0,
        "listeners": {"http": {"address": "127.0.0.1:0"}, "grpc": None, "admin": None},
        "backends": {"py": {"protocol": "python", "model": "plugin_kit:Double"}},
        "routes": (route,),
    }
    return Config.model_validate({**fields, **changes})


@asynccontextmanager
async def gateway(outcome: str = "") -> AsyncIterator[RunningGateway]:
    running = assemble(config(outcome))
    await running.start()
    try:
        yield running
    finally:
        await running.stop(0)


async def metadata(running: RunningGateway) -> Any:
    return await running.gateway.perform(ModelMetadataRequest("double"), RequestContext("test"))


async def infer(running: RunningGateway, *texts: bytes) -> InferResponse:
    text = tensor_from_array("text", Datatype.BYTES, np.array(texts, np.object_))
    context = RequestContext("test")
    binding = running.gateway.bind("double", "", context)
    return await running.gateway.infer(InferRequest("double", inputs=(text,)), binding, context)


async def test_a_plugin_transforms_tensors_and_metadata() -> None:
    async with gateway() as running:
        response = await infer(running, b"abc", b"")
        assert response.outputs[0].numpy().tolist() == [[60, 20], [0, 20]]
        model = await metadata(running)
        assert model.inputs == (TensorMetadata("text", "BYTES", (-1,)),)


@pytest.mark.parametrize(
    ("outcome", "kind", "expected"),
    [
        ("raises", Kind.INTERNAL, "transform 'plugin_kit:Lengths' failed with RuntimeError"),
        ("rejects", Kind.BAD_REQUEST, "input 'text': too sad"),
        ("hangs", Kind.TIMEOUT, "transform 'plugin_kit:Lengths' did not respond within"),
        ("names", Kind.INTERNAL, r"invalid result: .*\('Z',\) instead of \('X',\)"),
        ("type", Kind.INTERNAL, "invalid result: it returned int"),
    ],
)
async def test_a_failure_names_the_transform(outcome: str, kind: Kind, expected: str) -> None:
    async with gateway(outcome) as running:
        with raises_kind(kind, expected) as caught:
            await infer(running, b"abc")
        assert "hunter2" not in caught.value.public
        plugin_kit.RELEASE.set()


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("describes", "failed with RuntimeError"),
        ("exits", "failed with SystemExit"),
        ("datatype", "invalid description: tensor 'text' has the datatype 'FLOAT'"),
        ("count", "invalid description: 0 tensors; expected 1"),
    ],
)
async def test_the_error_names_a_transform_that_cannot_describe_its_tensors(
    outcome: str, expected: str
) -> None:
    async with gateway(outcome) as running:
        with pytest.raises(GatewayError, match=f"transform 'plugin_kit:Lengths' .*{expected}") as e:
            await metadata(running)
        assert "hunter2" not in e.value.public


async def test_a_transform_that_does_not_describe_its_tensors_delays_the_gateway_once() -> None:
    async with gateway("forgets") as running:
        for expected in ("did not describe its tensors within 0.1 seconds", "does not respond"):
            with pytest.raises(GatewayError, match=f"'plugin_kit:Lengths' {expected}"):
                await metadata(running)


async def test_a_reload_keeps_only_an_unchanged_transform() -> None:
    async with gateway() as running:
        (before,) = running._active.plugins.runners
        await running.reload(config(readiness="lenient"))
        assert list(running._active.plugins.runners) == [before]
        await running.reload(config("raises"))
        (after,) = running._active.plugins.runners
        assert after is not before


def test_a_missing_transform_is_reported_with_its_line() -> None:
    text = """
backends: {demo: {protocol: builtin}}
models: {a: {inputs: [{name: x, datatype: FP32, shape: [1]}]}}
routes:
  - model: a
    backend: demo
    transforms:
      outputs:
        - plugin: {transform: "plugin_kit:Missing"}
        - plugin:
            transform: "plugin_kit:Lengths"
            options: {outcom: x}
"""
    with pytest.raises(ConfigError) as caught:
        parse(text, "routes.yaml", {})
    base = "routes[0].transforms.outputs"
    assert [str(mistake).split(": ", 1)[1] for mistake in caught.value.mistakes] == [
        (
            f"{base}[0].plugin.transform: importing 'plugin_kit:Missing' failed: AttributeError: "
            "module 'plugin_kit' has no attribute 'Missing'"
        ),
        f"{base}[1].plugin.options.outcom: unknown option 'outcom'; did you mean 'outcome'?",
    ]
    assert [mistake.line for mistake in caught.value.mistakes] == [9, 12]
