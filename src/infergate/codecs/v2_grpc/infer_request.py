"""Converts between ModelInferRequest and InferRequest, and validates requests that pass through.

Contents are either raw or typed. If there are raw contents, empty `contents` messages are dropped,
because MLServer's converter writes such messages and Triton rejects them. Data that does not fit
the tensor's shape is rejected, because old versions of Triton crash on such data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from infergate.codecs.protos.bounded_parser import parse
from infergate.codecs.protos.wire_scanner import (
    DECODE_ERROR,
    DELIMITED,
    FieldBudget,
    MalformedMessageError,
    budgeted_fields,
    field_prefix,
    scan_fields,
    split_raw_fields,
)
from infergate.codecs.v2_grpc.head_limits import (
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    cut_contents,
    max_fields,
)
from infergate.codecs.v2_grpc.head_parts import build_head
from infergate.codecs.v2_grpc.messages import ModelInferRequest
from infergate.codecs.v2_grpc.parameters import read_parameters, write_parameters
from infergate.codecs.v2_grpc.tensors import (
    raw_parts,
    read_datatype,
    read_tensors,
    write_description,
)
from infergate.codecs.v2_grpc.typed_contents import TypedContents
from infergate.core.classification import CLASSIFICATION, class_count
from infergate.core.errors import bad_request
from infergate.core.limits import KIB, Limits
from infergate.core.messages import InferRequest, RequestedOutput
from infergate.core.name_rules import find_tensor_name_problem
from infergate.core.priorities import PRIORITY_PARAMETER, requested_priority
from infergate.core.records import record
from infergate.core.region_ref import (
    REGION_PARAMETER,
    RegionRef,
    parse_region_ref,
    region_parameters,
)
from infergate.core.sequences import SEQUENCE_ID as SEQUENCE
from infergate.core.sequences import SequenceId, sequence_id
from infergate.core.tensor import NO_PARAMETERS, Buffer, Parameters
from infergate.core.wire import join_parts

RAW_FIELD: Final = 7
"""The field number of ModelInferRequest.raw_input_contents."""
_OUTPUTS: Final = 6
"""The field number of ModelInferRequest.outputs."""
_REQUEST_PARAMETERS: Final = 4
"""The field number of ModelInferRequest.parameters."""
_PARAMETERS: Final = 2
"""The field number of InferRequestedOutputTensor.parameters."""
_KEY: Final = 1
"""The field number of a map entry's key."""
_CLASSIFICATION: Final = CLASSIFICATION.encode()
_SEQUENCE: Final = SEQUENCE.encode()
_PRIORITY: Final = PRIORITY_PARAMETER.encode()
_MAX_PRIORITY_FIELDS: Final = 4096
"""Maximum number of fields of a message whose priority is read. Scanning them takes up to 4 ms."""
_MAX_SEARCHED: Final = 16 * KIB
"""Maximum size in bytes of a message that is searched for a parameter's name before the fields are
scanned. For short messages, the search is faster than the scan."""


@record
class ValidatedRequest:
    """A validated request. `head` is the parsed ModelInferRequest without the tensors' data, `raw`
    are the raw entries, and `typed` are the typed contents of each input."""

    request: InferRequest
    head: Any
    raw: Sequence[memoryview]
    typed: Sequence[TypedContents]


def read_request(message: Sequence[Buffer], limits: Limits) -> ValidatedRequest:
    """Parse and validate a ModelInferRequest. Raises BAD_REQUEST, TOO_LARGE and
    NeedsOffloadError."""
    try:
        rest, raw = split_raw_fields(join_parts(message), RAW_FIELD, max_fields(limits))
        head_bytes, typed = cut_contents(rest, limits)
        head = ModelInferRequest.FromString(head_bytes)
        return ValidatedRequest(_read(head, raw, typed, limits), head, raw, typed)
    except MalformedMessageError as error:
        public = f"the ModelInferRequest cannot be read: {error}"
        raise bad_request(public, limit=error.limit_name) from None
    except DecodeError:
        raise bad_request(f"the ModelInferRequest cannot be read: {DECODE_ERROR}") from None


def _read(
    head: Any, raw: Sequence[memoryview], typed: Sequence[TypedContents], limits: Limits
) -> InferRequest:
    if not head.model_name:
        raise bad_request("model_name is missing")
    outputs = tuple(_read_output(output) for output in head.outputs)
    _check_names("input", [tensor.name for tensor in head.inputs], limits)
    _check_names("output", [output.name for output in outputs], limits)
    for output in outputs:
        class_count(output)
    parameters = read_parameters(head.parameters)
    sequence_id(parameters)
    input_data = _input_data(head.inputs, raw, typed)
    return InferRequest(
        model=head.model_name,
        version=head.model_version,
        id=head.id,
        parameters=parameters,
        inputs=read_tensors(
            (
                (message, read_datatype(message.name, message.datatype), data)
                for message, data in zip(head.inputs, input_data, strict=True)
            ),
            limits,
        ),
        outputs=outputs,
    )


def _read_output(output: Any) -> RequestedOutput:
    region, parameters = parse_region_ref(
        read_parameters(output.parameters), f"output '{output.name}'"
    )
    return RequestedOutput(output.name, parameters, region)


def _input_data(
    inputs: Sequence[Any], raw: Sequence[memoryview], typed: Sequence[TypedContents]
) -> Sequence[Buffer | TypedContents | RegionRef]:
    """Return the data of each input. Inputs in shared memory have no raw entry."""
    input_data: list[Buffer | TypedContents | RegionRef] = list(typed)
    in_message: list[int] = []
    for index, message in enumerate(inputs):
        region = None
        if REGION_PARAMETER in message.parameters:
            region, _ = parse_region_ref(
                read_parameters(message.parameters), f"input '{message.name}'"
            )
        if region is None:
            in_message.append(index)
        elif typed[index].has_elements():
            raise bad_request(
                f"tensor '{message.name}' has both contents and a shared memory region"
            )
        else:
            input_data[index] = region
    if raw:
        _check_raw(
            [inputs[index] for index in in_message], raw, [typed[index] for index in in_message]
        )
        for index, entry in zip(in_message, raw, strict=True):
            input_data[index] = entry
    return input_data


def _check_names(kind: str, names: Sequence[str], limits: Limits) -> None:
    if len(names) > limits.tensors:
        raise bad_request(
            f"there are {len(names)} {kind}s; the limit is {limits.tensors}", limit="tensors"
        )
    earlier_names: set[str] = set()
    for index, name in enumerate(names):
        if not name:
            raise bad_request(f"{kind} {index} has no name")
        if name in earlier_names:
            raise bad_request(f"{kind} '{name}' is given twice")
        if problem := find_tensor_name_problem(name):
            raise bad_request(f"the name of {kind} {index} {problem}")
        earlier_names.add(name)


def _check_raw(
    inputs: Sequence[Any], raw: Sequence[memoryview], typed: Sequence[TypedContents]
) -> None:
    for message, contents in zip(inputs, typed, strict=True):
        if contents.has_elements():
            raise bad_request(
                f"tensor '{message.name}': contents are set although the request has "
                "raw_input_contents"
            )
    if len(raw) < len(inputs):
        missing = ", ".join(f"'{message.name}'" for message in inputs[len(raw) :])
        raise bad_request(
            f"raw_input_contents has {len(raw)} entries for {len(inputs)} inputs outside shared "
            f"memory: the data of {missing} is missing"
        )
    if len(raw) > len(inputs):
        raise bad_request(
            f"raw_input_contents has {len(raw)} entries for {len(inputs)} inputs outside shared "
            "memory"
        )


def pass_through_parts(
    message: Sequence[Buffer], validated: ValidatedRequest
) -> tuple[Sequence[Buffer], bool]:
    """Return `message`, without typed contents if it has raw contents, and whether it uses shared
    memory."""
    request = validated.request
    uses_shared_memory = any(tensor.shared_memory for tensor in request.inputs) or any(
        tensor.shared_memory for tensor in request.outputs
    )
    if not validated.raw or not any(typed.pieces for typed in validated.typed):
        return message, uses_shared_memory
    parts: list[Buffer] = [validated.head.SerializeToString(deterministic=True)]
    for entry in validated.raw:
        parts += (field_prefix(RAW_FIELD, len(entry)), entry)
    return parts, uses_shared_memory


def read_sequence(message: Buffer, limits: Limits) -> SequenceId | None:
    """Return the sequence id in the parameters of `message`, or None. Raises MalformedMessageError
    and BAD_REQUEST."""
    parameters = _read_parameters(message, _SEQUENCE, max_fields(limits), MAX_HEAD_BYTES)
    return sequence_id(parameters)


def read_priority(message: Buffer) -> int:
    """Return the priority in the parameters of `message`. Return 0 if there is no priority, or if
    `message` is malformed or has too many fields or parameters to read quickly."""
    try:
        parameters = _read_parameters(message, _PRIORITY, _MAX_PRIORITY_FIELDS, _MAX_SEARCHED)
    except MalformedMessageError:
        return 0
    return requested_priority(parameters)


def _read_parameters(message: Buffer, name: bytes, max_count: int, max_bytes: int) -> Parameters:
    """Return the parameters of `message`. If `message` is short and does not contain `name`, the
    result is empty. Raises MalformedMessageError for over `max_count` fields or over `max_bytes` of
    parameters."""
    if len(message) <= _MAX_SEARCHED and name not in bytes(message):
        return NO_PARAMETERS
    view = memoryview(message)
    parts = [
        view[field.start : field.end]
        for field in scan_fields(message, max_count)
        if field.number == _REQUEST_PARAMETERS and field.wire_type == DELIMITED
    ]
    if sum(map(len, parts)) > max_bytes:
        raise MalformedMessageError(f"its parameters have over {max_bytes} bytes (the limit)")
    head = parse(ModelInferRequest, b"".join(parts), MAX_FIELDS, MAX_HEAD_BYTES)
    return read_parameters(head.parameters)


def requests_classes(message: Buffer) -> bool:
    """Return whether `message` requests classes for any output. Raises MalformedMessageError."""
    if len(message) <= _MAX_SEARCHED and _CLASSIFICATION not in bytes(message):
        return False
    view = memoryview(message)
    budget = FieldBudget(MAX_FIELDS)
    return any(
        _is_classified(view[field.value_start : field.end], budget)
        for field in budgeted_fields(message, budget)
        if field.number == _OUTPUTS and field.wire_type == DELIMITED
    )


def _is_classified(output: memoryview, budget: FieldBudget) -> bool:
    if _CLASSIFICATION not in bytes(output):
        return False
    for field in budgeted_fields(output, budget):
        if field.number == _PARAMETERS and field.wire_type == DELIMITED:
            entry = output[field.value_start : field.end]
            key = b""
            for inner in budgeted_fields(entry, budget):
                if inner.number == _KEY and inner.wire_type == DELIMITED:
                    key = bytes(entry[inner.value_start : inner.end])
            if key == _CLASSIFICATION:
                return True
    return False


def write_request(request: InferRequest) -> Sequence[Buffer]:
    """Build a message with raw contents. Raises ValueError for values that protobuf cannot hold."""
    head = build_head(request, request.inputs, request.outputs)
    if head is not None:
        return raw_parts(head, RAW_FIELD, request.inputs)
    head = _message_head(request).SerializeToString(deterministic=True)
    return raw_parts(
        head, RAW_FIELD, [tensor for tensor in request.inputs if tensor.shared_memory is None]
    )


def _message_head(request: InferRequest) -> Any:
    head = ModelInferRequest(model_name=request.model, model_version=request.version, id=request.id)
    write_parameters(head.parameters, request.parameters)
    for tensor in request.inputs:
        write_description(head.inputs, tensor)
    for output in request.outputs:
        entries = head.outputs.add(name=output.name).parameters
        write_parameters(entries, output.parameters)
        if output.shared_memory is not None:
            write_parameters(entries, region_parameters(output.shared_memory))
    return head
