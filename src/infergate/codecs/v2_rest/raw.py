"""The raw binary request: bare tensor data, which a model's metadata makes an inference.

*Rule 1.* The model has exactly one input; the data is all of it.
*Rule 2.* Metadata does not tell a batch dimension from a free one. A free first dimension beside
another is taken for the batch, and is 1; the one free dimension left follows from the size.
*Rule 3.* BYTES data is one element without its length, so a free first dimension is 1 and the rest
must be.

Source: the V2 binary tensor data extension.
"""

from __future__ import annotations

import math

from infergate.core.datatypes import BY_NAME, Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.messages import ModelMetadata, TensorMetadata
from infergate.core.tensor import Buffer, Tensor, pack_bytes


def only_input(data: Buffer, metadata: ModelMetadata) -> Tensor:
    """The one input of the model that ``metadata`` describes, made of ``data``.

    Raises BAD_REQUEST naming the input, UNSUPPORTED for a datatype the gateway does not know.
    """
    if len(metadata.inputs) != 1:
        raise bad_request(
            f"a raw binary request is for models with one input, '{metadata.name}' has "
            f"{len(metadata.inputs)}"
        )
    (described,) = metadata.inputs
    datatype = BY_NAME.get(described.datatype)
    if datatype is None:
        raise GatewayError(
            Kind.UNSUPPORTED,
            f"input '{described.name}': datatype '{described.datatype}' is not known",
        )
    if datatype is Datatype.BYTES:
        return _one_string(data, described)
    return _numbers(data, described, datatype)


def _one_string(data: Buffer, described: TensorMetadata) -> Tensor:
    shape = tuple(
        1 if index == 0 and dimension < 0 else dimension
        for index, dimension in enumerate(described.shape)
    )
    if any(dimension != 1 for dimension in shape):
        raise bad_request(
            f"input '{described.name}': a raw binary request holds one BYTES element, "
            f"the shape is {list(described.shape)}"
        )
    return Tensor(described.name, Datatype.BYTES, shape, pack_bytes([bytes(data)]))


def _numbers(data: Buffer, described: TensorMetadata, datatype: Datatype) -> Tensor:
    shape = list(described.shape)
    free = [index for index, dimension in enumerate(shape) if dimension < 0]
    if len(free) > 1 and free[0] == 0:
        shape[0] = 1
        del free[0]
    if len(free) > 1:
        raise bad_request(
            f"input '{described.name}': a raw binary request leaves one dimension open, "
            f"the shape {list(described.shape)} more"
        )
    size = len(data)
    step = math.prod(dimension for dimension in shape if dimension >= 0) * datatype.itemsize
    if free:
        shape[free[0]] = size // step if step else 0
    if math.prod(shape) * datatype.itemsize != size:
        raise bad_request(
            f"input '{described.name}': the {size} bytes of the raw binary request are no "
            f"{datatype.value} tensor of shape {list(described.shape)}"
        )
    return Tensor(described.name, datatype, tuple(shape), data)
