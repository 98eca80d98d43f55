"""Compares inferences before and after translation.

Equal differences have equal notes, because the table lists each note once. A difference that this
module cannot explain is marked as wrong.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from infergate.core.classification import class_count
from infergate.core.datatypes import FLOATS, Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse, RequestedOutput
from infergate.core.tensor import Parameters, Tensor, unpack_bytes


class Mark(enum.Enum):
    """The accuracy of a translated inference, as shown in the table."""

    EXACT = "="
    CONVERTED = "≈"
    REJECTED = "✗"
    NOT_EXPRESSIBLE = "-"
    """The client's protocol cannot express the request."""
    WRONG = "!"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a case for a pair of protocols."""

    mark: Mark
    note: str = ""


EXACT: Final = Finding(Mark.EXACT)
_REJECTION_KINDS: Final = frozenset({Kind.UNSUPPORTED, Kind.BAD_REQUEST})
_UNAVAILABLE_KINDS: Final = frozenset({Kind.OVERLOADED, Kind.NO_BACKEND})
"""Kinds that share a status in some protocols."""


def finding_of(notes: Sequence[str]) -> Finding:
    """Return the finding for a list of differences."""
    wrong = [note for note in notes if note.startswith(Mark.WRONG.value)]
    if wrong:
        return Finding(Mark.WRONG, "; ".join(wrong))
    return Finding(Mark.CONVERTED, "; ".join(dict.fromkeys(notes))) if notes else EXACT


def rejection(error: GatewayError, model: str) -> Finding:
    """Return the finding for an unexpected error. The note omits the name of ``model``."""
    text = error.public.replace(f"'{model}'", "'…'")
    mark = Mark.REJECTED if error.kind in _REJECTION_KINDS else Mark.WRONG
    return Finding(mark, f"{_kind_text(error.kind)}: {text}")


def _kind_text(kind: Kind) -> str:
    return "unavailable" if kind in _UNAVAILABLE_KINDS else kind.value.replace("_", " ")


def error_differences(expected: GatewayError, received: GatewayError | None) -> Iterator[str]:
    """Yield the differences between the model's error and the error that the client received."""
    if received is None:
        yield _wrong("a response instead of an error")
        return
    if received.kind is not expected.kind and {received.kind, expected.kind} - _UNAVAILABLE_KINDS:
        yield f"reported as {_kind_text(received.kind)}"
    if expected.public not in received.public:
        yield "the reason is not passed on"
    if expected.retry_after != received.retry_after:
        yield "the retry time is not passed on"


def request_differences(expected: InferRequest, received: InferRequest) -> Iterator[str]:
    """Yield the differences between the sent and the received request, ignoring model names."""
    note = "the version is not sent to the server"
    yield from _difference(note, expected.version, received.version)
    note = "the id is not sent to the server; the client gets its own id back"
    yield from _difference(note, expected.id, received.id)
    yield from _parameter_differences("server", expected.parameters, received.parameters)
    yield from _tensor_differences(expected.inputs, received.inputs)
    yield from _output_differences(expected, received.outputs)


def response_differences(
    expected: InferResponse, received: InferResponse, request: InferRequest
) -> Iterator[str]:
    """Yield the differences between the model's response and the response that the client got."""
    if received.model != request.model:
        yield _wrong(f"the model's name is {received.model!r}")
    yield from _difference("the id is not sent to the client", request.id, received.id)
    if request.version:
        note = "the version is not sent to the client"
        yield from _difference(note, expected.version, received.version)
    yield from _parameter_differences("client", expected.parameters, received.parameters)
    outputs = expected.outputs
    if order := [output.name for output in request.outputs]:
        outputs = tuple(sorted(outputs, key=lambda tensor: order.index(tensor.name)))
    has_classes = any(class_count(output) for output in request.outputs)
    compare = _class_differences if has_classes else _tensor_differences
    yield from compare(outputs, received.outputs)


def _difference(note: str, expected: str, received: str) -> Iterator[str]:
    """Yield ``note`` if the value is missing. If the value differs, mark ``note`` as wrong."""
    if received != expected:
        yield _wrong(f"{note}: {received!r}") if received else note


def _parameter_differences(
    receiver: str, expected: Parameters, received: Parameters
) -> Iterator[str]:
    if missing := sorted(expected.keys() - received.keys()):
        yield f"parameters not sent to the {receiver}: {', '.join(missing)}"
    for name, value in received.items():
        original = expected.get(name)
        if type(value) is not type(original) or value != original:
            yield _wrong(f"parameter {name} is {value!r}; expected {original!r}")


def _tensor_differences(expected: Sequence[Tensor], received: Sequence[Tensor]) -> Iterator[str]:
    names, received_names = ([tensor.name for tensor in side] for side in (expected, received))
    if names != received_names:
        yield _wrong(f"the tensors are {received_names}; expected {names}")
        return
    for before, after in zip(expected, received, strict=True):
        if (before.datatype, before.shape) != (after.datatype, after.shape):
            yield _wrong(f"'{after.name}' is {after.datatype.value} {list(after.shape)}")
        elif bytes(before.data) != bytes(after.data):
            is_float = before.datatype in FLOATS
            if is_float and np.array_equal(before.numpy(), after.numpy(), equal_nan=True):
                yield "NaN payloads are lost"
            else:
                yield _wrong(f"different values in '{after.name}'")


def _class_differences(expected: Sequence[Tensor], received: Sequence[Tensor]) -> Iterator[str]:
    if any(output.datatype is not Datatype.BYTES for output in received):
        yield _wrong("the outputs are not classes")
        return
    classes, received_classes = _classes(expected), _classes(received)
    if [fields[:2] for fields in classes] != [fields[:2] for fields in received_classes]:
        yield _wrong(f"the classes are {received_classes}; expected {classes}")
    elif classes != received_classes:
        yield "classes have no labels, since the server reports none"


def _classes(outputs: Sequence[Tensor]) -> list[list[bytes]]:
    """Return the value, index and optional label of each class."""
    return [element.split(b":") for output in outputs for element in unpack_bytes(output.data)]


def _output_differences(
    expected: InferRequest, received: Sequence[RequestedOutput]
) -> Iterator[str]:
    if any(output.parameters for output in expected.outputs):
        if not any(output.parameters for output in received):
            yield "infergate selects the classes from the server's values"
        return
    names, received_names = (
        sorted(output.name for output in side) for side in (expected.outputs, received)
    )
    # A request that names no outputs requests all outputs.
    if not received_names:
        if len(names) not in (0, len(expected.inputs)):
            yield "the server computes all outputs; the client gets only the requested outputs"
    elif received_names != names and (names or len(received) != len(expected.inputs)):
        yield _wrong(f"the requested outputs are {received_names}; expected {names}")


def _wrong(text: str) -> str:
    return f"{Mark.WRONG.value} {text}"
