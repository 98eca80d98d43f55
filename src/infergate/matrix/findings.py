"""What became of an inference on its way, told from what was meant.

A :class:`Finding` has a mark and, but where nothing changed, a note. Notes are words of the table
that people read, so each is the same wherever the same happens.
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
    """How well it went, as the table shows it."""

    EXACT = "="
    CONVERTED = "≈"
    REFUSED = "✗"
    UNSAID = "-"
    """The client's protocol has no way to ask for it."""
    WRONG = "!"
    """It changed in a way that nothing here explains."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One cell of the matrix."""

    mark: Mark
    note: str = ""


EXACT: Final = Finding(Mark.EXACT)
REFUSALS: Final = frozenset({Kind.UNSUPPORTED, Kind.BAD_REQUEST})
"""How infergate refuses what a protocol cannot carry."""

_UNAVAILABLE: Final = frozenset({Kind.OVERLOADED, Kind.NO_BACKEND})
"""What protocols have one status for: not now."""


def found(notes: Sequence[str]) -> Finding:
    """What differed, if anything, as a finding."""
    if not notes:
        return EXACT
    wrong = [note for note in notes if note.startswith(Mark.WRONG.value)]
    if wrong:
        return Finding(Mark.WRONG, "; ".join(wrong))
    return Finding(Mark.CONVERTED, "; ".join(dict.fromkeys(notes)))


def refused(error: GatewayError, names: Mapping[str, str]) -> Finding:
    """A request that was answered with ``error`` although the model has nothing against it.
    ``names`` are those of this request, and what is said in their place."""
    told = error.public
    for name, instead in sorted(names.items(), key=lambda pair: -len(pair[0])):
        told = told.replace(f"'{name}'", instead)
    mark = Mark.REFUSED if error.kind in REFUSALS else Mark.WRONG
    return Finding(mark, f"{_spoken(error.kind)}: {told}")


def _spoken(kind: Kind) -> str:
    return "unavailable" if kind in _UNAVAILABLE else kind.value.replace("_", " ")


def of_error(expected: GatewayError, got: GatewayError | None) -> Iterator[str]:
    """``got`` where the model's error is ``expected``."""
    if got is None:
        yield _wrong("there is an answer where an error is due")
        return
    if got.kind is not expected.kind and {got.kind, expected.kind} - _UNAVAILABLE:
        yield f"told as {_spoken(got.kind)}"
    if expected.public not in got.public:
        yield "the reason is not told"
    if expected.retry_after != got.retry_after:
        yield "the time to retry is not told"


def of_request(meant: InferRequest, seen: InferRequest) -> Iterator[str]:
    """``seen`` by the model where ``meant`` was asked; their model's names may differ."""
    if meant.version != seen.version:
        yield _lost("the server is not told the version", seen.version)
    if meant.id != seen.id:
        yield _lost("the server is not told the id, the client gets its own back", seen.id)
    yield from _of_parameters("the server is not told the parameter", meant, seen)
    yield from _of_tensors(meant.inputs, seen.inputs)
    yield from _of_outputs(meant.outputs, seen.outputs, meant.inputs)


def of_answer(given: InferResponse, got: InferResponse, asked: InferRequest) -> Iterator[str]:
    """What the client ``got`` where the model had ``given``."""
    if got.model != asked.model:
        yield _wrong(f"the model is named {got.model!r}")
    if got.id != asked.id:
        yield _lost("the client is not told its id", got.id)
    if asked.version and given.version != got.version:
        yield _lost("the client is not told the version", got.version)
    yield from _of_parameters("the client is not told the parameter", given, got)
    due = _as_asked(given.outputs, asked.outputs)
    classes = any(class_count(output) for output in asked.outputs)
    yield from (_of_classes if classes else _of_tensors)(due, got.outputs)


def _as_asked(outputs: Sequence[Tensor], asked: Sequence[RequestedOutput]) -> Sequence[Tensor]:
    """``outputs`` in the order of those that were asked for, if any were."""
    order = [output.name for output in asked]
    return sorted(outputs, key=lambda tensor: order.index(tensor.name)) if order else outputs


def _of_classes(given: Sequence[Tensor], got: Sequence[Tensor]) -> Iterator[str]:
    try:
        meant, seen = _classes(given), _classes(got)
    except ValueError:
        yield _wrong("what comes is no classes")
        return
    values, others = ([each[:2] for each in classes] for classes in (meant, seen))
    if values != others:
        yield _wrong(f"the classes are {seen} and were {meant}")
    elif meant != seen:
        yield "classes come without labels, which the server does not tell"
    elif [bytes(tensor.data) for tensor in given] != [bytes(tensor.data) for tensor in got]:
        yield "the values of classes are spelled in another way"


def _classes(outputs: Sequence[Tensor]) -> list[tuple[float, str, str]]:
    """Value, index and label of all. Raises ValueError where they are none."""
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
        yield f"a parameter {name} is added"
        return
    was = meant[name]
    if type(value) is type(was) and value == was:
        return
    if value == was or str(value) == str(was):
        yield f"the parameter {name}, {_kind(was)}, comes as {_kind(value)}"
    else:
        yield _wrong(f"parameter {name} is {value!r} and was {was!r}")


def _kind(value: object) -> str:
    return {bool: "a bool", int: "an integer", float: "a float", str: "text"}[type(value)]


def _of_tensors(meant: Sequence[Tensor], seen: Sequence[Tensor]) -> Iterator[str]:
    names, found_names = [t.name for t in meant], [t.name for t in seen]
    if names != found_names:
        if sorted(names) == sorted(found_names):
            yield "tensors come in another order"
        elif set(names) < set(found_names):
            yield "all outputs come"
        else:
            yield _wrong(f"tensors {found_names} where {names} are due")
    there = {tensor.name: tensor for tensor in seen}
    for tensor in meant:
        if tensor.name in there:
            yield from _of_tensor(tensor, there[tensor.name])


def _of_tensor(meant: Tensor, seen: Tensor) -> Iterator[str]:
    if meant.datatype is not seen.datatype:
        yield _wrong(f"'{meant.name}' is {seen.datatype.value} and was {meant.datatype.value}")
    elif bytes(meant.data) != bytes(seen.data):
        if meant.datatype in FLOATS and _only_nans_differ(meant, seen):
            yield "payloads of NaNs are lost: every NaN is the same"
        else:
            yield _wrong(f"other values in '{meant.name}'")
    elif meant.shape != seen.shape:
        yield f"the shape {list(meant.shape)} comes as {list(seen.shape)}"


def _only_nans_differ(meant: Tensor, seen: Tensor) -> bool:
    if len(meant.data) != len(seen.data):
        return False
    return bool(np.array_equal(meant.numpy(), seen.numpy(), equal_nan=True))


def _of_outputs(
    meant: Sequence[RequestedOutput], seen: Sequence[RequestedOutput], inputs: Sequence[Tensor]
) -> Iterator[str]:
    if any(output.parameters for output in meant):
        if not any(output.parameters for output in seen):
            yield "infergate picks the classes from the server's values"
        return
    wanted, asked = ({output.name for output in each} for each in (meant, seen))
    if asked == wanted or (not wanted and len(asked) == len(inputs)):
        return  # those, or all of them by their names
    if asked > wanted or not asked:
        yield "all outputs are asked for, and infergate picks"
    else:
        yield _wrong(f"outputs {sorted(asked)} are asked for, and {sorted(wanted)} were")


def _lost(note: str, instead: str) -> str:
    return _wrong(f"{note}: {instead!r}") if instead else note


def _wrong(what: str) -> str:
    return f"{Mark.WRONG.value} {what}"
