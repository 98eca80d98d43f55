"""Checks the return values of plug-ins. Tensors are checked in the plug-in's thread, because
checking their elements may take long."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from infergate.core.datatypes import DATATYPES_BY_NAME, NUMPY_DTYPES, Datatype
from infergate.core.errors import GatewayError
from infergate.core.limits import Limits
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    RequestedOutput,
    TensorMetadata,
)
from infergate.core.tensor import Tensor, check_data, check_shape, data_bytes, tensor_from_array

_BUFFERS: Final = (bytes, bytearray, memoryview)


class InvalidResultError(Exception):
    """A plug-in returned a value that its interface does not allow."""


def check_metadata(metadata: Any) -> ModelMetadata:
    """Return ``metadata`` with at least one version. Raises InvalidResultError if a field is
    invalid."""
    if not isinstance(metadata, ModelMetadata):
        raise InvalidResultError(f"metadata is {_type(metadata)}; expected ModelMetadata")
    if not isinstance(metadata.name, str) or not metadata.name:
        raise InvalidResultError("metadata has no model name")
    versions = metadata.versions
    if not _is_tuple_of(str, versions):
        raise InvalidResultError("metadata.versions is not a tuple of strings")
    batch = metadata.max_batch_size
    if batch is not None and (type(batch) is not int or batch < 0):
        raise InvalidResultError(f"metadata.max_batch_size is {batch!r}; expected 0 or more")
    for side in ("inputs", "outputs"):
        tensors = getattr(metadata, side)
        if not _is_tuple_of(TensorMetadata, tensors):
            raise InvalidResultError(f"metadata.{side} is not a tuple of TensorMetadata")
        for tensor in tensors:
            check_tensor_metadata(tensor)
        if len({tensor.name for tensor in tensors}) < len(tensors):
            raise InvalidResultError(f"metadata.{side} has a name twice")
    return replace(metadata, versions=versions or ("1",))


def _is_tuple_of(expected: type, value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, expected) for each in value)


def check_tensor_metadata(tensor: TensorMetadata) -> None:
    """Raise InvalidResultError unless the fields of ``tensor`` are valid."""
    if not isinstance(tensor.name, str) or not tensor.name:
        raise InvalidResultError(
            f"a tensor has the name {tensor.name!r}; expected a non-empty string"
        )
    if not isinstance(tensor.datatype, str) or tensor.datatype not in DATATYPES_BY_NAME:
        raise InvalidResultError(
            f"tensor '{tensor.name}' has the datatype {tensor.datatype!r}; expected a V2 datatype "
            "such as 'FP32'"
        )
    if not isinstance(tensor.shape, tuple) or not all(
        type(dimension) is int and dimension >= -1 for dimension in tensor.shape
    ):
        raise InvalidResultError(
            f"tensor '{tensor.name}' has the shape {tensor.shape!r}; expected a tuple of integers, "
            "each at least -1"
        )


def model_response(
    result: Any, request: InferRequest, metadata: ModelMetadata, limits: Limits
) -> InferResponse:
    """Convert ``result``, which a model with ``metadata`` returned for ``request``, to a response.
    Raises InvalidResultError."""
    declared = {output.name: output for output in metadata.outputs}
    requested = [output.name for output in request.outputs] or list(declared)
    if isinstance(result, InferResponse):
        response = check_response(result, request, limits)
        by_name = {tensor.name: tensor for tensor in response.outputs}
    elif isinstance(result, Mapping):
        response = InferResponse(request.model)
        by_name = {
            name: _tensor(name, array, declared, limits)
            for name, array in result.items()
            if name in requested
        }
        _check_size(list(by_name.values()), limits)
    else:
        raise InvalidResultError(
            f"{_type(result)}; expected a mapping of numpy arrays or InferResponse"
        )
    for name in requested:
        if name not in by_name:
            raise InvalidResultError(f"output '{name}' is missing")
        _check_declared(by_name[name], declared[name])
    return replace(
        response,
        model=metadata.name,
        version=metadata.versions[0],
        id=request.id,
        outputs=tuple(by_name[name] for name in requested),
    )


def _tensor(
    name: str, array: Any, declared: Mapping[str, TensorMetadata], limits: Limits
) -> Tensor:
    datatype = DATATYPES_BY_NAME[declared[name].datatype]
    if not isinstance(array, (np.ndarray, np.generic)):
        raise InvalidResultError(f"output '{name}' is {_type(array)}; expected a numpy array")
    array = np.asarray(array)
    if array.nbytes > limits.body:  # a broadcast array takes no memory until it is copied
        raise InvalidResultError(
            f"output '{name}' has {array.nbytes} bytes; limits.body is {limits.body}"
        )
    if datatype is Datatype.BYTES:
        if array.dtype != np.object_ or not all(type(each) is bytes for each in array.ravel()):
            raise InvalidResultError(f"output '{name}' is not an object array of bytes")
    else:
        expected = np.dtype(np.float32 if datatype is Datatype.BF16 else NUMPY_DTYPES[datatype])
        if array.dtype.newbyteorder("<") != expected:
            raise InvalidResultError(
                f"output '{name}' is an array of {array.dtype}; {datatype.value} needs {expected}"
            )
    return tensor_from_array(name, datatype, array)


def _check_declared(tensor: Tensor, declared: TensorMetadata) -> None:
    if tensor.datatype.value != declared.datatype:
        raise InvalidResultError(
            f"output '{tensor.name}' is {tensor.datatype.value}; its metadata says "
            f"{declared.datatype}"
        )
    if not declared.accepts_shape(tensor.shape):
        raise InvalidResultError(
            f"output '{tensor.name}' has the shape {list(tensor.shape)}; its metadata says "
            f"{list(declared.shape)}"
        )


def check_response(
    response: InferResponse, request: InferRequest, limits: Limits, checked: Sequence[Tensor] = ()
) -> InferResponse:
    """Return ``response`` with the model and the id of ``request``. Tensors in ``checked`` are not
    checked again. Raises InvalidResultError."""
    if not isinstance(response.version, str):
        raise InvalidResultError(f"version is {_type(response.version)}; expected a string")
    check_parameters(response.parameters, "parameters of the response")
    check_tensors(response.outputs, "outputs", limits, checked)
    return replace(response, model=request.model, id=request.id)


def check_request(changed: InferRequest, request: InferRequest, limits: Limits) -> InferRequest:
    """Return ``changed``, the request with which a hook replaces ``request``. Raises
    InvalidResultError."""
    for name in ("model", "version", "id"):
        if getattr(changed, name) != getattr(request, name):
            raise InvalidResultError(f"a hook cannot change the {name} of a request")
    if changed.outputs is not request.outputs:
        _check_requested_outputs(changed.outputs)
    if changed.parameters is not request.parameters:
        check_parameters(changed.parameters, "parameters of the request")
    check_tensors(changed.inputs, "inputs", limits, request.inputs)
    return changed


def _check_requested_outputs(outputs: Any) -> None:
    if not _is_tuple_of(RequestedOutput, outputs) or not all(
        isinstance(each.name, str) for each in outputs
    ):
        raise InvalidResultError("the requested outputs are not a tuple of RequestedOutput")
    for each in outputs:
        check_parameters(each.parameters, f"parameters of output '{each.name}'")


def check_parameters(parameters: Any, label: str) -> None:
    """Raise InvalidResultError unless ``parameters`` are a mapping of names to JSON values."""
    if not isinstance(parameters, Mapping) or not all(type(name) is str for name in parameters):
        raise InvalidResultError(f"{label}: expected a mapping with names as keys")
    try:
        json.dumps(dict(parameters))
    except (TypeError, ValueError, RecursionError):
        raise InvalidResultError(f"{label}: a value is not a JSON value") from None


def check_tensors(tensors: Any, side: str, limits: Limits, checked: Sequence[Tensor]) -> None:
    """Check that ``tensors`` is a tuple of valid tensors within ``limits``. ``side`` names the
    tuple in errors. Tensors in ``checked`` are not checked again. Raises InvalidResultError."""
    if not _is_tuple_of(Tensor, tensors):
        raise InvalidResultError(f"{side} is not a tuple of Tensor")
    if len(tensors) > limits.tensors:
        raise InvalidResultError(f"{len(tensors)} {side}; the limit is {limits.tensors}")
    if len({each.name for each in tensors}) < len(tensors):
        raise InvalidResultError(f"{side} has a name twice")
    checked_ids = {id(tensor) for tensor in checked}
    for tensor in tensors:
        if id(tensor) not in checked_ids:
            _check_tensor(tensor, limits)
    _check_size(tensors, limits)


def _check_tensor(tensor: Tensor, limits: Limits) -> None:
    if not isinstance(tensor.name, str) or not isinstance(tensor.datatype, Datatype):
        raise InvalidResultError(
            "the name of a tensor is not a string, or its datatype is not a Datatype"
        )
    if not isinstance(tensor.shape, tuple):
        raise InvalidResultError(
            f"tensor '{tensor.name}': shape is {_type(tensor.shape)}; expected tuple"
        )
    check_parameters(tensor.parameters, f"parameters of tensor '{tensor.name}'")
    if not isinstance(tensor.data, _BUFFERS) or tensor.shared_memory is not None:
        text = f"tensor '{tensor.name}': data is {_type(tensor.data)}"
        raise InvalidResultError(f"{text}; expected bytes outside shared memory")
    if isinstance(tensor.data, memoryview) and not (
        tensor.data.c_contiguous and tensor.data.itemsize == tensor.data.ndim == 1
    ):
        raise InvalidResultError(f"tensor '{tensor.name}': data is not a view of single bytes")
    try:
        shape = check_shape(tensor.name, tensor.shape, limits)
        check_data(tensor.name, tensor.datatype, shape, tensor.data)
    except GatewayError as error:
        raise InvalidResultError(error.public) from None


def _check_size(tensors: Sequence[Tensor], limits: Limits) -> None:
    size = data_bytes(tensors)
    if size > limits.body:
        raise InvalidResultError(f"{size} bytes of tensors; limits.body is {limits.body}")


def _type(value: Any) -> str:
    return "None" if value is None else type(value).__name__
