"""Forwards Classify, Regress and MultiInference. Only TensorFlow Serving can serve these calls,
because the model's graph parses the examples in the request.

In canonical form, such a call is an inference without tensors. Its parameters hold the client's
message. Codecs of other protocols reject the call. The response has one BYTES tensor, which holds
the server's message. In gRPC messages, the codec reads and replaces only the ModelSpecs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from infergate.codecs.protos.wire_scanner import (
    DELIMITED,
    MalformedMessageError,
    scan_fields,
)
from infergate.codecs.tfs.messages import CLASSIFY, MULTI_INFERENCE, REGRESS
from infergate.codecs.tfs.model_spec import (
    GRPC_PROTOCOL,
    LABEL,
    MAX_TOP_LEVEL_FIELDS,
    REQUEST_SPEC,
    RESPONSE_SPEC,
    ModelSpec,
    RequestedModel,
    apply_options,
    find_spec,
    parse_spec,
    single_spec,
    spec_field,
    write_spec,
)
from infergate.codecs.tfs.options import TfsOptions
from infergate.core.datatypes import Datatype
from infergate.core.errors import Kind, backend_garbage, bad_request
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.tensor import Buffer, OpaqueParameters, Tensor, pack_bytes, unpack_bytes

FORWARDED: Final = frozenset({CLASSIFY, REGRESS, MULTI_INFERENCE})
_TASKS: Final = 1
"""The field number of MultiInferenceRequest.tasks and MultiInferenceResponse.results."""
_TASK_SPEC: Final = 1
"""The field number of InferenceTask.model_spec and InferenceResult.model_spec."""
_OUTPUT: Final = "response"
_MAX_TASKS: Final = 1024

RewriteSpec = Callable[[ModelSpec], bytes]
"""A function that returns the serialized replacement of a ModelSpec."""


def requested_by(message: Buffer, method: str, options: TfsOptions) -> RequestedModel:
    """Return the model that ``message``, a request to ``method``, names. Raises
    MalformedMessageError and BAD_REQUEST."""
    if method == MULTI_INFERENCE:
        return apply_options(single_spec(map(parse_spec, _task_specs(message))), options)
    spec = find_spec(message, REQUEST_SPEC)
    if spec is None:
        raise bad_request("Missing ModelSpec")
    return apply_options(parse_spec(spec), options)


def _task_specs(message: Buffer) -> Iterator[bytes]:
    view = memoryview(message)
    count = 0
    for field in scan_fields(message, MAX_TOP_LEVEL_FIELDS):
        if field.number == _TASKS and field.wire_type == DELIMITED:
            count += 1
            if count > _MAX_TASKS:
                raise MalformedMessageError(f"it has over {_MAX_TASKS} tasks (the limit)")
            yield find_spec(view[field.value_start : field.end], _TASK_SPEC) or b""


def read_call(
    message: Buffer, method: str, requested: RequestedModel, options: TfsOptions
) -> InferRequest:
    """Return a gRPC call as an inference. Raises MalformedMessageError."""
    rewritten = b"".join(rewrite_request(message, method, "", "", options))
    return as_inference(requested, GRPC_PROTOCOL, method, rewritten)


def as_inference(
    requested: RequestedModel, protocol: str, method: str, message: bytes, label: str = ""
) -> InferRequest:
    """Return a call as an inference that only servers of ``protocol`` can serve."""
    name, api = method.rpartition("/")[2], "gRPC" if protocol == GRPC_PROTOCOL else "REST"
    parameters = OpaqueParameters(
        {LABEL: label} if label else {},
        (protocol,),
        method.encode() + b"\0" + message,
        (Kind.UNSUPPORTED, f"{name} needs a backend that speaks TensorFlow Serving's {api} API"),
    )
    return InferRequest(requested.model, requested.version, parameters=parameters)


def call_of(request: InferRequest, protocol: str) -> tuple[str, bytes] | None:
    """Return the method and the message of a forwarded call for servers of ``protocol``, or None if
    ``request`` is not such a call."""
    parameters = request.parameters
    if (
        not isinstance(parameters, OpaqueParameters)
        or protocol not in parameters.protocols
        or not parameters.text
    ):
        return None
    method, _, message = parameters.text.partition(b"\0")
    return method.decode(), message


def rewrite_request(
    message: Buffer, method: str, model: str, version: str, options: TfsOptions
) -> list[Buffer]:
    """Return ``message`` with ``model`` and ``version`` in each ModelSpec. An empty ``model`` or
    ``version`` is taken from the client's ModelSpec after ``options`` have been applied.
    Signatures remain unless the options map them. Labels remain unless a version replaces them."""

    def rewrite(spec: ModelSpec) -> bytes:
        requested = apply_options(spec, options)
        return write_spec(
            model or requested.model,
            version or requested.version,
            requested.label,
            requested.signature,
        )

    if method == MULTI_INFERENCE:
        return _rewrite_tasks(message, rewrite)
    return rewrite_spec(message, REQUEST_SPEC, rewrite)


def rewrite_response(message: Buffer, method: str, rewrite: RewriteSpec) -> list[Buffer]:
    """Return ``message``, a server's response, with its ModelSpecs rewritten."""
    if method == MULTI_INFERENCE:
        return _rewrite_tasks(message, rewrite)
    return rewrite_spec(message, RESPONSE_SPEC, rewrite)


def rewrite_spec(message: Buffer, number: int, rewrite: RewriteSpec) -> list[Buffer]:
    """Return ``message`` with the ModelSpec in field ``number`` rewritten. The rest of the message
    is not copied."""
    view = memoryview(message)
    before: list[Buffer] = []
    after: list[Buffer] = []
    spec: bytearray | None = None
    kept_from = 0
    for field in scan_fields(message, MAX_TOP_LEVEL_FIELDS):
        if field.number == number and field.wire_type == DELIMITED:
            if field.start > kept_from:
                (before if spec is None else after).append(view[kept_from : field.start])
            spec = bytearray() if spec is None else spec
            spec += view[field.value_start : field.end]
            kept_from = field.end
    if kept_from < len(view):
        (before if spec is None else after).append(view[kept_from:])
    rewritten = rewrite(parse_spec(bytes(spec or b"")))
    return [*before, spec_field(number, rewritten), *after]


def _rewrite_tasks(message: Buffer, rewrite: RewriteSpec) -> list[Buffer]:
    view = memoryview(message)
    parts: list[Buffer] = []
    for field in scan_fields(message, MAX_TOP_LEVEL_FIELDS):
        if field.number == _TASKS and field.wire_type == DELIMITED:
            task = rewrite_spec(view[field.value_start : field.end], _TASK_SPEC, rewrite)
            parts.append(spec_field(_TASKS, b"".join(task)))
        else:
            parts.append(view[field.start : field.end])
    return parts


def read_response(message: Buffer, request: InferRequest, version: str) -> InferResponse:
    """Return an inference response that holds ``message``, a server's response."""
    tensor = Tensor(_OUTPUT, Datatype.BYTES, (1,), pack_bytes((bytes(message),)))
    return InferResponse(request.model, version, outputs=(tensor,))


def response_message(response: InferResponse) -> bytes:
    """Return the server's message in the response to a forwarded call. Raises BACKEND_GARBAGE."""
    for tensor in response.outputs:
        for message in unpack_bytes(tensor.data):
            return message
    raise backend_garbage("the backend's response has no message")
