"""Assembles messages without their raw tensor data from cached parts, because this is much faster
than the protobuf runtime (docs/decisions/0018-cheap-request-objects.md).

The protobuf runtime encodes each part, and the parts are joined in the order of their field
numbers, so the result equals the runtime's encoding of the whole message. Only short parts are
cached, because clients choose the names and could fill the memory with long parts.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

from infergate.codecs.protos.wire_scanner import string_field
from infergate.codecs.v2_grpc.messages import ModelInferRequest
from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest, InferResponse, RequestedOutput
from infergate.core.tensor import Tensor

_ID: Final = 3
"""The field number of the id, in requests and responses."""
MAX_CACHED_NAME: Final = 128
"""Maximum length of a name in a cached part, in characters."""
_MAX_CACHED_RANK: Final = 16
"""Maximum number of dimensions of a shape in a cached part."""
MAX_CACHED_PARTS: Final = 512
"""Maximum number of cached parts of each kind. All cached parts together take less than 4 MB."""


def build_head(
    message: InferRequest | InferResponse,
    tensors: Sequence[Tensor],
    requested_outputs: Sequence[RequestedOutput] = (),
) -> bytes | None:
    """Return the encoding of `message`, with its id, but without its raw entries. Return None if
    the message, a tensor or a requested output has parameters, or if a tensor or a requested output
    is in shared memory. Raises ValueError for values that protobuf cannot hold."""
    if message.parameters:
        return None
    model, version = message.model, message.version
    if len(model) <= MAX_CACHED_NAME and len(version) <= MAX_CACHED_NAME:
        parts = [_cached_names(model, version)]
    else:
        parts = [_write_names(model, version)]
    if message.id:
        parts.append(string_field(_ID, message.id))
    for tensor in tensors:
        name, shape = tensor.name, tensor.shape
        if tensor.parameters or tensor.shared_memory is not None:
            return None
        if len(name) <= MAX_CACHED_NAME and len(shape) <= _MAX_CACHED_RANK:
            parts.append(_cached_description(name, tensor.datatype, shape))
        else:
            parts.append(_write_description(name, tensor.datatype, shape))
    for output in requested_outputs:
        if output.parameters or output.shared_memory is not None:
            return None
        is_short = len(output.name) <= MAX_CACHED_NAME
        parts.append((_cached_output if is_short else _write_output)(output.name))
    return b"".join(parts)


def _write_names(model: str, version: str) -> bytes:
    return bytes(ModelInferRequest(model_name=model, model_version=version).SerializeToString())


def _write_description(name: str, datatype: Datatype, shape: tuple[int, ...]) -> bytes:
    """Encode the description of an input or output. Requests and responses have the same
    encoding."""
    message = ModelInferRequest()
    message.inputs.add(name=name, datatype=datatype.value, shape=shape)
    return bytes(message.SerializeToString())


def _write_output(name: str) -> bytes:
    message = ModelInferRequest()
    message.outputs.add(name=name)
    return bytes(message.SerializeToString())


_cached_names: Final = functools.lru_cache(MAX_CACHED_PARTS)(_write_names)
_cached_description: Final = functools.lru_cache(MAX_CACHED_PARTS)(_write_description)
_cached_output: Final = functools.lru_cache(MAX_CACHED_PARTS)(_write_output)
