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
    REFUSED = "✗"
    UNSAID = "-"
    """The client's protocol cannot express the request."""
    WRONG = "!"
    """A difference that this module cannot explain."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One cell of the matrix."""

    mark: Mark
    note: str = ""


EXACT: Final = Finding(Mark.EXACT)
REFUSALS: Final = frozenset({Kind.UNSUPPORTED, Kind.BAD_REQUEST})
"""Errors for requests that a protocol cannot express."""

_UNAVAILABLE: Final = frozenset({Kind.OVERLOADED, Kind.NO_BACKEND})
"""Kinds that share a single status in some protocols."""


def found(notes: Sequence[str]) -> Finding:
    """Return the finding for a list of differences."""
    if not notes:
        return EXACT
    wrong = [note for note in notes if note.startswith(Mark.WRONG.value)]
    if wrong:
        return Finding(Mark.WRONG, "; ".join(wrong))
    return Finding(Mark.CONVERTED, "; ".join(dict.fromkeys(notes)))


def refused(error: GatewayError, names: Mapping[str, str]) -> Finding:
    """Return the finding for an unexpected error.

    In its text, ``names`` of this request are replaced by the values of the mapping, so that equal
    errors have equal notes.
    """
    text = error.public
    for name, replacement in sorted(names.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(f"'{name}'", replacement)
    mark = Mark.REFUSED if error.kind in REFUSALS else Mark.WRONG
    return Finding(mark, f"{_spoken(error.kind)}: {text}")


def _spoken(kind: Kind) -> str:
    return "unavailable" if kind in _UNAVAILABLE else kind.value.replace("_", " ")


def of_error(expected: GatewayError, got: GatewayError | None) -> Iterator[str]:
    """Yield the differences between the model's error and the client's."""
    if got is None:
        yield _wrong("a response instead of an error")
        return
    if got.kind is not expected.kind and {got.kind, expected.kind} - _UNAVAILABLE:
        yield f"reported as {_spoken(got.kind)}"
    if expected.public not in got.public:
        yield "the reason is not passed on"
    if expected.retry_after != got.retry_after:
        yield "the retry time is not passed on"


def of_request(meant: InferRequest, seen: InferRequest) -> Iterator[str]:
    """Yield the differences between a request and the one that the model received, except for the
    model's name."""
    if meant.version != seen.version:
        yield _lost("the version is not sent to the server", seen.version)
    if meant.id != seen.id:
        yield _lost("the id is not sent to the server; the client gets its own id back", seen.id)
    yield from _of_parameters("parameters not sent to the server:", meant, seen)
    yield from _of_tensors(meant.inputs, seen.inputs)
    yield from _of_outputs(meant.outputs, seen.outputs, meant.inputs)


def of_answer(given: InferResponse, got: InferResponse, asked: InferRequest) -> Iterator[str]:
    """Yield the differences between the model's response and the client's."""
    if got.model != asked.model:
        yield _wrong(f"the model's name is {got.model!r}")
    if got.id != asked.id:
        yield _lost("the id is not sent to the client", got.id)
    if asked.version and given.version != got.version:
        yield _lost("the version is not sent to the client", got.version)
    yield from _of_parameters("parameters not sent to the client:", given, got)
    expected = _as_asked(given.outputs, asked.outputs)
    has_classes = any(class_count(output) for output in asked.outputs)
    yield from (_of_classes if has_classes else _of_tensors)(expected, got.outputs)


def _as_asked(outputs: Sequence[Tensor], asked: Sequence[RequestedOutput]) -> Sequence[Tensor]:
    """Return ``outputs`` in the requested order, if any were requested."""
    order = [output.name for output in asked]
    return sorted(outputs, key=lambda tensor: order.index(tensor.name)) if order else outputs


def _of_classes(given: Sequence[Tensor], got: Sequence[Tensor]) -> Iterator[str]:
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


def _of_parameters(
    lost: str, meant: InferRequest | InferResponse, seen: InferRequest | InferResponse
) -> Iterator[str]:
    missing = sorted(name for name in meant.parameters if name not in seen.parameters)
    if missing:
        yield f"{lost} {', '.join(missing)}"
    for name, value in seen.parameters.items():
        yield from _of_parameter(name, value, meant.parameters)


def _of_parameter(name: str, value: object, meant: Parameters) -> Iterator[str]:
    if name not in meant:
        yield f"the parameter {name} is added"
        return
    original = meant[name]
    if type(value) is type(original) and value == original:
        return
    if value == original or str(value) == str(original):
        yield f"the parameter {name}, {_kind(original)}, arrives as {_kind(value)}"
    else:
        yield _wrong(f"parameter {name} is {value!r}, expected {original!r}")


def _kind(value: object) -> str:
    return {bool: "a bool", int: "an integer", float: "a float", str: "text"}[type(value)]


def _of_tensors(meant: Sequence[Tensor], seen: Sequence[Tensor]) -> Iterator[str]:
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
            yield from _of_tensor(tensor, by_name[tensor.name])


def _of_tensor(meant: Tensor, seen: Tensor) -> Iterator[str]:
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


def _of_outputs(
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


def _lost(note: str, instead: str) -> str:
    return _wrong(f"{note}: {instead!r}") if instead else note


def _wrong(what: str) -> str:
    return f"{Mark.WRONG.value} {what}"
