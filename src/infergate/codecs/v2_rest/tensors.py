"""Reads and writes the parts that requests and responses have in common: tensors, parameters, and
binary data.

The parameters ``binary_data_size``, ``binary_data`` and ``binary_data_output``, and for BYTES
``content_type: base64``, describe the format of a message and are not passed to other protocols.
Canonical parameters from KServe's responses over gRPC may contain the first three parameters, which
``write_parameters`` drops."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from infergate.codecs.json_tensors.json_data import (
    BASE64_PARAMETERS,
    CONTENT_TYPE,
    DataRules,
    decode_base64,
    decode_element,
    is_base64,
    read_data,
    write_base64,
    write_numbers,
    write_strings,
)
from infergate.codecs.json_tensors.json_document import (
    Node,
    abbreviated,
    check_json_size,
    check_text_length,
    drop_nulls,
    is_array,
    json_kind,
    read_items,
    read_nullable_members,
    read_plain_object,
    read_string,
)
from infergate.codecs.v2_rest.wire_features import WireFeature, features_of
from infergate.core.datatypes import DATATYPES_BY_NAME, Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits, check_loop_cost
from infergate.core.name_rules import check_tensor_name
from infergate.core.records import record
from infergate.core.region_ref import (
    RegionRef,
    parse_region_ref,
    region_parameters,
    without_region_parameters,
    written_region,
)
from infergate.core.tensor import (
    NO_PARAMETERS,
    Buffer,
    Parameters,
    Tensor,
    add_bytes_elements,
    check_data,
    check_shape,
)

JSON_LENGTH_HEADER: Final = "inference-header-content-length"
BINARY_TYPE: Final = "application/octet-stream"
BINARY_DATA_SIZE: Final = "binary_data_size"
BINARY_DATA: Final = "binary_data"
BINARY_DATA_OUTPUT: Final = "binary_data_output"
_BINARY_PARAMETERS: Final = frozenset({BINARY_DATA_SIZE, BINARY_DATA, BINARY_DATA_OUTPUT})
_TENSOR_FIELDS: Final = ("name", "datatype", "shape", "parameters", "data")
MAX_TENSORS_ON_LOOP: Final = 256
"""Maximum number of tensors that the event loop reads. Reading a tensor takes up to 50 µs."""
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
_DATATYPE_NAMES: Final = ", ".join(DATATYPES_BY_NAME)
MAX_PARAMETER_VALUES: Final = 1 << 14
"""Maximum number of values in all parameters of a message. Each value becomes several objects."""


# ---- the body: JSON, then binary tensor data ----------------------------------------------------


@record
class MessageBody:
    """A message's JSON and the binary data after the JSON. If the message has no header
    Inference-Header-Content-Length (the length header), the binary data is None."""

    json: bytes
    binary: memoryview | None


def split_body(headers: Mapping[str, str], body: Buffer, limits: Limits) -> MessageBody:
    """Split ``body`` by the length header. Raises BAD_REQUEST and TOO_LARGE."""
    header = headers.get(JSON_LENGTH_HEADER)
    return split_at(None if header is None else parse_json_length(header), body, limits)


def split_at(length: int | None, body: Buffer, limits: Limits) -> MessageBody:
    """Split ``body`` after ``length`` bytes of JSON. None means that there is no length header.
    Raises BAD_REQUEST and TOO_LARGE."""
    if length is None:
        check_json_size(len(body), limits.json)
        return MessageBody(body if isinstance(body, bytes) else bytes(body), None)
    check_json_length(length, body)
    check_json_size(length, limits.json)
    view = memoryview(body)
    return MessageBody(bytes(view[:length]), view[length:])


def check_json_length(length: int, body: Buffer) -> None:
    """Raise BAD_REQUEST if ``body`` is shorter than its JSON according to the length header."""
    if length > len(body):
        raise bad_request(
            f"Inference-Header-Content-Length is {length}, but the body has {len(body)} bytes"
        )


def parse_json_length(header: str) -> int:
    """Parse the value of the length header. Raises BAD_REQUEST."""
    if not _DIGITS.fullmatch(header.strip()):
        raise bad_request(
            f"Inference-Header-Content-Length is '{abbreviated(header)}', not a number of bytes"
        )
    return int(header)


# ---- reading ------------------------------------------------------------------------------------


class BinaryDataReader:
    """Reads the binary data of one tensor after another."""

    def __init__(self, binary: memoryview | None) -> None:
        self._binary: Final = binary
        self._position = 0
        self.count = 0
        """The number of tensors that were read."""

    def take(self, name: str, size: int) -> Buffer:
        """Return the next ``size`` bytes. Raises BAD_REQUEST if fewer bytes are left or the
        message has no length header."""
        if self._binary is None:
            raise bad_request(
                f"tensor '{name}': {BINARY_DATA_SIZE} needs the header "
                "Inference-Header-Content-Length"
            )
        left = len(self._binary) - self._position
        if size > left:
            raise bad_request(
                f"tensor '{name}': {BINARY_DATA_SIZE} is {size}, but {left} bytes are left"
            )
        self._position += size
        self.count += 1
        return self._binary[self._position - size : self._position]

    def check_consumed(self) -> None:
        """Raise BAD_REQUEST if unread bytes are left."""
        left = len(self._binary) - self._position if self._binary is not None else 0
        if left:
            raise bad_request(f"{left} bytes follow the last tensor's binary data")


def read_tensors(node: Node, path: str, reader: TensorReader) -> tuple[Tensor, ...]:
    """Read an array of tensors with unique names."""
    tensors: dict[str, Tensor] = {}
    nodes = read_items(node, path, reader.limits.tensors)
    check_loop_cost(reader.limits, len(nodes), MAX_TENSORS_ON_LOOP)
    for index, item in enumerate(nodes):
        tensor = _read_tensor(item, f"{path}[{index}]", reader)
        if tensor.name in tensors:
            raise bad_request(f"{path} has '{abbreviated(tensor.name)}' twice")
        tensors[tensor.name] = tensor
    return tuple(tensors.values())


@dataclass(slots=True)
class TensorReader:
    """The state of reading the tensors of one message. It counts BYTES elements, and the values and
    text characters of parameters."""

    rules: DataRules
    binary_data: BinaryDataReader
    limits: Limits
    regions: Mapping[str, RegionRef | None] | None = None
    """The regions requested for the outputs of a response, by output name. None for a request."""
    features: set[WireFeature] = field(default_factory=set)
    bytes_elements: int = 0
    parameter_values: int = 0
    text_characters: int = 0

    def read_members(self, node: Node, path: str, names: Iterable[str]) -> dict[str, Node]:
        """Return the members in ``names`` that are not null. If any member in ``names`` is null,
        record the feature NULL."""
        nullable = read_nullable_members(node, path, names)
        members = drop_nulls(nullable)
        if len(members) < len(nullable):
            self.features.add(WireFeature.NULL)
        return members


def _read_tensor(node: Node, path: str, reader: TensorReader) -> Tensor:
    """Read and validate one tensor. Raises BAD_REQUEST with the name of the field or tensor."""
    members = reader.read_members(node, path, _TENSOR_FIELDS)
    name, datatype, shape = _read_description(members, path, reader)
    parameters: Parameters = read_parameters(members, path, reader)
    region, parameters = _read_region(name, datatype, shape, parameters, reader)
    if region is not None:
        if "data" in members or BINARY_DATA_SIZE in parameters:
            raise bad_request(
                f"tensor '{abbreviated(name)}' has both data and a shared memory region"
            )
        return Tensor(name, datatype, shape, b"", parameters, region)
    if BINARY_DATA_SIZE in parameters:
        size = parameters[BINARY_DATA_SIZE]
        if type(size) is not int or size < 0:
            raise bad_request(
                f"tensor '{name}': {BINARY_DATA_SIZE} is {abbreviated(size)}, not a number of bytes"
            )
        if "data" in members:
            raise bad_request(f"tensor '{name}' has both data and {BINARY_DATA_SIZE}")
        parameters = {key: value for key, value in parameters.items() if key != BINARY_DATA_SIZE}
        data = reader.binary_data.take(name, size)
        check_data(name, datatype, shape, data)
    elif "data" in members:
        data = _read_data(name, datatype, shape, members["data"], reader.rules)
        if not is_array(members["data"]):
            reader.features.add(WireFeature.SCALAR_DATA)
        if datatype is Datatype.BYTES and parameters and is_base64(parameters):
            data = decode_base64(name, data)
            parameters = {key: value for key, value in parameters.items() if key != CONTENT_TYPE}
            reader.features.add(WireFeature.BASE64)
        reader.features.update(features_of(datatype, data))
    else:
        data = _absent_data(name, shape, reader)
    return Tensor(name, datatype, shape, data, parameters)


def _read_description(
    members: Mapping[str, Node], path: str, reader: TensorReader
) -> tuple[str, Datatype, tuple[int, ...]]:
    name = read_tensor_name(members, path)
    datatype_name = read_string(_required_member(members, "datatype", path), f"{path}.datatype")
    # The datatypes in the responses of some servers are in lower case.
    canonical_name = datatype_name if reader.regions is None else datatype_name.upper()
    datatype = DATATYPES_BY_NAME.get(canonical_name)
    if datatype is None:
        raise bad_request(
            f"tensor '{abbreviated(name)}': unknown datatype '{abbreviated(datatype_name)}' "
            f"(known: {_DATATYPE_NAMES})"
        )
    dimensions = read_items(
        _required_member(members, "shape", path), f"{path}.shape", reader.limits.rank, "rank"
    )
    for dimension in dimensions:
        if type(dimension) is not int:
            raise bad_request(f"{path}.shape must hold integers, not {json_kind(dimension)}")
    shape = check_shape(name, dimensions, reader.limits)
    if datatype is Datatype.BYTES:
        reader.bytes_elements = add_bytes_elements(
            name, shape, reader.bytes_elements, reader.limits
        )
    return name, datatype, shape


def _absent_data(name: str, shape: tuple[int, ...], reader: TensorReader) -> Buffer:
    """Return the empty data of a tensor that has neither data nor a size. Only a response may have
    such a tensor, and only without elements."""
    if reader.regions is None:
        raise bad_request(f"tensor '{abbreviated(name)}' has neither data nor {BINARY_DATA_SIZE}")
    if math.prod(shape):
        raise bad_request(f"tensor '{name}' has no data")
    return b""


def _read_region(
    name: str,
    datatype: Datatype,
    shape: tuple[int, ...],
    parameters: Parameters,
    reader: TensorReader,
) -> tuple[RegionRef | None, Parameters]:
    """Return the tensor's region, and its parameters without the parameters of the region."""
    if reader.regions is None:
        region, parameters = parse_region_ref(parameters, f"tensor '{abbreviated(name)}'")
        if region is not None:
            reader.features.add(WireFeature.SHARED_MEMORY)
        return region, parameters
    region = reader.regions.get(name)
    if region is None:
        return None, parameters
    return written_region(region, datatype, shape), without_region_parameters(parameters)


def _read_data(
    name: str, datatype: Datatype, shape: tuple[int, ...], node: Node, rules: DataRules
) -> Buffer:
    if type(node) is str and datatype is Datatype.UINT8 and rules.allows_packed_uint8:
        data = decode_element(node)
        if data is None:
            raise bad_request(f"tensor '{name}': the data string is not base64")
        check_data(name, datatype, shape, data)
        return data
    return read_data(name, datatype, shape, node, rules)


def read_parameters(members: Mapping[str, Node], path: str, reader: TensorReader) -> Parameters:
    """Read the ``parameters`` of an object. Raises BAD_REQUEST and TOO_LARGE."""
    if "parameters" not in members:
        return NO_PARAMETERS
    parameters_path = f"{path}.parameters" if path else "parameters"
    parameters = read_plain_object(members["parameters"], parameters_path)
    values, characters = count_values(parameters)
    reader.parameter_values += values
    reader.text_characters += characters
    if reader.parameter_values > MAX_PARAMETER_VALUES:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"{parameters_path}: the message's parameters exceed {MAX_PARAMETER_VALUES} values",
        )
    check_text_length(reader.text_characters, parameters_path)
    return parameters


def pop_flag(parameters: Parameters, key: str, path: str) -> tuple[bool | None, Parameters]:
    """Return the boolean ``key``, or None if it is absent, and the other parameters. Raises
    BAD_REQUEST."""
    if key not in parameters:
        return None, parameters
    value = parameters[key]
    if not isinstance(value, bool):
        raise bad_request(f"{path}.{key} must be a boolean, not {json_kind(value)}")
    return value, {name: parameter for name, parameter in parameters.items() if name != key}


def count_values(parameters: Any) -> tuple[int, int]:
    """Return the numbers of values and of characters in ``parameters``, at all depths."""
    count = characters = 0
    pending = [parameters]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            characters += sum(map(len, value))
            value = value.values()
        count += len(value)
        for item in value:
            item_type = type(item)
            if item_type is str:
                characters += len(item)
            elif item_type in _CONTAINER_TYPES:
                pending.append(item)
    return count, characters


_CONTAINER_TYPES: Final = frozenset({dict, list})


def read_tensor_name(members: Mapping[str, Node], path: str) -> str:
    """Read a tensor's ``name``, which must not be empty."""
    name = read_string(_required_member(members, "name", path), f"{path}.name")
    if not name:
        raise bad_request(f"{path}.name is empty")
    check_tensor_name(name, path)
    return name


def _required_member(members: Mapping[str, Node], key: str, path: str) -> Node:
    if key not in members:
        raise bad_request(f"{path}.{key} is missing")
    return members[key]


# ---- writing ------------------------------------------------------------------------------------


def write_tensor(tensor: Tensor, wire_parameters: Parameters) -> dict[str, Any]:
    """Return the JSON object of ``tensor`` without its data, in Triton's order of members.

    The object has the tensor's parameters and ``wire_parameters``. For a tensor in shared memory,
    the parameters of the region replace ``wire_parameters``."""
    members: dict[str, Any] = {
        "name": tensor.name,
        "datatype": tensor.datatype.v2_name,
        "shape": tensor.shape,
    }
    if tensor.shared_memory is not None:
        wire_parameters = region_parameters(tensor.shared_memory)
    if tensor.parameters or wire_parameters:
        parameters = {**write_parameters(tensor.parameters, tensor.name), **wire_parameters}
        if parameters:
            members["parameters"] = parameters
    return members


def write_json_tensor(
    tensor: Tensor, spelling: tuple[bytes, bytes, bytes], *, allows_base64: bool = True
) -> dict[str, Any]:
    """Return the JSON object of ``tensor`` with its data. ``spelling`` is the JSON of NaN, infinity
    and negative infinity. Raises UNSUPPORTED for BYTES that only base64 could express if the reader
    does not accept base64."""
    wire_parameters = NO_PARAMETERS
    data: Any
    if tensor.datatype is not Datatype.BYTES:
        data = write_numbers(tensor, spelling)
        if not tensor.parameters:
            return {
                "name": tensor.name,
                "datatype": tensor.datatype.v2_name,
                "shape": tensor.shape,
                "data": data,
            }
    elif (data := write_strings(tensor)) is None:
        if not allows_base64:
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"tensor '{tensor.name}': BYTES that are not UTF-8 cannot be expressed in JSON, "
                "and this server accepts no binary data",
            )
        wire_parameters, data = BASE64_PARAMETERS, write_base64(tensor)
    return {**write_tensor(tensor, wire_parameters), "data": data}


def write_parameters(values: Parameters, owner: str) -> dict[str, Any]:
    """Return ``values`` for orjson, without binary data parameters. Raises UNSUPPORTED."""
    return {
        key: _json_value(value, f"{owner}: parameter '{key}'")
        for key, value in values.items()
        if key not in _BINARY_PARAMETERS
    }


def _json_value(value: Any, label: str) -> Any:
    match value:
        case None | str() | bool():
            return value
        case int():
            return value if -(2**63) <= value < 2**64 else orjson.Fragment(str(value).encode())
        case float() if math.isfinite(value):
            return value
        case list() | tuple():
            return [_json_value(item, label) for item in value]
        case Mapping():
            return {key: _json_value(item, label) for key, item in value.items()}
        case _:
            actual = str(value) if isinstance(value, float) else type(value).__name__
            raise GatewayError(Kind.UNSUPPORTED, f"{label} is {actual}, which JSON cannot express")


def encode_json(document: Any) -> bytes:
    """Encode ``document`` as JSON. Raises UNSUPPORTED."""
    try:
        return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise GatewayError(Kind.UNSUPPORTED, f"JSON cannot express this message: {error}") from None
