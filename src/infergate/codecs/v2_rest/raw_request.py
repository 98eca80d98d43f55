"""Reads raw binary requests, which consist only of tensor data. The model's metadata supplies the
name, datatype and shape of the tensor.

If the first dimension and another dimension are variable, the first dimension is the batch
dimension and is set to 1. The length of the body determines the remaining variable dimension. BYTES
data is one element without its length prefix. See V2's binary tensor data extension."""

from __future__ import annotations

import math

from infergate.codecs.json_tensors.row_reader import known_datatype
from infergate.core.datatypes import Datatype
from infergate.core.errors import bad_request
from infergate.core.messages import ModelMetadata, TensorMetadata
from infergate.core.tensor import Buffer, Tensor, pack_bytes


def read_only_input(data: Buffer, metadata: ModelMetadata) -> Tensor:
    """Return the model's only input with ``data``. Raises BAD_REQUEST and UNSUPPORTED."""
    if len(metadata.inputs) != 1:
        raise bad_request(
            f"a raw binary request requires a model with one input; model '{metadata.name}' has "
            f"{len(metadata.inputs)}"
        )
    (input_metadata,) = metadata.inputs
    datatype = known_datatype(input_metadata)
    if datatype is Datatype.BYTES:
        return _bytes_input(data, input_metadata)
    return _numeric_input(data, input_metadata, datatype)


def _bytes_input(data: Buffer, input_metadata: TensorMetadata) -> Tensor:
    shape = tuple(
        1 if index == 0 and dimension < 0 else dimension
        for index, dimension in enumerate(input_metadata.shape)
    )
    if any(dimension != 1 for dimension in shape):
        raise bad_request(
            f"input '{input_metadata.name}': a raw binary request holds one BYTES element, "
            f"but the shape is {list(input_metadata.shape)}"
        )
    return Tensor(input_metadata.name, Datatype.BYTES, shape, pack_bytes([bytes(data)]))


def _numeric_input(data: Buffer, input_metadata: TensorMetadata, datatype: Datatype) -> Tensor:
    shape = list(input_metadata.shape)
    variable = [index for index, dimension in enumerate(shape) if dimension < 0]
    if len(variable) > 1 and variable[0] == 0:
        shape[0] = 1
        del variable[0]
    if len(variable) > 1:
        raise bad_request(
            f"input '{input_metadata.name}': a raw binary request allows one variable dimension, "
            f"but the shape is {list(input_metadata.shape)}"
        )
    size = len(data)
    item_size = math.prod(dimension for dimension in shape if dimension >= 0) * datatype.itemsize
    if variable:
        shape[variable[0]] = size // item_size if item_size else 0
    if math.prod(shape) * datatype.itemsize != size:
        raise bad_request(
            f"input '{input_metadata.name}': the {size} bytes of the raw binary request do not "
            f"fit a {datatype.value} tensor of shape {list(input_metadata.shape)}"
        )
    return Tensor(input_metadata.name, datatype, tuple(shape), data)
