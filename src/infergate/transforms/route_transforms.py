"""Applies the steps of a route to tensors, to metadata, and to the outputs that a client
requests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from infergate.core.errors import GatewayError, backend_garbage, bad_request
from infergate.core.messages import ModelMetadata, RequestedOutput, TensorMetadata
from infergate.core.records import record
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor
from infergate.transforms.images import DecodeImage
from infergate.transforms.step import AsyncStep, Spec, Step, TransformError, spec_of, take

_INTERPRETER_BYTES: Final = 64 * 1024
_NUMPY_BYTES: Final = 256 * 1024
"""Maximum memory in bytes of steps that run on the event loop: the first limit is for steps with
Python code for each element, the second for steps that use only numpy. Within these limits, steps
take at most a few milliseconds."""
_MAX_EMPTY_SIZE: Final = 1 << 59
"""Maximum product of the nonzero dimensions of a tensor without elements."""


@record
class StepSizes:
    """The memory of a group of steps in bytes: ``result`` is the maximum size of the tensors after
    the steps, and ``total`` is the maximum of all memory that the steps use. ``is_interpreted``
    means that a step runs Python code for each element, which delays the event loop even if
    the step runs in a thread."""

    result: int
    total: int
    is_interpreted: bool


@dataclass(frozen=True, slots=True)
class StepGroup:
    """Steps that run together, because the sizes of all their tensors are known before the steps
    run. Each step that decodes images, and each step of a plug-in, forms its own group. With
    ``skips_missing``, a step is skipped if its tensors are missing."""

    steps: tuple[Step, ...]
    is_input: bool
    skips_missing: bool = False

    @property
    def decodes_images(self) -> bool:
        return isinstance(self.steps[0], DecodeImage)

    def runs_inline(self, sizes: StepSizes) -> bool:
        """Return whether the event loop runs the steps."""
        if self.decodes_images:
            return False
        return sizes.total <= (_INTERPRETER_BYTES if sizes.is_interpreted else _NUMPY_BYTES)

    def measure(self, tensors: Sequence[Tensor]) -> StepSizes:
        """Return the memory of the steps for ``tensors``. Raises GatewayError if the tensors do not
        fit the steps."""
        try:
            by_name = _by_name(tensors)
            specs = {name: spec_of(tensor) for name, tensor in by_name.items()}
            total = sum(spec.nbytes for spec in specs.values())
            is_interpreted = False
            for step in self.steps:
                if self.skips_missing and not step.is_applicable(specs):
                    continue
                before = specs
                specs = step.forward(specs)
                _check_empty_tensors(before, specs)
                is_interpreted = is_interpreted or step.is_interpreted(before)
                read = [before[name] for name in step.reads if name in before]
                total += step.working_bytes(*read)
                if isinstance(step, DecodeImage):
                    specs[step.tensor], work = step.measure(by_name[step.tensor])
                    total += work
                # numpy's result and its copy in the canonical layout exist at the same time.
                total += 2 * sum(
                    spec.nbytes for name, spec in specs.items() if before.get(name) is not spec
                )
            result = sum(spec.nbytes for spec in specs.values())
            return StepSizes(result, total, is_interpreted)
        except TransformError as error:
            raise self._failure(error) from None

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the tensors after the steps. The caller must have called ``measure`` with
        ``tensors``. Raises GatewayError."""
        try:
            by_name = _by_name(tensors)
            for step in self.steps:
                if not self.skips_missing or step.is_applicable(by_name):
                    by_name = step.apply(by_name)
            return tuple(by_name.values())
        except TransformError as error:
            raise self._failure(error) from None

    async def run_async(
        self, step: AsyncStep, tensors: Sequence[Tensor], context: RequestContext
    ) -> tuple[Tensor, ...]:
        """Return the tensors after ``step``, the only step of this group. Raises GatewayError."""
        try:
            by_name = _by_name(tensors)
            if not self.skips_missing or step.is_applicable(by_name):
                by_name = await step.run(by_name, context)
            return tuple(by_name.values())
        except TransformError as error:
            raise self._failure(error) from None

    def _failure(self, error: TransformError) -> GatewayError:
        if self.is_input:
            return bad_request(f"input '{error.tensor}': {error.problem}")
        return backend_garbage(
            f"the route's transforms do not fit output '{error.tensor}': {error.problem}"
        )


def _by_name(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    by_name = {tensor.name: tensor for tensor in tensors}
    if len(by_name) < len(tensors):
        names = [tensor.name for tensor in tensors]
        twice = next(name for name in names if names.count(name) > 1)
        raise TransformError(twice, "there are two tensors with this name")
    return by_name


def _check_empty_tensors(*all_specs: Mapping[str, Spec]) -> None:
    """Raise TransformError for a tensor without elements if the product of its nonzero dimensions
    is too large for numpy."""
    for specs in all_specs:
        for name, spec in specs.items():
            if 0 in spec.shape and math.prod(size or 1 for size in spec.shape) >= _MAX_EMPTY_SIZE:
                raise TransformError(name, f"shape {list(spec.shape)} is too large")


class RouteTransforms:
    """The steps of a route. ``inputs`` are steps that convert the client's inputs to the backend's
    inputs, and ``outputs`` are steps that convert the backend's outputs to the client's outputs.
    ``batch`` means that the first dimension of every tensor is the batch."""

    def __init__(self, inputs: Iterable[Step], outputs: Iterable[Step], *, batch: bool) -> None:
        self.inputs: Final = tuple(inputs)
        self.outputs: Final = tuple(outputs)
        self.batch: Final = batch
        self.input_groups: Final = tuple(_group_steps(self.inputs, is_input=True))
        self.output_groups: Final = tuple(_group_steps(self.outputs, is_input=False))
        self.requested_output_groups: Final = tuple(
            replace(group, skips_missing=True) for group in self.output_groups
        )
        """The groups for responses to requests that name outputs. The backend then returns only the
        outputs that are needed, so steps that read other outputs are skipped."""
        self._last: tuple[ModelMetadata, ModelMetadata] | None = None

    def transform_metadata(self, model: ModelMetadata) -> ModelMetadata:
        """Return the metadata of ``model`` that clients see. Raises BACKEND_GARBAGE if the steps do
        not fit the model."""
        last = self._last
        if last is not None and last[0] is model:
            return last[1]
        inputs = _specs(model.inputs)
        outputs = _specs(model.outputs)
        try:
            for step in reversed(self.inputs):
                inputs = step.backward(inputs)
        except TransformError as error:
            raise _mismatch("input", error) from None
        try:
            for step in self.outputs:
                outputs = step.forward(outputs)
        except TransformError as error:
            raise _mismatch("output", error) from None
        transformed = replace(
            model,
            inputs=_metadata(inputs, model.inputs),
            outputs=_metadata(outputs, model.outputs),
            signatures=(),
        )
        self._last = model, transformed
        return transformed

    def find_mismatch(self, model: ModelMetadata) -> tuple[bool, int, str] | None:
        """Return None if all steps fit ``model``. Otherwise return, for the first step that does
        not fit, whether it is an input step, the step's position, and the problem."""
        specs = _specs(model.inputs)
        for position in reversed(range(len(self.inputs))):
            try:
                specs = self.inputs[position].backward(specs)
            except TransformError as error:
                return True, position, f"input '{error.tensor}': {error.problem}"
        specs = _specs(model.outputs)
        for position, step in enumerate(self.outputs):
            try:
                take(specs, step.reads)
                specs = step.forward(specs)
            except TransformError as error:
                return False, position, f"output '{error.tensor}': {error.problem}"
        return None

    def backend_outputs(self, requested: Sequence[RequestedOutput]) -> tuple[RequestedOutput, ...]:
        """Return the backend's outputs from which the steps make the client's ``requested``
        outputs. Raises BAD_REQUEST for an output that clients do not see."""
        names = [output.name for output in requested]
        try:
            for step in reversed(self.outputs):
                names = list(dict.fromkeys(step.sources(names)))
        except TransformError as error:
            raise bad_request(f"output '{error.tensor}': {error.problem}") from None
        if len(names) == len(requested):  # renamed outputs keep their parameters
            return tuple(
                output if output.name == name else replace(output, name=name)
                for name, output in zip(names, requested, strict=True)
            )
        return tuple(map(RequestedOutput, names))


def _group_steps(steps: Iterable[Step], *, is_input: bool) -> Iterable[StepGroup]:
    pending: list[Step] = []
    for step in steps:
        if not isinstance(step, DecodeImage | AsyncStep):
            pending.append(step)
            continue
        if pending:
            yield StepGroup(tuple(pending), is_input)
            pending = []
        yield StepGroup((step,), is_input)
    if pending:
        yield StepGroup(tuple(pending), is_input)


def _specs(tensors: Sequence[TensorMetadata]) -> dict[str, Spec]:
    return {tensor.name: Spec(tensor.datatype, tensor.shape) for tensor in tensors}


def _metadata(
    specs: Mapping[str, Spec], original: Sequence[TensorMetadata]
) -> tuple[TensorMetadata, ...]:
    originals = {tensor.name: tensor for tensor in original}
    result = []
    for name, spec in specs.items():
        tensor = originals.get(name)
        if tensor is not None and (tensor.datatype, tensor.shape) == (spec.datatype, spec.shape):
            result.append(tensor)
        else:
            result.append(TensorMetadata(name, spec.datatype, spec.shape))
    return tuple(result)


def _mismatch(side: str, error: TransformError) -> GatewayError:
    return backend_garbage(
        f"the route's transforms do not fit the model: {side} '{error.tensor}': {error.problem}"
    )
