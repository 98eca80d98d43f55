"""Compares inferences before and after translation.

A :class:`Finding` has a mark and, unless nothing changed, a note. Equal differences have equal
notes, because the table lists each note once.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from infergate.core.classification import class_count
from infergate.core.datatypes import FLOATS, Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse, RequestedOutput
from infergate.core.tensor import Parameters, Tensor, unpack_bytes


class Mark(enum.Enum):
    """How exactly an inference was translated, as shown in the table."""

    EXACT = "="
    CONVERTED = "≈"
    REJECTED = "✗"
    NOT_EXPRESSIBLE = "-"
    """The client's protocol cannot express the request."""
    WRONG = "!"
    """A difference that this module cannot explain."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One cell of the matrix."""

    mark: Mark
    note: str = ""


EXACT: Final = Finding(Mark.EXACT)
REJECTION_KINDS: Final = frozenset({Kind.UNSUPPORTED, Kind.BAD_REQUEST})
"""Errors for requests that a protocol cannot express."""

_UNAVAILABLE_KINDS: Final = frozenset({Kind.OVERLOADED, Kind.NO_BACKEND})
"""Kinds that share a single status in some protocols."""


def finding_of(notes: Sequence[str]) -> Finding:
    """Return the finding for a list of differences."""
    if not notes:
        return EXACT
    wrong = [note for note in notes if note.startswith(Mark.WRONG.value)]
    if wrong:
        return Finding(Mark.WRONG, "; ".join(wrong))
    return Finding(Mark.CONVERTED, "; ".join(dict.fromkeys(notes)))


def rejection(error: GatewayError, replacements: Mapping[str, str]) -> Finding:
    """Return the finding for an unexpected error.

    In its text, ``names`` of this request are replaced by the values of the mapping, so that equal
    errors have equal notes.
    """
    text = error.public
    for name, replacement in sorted(replacements.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(f"'{name}'", replacement)
    mark = Mark.REJECTED if error.kind in REJECTION_KINDS else Mark.WRONG
    return Finding(mark, f"{_kind_text(error.kind)}: {text}")


def _kind_text(kind: Kind) -> str:
    return "unavailable" if kind in _UNAVAILABLE_KINDS else kind.value.replace("_", " ")


def error_differences(expected: GatewayError, received: GatewayError | None) -> Iterator[str]:
    """Yield the differences between the model's error and the client's."""
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
    """Yield the differences between a request and the one that the model received, except for the
    model's name."""
    if expected.version != received.version:
        yield _missing("the version is not sent to the server", received.version)
    if expected.id != received.id:
        yield _missing(
            "the id is not sent to the server; the client gets its own id back", received.id
        )
    yield from _parameter_differences("parameters not sent to the server:", expected, received)
    yield from _tensors_differences(expected.inputs, received.inputs)
    yield from _output_differences(expected.outputs, received.outputs, expected.inputs)


def response_differences(
    given: InferResponse, got: InferResponse, request: InferRequest
) -> Iterator[str]:
    """Yield the differences between the model's response and the client's."""
    if got.model != request.model:
        yield _wrong(f"the model's name is {got.model!r}")
    if got.id != request.id:
        yield _missing("the id is not sent to the client", got.id)
    if request.version and given.version != got.version:
        yield _missing("the version is not sent to the client", got.version)
    yield from _parameter_differences("parameters not sent to the client:", given, got)
    expected = _in_requested_order(given.outputs, request.outputs)
    has_classes = any(class_count(output) for output in request.outputs)
    yield from (_class_differences if has_classes else _tensors_differences)(expected, got.outputs)


def _in_requested_order(
    outputs: Sequence[Tensor], requested: Sequence[RequestedOutput]
) -> Sequence[Tensor]:
    """Return ``outputs`` in the requested order, if any were requested."""
    order = [output.name for output in requested]
    return sorted(outputs, key=lambda tensor: order.index(tensor.name)) if order else outputs


def _class_differences(given: Sequence[Tensor], got: Sequence[Tensor]) -> Iterator[str]:
    try:
        expected, received = _classes(given), _classes(got)
    except ValueError:
        yield _wrong("the outputs are not classes")
        return
    if [fields[:2] for fields in expected] != [fields[:2] for fields in received]:
        yield _wrong(f"the classes are {received}, expected {expected}")
    elif expected != received:
        yield "classes have no labels, since the server reports none"
    elif [bytes(tensor.data) for tensor in given] != [bytes(tensor.data) for tensor in got]:
        yield "the values of classes are formatted differently"


def _classes(outputs: Sequence[Tensor]) -> list[tuple[float, str, str]]:
    """Return value, index and label of each class. Raises ValueError for other data."""
    if any(output.datatype is not Datatype.BYTES for output in outputs):
        raise ValueError("values")
    parts = (element.split(b":") for output in outputs for element in unpack_bytes(output.data))
    return [(float(value), str(index), str(label)) for value, index, *label in parts]


def _parameter_differences(
    lost: str, meant: InferRequest | InferResponse, seen: InferRequest | InferResponse
) -> Iterator[str]:
    missing = sorted(name for name in meant.parameters if name not in seen.parameters)
    if missing:
        yield f"{lost} {', '.join(missing)}"
    for name, value in seen.parameters.items():
        yield from _value_difference(name, value, meant.parameters)


def _value_difference(name: str, value: object, meant: Parameters) -> Iterator[str]:
    if name not in meant:
        yield f"the parameter {name} is added"
        return
    original = meant[name]
    if type(value) is type(original) and value == original:
        return
    if value == original or str(value) == str(original):
        yield f"the parameter {name}, {_type_text(original)}, arrives as {_type_text(value)}"
    else:
        yield _wrong(f"parameter {name} is {value!r}, expected {original!r}")


def _type_text(value: object) -> str:
    return {bool: "a bool", int: "an integer", float: "a float", str: "text"}[type(value)]


def _tensors_differences(meant: Sequence[Tensor], seen: Sequence[Tensor]) -> Iterator[str]:
    names, found_names = [t.name for t in meant], [t.name for t in seen]
    if names != found_names:
        if sorted(names) == sorted(found_names):
            yield "the tensors arrive in a different order"
        elif set(names) < set(found_names):
            yield "all outputs are returned"
        else:
            yield _wrong(f"the tensors are {found_names}, expected {names}")
    by_name = {tensor.name: tensor for tensor in seen}
    for tensor in meant:
        if tensor.name in by_name:
            yield from _tensor_differences(tensor, by_name[tensor.name])


def _tensor_differences(meant: Tensor, seen: Tensor) -> Iterator[str]:
    if meant.datatype is not seen.datatype:
        yield _wrong(f"'{meant.name}' is {seen.datatype.value}, expected {meant.datatype.value}")
    elif bytes(meant.data) != bytes(seen.data):
        if meant.datatype in FLOATS and _only_nans_differ(meant, seen):
            yield "NaN payloads are lost"
        else:
            yield _wrong(f"different values in '{meant.name}'")
    elif meant.shape != seen.shape:
        yield f"the shape {list(meant.shape)} arrives as {list(seen.shape)}"


def _only_nans_differ(meant: Tensor, seen: Tensor) -> bool:
    if len(meant.data) != len(seen.data):
        return False
    return bool(np.array_equal(meant.numpy(), seen.numpy(), equal_nan=True))


def _output_differences(
    meant: Sequence[RequestedOutput], seen: Sequence[RequestedOutput], inputs: Sequence[Tensor]
) -> Iterator[str]:
    if any(output.parameters for output in meant):
        if not any(output.parameters for output in seen):
            yield "infergate selects the classes from the server's values"
        return
    expected = {output.name for output in meant}
    received = {output.name for output in seen}
    if received == expected or (not expected and len(received) == len(inputs)):
        return  # the same outputs, or all of them by name
    if received > expected or not received:
        yield "all outputs are requested; infergate selects"
    else:
        yield _wrong(f"the requested outputs are {sorted(received)}, expected {sorted(expected)}")


def _missing(note: str, instead: str) -> str:
    return _wrong(f"{note}: {instead!r}") if instead else note


def _wrong(what: str) -> str:
    return f"{Mark.WRONG.value} {what}"
