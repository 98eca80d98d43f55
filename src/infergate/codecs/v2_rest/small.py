"""A short inference request read in one go, where nothing about it is unusual.

*Why.* ``document`` and ``tensors`` are made for long JSON: their fixed costs are several times
those of a body of a hundred bytes (docs/decisions/0016-small-json.md).
*Rule 1.* This reader refuses nothing. What it is not sure of, wrong or merely rare, it leaves to
the long way, which reads it again or says what is wrong. What it reads, that way reads the same.
*Rule 2.* A dictionary keeps the last of two members of one name. Every member has a colon, so there
are no two where the text has as many colons as there are members, and colons inside strings.
*Rule 3.* orjson makes floats of integers over 64 bits. In parameters, where the two differ, a float
that may have been one is left to the long way.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import orjson

from infergate.codecs.v2_rest.elements import CONTENT_TYPE
from infergate.codecs.v2_rest.few import read_few
from infergate.codecs.v2_rest.tensors import BINARY, BINARY_OUTPUT, BINARY_SIZE
from infergate.core.classification import PARAMETER as CLASSES
from infergate.core.limits import KIB, Limits
from infergate.core.messages import RequestedOutput
from infergate.core.names import tensor_name_problem
from infergate.core.places import REGION
from infergate.core.tensor import NO_PARAMETERS, Buffer, Parameters, Tensor

LONGEST: Final = 4 * KIB
"""Bytes of a body that is read here."""
_MOST: Final = 2**63
_RARE: Final = frozenset({REGION, CLASSES, BINARY_SIZE})
"""Parameters that change what the rest of a message means."""
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


class Told(NamedTuple):
    """What the JSON of a request tells. ``binary`` of single outputs, ``otherwise`` of the rest:
    whether they are to be binary; not there, or None, where it does not tell."""

    id: str
    parameters: Parameters
    inputs: tuple[Tensor, ...]
    outputs: tuple[RequestedOutput, ...]
    binary: dict[str, bool]
    otherwise: bool | None


class _UnusualError(Exception):
    """Rule 1."""


def read_small(body: Buffer, limits: Limits) -> Told | None:
    """What ``body``, JSON and nothing else, tells. None: it must be read the long way."""
    if len(body) > LONGEST or len(body) > limits.json:
        return None
    text = bytes(body)
    try:
        return _read(text, orjson.loads(text), limits)
    except (_UnusualError, KeyError, ValueError):
        return None


def _read(text: bytes, top: Any, limits: Limits) -> Told:
    """Each function below that reads an object has looked at all of its members, or raises."""
    if type(top) is not dict:
        raise _UnusualError
    inputs: dict[str, Tensor] = {}
    listed = _array(top["inputs"], limits.tensors)
    known = 1
    members = len(top)
    for item in listed:
        tensor = _tensor(item, limits)
        inputs[tensor.name] = tensor
        members += len(item) + len(tensor.parameters)
    if len(inputs) < len(listed):
        raise _UnusualError
    identity = ""
    if "id" in top:
        known += 1
        identity = top["id"]
        if type(identity) is not str:
            raise _UnusualError
    parameters: Parameters = NO_PARAMETERS
    otherwise: bool | None = None
    if "parameters" in top:
        known += 1
        parameters = _parameters(top["parameters"])
        members += len(parameters)
        otherwise, parameters = _flag(parameters, BINARY_OUTPUT)
    outputs: dict[str, RequestedOutput] = {}
    binary: dict[str, bool] = {}
    if "outputs" in top:
        known += 1
        members += _read_outputs(_array(top["outputs"], limits.tensors), outputs, binary)
    if known != len(top) or (outputs and otherwise is not None) or _repeats(text, members, top):
        raise _UnusualError
    return Told(
        identity, parameters, tuple(inputs.values()), tuple(outputs.values()), binary, otherwise
    )


def _repeats(text: bytes, members: int, top: Any) -> bool:
    """Whether an object may have a name twice (Rule 2). ``members`` are those of all of them."""
    colons = text.count(b":")
    # with escapes, a colon in a string need not be one in the text
    return colons != members and (b"\\" in text or colons != members + _colons(top))


def _colons(top: Any) -> int:
    """Colons in all strings."""
    count = 0
    pending: list[Any] = [top]
    while pending:
        value = pending.pop()
        if type(value) is str:
            count += value.count(":")
        elif type(value) is list:
            pending += value
        elif type(value) is dict:
            pending += value
            pending += value.values()
    return count


def _array(value: Any, most: int) -> list[Any]:
    if type(value) is not list or len(value) > most:
        raise _UnusualError
    return value


def _tensor(item: Any, limits: Limits) -> Tensor:
    if type(item) is not dict:
        raise _UnusualError
    name, spelt, shape, data = item["name"], item["datatype"], item["shape"], item["data"]
    if not (type(name) is type(spelt) is str and type(data) is type(shape) is list and name):
        raise _UnusualError
    if tensor_name_problem(name):
        raise _UnusualError
    parameters: Parameters = NO_PARAMETERS
    if len(item) > 4:
        parameters = _parameters(item["parameters"])
        if len(item) > 5:
            raise _UnusualError
    count = 1
    for dimension in shape:
        if type(dimension) is not int or not 0 <= dimension < _MOST:
            raise _UnusualError
        count *= dimension
    few = read_few(spelt, count, data)
    if few is None or len(shape) > limits.rank:
        raise _UnusualError
    if parameters and spelt == "BYTES" and CONTENT_TYPE in parameters:
        raise _UnusualError
    return Tensor(name, few[0], tuple(shape), few[1], parameters)


def _read_outputs(
    listed: list[Any], outputs: dict[str, RequestedOutput], binary: dict[str, bool]
) -> int:
    """Add the outputs that are ``listed``. How many members their objects have."""
    members = 0
    for item in listed:
        if type(item) is not dict:
            raise _UnusualError
        name = item["name"]
        if type(name) is not str or not name or name in outputs or tensor_name_problem(name):
            raise _UnusualError
        parameters: Parameters = NO_PARAMETERS
        if len(item) > 1:
            parameters = _parameters(item["parameters"])
            members += len(parameters)
            flag, parameters = _flag(parameters, BINARY)
            if flag is not None:
                binary[name] = flag
            if len(item) > 2:
                raise _UnusualError
        outputs[name] = RequestedOutput(name, parameters)
        members += len(item)
    return members


def _parameters(held: Any) -> Parameters:
    """Flat parameters, none of them ``_RARE``."""
    if type(held) is not dict or not _RARE.isdisjoint(held):
        raise _UnusualError
    for value in held.values():
        kind = type(value)
        if kind not in _SCALARS or (kind is float and not -_MOST < value < _MOST):  # Rule 3
            raise _UnusualError
    return held


def _flag(held: Parameters, key: str) -> tuple[bool | None, Parameters]:
    """The boolean ``key``, None where it is not told, and the rest."""
    if key not in held:
        return None, held
    value = held[key]
    if type(value) is not bool:
        raise _UnusualError
    return value, {name: each for name, each in held.items() if name != key}
