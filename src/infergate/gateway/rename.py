"""Translation between the client's and the backend's names of models, versions and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

import orjson

from infergate.core.errors import bad_request, garbage
from infergate.core.messages import (
    Answer,
    InferRequest,
    InferResponse,
    ModelConfig,
    ModelLoadRequest,
    ModelMetadata,
    ModelOperation,
    ModelStatistics,
    ModelUnloadRequest,
    RequestedOutput,
    TensorMetadata,
    TraceSettingsRequest,
)
from infergate.core.names import STRICT, is_accepted, tensor_name_problem
from infergate.core.tensor import Parameters, Tensor
from infergate.routing.table import Route

Named = TypeVar("Named", Tensor, TensorMetadata, RequestedOutput)
OfModel = TypeVar("OfModel", bound=ModelLoadRequest | ModelUnloadRequest | TraceSettingsRequest)

_CONFIG: Final = "config"
"""The parameter of a load request that holds a configuration as JSON text."""


def to_backend(operation: ModelOperation, route: Route) -> ModelOperation:
    """Return ``operation`` in the backend's names."""
    if not route.rewrite.renames:
        return operation
    model = route.backend_model(operation.model)
    version = route.backend_version(operation.version)
    if not isinstance(operation, InferRequest):
        return replace(operation, model=model, version=version)
    if not route.rewrite.renames_tensors:
        return replace(operation, model=model, version=version)
    return replace(
        operation,
        model=model,
        version=version,
        inputs=_renamed(operation.inputs, route.rewrite.inputs, "input"),
        outputs=_renamed(operation.outputs, route.rewrite.outputs, "output"),
    )


def model_to_backend(operation: OfModel, route: Route) -> OfModel:
    """Return ``operation``, which names a model and no version, in the backend's names. The
    configuration in a load request is renamed too, as far as ``to_client`` renames a reported
    one."""
    renamed = replace(operation, model=route.backend_model(operation.model))
    if isinstance(renamed, ModelLoadRequest) and _CONFIG in renamed.parameters:
        config = _config_to_backend(renamed.parameters[_CONFIG], operation.model, route)
        return replace(renamed, parameters={**renamed.parameters, _CONFIG: config})
    return renamed


def _config_to_backend(config: Any, model: str, route: Route) -> Any:
    """Return the JSON text with the backend's names. Text that is not a JSON object, or that has
    none of the client's names, is returned unchanged."""
    try:
        settings = orjson.loads(config)
    except orjson.JSONDecodeError:
        return config
    if not isinstance(settings, dict):
        return config
    renamed = dict(settings)
    if settings.get("name") == model:
        renamed["name"] = route.backend_model(model)
    for side, names in (("input", route.rewrite.inputs), ("output", route.rewrite.outputs)):
        if isinstance(settings.get(side), list):
            renamed[side] = _entries_renamed(settings[side], names)
    return config if renamed == settings else orjson.dumps(renamed).decode()


def metadata_to_backend(
    declared: ModelMetadata, asked: ModelOperation, route: Route
) -> ModelMetadata:
    """Return the ``declared`` metadata of the model of ``request`` in the backend's names."""
    if declared.name == asked.model and not route.rewrite.renames:
        return declared
    return replace(
        declared,
        name=route.backend_model(asked.model),
        inputs=_renamed(declared.inputs, route.rewrite.inputs, "input"),
        outputs=_renamed(declared.outputs, route.rewrite.outputs, "output"),
    )


def to_client(answer: Answer, asked: ModelOperation, route: Route) -> Answer:
    """Return ``response`` to ``request`` in the client's names. The response gets the client's own
    id: servers invent one if the request has none, or lose it."""
    if isinstance(answer, InferResponse):
        assert isinstance(asked, InferRequest)
        outputs, names = answer.outputs, route.rewrite.outputs
        return InferResponse(
            asked.model,
            route.client_version(asked.version, answer.version),
            asked.id,
            answer.parameters,
            _renamed(outputs, _inverse(names), "output") if names else outputs,
            answer.last,
        )
    if isinstance(answer, ModelMetadata):
        answer = _checked(answer)
        if answer.name == asked.model and not route.rewrite.renames:
            return answer
        return replace(
            answer,
            name=asked.model,
            versions=_client_versions(answer, asked, route),
            inputs=_renamed(answer.inputs, _inverse(route.rewrite.inputs), "input"),
            outputs=_renamed(answer.outputs, _inverse(route.rewrite.outputs), "output"),
        )
    if isinstance(answer, ModelConfig):
        settings = dict(answer.settings)
        for side, names in (("input", route.rewrite.inputs), ("output", route.rewrite.outputs)):
            settings[side] = _entries_renamed(settings.get(side), _inverse(names))
        return replace(answer, name=asked.model, settings={**settings, "name": asked.model})
    if isinstance(answer, ModelStatistics):
        usable = (
            statistics
            for statistics in answer.models
            if _is_usable(str(statistics.get("version", "")))
        )
        return ModelStatistics(
            tuple(_statistics(statistics, asked, route) for statistics in usable)
        )
    return answer


def _is_usable(version: str) -> bool:
    return is_accepted(STRICT, version)


def _checked(told: ModelMetadata) -> ModelMetadata:
    """Return a backend's metadata without versions that no client could name. Raises
    BACKEND_GARBAGE for a tensor that no client could name."""
    for side, tensors in (("input", told.inputs), ("output", told.outputs)):
        for index, tensor in enumerate(tensors):
            if problem := tensor_name_problem(tensor.name):
                raise garbage(f"the backend's metadata: the name of {side} {index} {problem}")
    if all(map(_is_usable, told.versions)):
        return told
    return replace(told, versions=tuple(filter(_is_usable, told.versions)))


def _entries_renamed(entries: Any, names: Mapping[str, str]) -> list[Any]:
    """Rename a configuration's inputs or outputs, as far as they are objects with names."""
    listed = entries if isinstance(entries, list) else []
    return [
        {**entry, "name": names[entry["name"]]}
        if isinstance(entry, dict) and isinstance(entry.get("name"), str) and entry["name"] in names
        else entry
        for entry in listed
    ]


def _statistics(told: Parameters, asked: ModelOperation, route: Route) -> Parameters:
    version = route.client_version(asked.version, str(told.get("version", "")))
    return {**told, "name": asked.model, "version": version}


def _client_versions(answer: ModelMetadata, asked: ModelOperation, route: Route) -> tuple[str, ...]:
    """Return the versions for the client. If the route rewrites the version, there is only one: the
    requested one or that of the route."""
    if not route.rewrite.version:
        return answer.versions
    return tuple(filter(None, (asked.version or route.version,)))


def _inverse(names: Mapping[str, str]) -> dict[str, str]:
    return {backend_name: client_name for client_name, backend_name in names.items()}


def _renamed(tensors: tuple[Named, ...], names: Mapping[str, str], what: str) -> tuple[Named, ...]:
    if not names:
        return tensors
    renamed = tuple(replace(tensor, name=names.get(tensor.name, tensor.name)) for tensor in tensors)
    if len({tensor.name for tensor in renamed}) != len(renamed):
        raise bad_request(f"two {what} tensors have one name after the route's rewrite")
    return renamed
