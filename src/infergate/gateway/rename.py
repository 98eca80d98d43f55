"""Replaces the client's names of models, versions and tensors with the backend's names, and vice
versa."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

import orjson

from infergate.core.errors import backend_garbage, bad_request
from infergate.core.messages import (
    InferRequest,
    ModelConfig,
    ModelIndexRequest,
    ModelLoadRequest,
    ModelMetadata,
    ModelOperation,
    ModelStatistics,
    ModelUnloadRequest,
    RequestedOutput,
    Response,
    TensorMetadata,
    TraceSettingsRequest,
)
from infergate.core.name_rules import STRICT_RULE, are_accepted, find_tensor_name_problem
from infergate.core.tensor import Tensor
from infergate.routing.table import Route

Named = TypeVar("Named", Tensor, TensorMetadata, RequestedOutput)
VersionedOperation = TypeVar("VersionedOperation", bound=ModelOperation | ModelIndexRequest)
UnversionedOperation = TypeVar(
    "UnversionedOperation", bound=ModelLoadRequest | ModelUnloadRequest | TraceSettingsRequest
)

_CONFIG: Final = "config"
"""The parameter of a load request that holds a configuration as JSON text."""


def to_backend(operation: VersionedOperation, route: Route) -> VersionedOperation:
    """Return ``operation``, which is not an inference, with the backend's names."""
    if not route.rewrite.renames:
        return operation
    model = route.backend_model(operation.model)
    return replace(operation, model=model, version=route.backend_version(operation.version))


def inference_to_backend(request: InferRequest, route: Route) -> InferRequest:
    """Return ``request`` with the backend's names. Raises BAD_REQUEST for duplicate names."""
    return replace(
        request,
        model=route.backend_model(request.model),
        version=route.backend_version(request.version),
        inputs=_rename(request.inputs, route.rewrite.inputs, "input"),
        outputs=_rename(request.outputs, route.rewrite.outputs, "output"),
    )


def outputs_to_client(outputs: tuple[Tensor, ...], route: Route) -> tuple[Tensor, ...]:
    """Return the ``outputs`` of an inference with the client's names. Raises BAD_REQUEST for
    duplicate names."""
    return _rename(outputs, _invert(route.rewrite.outputs), "output")


def model_to_backend(operation: UnversionedOperation, route: Route) -> UnversionedOperation:
    """Return ``operation``, which has a model but no version, with the backend's names. In the
    configuration of a load request, rename the same fields that ``to_client`` renames in a server's
    configuration."""
    renamed = replace(operation, model=route.backend_model(operation.model))
    if isinstance(renamed, ModelLoadRequest) and _CONFIG in renamed.parameters:
        config = _config_to_backend(renamed.parameters[_CONFIG], operation.model, route)
        return replace(renamed, parameters={**renamed.parameters, _CONFIG: config})
    return renamed


def _config_to_backend(config: Any, model: str, route: Route) -> Any:
    """Return the JSON text with the backend's names. Text that is not a JSON object, or that does
    not contain the client's names, is returned unchanged."""
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
            renamed[side] = _rename_entries(settings[side], names)
    return config if renamed == settings else orjson.dumps(renamed).decode()


def metadata_to_backend(
    declared: ModelMetadata, request: ModelOperation, route: Route
) -> ModelMetadata:
    """Return the ``declared`` metadata of the model of ``request`` with the backend's names."""
    if declared.name == request.model and not route.rewrite.renames:
        return declared
    return replace(
        declared,
        name=route.backend_model(request.model),
        inputs=_rename(declared.inputs, route.rewrite.inputs, "input"),
        outputs=_rename(declared.outputs, route.rewrite.outputs, "output"),
    )


def to_client(response: Response, request: ModelOperation, route: Route) -> Response:
    """Return ``response``, the response to ``request``, with the client's names. ``request`` is not
    an inference."""
    if isinstance(response, ModelMetadata):
        return metadata_to_client(response, request, route)
    if isinstance(response, ModelConfig):
        settings = dict(response.settings)
        for side, names in (("input", route.rewrite.inputs), ("output", route.rewrite.outputs)):
            settings[side] = _rename_entries(settings.get(side), _invert(names))
        return replace(response, name=request.model, settings={**settings, "name": request.model})
    return response


def metadata_to_client(
    metadata: ModelMetadata, request: ModelOperation, route: Route
) -> ModelMetadata:
    """Return a backend's ``metadata`` with the client's names. Raises BACKEND_GARBAGE for invalid
    tensor names, and BAD_REQUEST for duplicate names."""
    metadata = _check_metadata(metadata)
    if metadata.name == request.model and not route.rewrite.renames:
        return metadata
    return replace(
        metadata,
        name=request.model,
        versions=_client_versions(metadata, request, route),
        inputs=_rename(metadata.inputs, _invert(route.rewrite.inputs), "input"),
        outputs=_rename(metadata.outputs, _invert(route.rewrite.outputs), "output"),
    )


def statistics_to_client(
    statistics: ModelStatistics, request: ModelOperation, route: Route
) -> ModelStatistics:
    """Return a backend's ``statistics`` with the client's names, without invalid versions."""
    models = []
    for model in statistics.models:
        reported = str(model.get("version", ""))
        if _is_usable_version(reported):
            version = route.client_version(request.version, reported)
            models.append({**model, "name": request.model, "version": version})
    return ModelStatistics(tuple(models))


def _is_usable_version(version: str) -> bool:
    return are_accepted(STRICT_RULE, version)


def _check_metadata(metadata: ModelMetadata) -> ModelMetadata:
    """Return ``metadata`` without invalid versions, which no client could request. Raises
    BACKEND_GARBAGE for a tensor with an invalid name."""
    for side, tensors in (("input", metadata.inputs), ("output", metadata.outputs)):
        for index, tensor in enumerate(tensors):
            if problem := find_tensor_name_problem(tensor.name):
                raise backend_garbage(
                    f"the backend's metadata: the name of {side} {index} {problem}"
                )
    if all(map(_is_usable_version, metadata.versions)):
        return metadata
    return replace(metadata, versions=tuple(filter(_is_usable_version, metadata.versions)))


def _rename_entries(entries: Any, names: Mapping[str, str]) -> list[Any]:
    listed = entries if isinstance(entries, list) else []
    return [
        {**entry, "name": names[entry["name"]]}
        if isinstance(entry, dict) and isinstance(entry.get("name"), str) and entry["name"] in names
        else entry
        for entry in listed
    ]


def _client_versions(
    response: ModelMetadata, request: ModelOperation, route: Route
) -> tuple[str, ...]:
    """Return the versions for the client. If the route rewrites the version, the only version is
    the requested version or the route's version."""
    if not route.rewrite.version:
        return response.versions
    return tuple(filter(None, (request.version or route.version,)))


def _invert(names: Mapping[str, str]) -> dict[str, str]:
    return {backend_name: client_name for client_name, backend_name in names.items()}


def _rename(tensors: tuple[Named, ...], names: Mapping[str, str], side: str) -> tuple[Named, ...]:
    if not names:
        return tensors
    renamed = tuple(replace(tensor, name=names.get(tensor.name, tensor.name)) for tensor in tensors)
    if len({tensor.name for tensor in renamed}) != len(renamed):
        raise bad_request(f"two {side} tensors have the same name after the route's rewrite")
    return renamed
