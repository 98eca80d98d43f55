"""Legacy gRPC on both sides: the message goes on, its tensors untouched.

The rules are those of ``http_forwarding``; only where the header lies differs.
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
    """An inference that passed; ``id`` is its own, 0 where it has none."""

    header: CheckedHeader | None = None
    names: tuple[str, str] = ("", "")
    unfinished: Callable[[], tuple[Any, Unfinished[Parsed]]] | None = None
    id: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """With what an answer is checked by (Rule 2); answers that are remembered stay here."""
        known = None if self.header is None else replace(self.header, answers={})
        told = (self.method, self.message, self.metadata, known, self.names, self.unfinished)
        return CheckedRpc, (*told, self.id)


def check(
    wire: RpcRequest, asked: InferRequest, headers: CheckedHeaders, level: Level, limits: Limits
) -> Unfinished[RpcRequest]:
    """``wire``, an inference of the model ``asked`` for, to be checked with the model's metadata.
    Raises Malformed, BAD_REQUEST."""
    head, raw = grpc_infer.split_request(wire.message, limits)
    told, number = _cut_id(_only(head, _REQUEST_HEADER, _MODEL)[0], limits)
    key = None if told is None else (told, asked.model, asked.version)
    entry = headers.find(key)
    unread = partial(_unfinished, head, raw, asked, level, limits)
    read = unread() if entry is None else None

    def finish(metadata: ModelMetadata) -> RpcRequest:
        known, id_ = entry, number
        if (
            known is not None
            and known.fits(metadata, limits)
            and tuple(map(len, raw[: len(known.sizes)])) == known.sizes
        ):
            if known.strings:
                known.check_strings(raw)
        else:
            try:
                header, unfinished = read or unread()
            except Malformed as error:
                raise bad_request(f"the message cannot be read: {error}") from None
            parsed = unfinished.finish(metadata)
            known, id_ = headers.add(key, header, parsed, metadata, limits), header.id
        return CheckedRpc(
            wire.method,
            wire.message,
            wire.metadata,
            known,
            (asked.model, asked.version),
            unread,
            id_,
        )

    return Unfinished(asked.model, asked.version, finish)


def _unfinished(
    head: Buffer, raw: Sequence[memoryview], asked: InferRequest, level: Level, limits: Limits
) -> tuple[Any, Unfinished[Parsed]]:
    header = grpc_infer.parse_head(head).meta_data
    return header, read_request(header, asked, grpc_infer.allot(raw), level, limits)


def _cut_id(header: memoryview | None, limits: Limits) -> tuple[bytes | None, int]:
    """``header`` without its id, and that; None where it is too long to be remembered. Raises
    Malformed."""
    if header is None or len(header) > MAX_KEY_LENGTH:
        return None, 0
    kept: list[memoryview] = []
    number = 0
    for each in fields(header, _FIELDS_PER_TENSOR * limits.tensors):
        if each.number == _ID and each.wire_type == VARINT:
            number = varint(header, each.value, VARINT_BYTES)[0] % 2**64
        else:
            kept.append(header[each.start : each.end])
    return b"".join(kept), number


def _only(head: Buffer, number: int, other: int) -> tuple[memoryview | None, memoryview]:
    """The field ``number`` of ``head``, None where it is not there just once, and all fields
    ``other`` together, which protobuf merges. Raises Malformed."""
    view = memoryview(head)
    found: list[memoryview] = []
    others: list[memoryview] = []
    for field in fields(view, grpc_infer.MOST_FIELDS):
        if field.wire_type == DELIMITED:
            if field.number == number:
                found.append(view[field.value : field.end])
            elif field.number == other:
                others.append(view[field.value : field.end])
    rest = others[0] if len(others) == 1 else memoryview(b"".join(others))
    return found[0] if len(found) == 1 else None, rest


def sequence(wire: RpcRequest, limits: Limits) -> SequenceId | None:
    """The sequence that ``wire`` belongs to. Raises Malformed."""
    if isinstance(wire, CheckedRpc) and wire.header is not None:
        return wire.header.sequence
    head, _ = grpc_infer.split_request(wire.message, limits)
    return grpc_infer.parse_head(head).meta_data.correlation_id or None


def readdress(wire: RpcRequest, model: str, version: str) -> RpcRequest | None:
    """``wire`` to another model. None where it is to be translated. Raises Malformed,
    BAD_REQUEST."""
    if isinstance(wire, CheckedRpc) and wire.header is not None:
        if not wire.header.forwards:
            return None
        if wire.names == (model, version):
            return RpcRequest(INFER, wire.message)
    number = version_number(model, version)
    names = pb.InferRequest(model_name=model, model_version=number).SerializeToString()
    rest = without(joined(wire.message), frozenset({_MODEL, _VERSION}), grpc_infer.MOST_FIELDS)
    return RpcRequest(INFER, [names, *rest])


def relabel(  # noqa: PLR0913, PLR0917 - those of a codec, and the gateway's status
    wire: RpcResponse,
    asked: RpcRequest,
    model: str,
    version: str,
    limits: Limits,
    status: Callable[[], Any],
) -> RpcResponse:
    """The backend's answer, of ``model`` and ``version`` where these are not empty, with the
    gateway's own ``status``. Raises the backend's error, or BACKEND_GARBAGE."""
    if wire.code:
        raise_status(wire)
    try:
        if isinstance(asked, CheckedRpc) and asked.header is not None:
            return _answered(wire, asked, (model, version), limits, status)
        return _relayed(wire, model, version, limits, status)
    except (Malformed, DecodeError) as error:
        raise garbage("the backend's InferResponse cannot be read", str(error)) from None


def _answered(
    wire: RpcResponse,
    asked: CheckedRpc,
    names: tuple[str, str],
    limits: Limits,
    status: Callable[[], Any],
) -> RpcResponse:
    """Rule 2."""
    entry, unfinished = asked.header, asked.unfinished
    assert entry is not None
    assert unfinished is not None
    rest, entries = grpc_infer.split_response(wire.message, limits)
    header, code = _only(rest, _ANSWER_HEADER, _STATUS)
    told, _ = _cut_id(header, limits)
    answer = None if told is None else entry.answers.get((told, *names))
    if answer is not None and tuple(map(len, entries)) == answer.sizes:
        check_status(pb.RequestStatus.FromString(code), wire.metadata)
        raw: Sequence[Buffer] = entries
    else:
        head = grpc_infer.parse_answer_head(rest, limits)
        check_status(head.request_status, wire.metadata)
        parsed = unfinished()[1].finish(entry.metadata)
        allot = grpc_infer.allot_outputs(entries)
        answer, raw, repeats = read_answer(head.meta_data, allot, parsed, entry, names)
        written = answer.header.SerializeToString(deterministic=True)
        answer = replace(answer, header=written)
        if repeats and told is not None:
            entry.remember((told, *names), answer)
    ours = status().SerializeToString(deterministic=True)
    text = answer.header
    if asked.id:
        text += pb.InferResponseHeader(id=asked.id).SerializeToString()
    parts: list[Buffer] = [
        b"".join((prefix(_STATUS, len(ours)), ours, prefix(_ANSWER_HEADER, len(text)), text))
    ]
    return RpcResponse(grpc_infer.add_raw(parts, grpc_infer.RAW_OUTPUT, answer.data(raw)))


def _relayed(
    wire: RpcResponse, model: str, version: str, limits: Limits, status: Callable[[], Any]
) -> RpcResponse:
    """Rule 3."""
    head, raw = grpc_infer.read_response(wire.message, limits)
    check_status(head.request_status, wire.metadata)
    if model:
        head.meta_data.model_name = model
    if version:
        head.meta_data.model_version = model_version(version)
    head.request_status.CopyFrom(status())
    return RpcResponse(grpc_infer.message_parts(head, grpc_infer.RAW_OUTPUT, raw))
