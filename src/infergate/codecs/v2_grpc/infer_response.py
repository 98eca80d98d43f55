"""Converts between ModelInferResponse and InferResponse.

By default, clients receive raw contents, as Triton sends them, because tritonclient's ``as_numpy``
reads typed contents only for BYTES. Backends may mix raw and typed contents. KServe sends typed
contents, MLServer uses the form of the request, and Triton sends one raw entry per output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from infergate.codecs.protos.wire_scanner import MalformedMessageError, split_raw_fields
from infergate.codecs.v2_grpc.head_limits import cut_contents, max_fields
from infergate.codecs.v2_grpc.head_parts import build_head
from infergate.codecs.v2_grpc.messages import ModelInferResponse
from infergate.codecs.v2_grpc.parameters import read_parameters, write_parameters
from infergate.codecs.v2_grpc.tensors import (
    DescribedTensor,
    can_be_typed,
    raw_parts,
    read_datatype,
    read_tensors,
    write_description,
    write_typed,
)
from infergate.codecs.v2_grpc.typed_contents import TypedContents
from infergate.core.errors import GatewayError, as_backend_error, backend_garbage
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.region_ref import RegionRef, written_region
from infergate.core.tensor import Buffer
from infergate.core.wire import join_parts

RAW_FIELD: Final = 6
"""The field number of ModelInferResponse.raw_output_contents."""


def read_response(
    message: Sequence[Buffer], limits: Limits, request: InferRequest | None = None
) -> InferResponse:
    """Parse `message`. Outputs in shared memory have no data. Raises BACKEND_GARBAGE, TOO_LARGE
    and NeedsOffloadError."""
    try:
        rest, raw = split_raw_fields(join_parts(message), RAW_FIELD, max_fields(limits))
        head_bytes, typed = cut_contents(rest, limits)
        head = ModelInferResponse.FromString(head_bytes)
        regions = (
            {output.name: output.shared_memory for output in request.outputs} if request else {}
        )
        outputs = read_tensors(_describe(head.outputs, raw, typed, regions), limits)
    except (MalformedMessageError, DecodeError) as error:
        raise backend_garbage(
            "the backend's ModelInferResponse cannot be read", str(error)
        ) from None
    except GatewayError as rejection:
        raise as_backend_error(rejection) from None
    return InferResponse(
        model=head.model_name,
        version=head.model_version,
        id=head.id,
        parameters=read_parameters(head.parameters),
        outputs=outputs,
    )


def _describe(
    outputs: Sequence[Any],
    raw: Sequence[memoryview],
    typed: Sequence[TypedContents],
    regions: Mapping[str, RegionRef | None],
) -> Iterator[DescribedTensor]:
    """Pair each output with its contents. If there is one raw entry per output, each non-empty
    entry takes precedence over typed contents. If there are fewer raw entries, they belong to the
    outputs without typed contents, in the same order. Raises BACKEND_GARBAGE."""
    if len(raw) == len(outputs):
        contents: list[Buffer | TypedContents] = [
            entry if len(entry) or not typed_contents.has_elements() else typed_contents
            for entry, typed_contents in zip(raw, typed, strict=True)
        ]
    else:
        contents = list(typed)
        untyped = [
            index for index, typed_contents in enumerate(typed) if not typed_contents.has_elements()
        ]
        if len(raw) not in (0, len(untyped)):
            raise backend_garbage(
                f"the response has {len(raw)} raw_output_contents for {len(outputs)} outputs"
            )
        for index, entry in zip(untyped, raw, strict=False):
            contents[index] = entry
    for message, content in zip(outputs, contents, strict=True):
        datatype = read_datatype(message.name, message.datatype.upper())
        region = regions.get(message.name)
        if region is None:
            yield message, datatype, content
        elif content.has_elements() if isinstance(content, TypedContents) else len(content):
            raise backend_garbage(
                f"output '{message.name}' has data but was requested in shared memory"
            )
        else:
            yield message, datatype, written_region(region, datatype, message.shape)


def _message_head(response: InferResponse) -> Any:
    head = ModelInferResponse(
        model_name=response.model, model_version=response.version, id=response.id
    )
    if response.parameters:
        write_parameters(head.parameters, response.parameters)
    for tensor in response.outputs:
        write_description(head.outputs, tensor)
    return head


def write_raw(response: InferResponse) -> Sequence[Buffer]:
    """Build a message with raw contents. Raises ValueError for values that protobuf cannot hold."""
    head = build_head(response, response.outputs)
    if head is None:
        head = _message_head(response).SerializeToString(deterministic=True)
    return raw_parts(head, RAW_FIELD, response.outputs)


def write_typed_where_possible(response: InferResponse) -> Sequence[Buffer]:
    """Build a message with typed contents, or with raw contents if any output is FP16 or BF16."""
    if not can_be_typed(response.outputs):
        return write_raw(response)
    head = _message_head(response)
    for message, tensor in zip(head.outputs, response.outputs, strict=True):
        write_typed(message, tensor)
    return (head.SerializeToString(deterministic=True),)
