"""A fast reader for short inference requests (docs/decisions/0016-small-json-reader.md).

*Rule 1.* This reader never rejects input. It leaves invalid and rare input to the full reader. For
all other input, both readers return the same result.

*Rule 2.* If an object has two members with the same name, orjson drops the first member. Every
member has a colon, so no member is lost if the number of colons in the text is the number of
members plus the number of colons inside strings.

*Rule 3.* orjson parses integers over 64 bits as floats. In parameters, integers and floats have
different meanings, so a float that may have been such an integer is left to the full reader.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import orjson

from infergate.codecs.json_tensors.json_data import CONTENT_TYPE
from infergate.codecs.json_tensors.small_data import read_small_data
from infergate.codecs.v2_rest.tensors import (
    BINARY_DATA,
    BINARY_DATA_OUTPUT,
    BINARY_DATA_SIZE,
    pop_flag,
)
from infergate.core.classification import CLASSIFICATION as CLASSES
from infergate.core.errors import GatewayError
from infergate.core.limits import KIB, Limits
from infergate.core.messages import RequestedOutput
from infergate.core.name_rules import find_tensor_name_problem
from infergate.core.region_ref import REGION_PARAMETER
from infergate.core.tensor import NO_PARAMETERS, Buffer, Parameters, Tensor

MAX_BYTES: Final = 4 * KIB
"""Maximum size in bytes of a body that this reader accepts."""
_INT64_END: Final = 2**63
_MAX_SHORT_NAME: Final = 64
"""Maximum length of a printable tensor name that needs no further check."""
_SPECIAL_PARAMETERS: Final = frozenset({REGION_PARAMETER, CLASSES, BINARY_DATA_SIZE})
"""Parameters that change the meaning of other parts of a message."""
_SCALAR_TYPES: Final = frozenset({str, int, float, bool, type(None)})


class RequestFields(NamedTuple):
    """The fields of a request's JSON. ``binary_by_output`` states which outputs are requested as
    binary data or as JSON. ``binary_by_default`` applies to all other outputs, and is None if the
    request does not set a default."""

    id: str
    parameters: Parameters
    inputs: tuple[Tensor, ...]
    outputs: tuple[RequestedOutput, ...]
    binary_by_output: dict[str, bool]
    binary_by_default: bool | None


_new_tuple: Final = tuple.__new__
"""Creates ``RequestFields`` at a third of the cost of calling the class."""


class _NotSimpleError(Exception):
    """Raised if the full reader must read the body."""


def read_small(body: Buffer, limits: Limits) -> RequestFields | None:
    """Read ``body``, which consists only of JSON. Return None if the full reader must read it."""
    if len(body) > MAX_BYTES or len(body) > limits.json:
        return None
    text = bytes(body)
    try:
        return _read(text, orjson.loads(text), limits)
    except (_NotSimpleError, GatewayError, KeyError, ValueError):
        return None


def _read(text: bytes, document: Any, limits: Limits) -> RequestFields:
    if type(document) is not dict:
        raise _NotSimpleError
    inputs: dict[str, Tensor] = {}
    input_items = _check_array(document["inputs"], limits.tensors)
    expected_members = 1
    member_count = len(document)
    for item in input_items:
        tensor = _read_tensor(item, limits)
        inputs[tensor.name] = tensor
        member_count += len(item) + len(tensor.parameters)
    if len(inputs) < len(input_items):
        raise _NotSimpleError
    request_id: Any = ""
    if "id" in document:
        expected_members += 1
        request_id = document["id"]
        if type(request_id) is not str:
            raise _NotSimpleError
    parameters: Parameters = NO_PARAMETERS
    binary_by_default: bool | None = None
    if "parameters" in document:
        expected_members += 1
        parameters = _check_parameters(document["parameters"])
        member_count += len(parameters)
        binary_by_default, parameters = pop_flag(parameters, BINARY_DATA_OUTPUT, "parameters")
    outputs: dict[str, RequestedOutput] = {}
    binary_by_output: dict[str, bool] = {}
    if "outputs" in document:
        expected_members += 1
        member_count += _read_outputs(
            _check_array(document["outputs"], limits.tensors), outputs, binary_by_output
        )
    if (
        expected_members != len(document)
        or (outputs and binary_by_default is not None)
        or (text.count(b":") != member_count and _may_have_duplicates(text, member_count, document))
    ):
        raise _NotSimpleError
    return _new_tuple(
        RequestFields,
        (
            request_id,
            parameters,
            tuple(inputs.values()),
            tuple(outputs.values()),
            binary_by_output,
            binary_by_default,
        ),
    )


def _may_have_duplicates(text: bytes, members: int, document: Any) -> bool:
    """Return whether any object may have a duplicate name (Rule 2). ``members`` is the number of
    all members, which must differ from the number of colons in ``text``."""
    # With escapes, a string may have colons that the text does not have.
    return b"\\" in text or text.count(b":") != members + _count_string_colons(document)


def _count_string_colons(document: Any) -> int:
    count = 0
    pending: list[Any] = [document]
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


def _check_array(value: Any, max_items: int) -> list[Any]:
    if type(value) is not list or len(value) > max_items:
        raise _NotSimpleError
    return value


def _read_tensor(item: Any, limits: Limits) -> Tensor:
    if type(item) is not dict:
        raise _NotSimpleError
    name, datatype_name, shape, data = item["name"], item["datatype"], item["shape"], item["data"]
    if not (
        type(name) is type(datatype_name) is str and type(data) is type(shape) is list and name
    ):
        raise _NotSimpleError
    if not (len(name) <= _MAX_SHORT_NAME and name.isprintable()) and find_tensor_name_problem(name):
        raise _NotSimpleError
    parameters: Parameters = NO_PARAMETERS
    if len(item) > 4:
        parameters = _check_parameters(item["parameters"])
        if len(item) > 5:
            raise _NotSimpleError
    count = 1
    for dimension in shape:
        if type(dimension) is not int or not 0 <= dimension < _INT64_END:
            raise _NotSimpleError
        count *= dimension
    packed = read_small_data(datatype_name, count, data)
    if packed is None or len(shape) > limits.rank:
        raise _NotSimpleError
    if parameters and datatype_name == "BYTES" and CONTENT_TYPE in parameters:
        raise _NotSimpleError
    return Tensor(name, packed[0], tuple(shape), packed[1], parameters)


def _read_outputs(
    items: list[Any], outputs: dict[str, RequestedOutput], binary_by_output: dict[str, bool]
) -> int:
    """Add the requested outputs in ``items`` to ``outputs`` and ``binary_by_output``, and return
    the number of members in ``items``."""
    members = 0
    for item in items:
        if type(item) is not dict:
            raise _NotSimpleError
        name = item["name"]
        if type(name) is not str or not name or name in outputs or find_tensor_name_problem(name):
            raise _NotSimpleError
        parameters: Parameters = NO_PARAMETERS
        if len(item) > 1:
            parameters = _check_parameters(item["parameters"])
            members += len(parameters)
            flag, parameters = pop_flag(parameters, BINARY_DATA, name)
            if flag is not None:
                binary_by_output[name] = flag
            if len(item) > 2:
                raise _NotSimpleError
        outputs[name] = RequestedOutput(name, parameters)
        members += len(item)
    return members


def _check_parameters(parameters: Any) -> Parameters:
    """Return ``parameters``. Raises _NotSimpleError if the full reader must read them."""
    if type(parameters) is not dict or not _SPECIAL_PARAMETERS.isdisjoint(parameters):
        raise _NotSimpleError
    for value in parameters.values():
        kind = type(value)
        if kind not in _SCALAR_TYPES:
            raise _NotSimpleError
        if kind is float and not -_INT64_END < value < _INT64_END:  # Rule 3
            raise _NotSimpleError
    return parameters
