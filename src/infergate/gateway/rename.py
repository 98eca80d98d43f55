"""Names on both sides of a route: what the client calls things, what the backend calls them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from infergate.core.errors import bad_request
from infergate.core.messages import (
    Answer,
    InferRequest,
    InferResponse,
    ModelMetadata,
    ModelOperation,
    RequestedOutput,
    TensorMetadata,
)
from infergate.core.tensor import Tensor
from infergate.routing.table import Route

Named = TypeVar("Named", Tensor, TensorMetadata, RequestedOutput)


def to_backend(operation: ModelOperation, route: Route) -> ModelOperation:
    """``operation`` in the backend's names."""
    model = route.backend_model(operation.model)
    version = route.backend_version(operation.version)
    if not isinstance(operation, InferRequest):
        return replace(operation, model=model, version=version)
    if not route.rewrite.renames_tensors:
        if model == operation.model and version == operation.version:
            return operation
        return replace(operation, model=model, version=version)
    return replace(
        operation,
        model=model,
        version=version,
        inputs=_renamed(operation.inputs, route.rewrite.inputs, "input"),
        outputs=_renamed(operation.outputs, route.rewrite.outputs, "output"),
    )


def metadata_to_backend(
    declared: ModelMetadata, asked: ModelOperation, route: Route
) -> ModelMetadata:
    """What is ``declared`` of the model of ``asked``, in the backend's names."""
    return replace(
        declared,
        name=route.backend_model(asked.model),
        inputs=_renamed(declared.inputs, route.rewrite.inputs, "input"),
        outputs=_renamed(declared.outputs, route.rewrite.outputs, "output"),
    )


def to_client(answer: Answer, asked: ModelOperation, route: Route) -> Answer:
    """``answer`` to ``asked`` in the client's names. The client's own id is the one it gets back:
    servers invent one where none was given, or lose it."""
    if isinstance(answer, InferResponse):
        assert isinstance(asked, InferRequest)
        return InferResponse(
            asked.model,
            route.client_version(asked.version, answer.version),
            asked.id,
            answer.parameters,
            _renamed(answer.outputs, _inverse(route.rewrite.outputs), "output"),
            answer.last,
        )
    if isinstance(answer, ModelMetadata):
        return replace(
            answer,
            name=asked.model,
            versions=_client_versions(answer, asked, route),
            inputs=_renamed(answer.inputs, _inverse(route.rewrite.inputs), "input"),
            outputs=_renamed(answer.outputs, _inverse(route.rewrite.outputs), "output"),
        )
    return answer


def _client_versions(answer: ModelMetadata, asked: ModelOperation, route: Route) -> tuple[str, ...]:
    """Under a rewritten version the client may ask for one version only: that of the route."""
    if not route.rewrite.version:
        return answer.versions
    return tuple(filter(None, (asked.version or route.version,)))


def _inverse(names: Mapping[str, str]) -> dict[str, str]:
    return {theirs: ours for ours, theirs in names.items()}


def _renamed(tensors: tuple[Named, ...], names: Mapping[str, str], what: str) -> tuple[Named, ...]:
    if not names:
        return tensors
    renamed = tuple(replace(t, name=names.get(t.name, t.name)) for t in tensors)
    if len({t.name for t in renamed}) != len(renamed):
        raise bad_request(f"two {what} tensors have one name after the route's rewrite")
    return renamed
