"""Model configurations: the server's own with the client's names, or built from metadata."""

from dataclasses import replace
from typing import Any

import pytest
from fakes import Memory, perform

from contexts import new_context
from infergate.backends.builtin import BuiltinBackend
from infergate.codecs.profiles import TRITON
from infergate.core.datatypes import Datatype
from infergate.core.messages import (
    ModelConfig,
    ModelConfigRequest,
    ModelMetadata,
    TensorMetadata,
)
from infergate.gateway.gateway import RoutingGateway
from infergate.gateway.model_configuration import config_from_metadata
from infergate.routing.table import Rewrite, Route, RouteTable

MODEL = ModelMetadata(
    "m",
    ("1", "02", "x", "99999999999999999999"),
    "onnx",
    (TensorMetadata("IN", "FP32", (-1, 3)), TensorMetadata("ODD", "fp99", (-1,))),
    (TensorMetadata("OUT", "BYTES", (-1, 2)),),
    max_batch_size=8,
)


def test_dimensions_are_without_the_batch() -> None:
    assert config_from_metadata(MODEL) == ModelConfig(
        "m",
        {
            "name": "m",
            "platform": "onnx",
            "max_batch_size": 8,
            "input": [
                {"name": "IN", "data_type": "TYPE_FP32", "dims": [3]},
                {"name": "ODD", "data_type": "TYPE_INVALID", "dims": []},
            ],
            "output": [{"name": "OUT", "data_type": "TYPE_STRING", "dims": [2]}],
            "version_policy": {"specific": {"versions": [1, 2]}},
        },
    )


def test_decoupled_models_and_sequence_batching_are_described() -> None:
    settings = config_from_metadata(MODEL).settings
    assert not {"model_transaction_policy", "sequence_batching"} & set(settings)
    batching = {"direct": {}}
    settings = config_from_metadata(
        replace(MODEL, decoupled=True, sequence_batching=batching)
    ).settings
    assert settings["model_transaction_policy"] == {"decoupled": True}
    assert settings["sequence_batching"] == batching


@pytest.mark.parametrize("size", [None, 0])
def test_without_a_batch_shapes_are_complete(size: int | None) -> None:
    model = ModelMetadata("m", inputs=(TensorMetadata("IN", "BF16", (-1, 3)),), max_batch_size=size)
    settings = config_from_metadata(model).settings
    assert settings["max_batch_size"] == 0
    assert settings["input"] == [{"name": "IN", "data_type": "TYPE_BF16", "dims": [-1, 3]}]
    assert "version_policy" not in settings


@pytest.mark.parametrize("datatype", Datatype)
def test_every_datatype_has_a_configuration_name(datatype: Datatype) -> None:
    model = ModelMetadata("m", inputs=(TensorMetadata("IN", datatype.value, ()),))
    assert config_from_metadata(model).settings["input"][0]["data_type"] != "TYPE_INVALID"


def build_gateway(
    backend: Any, rewrite: Rewrite | None = None, declared: Any = None
) -> RoutingGateway:
    routes = [Route("m", "b", rewrite=rewrite or Rewrite())]
    return RoutingGateway(RouteTable(routes), {"b": backend}, declared or {})


async def test_a_servers_configuration_has_the_clients_names() -> None:
    settings = {
        "name": "real",
        "input": [{"name": "data", "dims": [3]}, {"name": ["odd"]}, "odd"],
        "output": "odd",
        "x": 1,
    }
    memory = Memory("b", ModelConfig("real", settings, b"as sent"))
    memory.profile_of_all = TRITON
    gateway = build_gateway(memory, Rewrite("real", inputs={"image": "data"}))
    response = await gateway.perform(ModelConfigRequest("m"), new_context())
    renamed = [{"name": "image", "dims": [3]}, {"name": ["odd"]}, "odd"]
    assert response == ModelConfig(
        "m", {"name": "m", "input": renamed, "output": [], "x": 1}, b"as sent"
    )
    assert memory.requests == [ModelConfigRequest("real")]


async def test_configurations_of_other_servers_come_from_metadata() -> None:
    memory = Memory("b")
    memory.description = MODEL
    assert await build_gateway(memory).perform(
        ModelConfigRequest("m"), new_context()
    ) == config_from_metadata(MODEL)
    assert not memory.requests


async def test_the_configuration_of_a_declared_model_comes_from_its_declaration() -> None:
    memory = Memory("b", ModelConfig("m", {}))
    memory.profile_of_all = TRITON
    response = await build_gateway(memory, declared={"m": MODEL}).perform(
        ModelConfigRequest("m"), new_context()
    )
    assert response == config_from_metadata(MODEL)
    assert not memory.requests


async def test_embedded_models_have_a_configuration() -> None:
    gateway = RoutingGateway(RouteTable([Route("*", "b")]), {"b": BuiltinBackend("b")}, {})
    response = await perform(gateway, ModelConfigRequest("simple"), ModelConfig)
    assert response.settings["max_batch_size"] == 8
    assert response.settings["input"][0] == {
        "name": "INPUT0",
        "data_type": "TYPE_INT32",
        "dims": [16],
    }
    response = await perform(gateway, ModelConfigRequest("repeat"), ModelConfig)
    assert response.settings["model_transaction_policy"] == {"decoupled": True}
    response = await perform(gateway, ModelConfigRequest("accumulate"), ModelConfig)
    assert response.settings["sequence_batching"] == {
        "max_sequence_idle_microseconds": 60_000_000,
        "oldest": {"max_candidate_sequences": 1024},
    }
