"""What an embedded model is, and how it checks a request and words an answer.

*Rule 1.* ``Signature.accept`` comes first: a model that refuses a request has computed and
remembered nothing of it.
*Rule 2.* Refusals read like Triton's (``src/infer_request.cc`` of its core), so that people find
them in a search engine.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from infergate.core.classification import class_count, classify
from infergate.core.errors import GatewayError, Kind, Origin
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
    """One embedded model, always in version 1."""

    @property
    def metadata(self) -> ModelMetadata:
        """Name, inputs and outputs; batched shapes begin with -1."""
        ...

    def infer(self, request: InferRequest) -> InferResponse:
        """The one answer to ``request``. Raises BAD_REQUEST; UNSUPPORTED if it gives several."""
        ...

    def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        """All answers to ``request``, each made when it is pulled. Raises BAD_REQUEST.

        Closing it gives up the rest.
        """
        ...


class UnaryModel(abc.ABC):
    """A model with one answer a request: as a stream, that one."""

    @abc.abstractmethod
    def infer(self, request: InferRequest) -> InferResponse:
        """See :meth:`Model.infer`."""

    async def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        """See :meth:`Model.stream`."""
        yield replace(self.infer(request), last=True)


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model takes and gives.

    Where ``max_batch_size`` is not 0 the first dimension of every shape is the batch.
    ``labels`` name the classes of an output. The last two as in :class:`ModelMetadata`.
    """

    model: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    max_batch_size: int = 0
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    properties: Parameters = field(default_factory=lambda: NO_PARAMETERS)
    decoupled: bool = False
    sequence_batching: Parameters | None = None

    @property
    def metadata(self) -> ModelMetadata:
        """As told to clients; ``max_batch_size`` is a property."""
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

    def accept(self, request: InferRequest) -> dict[str, Tensor]:
        """The inputs of ``request`` by name, all there and as declared. Raises BAD_REQUEST."""
        check_outputs(self.model, request.outputs, {output.name for output in self.outputs})
        given = by_name(request.inputs)
        wanted = {declared.name: declared for declared in self.inputs}
        for name in given:
            if name not in wanted:
                raise invalid(f"unexpected inference input '{name}' for model '{self.model}'")
        if missing := [name for name in wanted if name not in given]:
            raise invalid(
                f"expected {len(wanted)} inputs but got {len(given)} inputs for model "
                f"'{self.model}'. Got input(s) {list(given)}, but missing required input(s) "
                f"{missing}. Please provide all required input(s)."
            )
        for name, declared in wanted.items():
            self._check_form(given[name], declared)
        if self.max_batch_size:
            self._check_batch(list(given.values()))
        return given

    def _check_form(self, tensor: Tensor, declared: TensorMetadata) -> None:
        if tensor.datatype.value != declared.datatype:
            raise invalid(
                f"inference input '{tensor.name}' data-type is '{tensor.datatype.value}', but "
                f"model '{self.model}' expects '{declared.datatype}'"
            )
        if len(tensor.shape) != len(declared.shape) or any(
            wanted not in (-1, found)
            for found, wanted in zip(tensor.shape, declared.shape, strict=True)
        ):
            raise invalid(
                f"unexpected shape for input '{tensor.name}' for model '{self.model}'. "
                f"Expected {_spelled(declared.shape)}, got {_spelled(tensor.shape)}"
            )

    def _check_batch(self, tensors: Sequence[Tensor]) -> None:
        batch = tensors[0].shape[0]
        for tensor in tensors:
            if tensor.shape[0] > self.max_batch_size:
                raise invalid(
                    f"inference request batch-size must be <= {self.max_batch_size} for "
                    f"'{self.model}', input '{tensor.name}' has {tensor.shape[0]}"
                )
            if tensor.shape[0] != batch:
                raise invalid(
                    f"input '{tensor.name}' batch size does not match other inputs for "
                    f"'{self.model}': expected {batch}, got {tensor.shape[0]}"
                )

    def answer(self, request: InferRequest, outputs: Iterable[Tensor]) -> InferResponse:
        """``outputs`` (all of the model's) as ``request``, once accepted, wants them."""
        batch_rank = 1 if self.max_batch_size else 0
        return InferResponse(
            model=self.model,
            version=VERSION,
            id=request.id,
            outputs=select(request.outputs, by_name(outputs), batch_rank, self.labels),
        )


def select(
    wanted: Sequence[RequestedOutput],
    outputs: Mapping[str, Tensor],
    batch_rank: int,
    labels: Mapping[str, Sequence[str]],
) -> tuple[Tensor, ...]:
    """The outputs that are ``wanted``, in that order and classified where asked; all if none."""
    if not wanted:
        return tuple(outputs.values())
    chosen = []
    for output in wanted:
        tensor = outputs[output.name]
        count = class_count(output)
        if count is not None:
            tensor = classify(tensor, count, batch_rank, labels.get(output.name, ()))
        chosen.append(tensor)
    return tuple(chosen)


def check_outputs(model: str, wanted: Sequence[RequestedOutput], known: Iterable[str]) -> None:
    """Raises BAD_REQUEST where an output is unknown, asked for twice or asked for wrongly."""
    known = frozenset(known)
    seen = set()
    for output in wanted:
        if output.name not in known:
            raise invalid(f"unexpected inference output '{output.name}' for model '{model}'")
        if output.name in seen:
            raise invalid(f"output '{output.name}' is requested twice of model '{model}'")
        seen.add(output.name)
        class_count(output)


def by_name(tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    """``tensors`` by name. Raises BAD_REQUEST where one comes twice."""
    found: dict[str, Tensor] = {}
    for tensor in tensors:
        if tensor.name in found:
            raise invalid(f"input '{tensor.name}' already exists in request")
        found[tensor.name] = tensor
    return found


def invalid(public: str) -> GatewayError:
    """The client's mistake, as a model tells it."""
    return GatewayError(Kind.BAD_REQUEST, public, origin=Origin.BACKEND)


def _spelled(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
