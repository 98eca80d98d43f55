"""Converts tables, as pandas writes them, to the tensors of a model.

*Rule 1.* If the columns have the names of the model's inputs, each column becomes the input of the
same name, with an element or a list for each row. *Rule 2.* Otherwise, if the model has a single
input, the table's columns become the input's columns, in the same order: N rows of K columns become
a matrix of shape [N, K]. *Rule 3.* A column of scalars has the shape [N], or [N, 1] if the input
has two dimensions. *Rule 4.* The cells of CSV are converted to the input's datatype. An empty cell
is NaN for floats, an empty string for BYTES, and an error for other datatypes.

All readers raise BAD_REQUEST and TOO_LARGE. They raise UNSUPPORTED if the datatype of an input is
unknown, and NeedsOffloadError for a large table on the event loop."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from infergate.codecs.json_tensors.json_document import (
    LITERALS,
    ObjectMembers,
    abbreviated,
    is_array,
    json_kind,
    member_names,
    read_items,
    read_string,
)
from infergate.codecs.json_tensors.row_document import JsonValue, is_object, read_members
from infergate.codecs.json_tensors.row_reader import RowReader, input_types
from infergate.core.datatypes import FLOATS, Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits, check_loop_cost
from infergate.core.messages import ModelMetadata
from infergate.core.tensor import Tensor, tensor_from_array

MAX_COLUMNS: Final = 1024
MAX_CELLS: Final = 1 << 19
"""Maximum number of cells of a table whose cells become Python objects. Creating the object of a
cell takes 0.5 to 2.5 µs."""
MAX_CELLS_ON_LOOP: Final = 1 << 13
_RANK_OF_COLUMN: Final = 2
_BOOLEANS: Final = {"true": True, "false": False}


def read_records(value: JsonValue, metadata: ModelMetadata, limits: Limits) -> tuple[Tensor, ...]:
    """Read ``dataframe_records``: a list of objects."""
    key = "dataframe_records"
    rows = value.node
    if not is_array(rows) or not len(rows) or not is_object(rows[0]):
        raise bad_request(f"{key} must be a list of at least one object")
    columns = _Columns(member_names(rows[0], f"{key}[0]"), metadata, key)
    return columns.combine(RowReader(columns.types, limits).read_instances(value, key), key)


def read_split(value: JsonValue, metadata: ModelMetadata, limits: Limits) -> tuple[Tensor, ...]:
    """Read ``dataframe_split``, which has ``columns`` and ``data``. ``index`` is ignored."""
    key = "dataframe_split"
    members = read_members(value, key, ("columns", "data"))
    for name in ("columns", "data"):
        if name not in members:
            raise bad_request(f"{key}.{name} is missing")
    names = read_items(members["columns"].node, f"{key}.columns", MAX_COLUMNS)
    columns = _Columns([read_string(name, f"{key}.columns") for name in names], metadata, key)
    return columns.read_rows(members["data"], f"{key}.data", limits)


def read_csv(body: bytes, metadata: ModelMetadata, limits: Limits) -> tuple[Tensor, ...]:
    """Read a CSV text with a header."""
    _check_cells(body.count(b",") + body.count(b"\n") + body.count(b"\r"), limits)
    try:
        text = body.decode("utf-8-sig")
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except UnicodeDecodeError as error:
        raise bad_request(f"the CSV is not UTF-8 at byte {error.start}") from None
    except csv.Error as error:
        raise bad_request(f"the CSV is invalid: {error}") from None
    if not rows:
        raise bad_request("the CSV has no header")
    columns = _Columns(rows[0], metadata, "the CSV")
    del rows[0]
    columns.check_rows(rows, "the CSV")
    values = [
        _read_cells(name, columns.types[name], cells)
        for name, cells in zip(columns.names, zip(*rows, strict=True), strict=True)
    ]
    return columns.read_columns(values, "the CSV", limits)


def _read_cells(column: str, datatype: Datatype, cells: Sequence[str]) -> list[Any]:
    """Return ``cells`` of CSV as values of ``datatype`` (Rule 4). Raises BAD_REQUEST."""
    if datatype is Datatype.BYTES:
        return list(cells)
    read: Callable[[str], Any] = _read_float if datatype in FLOATS else _read_integer
    if datatype is Datatype.BOOL:
        read = _read_boolean
    values: list[Any] = []
    for cell in cells:
        try:
            values.append(read(cell))
        except (ValueError, KeyError):
            raise bad_request(
                f"column '{abbreviated(column)}': '{abbreviated(cell)}' is not {datatype.value}"
            ) from None
    return values


def _read_boolean(cell: str) -> bool:
    return _BOOLEANS[cell.strip().lower()]


def _read_integer(cell: str) -> int:
    _check_number(cell)
    return int(cell)


def _read_float(cell: str) -> Any:
    """Return a finite float, or the literal for NaN or an infinity. Raises ValueError for text
    that is not a number, and for a number that is too large."""
    _check_number(cell)
    number = float(cell or "nan")
    if math.isfinite(number):
        return number
    if math.isinf(number) and "inf" not in cell.lower():
        raise ValueError
    return LITERALS["NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"]


def _check_number(cell: str) -> None:
    """Raise ValueError for characters that only Python accepts in numbers."""
    if "_" in cell or not cell.isascii():
        raise ValueError


class _Columns:
    """The columns of a table, with their ``names`` and ``types``. ``matrix`` is the input that
    consists of all columns (Rule 2), or None if each column is an input."""

    def __init__(self, names: Sequence[str], metadata: ModelMetadata, key: str) -> None:
        """Match the columns to the inputs. Raises BAD_REQUEST, TOO_LARGE and UNSUPPORTED."""
        if not 0 < len(names) <= MAX_COLUMNS:
            raise GatewayError(
                Kind.TOO_LARGE if names else Kind.BAD_REQUEST,
                f"{key} has {len(names)} columns; expected 1 to {MAX_COLUMNS}",
            )
        if len(set(names)) < len(names):
            raise bad_request(f"{key} has two columns with the same name")
        inputs = input_types(metadata.inputs)
        self.names: Final = names
        is_named = set(names) == set(inputs)
        self.matrix: Final = None if is_named or len(inputs) != 1 else next(iter(inputs))
        if not is_named and self.matrix is None:
            raise bad_request(
                f"{key} has the columns {abbreviated(', '.join(names))}, but the model has the "
                f"inputs {abbreviated(', '.join(inputs))}"
            )
        self._inputs: Final = inputs
        self.types: Final = dict.fromkeys(names, inputs[self.matrix]) if self.matrix else inputs
        self._ranks: Final = {item.name: len(item.shape) for item in metadata.inputs}

    def read_rows(self, data: JsonValue, key: str, limits: Limits) -> tuple[Tensor, ...]:
        """Read a list of rows, which are lists with a value for each column. Raises BAD_REQUEST,
        TOO_LARGE, and NeedsOffloadError on the event loop."""
        if self.matrix is not None:
            (tensor,) = RowReader(self._inputs, limits).read_instances(data, key)
            if tensor.shape[1:] != (len(self.names),):
                raise bad_request(f"{key}: each row must have {len(self.names)} scalars")
            return (tensor,)
        rows = data.node
        if not is_array(rows):
            raise bad_request(f"{key} must be an array, not {json_kind(rows)}")
        _check_cells(len(rows) * len(self.names), limits)
        self.check_rows([row if is_array(row) else () for row in rows], key)
        return self.read_columns(list(map(list, zip(*rows, strict=True))), key, limits)

    def check_rows(self, rows: Sequence[Sequence[Any]], key: str) -> None:
        """Raise BAD_REQUEST if there are no rows, or if a row does not have a value for each
        column."""
        count = len(self.names)
        if not rows:
            raise bad_request(f"{key} has no rows")
        for index, row in enumerate(rows):
            if len(row) != count:
                raise bad_request(f"{key}: row {index} does not have {count} columns")

    def read_columns(
        self, values: Sequence[list[Any]], key: str, limits: Limits
    ) -> tuple[Tensor, ...]:
        """Read the values of each column. Raises BAD_REQUEST, TOO_LARGE and NeedsOffloadError."""
        members = JsonValue(ObjectMembers(zip(self.names, values, strict=True)))
        return self.combine(RowReader(self.types, limits).read_inputs(members, key), key)

    def combine(self, columns: Sequence[Tensor], key: str) -> tuple[Tensor, ...]:
        """Return the inputs that consist of ``columns`` (Rules 2 and 3). Raises BAD_REQUEST."""
        if self.matrix is None:
            return self._with_ranks(columns)
        if any(len(column.shape) > 1 for column in columns):
            raise bad_request(f"{key}: a column of '{self.matrix}' has lists instead of scalars")
        matrix = np.stack([column.numpy() for column in columns], axis=1)
        return (tensor_from_array(self.matrix, columns[0].datatype, matrix),)

    def _with_ranks(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Give columns of scalars the shapes that their inputs require (Rule 3)."""
        return tuple(
            Tensor(tensor.name, tensor.datatype, (*tensor.shape, 1), tensor.data)
            if len(tensor.shape) == 1 and self._ranks[tensor.name] == _RANK_OF_COLUMN
            else tensor
            for tensor in tensors
        )


def _check_cells(count: int, limits: Limits) -> None:
    if count > MAX_CELLS:
        raise GatewayError(Kind.TOO_LARGE, f"the table has over {MAX_CELLS} cells (the limit)")
    check_loop_cost(limits, count, MAX_CELLS_ON_LOOP)
