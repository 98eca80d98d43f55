"""The interface of embedded models, and functions that check their requests and build responses.

- ``Signature.checked_inputs`` runs first, so a rejected request has no effect on the model.
- Error texts follow Triton's (``src/infer_request.cc`` of Triton's core), so that users who search
  for them find answers.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from infergate.core.classification import class_count, classify
from infergate.core.errors import GatewayError, Kind, backend_failure
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    RequestedOutput,
    TensorMetadata,
)
from infergate.core.tensor import NO_PARAMETERS, Parameters, Tensor

PLATFORM: Final = "builtin_numpy"
VERSION: Final = "1"


class Model(Protocol):
    """An embedded model. Its version is always 1."""

    @property
    def metadata(self) -> ModelMetadata:
        """The model's name, inputs and outputs. Batched shapes begin with -1."""
        ...

    def infer(self, request: InferRequest) -> InferResponse:
        """Return the only response to ``request``. Raises BAD_REQUEST, and UNSUPPORTED if the model
        sends several responses per request."""
        ...

    def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses to ``request``, each of them computed on demand. Raises BAD_REQUEST.

        Closing the generator cancels the remaining responses.
        """
        ...


class UnaryModel(abc.ABC):
    """A model that sends one response per request, even in a stream."""

    signature: Signature

    @property
    def metadata(self) -> ModelMetadata:
        return self.signature.metadata

    @abc.abstractmethod
    def infer(self, request: InferRequest) -> InferResponse:
        """Return the only response to ``request``. Raises BAD_REQUEST."""

    async def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        yield replace(self.infer(request), is_last=True)


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a model.

    If ``max_batch_size`` is not 0, the first dimension of every shape is the batch. ``labels`` are
    the class names of outputs. ``decoupled`` and ``sequence_batching`` have the same meaning as in
    ``ModelMetadata``.
    """

    model: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    max_batch_size: int = 0
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    properties: Parameters = NO_PARAMETERS
    decoupled: bool = False
    sequence_batching: Parameters | None = None

    @property
    def metadata(self) -> ModelMetadata:
        """The metadata for clients, with ``max_batch_size`` as a property."""
        return ModelMetadata(
            name=self.model,
            versions=(VERSION,),
            platform=PLATFORM,
            inputs=self.inputs,
            outputs=self.outputs,
            properties={"max_batch_size": str(self.max_batch_size), **self.properties},
            max_batch_size=self.max_batch_size,
            decoupled=self.decoupled,
            sequence_batching=self.sequence_batching,
        )

    def checked_inputs(self, request: InferRequest) -> dict[str, Tensor]:
        """Check the inputs and the requested outputs against the declaration. Return the inputs by
        name. Raises BAD_REQUEST."""
        check_outputs(self.model, request.outputs, {output.name for output in self.outputs})
        inputs = tensors_by_name(request.inputs)
        declarations = {declared.name: declared for declared in self.inputs}
        for name in inputs:
            if name not in declarations:
                raise invalid_request(
                    f"unexpected inference input '{name}' for model '{self.model}'"
                )
        if missing_names := [name for name in declarations if name not in inputs]:
            raise invalid_request(
                f"expected {len(declarations)} inputs but got {len(inputs)} inputs for model "
                f"'{self.model}'. Got input(s) {list(inputs)}, but missing required input(s) "
                f"{missing_names}. Please provide all required input(s)."
            )
        for name, declared in declarations.items():
            self._check_datatype_and_shape(inputs[name], declared)
        if self.max_batch_size:
            self._check_batch(list(inputs.values()))
        return inputs

    def _check_datatype_and_shape(self, tensor: Tensor, declared: TensorMetadata) -> None:
        if tensor.datatype.value != declared.datatype:
            raise invalid_request(
                f"inference input '{tensor.name}' data-type is '{tensor.datatype.value}', but "
                f"model '{self.model}' expects '{declared.datatype}'"
            )
        if not declared.accepts_shape(tensor.shape):
            raise invalid_request(
                f"unexpected shape for input '{tensor.name}' for model '{self.model}'. "
                f"Expected {_format_shape(declared.shape)}, got {_format_shape(tensor.shape)}"
            )

    def _check_batch(self, tensors: Sequence[Tensor]) -> None:
        batch = tensors[0].shape[0]
        for tensor in tensors:
            if tensor.shape[0] > self.max_batch_size:
                raise invalid_request(
                    f"inference request batch-size must be <= {self.max_batch_size} for "
                    f"'{self.model}', input '{tensor.name}' has {tensor.shape[0]}"
                )
            if tensor.shape[0] != batch:
                raise invalid_request(
                    f"input '{tensor.name}' batch size does not match other inputs for "
                    f"'{self.model}': expected {batch}, got {tensor.shape[0]}"
                )

    def build_response(self, request: InferRequest, outputs: Iterable[Tensor]) -> InferResponse:
        """Return the response to the checked ``request`` with the requested outputs."""
        batch_rank = 1 if self.max_batch_size else 0
        return InferResponse(
            model=self.model,
            version=VERSION,
            id=request.id,
            outputs=select_outputs(
                request.outputs, tensors_by_name(outputs), batch_rank, self.labels
            ),
        )


def select_outputs(
    requested: Sequence[RequestedOutput],
    outputs: Mapping[str, Tensor],
    batch_rank: int,
    labels: Mapping[str, Sequence[str]],
) -> tuple[Tensor, ...]:
    """Return the ``requested`` outputs in order, classified as requested. If ``requested`` is
    empty, return all outputs."""
    if not requested:
        return tuple(outputs.values())
    chosen = []
    for output in requested:
        tensor = outputs[output.name]
        count = class_count(output)
        if count is not None:
            tensor = classify(tensor, count, batch_rank, labels.get(output.name, ()))
        chosen.append(tensor)
    return tuple(chosen)


def check_outputs(
    model: str, requested: Sequence[RequestedOutput], known_outputs: Iterable[str]
) -> None:
    """Raise BAD_REQUEST for an output that is unknown, is duplicated or has an invalid number of
    classes."""
    known_outputs = frozenset(known_outputs)
    seen = set()
    for output in requested:
        if output.name not in known_outputs:
            raise invalid_request(
                f"unexpected inference output '{output.name}' for model '{model}'"
            )
        if output.name in seen:
            raise invalid_request(f"output '{output.name}' is requested twice from model '{model}'")
        seen.add(output.name)
        class_count(output)


def tensors_by_name(tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    """Return ``tensors`` by name. Raises BAD_REQUEST for a name that occurs twice."""
    result: dict[str, Tensor] = {}
    for tensor in tensors:
        if tensor.name in result:
            raise invalid_request(f"input '{tensor.name}' already exists in request")
        result[tensor.name] = tensor
    return result


def invalid_request(public: str) -> GatewayError:
    """Return a BAD_REQUEST error whose origin is the model."""
    return backend_failure(Kind.BAD_REQUEST, public)


def _format_shape(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
