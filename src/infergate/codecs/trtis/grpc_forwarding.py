"""Pass-through between legacy gRPC clients and servers: messages are forwarded with their tensors
unchanged.

The rules are those of ``http_pass_through``; only the position of the header differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from google.protobuf.message import DecodeError

from infergate.codecs.base import Parsed, Unfinished
from infergate.codecs.protos.scan import (
    DELIMITED,
    VARINT,
    VARINT_BYTES,
    Malformed,
    fields,
    prefix,
    varint,
    without,
)
from infergate.codecs.protos.statuses import raise_status
from infergate.codecs.trtis import grpc_infer
from infergate.codecs.trtis import messages as pb
from infergate.codecs.trtis.checked import (
    MAX_KEY_LENGTH,
    CheckedHeader,
    CheckedHeaders,
    read_answer,
)
from infergate.codecs.trtis.infer_request import read_request, version_number
from infergate.codecs.trtis.infer_response import model_version
from infergate.codecs.trtis.methods import INFER
from infergate.codecs.trtis.options import Level
from infergate.codecs.trtis.statuses import check_status
from infergate.core.errors import bad_request, garbage
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, ModelMetadata
from infergate.core.sequences import SequenceId
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, RpcResponse, joined

# InferRequest: model_name, model_version, meta_data; InferResponse: request_status, meta_data
_MODEL: Final = 1
_VERSION: Final = 2
_STATUS: Final = 1
_REQUEST_HEADER: Final = 3
_ANSWER_HEADER: Final = 2
_ID: Final = 5
_FIELDS_PER_TENSOR: Final = 4


@dataclass(slots=True)
class CheckedRpc(RpcRequest):
    """A validated inference. ``id`` is the client's; 0 if it has none."""

    header: CheckedHeader | None = None
    names: tuple[str, str] = ("", "")
    unfinished: Callable[[], tuple[Any, Unfinished[Parsed]]] | None = None
    id: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what is needed to validate a response (Rule 2), without the cached responses."""
        header = None if self.header is None else replace(self.header, answers={})
        arguments = (self.method, self.message, self.metadata, header, self.names, self.unfinished)
        return CheckedRpc, (*arguments, self.id)


def check(
    wire: RpcRequest, asked: InferRequest, headers: CheckedHeaders, level: Level, limits: Limits
) -> Unfinished[RpcRequest]:
    """Return ``wire``, an inference of ``target``, to be validated with the model's metadata.

    Raises MalformedMessageError, BAD_REQUEST.
    """
    head, raw = grpc_infer.split_request(wire.message, limits)
    header_bytes, number = _cut_id(_only(head, _REQUEST_HEADER, _MODEL)[0], limits)
    key = None if header_bytes is None else (header_bytes, asked.model, asked.version)
    entry = headers.find(key)
    parse = partial(_unfinished, head, raw, asked, level, limits)
    parsed_request = parse() if entry is None else None

    def finish(metadata: ModelMetadata) -> RpcRequest:
        validated, id_ = entry, number
        if (
            validated is not None
            and validated.fits(metadata, limits)
            and tuple(map(len, raw[: len(validated.sizes)])) == validated.sizes
        ):
            if validated.strings:
                validated.check_strings(raw)
        else:
            try:
                header, unfinished = parsed_request or parse()
            except Malformed as error:
                raise bad_request(f"the message cannot be parsed: {error}") from None
            parsed = unfinished.finish(metadata)
            validated, id_ = headers.add(key, header, parsed, metadata, limits), header.id
        return CheckedRpc(
            wire.method,
            wire.message,
            wire.metadata,
            validated,
            (asked.model, asked.version),
            parse,
            id_,
        )

    return Unfinished(asked.model, asked.version, finish)


def _unfinished(
    head: Buffer, raw: Sequence[memoryview], asked: InferRequest, level: Level, limits: Limits
) -> tuple[Any, Unfinished[Parsed]]:
    header = grpc_infer.parse_head(head).meta_data
    return header, read_request(header, asked, grpc_infer.allot(raw), level, limits)


def _cut_id(header: memoryview | None, limits: Limits) -> tuple[bytes | None, int]:
    """Return ``header`` without its id, and the id. The header is None if it is too long to be
    cached. Raises MalformedMessageError."""
    if header is None or len(header) > MAX_KEY_LENGTH:
        return None, 0
    kept: list[memoryview] = []
    id_ = 0
    for field in fields(header, _FIELDS_PER_TENSOR * limits.tensors):
        if field.number == _ID and field.wire_type == VARINT:
            id_ = varint(header, field.value, VARINT_BYTES)[0] % 2**64
        else:
            kept.append(header[field.start : field.end])
    return b"".join(kept), id_


def _only(head: Buffer, number: int, other: int) -> tuple[memoryview | None, memoryview]:
    """Return the field ``number`` of ``head``, or None unless it occurs exactly once, and the
    contents of all fields ``merged_number``, which protobuf merges. Raises
    MalformedMessageError."""
    view = memoryview(head)
    matches: list[memoryview] = []
    merged: list[memoryview] = []
    for field in fields(view, grpc_infer.MOST_FIELDS):
        if field.wire_type == DELIMITED:
            if field.number == number:
                matches.append(view[field.value : field.end])
            elif field.number == other:
                merged.append(view[field.value : field.end])
    contents = merged[0] if len(merged) == 1 else memoryview(b"".join(merged))
    return matches[0] if len(matches) == 1 else None, contents


def sequence(wire: RpcRequest, limits: Limits) -> SequenceId | None:
    """Return the sequence that ``wire`` belongs to. Raises MalformedMessageError."""
    if isinstance(wire, CheckedRpc) and wire.header is not None:
        return wire.header.sequence
    head, _ = grpc_infer.split_request(wire.message, limits)
    return grpc_infer.parse_head(head).meta_data.correlation_id or None


def readdress(wire: RpcRequest, model: str, version: str) -> RpcRequest | None:
    """Return ``wire`` for another model; None if it must be translated. Raises
    MalformedMessageError, BAD_REQUEST."""
    if isinstance(wire, CheckedRpc) and wire.header is not None:
        if not wire.header.forwards:
            return None
        if wire.names == (model, version):
            return RpcRequest(INFER, wire.message)
    number = version_number(model, version)
    names = pb.InferRequest(model_name=model, model_version=number).SerializeToString()
    rest = without(joined(wire.message), frozenset({_MODEL, _VERSION}), grpc_infer.MOST_FIELDS)
    return RpcRequest(INFER, [names, *rest])


def relabel(  # noqa: PLR0913, PLR0917 - the codec's, and the status
    wire: RpcResponse,
    asked: RpcRequest,
    model: str,
    version: str,
    limits: Limits,
    status: Callable[[], Any],
) -> RpcResponse:
    """Return the backend's response as the response to ``request``, with the gateway's own status.

    ``model`` and ``version`` replace the backend's where they are not empty. Raises the backend's
    error, or BACKEND_GARBAGE.
    """
    if wire.code:
        raise_status(wire)
    try:
        if isinstance(asked, CheckedRpc) and asked.header is not None:
            return _answered(wire, asked, (model, version), limits, status)
        return _relayed(wire, model, version, limits, status)
    except (Malformed, DecodeError) as error:
        raise garbage("the backend's InferResponse cannot be parsed", str(error)) from None


def _answered(
    wire: RpcResponse,
    asked: CheckedRpc,
    names: tuple[str, str],
    limits: Limits,
    status: Callable[[], Any],
) -> RpcResponse:
    """Build the response to a validated request (Rule 2)."""
    entry, parse = asked.header, asked.unfinished
    assert entry is not None
    assert parse is not None
    rest, entries = grpc_infer.split_response(wire.message, limits)
    header, code = _only(rest, _ANSWER_HEADER, _STATUS)
    header_bytes, _ = _cut_id(header, limits)
    validated = None if header_bytes is None else entry.answers.get((header_bytes, *names))
    if validated is not None and tuple(map(len, entries)) == validated.sizes:
        check_status(pb.RequestStatus.FromString(code), wire.metadata)
        raw: Sequence[Buffer] = entries
    else:
        head = grpc_infer.parse_answer_head(rest, limits)
        check_status(head.request_status, wire.metadata)
        parsed = parse()[1].finish(entry.metadata)
        allot = grpc_infer.allot_outputs(entries)
        validated, raw, is_cacheable = read_answer(head.meta_data, allot, parsed, entry, names)
        written = validated.header.SerializeToString(deterministic=True)
        validated = replace(validated, header=written)
        if is_cacheable and header_bytes is not None:
            entry.remember((header_bytes, *names), validated)
    status_bytes = status().SerializeToString(deterministic=True)
    client_header = validated.header
    if asked.id:
        client_header += pb.InferResponseHeader(id=asked.id).SerializeToString()
    parts: list[Buffer] = [
        b"".join(
            (
                prefix(_STATUS, len(status_bytes)),
                status_bytes,
                prefix(_ANSWER_HEADER, len(client_header)),
                client_header,
            )
        )
    ]
    return RpcResponse(grpc_infer.add_raw(parts, grpc_infer.RAW_OUTPUT, validated.data(raw)))


def _relayed(
    wire: RpcResponse, model: str, version: str, limits: Limits, status: Callable[[], Any]
) -> RpcResponse:
    """Relay the response to a request that was not validated (Rule 3)."""
    head, raw = grpc_infer.read_response(wire.message, limits)
    check_status(head.request_status, wire.metadata)
    if model:
        head.meta_data.model_name = model
    if version:
        head.meta_data.model_version = model_version(version)
    head.request_status.CopyFrom(status())
    return RpcResponse(grpc_infer.message_parts(head, grpc_infer.RAW_OUTPUT, raw))
