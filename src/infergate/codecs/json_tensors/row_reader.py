"""Reads tensors from nested lists: ``instances``, one element per row of a batch, and ``inputs``,
one member per tensor.

The JSON states neither shapes nor datatypes. The caller takes the datatypes of the inputs from the
model's metadata. A datatype that is None is inferred from the values.

*Rule 1.* The first elements at all levels determine the shape. If one of these elements is an empty
list, the last dimension is 0. All other lists must match the shape. If the document's outline shows
that an array is rectangular, and all elements are numbers, simdjson copies the elements. All other
arrays are visited element by element.

*Rule 2.* Values are not coerced (Rule 1 of ``json_data``). A BYTES element may also be ``{"b64":
"…"}``.

*Rule 3.* Every error about a value names the tensor. If the rows are objects, the error also names
the row.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Final

import numpy as np
import simdjson

from infergate.codecs.json_tensors.json_data import (
    DataRules,
    convert_elements,
    copy_numbers,
    element_label,
)
from infergate.codecs.json_tensors.json_document import (
    MAX_CONTAINERS,
    MAX_CONTAINERS_ON_LOOP,
    Node,
    NonFiniteLiteral,
    ObjectMembers,
    abbreviated,
    is_array,
    json_kind,
    member_names,
)
from infergate.codecs.json_tensors.outline import Shape
from infergate.codecs.json_tensors.rounding import Array
from infergate.codecs.json_tensors.row_document import (
    JsonValue,
    OutlineCursor,
    is_object,
    read_members,
)
from infergate.core.datatypes import DATATYPES_BY_NAME, NUMPY_DTYPES, Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits, check_loop_cost
from infergate.core.messages import TensorMetadata
from infergate.core.tensor import (
    MAX_BYTES_ELEMENTS,
    Buffer,
    Tensor,
    add_bytes_elements,
    check_shape,
    pack_bytes,
)

RULES: Final = DataRules(
    unicode_errors="surrogateescape", allows_packed_uint8=False, allows_non_finite_text=False
)
"""The default rules. Bytes that are not UTF-8 are kept (``row_document``)."""
UNNAMED: Final = "input"
"""The name of a tensor that neither the JSON nor the caller names."""
_BASE64: Final = "b64"
_BASE64_TEXT: Final = re.compile(r"[A-Za-z0-9+/]*")
_LOOKUPS_PER_CONTAINER: Final = 1024
_MAX_SMALL_ROW: Final = 64
_INFERRED_NUMBERS: Final = (Datatype.INT64, Datatype.FP64)
_OBJECT_TYPES: Final = frozenset({simdjson.Object, ObjectMembers})
_ARRAY_TYPES: Final = frozenset({simdjson.Array, list})
_CONTAINER_TYPES: Final = _ARRAY_TYPES | _OBJECT_TYPES
_ITEMS_AT_ONCE: Final = 4096
"""Number of items that are read before the lists and objects among them are counted."""
_MIN_INT64, _MAX_INT64 = -(2**63), 2**63 - 1
_TYPES_OF_INFERRED: Final[tuple[tuple[Datatype, frozenset[type]], ...]] = (
    (Datatype.FP64, frozenset()),
    (Datatype.BOOL, frozenset({bool})),
    (Datatype.INT64, frozenset({int})),
    (Datatype.FP64, frozenset({int, float, NonFiniteLiteral})),
    (Datatype.BYTES, _OBJECT_TYPES | {str}),
)
"""The datatypes that can be inferred, with the types of their values. The inferred datatype is the
first that can hold all values."""

InputTypes = Mapping[str, Datatype | None]
"""The datatypes of a model's inputs by name. A datatype that is None is inferred from the values as
BOOL, INT64, FP64 or BYTES."""


def known_datatype(tensor: TensorMetadata) -> Datatype:
    """Return the datatype of ``tensor``. Raises UNSUPPORTED for an unknown datatype."""
    datatype = DATATYPES_BY_NAME.get(tensor.datatype)
    if datatype is None:
        raise GatewayError(
            Kind.UNSUPPORTED,
            f"tensor '{tensor.name}': the model's metadata has the unknown datatype "
            f"'{abbreviated(tensor.datatype)}'",
        )
    return datatype


def input_types(tensors: Sequence[TensorMetadata]) -> dict[str, Datatype]:
    """Return the datatypes of ``tensors``. Raises UNSUPPORTED for an unknown datatype."""
    return {tensor.name: known_datatype(tensor) for tensor in tensors}


_Values = tuple[Shape, Array | list[Node]]
"""The shape of a value, and its elements as an array or as JSON values."""


@dataclass(slots=True)
class _Column:
    """The values of a tensor, which are added row by row. ``parts`` are arrays and lists of JSON
    values. If the rows are objects, ``key`` is the name of the member that holds the rows, and
    ``shape`` is the shape of the tensor's value in each row."""

    name: str
    datatype: Datatype | None
    rules: DataRules
    key: str = ""
    shape: Shape | None = None
    parts: list[Array | list[Node]] = field(default_factory=list)

    def add(self, values: Array | list[Node]) -> None:
        last = self.parts[-1] if self.parts else None
        if isinstance(values, list) and isinstance(last, list):
            last += values
        else:
            self.parts.append(values)

    def infer_datatype(self) -> Datatype:
        """Return the datatype that is inferred from the values. Raises BAD_REQUEST."""
        types: set[type] = set()
        for part in self.parts:
            if isinstance(part, list):
                types.update(map(type, part))
                if any(type(item) is int and not _MIN_INT64 <= item <= _MAX_INT64 for item in part):
                    types.add(float)
            elif part.size:
                types.add(int if part.dtype.kind == "i" else float)
        for datatype, allowed in _TYPES_OF_INFERRED:
            if types <= allowed:
                return datatype
        kinds = ", ".join(sorted({kind.__name__ for kind in types}))
        raise bad_request(f"tensor '{self.name}' has values of different types ({kinds})")

    def data(self, datatype: Datatype) -> Buffer:
        """Return the canonical data. Raises BAD_REQUEST, which names the tensor and the element."""
        dtype = NUMPY_DTYPES.get(datatype)
        buffers: list[Buffer] = []
        count = 0
        for part in self.parts:
            if isinstance(part, list):
                buffers.append(self._convert(datatype, part, count))
            else:
                buffers.append(part.astype(dtype, copy=False).view(np.uint8).data)
            count += len(part)
        return buffers[0] if len(buffers) == 1 else b"".join(buffers)

    def _label(self, first: int, index: int) -> str:
        """Describe the element at ``first`` + ``index``, for error messages."""
        index += first
        if not self.key:
            return element_label(self.name, index)
        row, index = divmod(index, math.prod(self.shape or ()))
        return f"{self.key}[{row}]: {element_label(self.name, index)}"

    def _convert(self, datatype: Datatype, elements: list[Node], first: int) -> Buffer:
        label = partial(self._label, first)
        if datatype is not Datatype.BYTES or not any(map(is_object, elements)):
            return convert_elements(label, datatype, elements, self.rules)
        encoded = []
        for index, item in enumerate(elements):
            data = item.encode("utf-8", self.rules.unicode_errors) if type(item) is str else None
            if is_object(item):
                data = _decode_base64(item)
            if data is None:
                raise bad_request(
                    f"{label(index)} is {json_kind(item)}; BYTES takes "
                    'strings and {"b64": "…"} with base64'
                )
            encoded.append(data)
        return pack_bytes(encoded)


class RowReader:
    """Reads the tensors of one message.

    ``inputs`` are the inputs of the model, or None if they are unknown. If ``inputs`` is None, the
    JSON names the inputs, or the only input has the name :data:`UNNAMED`."""

    def __init__(self, inputs: InputTypes | None, limits: Limits, rules: DataRules = RULES) -> None:
        self._inputs: Final = inputs
        self._rules: Final = rules
        self._limits: Final = limits
        self._bytes_elements = 0
        self._containers = 0
        self._objects = 0

    # ---- rows

    def read_instances(self, value: JsonValue, key: str = "instances") -> tuple[Tensor, ...]:
        """Return the tensors of the rows in ``value``, a member named ``key``. The first dimension
        of each tensor is the number of rows. Raises BAD_REQUEST, TOO_LARGE, and NeedsOffloadError
        on the event loop."""
        node = value.node
        if not is_array(node):
            raise bad_request(f"Expecting '{key}' to be an list/array")
        if not len(node):
            raise bad_request(f"No values in '{key}' array")
        if is_object(node[0]) and _base64_text(node[0]) is None:
            return self._read_objects(value, key)
        name, datatype = self._only_input(f"{key} is a plain list, but expecting list of objects")
        return (self._read(name, datatype, value),)

    def _only_input(self, problem: str) -> tuple[str, Datatype | None]:
        if self._inputs is None:
            return UNNAMED, None
        if len(self._inputs) != 1:
            raise bad_request(
                f"{problem} as multiple input tensors required as per tensorinfo_map: "
                f"{abbreviated(', '.join(sorted(self._inputs)))}"
            )
        return next(iter(self._inputs.items()))

    def _read_objects(self, value: JsonValue, key: str) -> tuple[Tensor, ...]:
        """Read rows that are objects, whose members have the names of the inputs."""
        count = len(value.node)
        inputs = self._inputs
        if inputs is None:
            inputs = dict.fromkeys(member_names(value.node[0], f"{key}[0]"))
        self._check_count(len(inputs), key)
        self._count_containers(count * (2 + len(inputs)), key)
        columns = {
            name: _Column(name, datatype, self._rules, key) for name, datatype in inputs.items()
        }
        cursor = value.cursor()
        cursor.move()  # skip the bracket
        for index, row in enumerate(value.node):
            path = f"{key}[{index}]"
            if not is_object(row):
                raise bad_request(
                    f"Expecting object but got {json_kind(row)} at item {index} of input list"
                )
            members = self._row_members(row, path, cursor)
            for name, (shape, values) in members.items():
                column = columns.get(name)
                if column is None:
                    raise bad_request(
                        f"{path}: JSON object: does not have named input: {abbreviated(name)}"
                    )
                if column.shape is None:
                    column.shape = shape
                elif column.shape != shape:
                    raise bad_request(
                        f"{path}: tensor '{name}': Expecting shape {list(column.shape)} but got: "
                        f"{list(shape)}"
                    )
                column.add(values)
            if len(members) < len(columns):
                raise bad_request(
                    f"{path}: its keys must be equal to: {abbreviated(','.join(sorted(columns)))}"
                )
            cursor.move()  # skip the comma
        return tuple(
            self._finish(column, (count, *(column.shape or ()))) for column in columns.values()
        )

    def _row_members(self, row: Node, path: str, cursor: OutlineCursor) -> dict[str, _Values]:
        """Return the members of ``row``, which is at ``cursor``, and move ``cursor`` over the
        row."""
        size = len(row)
        value = cursor.value(row)
        shapes = cursor.read_row(size)
        try:
            if shapes is not None and type(row) is simdjson.Object and _is_small(shapes):
                nodes = row.as_dict()
                if len(nodes) == size:
                    pairs = zip(nodes.items(), shapes, strict=True)
                    return {
                        name: self._read_small(name, node, shape) for (name, node), shape in pairs
                    }
            # Each look-up walks the object.
            self._count_containers(size * size // _LOOKUPS_PER_CONTAINER, path)
            types = self._inputs or {}
            return {
                name: self._read_values(name, types.get(name), member)
                for name, member in read_members(value, path, member_names(row, path)).items()
            }
        except GatewayError as error:
            raise error.reworded(f"{path}: {error.public}") from None

    def _read_small(self, name: str, node: Node, shape: Shape) -> _Values:
        """Return the shape and the elements of ``node``, which consists of Python objects."""
        if not shape:
            return (), [node]
        if len(shape) == 1 and len(node) == shape[0]:
            return shape, node
        return self._walk_lists(name, node)

    # ---- columns

    def read_inputs(self, value: JsonValue, key: str = "inputs") -> tuple[Tensor, ...]:
        """Return the tensors in ``value``, a member named ``key``: an object with a member for each
        input, or the value of the only input. Other members are ignored. Raises the same errors as
        :meth:`read_instances`."""
        node = value.node
        if not is_object(node) or _base64_text(node) is not None:
            name, datatype = self._only_input(
                f"{key} is a plain value/list, but expecting an object"
            )
            return (self._read(name, datatype, value),)
        if self._inputs is None:
            inputs: InputTypes = dict.fromkeys(member_names(node, key))
        else:
            inputs = self._inputs
        self._check_count(len(inputs), key)
        members = read_members(value, key, inputs)
        for name in inputs:
            if name not in members:
                raise bad_request(f"Missing named input: {name} in '{key}' object.")
        return tuple(self._read(name, inputs[name], members[name]) for name in inputs)

    # ---- values

    def _read(self, name: str, datatype: Datatype | None, value: JsonValue) -> Tensor:
        shape, values = self._read_values(name, datatype, value)
        column = _Column(name, datatype, self._rules, shape=shape)
        column.add(values)
        return self._finish(column, shape)

    def _read_values(self, name: str, datatype: Datatype | None, value: JsonValue) -> _Values:
        """Return the shape of ``value``, and its elements as an array or as JSON values."""
        node = value.node
        if not is_array(node):
            return (), [node]
        shape = value.shape()
        if shape:
            check_shape(name, shape, self._limits)
            for candidate in _INFERRED_NUMBERS if datatype is None else (datatype,):
                copied = _copy_regular(candidate, node, shape)
                if copied is not None:
                    return copied
        return self._walk_lists(name, node)

    def _walk_lists(self, name: str, node: Node) -> _Values:
        """Visit every list in ``node``, and return the shape and the elements of ``node``."""
        sizes: list[int] = []
        first = node
        while is_array(first):
            sizes.append(len(first))
            if not sizes[-1]:
                break
            first = first[0]
            if len(sizes) > self._limits.rank:
                break
        shape = check_shape(name, sizes, self._limits)
        values = [node]
        self._count_containers(1, name)
        for level, size in enumerate(shape):
            for index, item in enumerate(values):
                if not is_array(item):
                    raise bad_request(
                        f"tensor '{name}'{_path(index, shape[:level])}: {json_kind(item)} found at "
                        f"incorrect level: {level}. Expected at level: {len(shape)}"
                    )
                if len(item) != size:
                    raise bad_request(
                        f"tensor '{name}'{_path(index, shape[:level])}: Encountered list at "
                        f"unexpected size: {len(item)} at level: {level} expected size: {size}"
                    )
            values = self._items(name, values)
        if not _ARRAY_TYPES.isdisjoint(map(type, values)):
            index = next(i for i, item in enumerate(values) if is_array(item))
            raise bad_request(
                f"tensor '{name}'{_path(index, shape)}: Encountered list at unexpected level: "
                f"{len(shape)} expected < {len(shape)}"
            )
        return shape, values

    def _items(self, name: str, lists: list[Node]) -> list[Node]:
        """Return the items of ``lists``. Lists and objects are counted while they are read, because
        each of them becomes a Python object."""
        items: list[Node] = []
        unread = chain.from_iterable(lists)
        while part := list(islice(unread, _ITEMS_AT_ONCE)):
            if not _CONTAINER_TYPES.isdisjoint(map(type, part)):
                arrays = sum(map(is_array, part))
                self._count_containers(arrays, name)
                self._count_objects(sum(map(is_object, part)), name)
            items += part
        return items

    def _finish(self, column: _Column, shape: Shape) -> Tensor:
        name = column.name
        datatype = column.datatype or column.infer_datatype()
        if datatype is Datatype.BYTES:
            self._bytes_elements = add_bytes_elements(
                name, shape, self._bytes_elements, self._limits
            )
        return Tensor(name, datatype, shape, column.data(datatype))

    # ---- limits

    def _count_containers(self, count: int, owner: str) -> None:
        self._containers += count
        if self._containers > MAX_CONTAINERS:
            raise GatewayError(
                Kind.TOO_LARGE,
                f"{owner}: over {MAX_CONTAINERS} nested lists or rows (the limit); send "
                "numbers as rectangular lists, which do not count",
            )
        check_loop_cost(self._limits, self._containers, MAX_CONTAINERS_ON_LOOP)

    def _count_objects(self, count: int, owner: str) -> None:
        """Count objects that may be base64. They are limited like other elements of BYTES."""
        self._objects += count
        if self._objects > MAX_BYTES_ELEMENTS:
            raise GatewayError(
                Kind.TOO_LARGE, f"{owner}: over {MAX_BYTES_ELEMENTS} objects (the limit)"
            )
        check_loop_cost(self._limits, self._objects, MAX_CONTAINERS_ON_LOOP)

    def _check_count(self, count: int, owner: str) -> None:
        if count > self._limits.tensors:
            raise bad_request(
                f"{owner} has over {self._limits.tensors} inputs (the limit)", limit="tensors"
            )


def _is_small(shapes: tuple[Shape, ...]) -> bool:
    """Return whether values of ``shapes`` are scalars, or have few enough elements to become
    Python objects."""
    return not any(shapes) or sum(map(math.prod, shapes)) <= _MAX_SMALL_ROW


def _copy_regular(datatype: Datatype, node: Node, shape: Shape) -> tuple[Shape, Array] | None:
    """Return the shape and the numbers of ``node``, whose outline has ``shape``. Return None if the
    elements must be visited one by one."""
    values = copy_numbers(datatype, node) if isinstance(node, simdjson.Array) else None
    if values is None:
        return None
    if values.size == math.prod(shape):
        return shape, values
    if values.size == 0 and shape[-1] == 1:  # the outlines of [] and [1] are equal
        return (*shape[:-1], 0), values
    return None


def _path(index: int, shape: Shape) -> str:
    """Return the position of element ``index`` of an array of ``shape``, for error messages."""
    return "".join(f"[{i}]" for i in np.unravel_index(index, shape)) if shape else ""


def _base64_text(node: Node) -> str | None:
    """Return the string in an object ``{"b64": "…"}``, or None if ``node`` is any other object."""
    if len(node) != 1:
        return None
    name, text = next(iter(node)) if isinstance(node, ObjectMembers) else _only_member(node)
    return text if name == _BASE64 and type(text) is str else None


def _only_member(node: Node) -> tuple[str, Node]:
    (name,) = node.keys()
    return name, None if "\0" in name else node[name]


def _decode_base64(node: Node) -> bytes | None:
    """Return the bytes in ``node``, or None if ``node`` is not a base64 object. White space,
    missing padding and dots as padding are accepted."""
    text = _base64_text(node)
    if text is None:
        return None
    text = "".join(text.split())
    digits = text.rstrip("=.")
    padding = len(text) - len(digits)
    if not _BASE64_TEXT.fullmatch(digits) or padding > 2 or (padding and len(text) % 4):
        return None
    try:
        return base64.b64decode(digits + "=" * (-len(digits) % 4))
    except binascii.Error:
        return None
