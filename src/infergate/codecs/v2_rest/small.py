"""A fast reader for short inference requests without unusual features.

``json_document`` and ``tensors`` are made for long JSON: their fixed costs are several times those
of parsing a body of a hundred bytes (docs/decisions/0016-small-json-reader.md).

*Rule 1.* This reader rejects nothing. It leaves invalid or merely rare input to the full reader,
which parses the body again or reports the error. Input that this reader accepts, the full reader
reads the same way.
*Rule 2.* A dictionary keeps only the last of two members with the same name. Every member has a
colon, so there are no duplicates if the text has as many colons as there are members and colons
inside strings.
*Rule 3.* orjson parses integers over 64 bits as floats. In parameters, where the two differ, a
float that may have been such an integer is left to the full reader.
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
"""Maximum size in bytes of a body that is read here."""
_MOST: Final = 2**63
_RARE: Final = frozenset({REGION, CLASSES, BINARY_SIZE})
"""Parameters that change the meaning of other parts of a message."""
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


class Told(NamedTuple):
    """The fields of a request's JSON. ``binary_by_output`` and ``binary_by_default`` say whether
    outputs are wanted as binary data: single outputs (absent if not given), and all others (None if
    not given)."""

    id: str
    parameters: Parameters
    inputs: tuple[Tensor, ...]
    outputs: tuple[RequestedOutput, ...]
    binary: dict[str, bool]
    otherwise: bool | None


class _UnusualError(Exception):
    """The full reader must read the body (Rule 1)."""


def read_small(body: Buffer, limits: Limits) -> Told | None:
    """Read ``body``, which is only JSON. Returns None if the full reader must read it."""
    if len(body) > LONGEST or len(body) > limits.json:
        return None
    text = bytes(body)
    try:
        return _read(text, orjson.loads(text), limits)
    except (_UnusualError, KeyError, ValueError):
        return None


def _read(text: bytes, top: Any, limits: Limits) -> Told:
    """Read the fields. Each function called here checks all members of its object or raises."""
    if type(top) is not dict:
        raise _UnusualError
    inputs: dict[str, Tensor] = {}
    input_items = _array(top["inputs"], limits.tensors)
    expected_members = 1
    member_count = len(top)
    for item in input_items:
        tensor = _tensor(item, limits)
        inputs[tensor.name] = tensor
        member_count += len(item) + len(tensor.parameters)
    if len(inputs) < len(input_items):
        raise _UnusualError
    identity = ""
    if "id" in top:
        expected_members += 1
        identity = top["id"]
        if type(identity) is not str:
            raise _UnusualError
    parameters: Parameters = NO_PARAMETERS
    binary_by_default: bool | None = None
    if "parameters" in top:
        expected_members += 1
        parameters = _parameters(top["parameters"])
        member_count += len(parameters)
        binary_by_default, parameters = _flag(parameters, BINARY_OUTPUT)
    outputs: dict[str, RequestedOutput] = {}
    binary_by_output: dict[str, bool] = {}
    if "outputs" in top:
        expected_members += 1
        member_count += _read_outputs(
            _array(top["outputs"], limits.tensors), outputs, binary_by_output
        )
    if (
        expected_members != len(top)
        or (outputs and binary_by_default is not None)
        or _repeats(text, member_count, top)
    ):
        raise _UnusualError
    return Told(
        identity,
        parameters,
        tuple(inputs.values()),
        tuple(outputs.values()),
        binary_by_output,
        binary_by_default,
    )


def _repeats(text: bytes, members: int, top: Any) -> bool:
    """Whether an object may have a duplicate name (Rule 2). ``members`` is the number of members of
    all objects."""
    colons = text.count(b":")
    # an escaped colon in a string is not a colon in the text
    return colons != members and (b"\\" in text or colons != members + _colons(top))


def _colons(top: Any) -> int:
    """Count the colons in all strings."""
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
    name, datatype_name, shape, data = item["name"], item["datatype"], item["shape"], item["data"]
    if not (
        type(name) is type(datatype_name) is str and type(data) is type(shape) is list and name
    ):
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
    packed = read_few(datatype_name, count, data)
    if packed is None or len(shape) > limits.rank:
        raise _UnusualError
    if parameters and datatype_name == "BYTES" and CONTENT_TYPE in parameters:
        raise _UnusualError
    return Tensor(name, packed[0], tuple(shape), packed[1], parameters)


def _read_outputs(
    listed: list[Any], outputs: dict[str, RequestedOutput], binary: dict[str, bool]
) -> int:
    """Add the requested outputs in ``items``. Returns the number of members of their objects."""
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
    """Check that the parameters are flat and hold no special ones."""
    if type(held) is not dict or not _RARE.isdisjoint(held):
        raise _UnusualError
    for value in held.values():
        kind = type(value)
        if kind not in _SCALARS or (kind is float and not -_MOST < value < _MOST):  # Rule 3
            raise _UnusualError
    return held


def _flag(held: Parameters, key: str) -> tuple[bool | None, Parameters]:
    """Return the boolean ``key`` (None if absent) and the other parameters."""
    if key not in held:
        return None, held
    value = held[key]
    if type(value) is not bool:
        raise _UnusualError
    return value, {name: parameter for name, parameter in held.items() if name != key}
