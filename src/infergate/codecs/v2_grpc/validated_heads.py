"""Caches the heads of requests and responses, with the results of the full check or with only the
model's name and version.

Cached results equal the results of the full check, which reads each message that does not match a
cached head. Results are not cached for heads with typed contents or regions in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from infergate.codecs.base import RequestSummary
from infergate.codecs.message_heads import MAX_CACHED_HEAD, MessageHeadCache, TensorLayout
from infergate.codecs.protos.wire_scanner import (
    MAX_NAME_BYTES,
    MalformedMessageError,
    read_strings,
    remove_fields,
    scan_fields,
    string_field,
)
from infergate.codecs.v2_grpc.head_limits import MAX_FIELDS, MIN_MAX_FIELDS, max_fields
from infergate.codecs.v2_grpc.infer_request import RAW_FIELD as RAW_INPUTS
from infergate.codecs.v2_grpc.infer_request import ValidatedRequest, read_sequence, requests_classes
from infergate.codecs.v2_grpc.infer_response import RAW_FIELD as RAW_OUTPUTS
from infergate.codecs.v2_grpc.infer_response import read_response
from infergate.codecs.v2_grpc.split_message import MessageLayouts, SplitMessage, split_message
from infergate.core.compilation import mypyc_attr
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.sequences import SequenceId
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, join_parts

# Field numbers of ModelInferRequest and ModelInferResponse.
MODEL: Final = 1
VERSION: Final = 2
ID: Final = 3
OUTPUTS: Final = 5
"""The field number of ModelInferResponse.outputs."""
_NAMES: Final = frozenset({MODEL, VERSION})
_new_tuple: Final = tuple.__new__
"""Creates a named tuple at a third of the cost of calling the class."""


class HeadNames:
    """The model and version in a head, and a copy of the head with the names of the last `renamed`
    call."""

    __slots__ = ("_head", "_latest_head", "_latest_names", "model", "version")

    def __init__(self, head: bytes, model: str, version: str) -> None:
        self._head: Final = head
        self.model: Final = model
        self.version: Final = version
        self._latest_names = ("", "")
        self._latest_head = b""

    def renamed(self, model: str, version: str) -> bytes:
        """Return the head with `model` and `version` as its names."""
        if self._latest_names != (model, version) or not self._latest_head:
            names = (
                string_field(MODEL, model),
                string_field(VERSION, version) if version else b"",
            )
            self._latest_head = b"".join((*names, *remove_fields(self._head, _NAMES, MAX_FIELDS)))
            self._latest_names = (model, version)
        return self._latest_head


@dataclass(frozen=True, slots=True)
class ValidatedHead:
    """The results of the full check of a request head. They are valid only for `limits`."""

    request: InferRequest
    """The request without its id and inputs."""
    tensors: TensorLayout
    sequence: SequenceId | None
    limits: Limits


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A cached request head. `validated` is None if the route does not validate its requests."""

    summary: RequestSummary
    names: HeadNames
    wants_classes: bool
    """Whether the client requests classes for any output."""
    validated: ValidatedHead | None = None


class SplitRequest(NamedTuple):
    """A request that was split into its head and raw entries. `data` is the joined `message`.
    `head` is the cached head, or None. `has_recurred` is true if the head is not cached yet but
    occurred recently."""

    message: Sequence[Buffer]
    data: Buffer
    split: SplitMessage
    head: RequestHead | None
    has_recurred: bool

    def validated_head(self, limits: Limits) -> ValidatedHead | None:
        """Return the validated head, or None if the message needs the full check."""
        head = None if self.head is None else self.head.validated
        if head is None or head.limits is not limits:
            return None
        return head if head.tensors.fits(self.split.raw, self.data) else None

    def read(self, head: ValidatedHead) -> InferRequest:
        """Return the inference. `head` is the result of `validated_head`."""
        request = head.request
        return InferRequest(
            request.model,
            request.version,
            self.split.id,
            request.parameters,
            head.tensors.read(self.split.raw, self.data),
            request.outputs,
        )

    def renamed(self, names: HeadNames, model: str, version: str) -> Sequence[Buffer]:
        """Return the message with `model` and `version` instead of its `names`."""
        return [names.renamed(model, version), self.split.id_field, *self.split.entries(self.data)]


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestHeads:
    """A cache of the heads of requests."""

    def __init__(self) -> None:
        self._heads: Final[MessageHeadCache[RequestHead]] = MessageHeadCache()
        self._layouts: Final = MessageLayouts()

    def find(self, wire: RpcRequest) -> SplitRequest | None:
        """Split the inference request `wire`, or return the result of the previous call.
        Return None if the fast path does not apply."""
        cached = wire.codec_state
        if type(cached) is SplitRequest and cached.message is wire.message:
            return cached
        message = wire.message
        data = message[0] if len(message) == 1 else join_parts(message)
        heads, has_recurred = self._heads, False
        split = self._layouts.split(data)
        head = None if split is None else heads.entries.get(split.head)
        if split is None or head is None:
            split = split_message(data, RAW_INPUTS)
            if split is None:
                return None
            head = heads.get(split.head)
            if head is not None:
                self._layouts.keep(data, split)
            else:
                has_recurred = heads.has_recurred(split.head)
        wire.codec_state = request = _new_tuple(
            SplitRequest, (message, data, split, head, has_recurred)
        )
        return request

    def store(
        self, split: SplitRequest | None, validated: ValidatedRequest, limits: Limits
    ) -> None:
        """Cache the head of `split`. `validated` is the result of the full check."""
        request = validated.request
        if (
            split is None
            or not (split.has_recurred or split.head)
            or any(typed.pieces for typed in validated.typed)
            or any(tensor.shared_memory for tensor in request.inputs)
            or any(tensor.shared_memory for tensor in request.outputs)
            or split.split.fields + len(request.inputs) + 1 > max_fields(limits)
        ):
            return
        head = split.split.head
        results = ValidatedHead(
            replace(request, id="", inputs=()),
            TensorLayout(request.inputs),
            read_sequence(head, limits),
            limits,
        )
        entry = RequestHead(
            RequestSummary(InferRequest, request.model, request.version),
            HeadNames(head, request.model, request.version),
            requests_classes(head),
            results,
        )
        self._heads.store(head, entry)

    def find_names(self, split: SplitRequest) -> RequestHead | None:
        """Read and cache the names of `split`, a request that is not validated. Return None if the
        fast path does not apply."""
        if not split.has_recurred:
            return None
        data = split.split.head
        head = self._heads.get(data)
        if head is None:
            try:
                names = read_strings(data, _NAMES, MAX_FIELDS, MAX_NAME_BYTES)
                wants_classes = requests_classes(data)
            except MalformedMessageError:
                return None
            model, version = names.get(MODEL, ""), names.get(VERSION, "")
            if not model:
                return None
            summary = RequestSummary(InferRequest, model, version)
            head = RequestHead(summary, HeadNames(data, model, version), wants_classes)
            self._heads.store(data, head)
        return head


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """A cached response head. It is valid only for `limits`."""

    response: InferResponse
    """The response without its id and outputs."""
    tensors: TensorLayout
    limits: Limits


@mypyc_attr(allow_interpreted_subclasses=True)
class ResponseHeads:
    """A cache of the heads of responses that passed the full check."""

    def __init__(self) -> None:
        self._heads: Final[MessageHeadCache[ResponseHead]] = MessageHeadCache()
        self._layouts: Final = MessageLayouts()

    def read(
        self, message: Sequence[Buffer], limits: Limits, request: InferRequest
    ) -> InferResponse:
        """Parse `message`, the response to `request`, with the same result as `read_response`."""
        data = message[0] if len(message) == 1 else join_parts(message)
        by_layout = self._layouts.split(data)
        split = split_message(data, RAW_OUTPUTS) if by_layout is None else by_layout
        if split is None or (
            request.outputs and any(output.shared_memory for output in request.outputs)
        ):
            return read_response((data,), limits, request)
        cached = self._heads.entries.get(split.head) or self._heads.get(split.head)
        if (
            cached is None
            or cached.limits is not limits
            or not cached.tensors.fits(split.raw, data)
        ):
            response = read_response((data,), limits, request)
            self._store(split, response, limits)
            return response
        if by_layout is None:
            self._layouts.keep(data, split)
        head = cached.response
        return InferResponse(
            head.model,
            head.version,
            split.id,
            head.parameters,
            cached.tensors.read(split.raw, data),
        )

    def _store(self, split: SplitMessage, response: InferResponse, limits: Limits) -> None:
        count = len(response.outputs)
        if len(split.raw) != count or split.fields + count + 1 > max_fields(limits):
            return
        if not self._heads.has_recurred(split.head):
            return
        head = replace(response, id="", outputs=())
        self._heads.store(split.head, ResponseHead(head, TensorLayout(response.outputs), limits))


@dataclass(frozen=True, slots=True)
class PassThroughHead:
    """A cached head of a response that passes through."""

    names: HeadNames
    has_outputs: bool
    """Whether the head describes any outputs."""


class PassThroughResponse(NamedTuple):
    """A response that passes through. `data` is the joined `message`, and `head` is the cached
    head."""

    message: Sequence[Buffer]
    data: Buffer
    split: SplitMessage
    head: PassThroughHead

    def renamed(self, model: str, version: str, request_id: str) -> Sequence[Buffer]:
        """Return the message with the id `request_id`, and with `model` and `version` if they are
        not empty."""
        names, split = self.head.names, self.split
        model, version = model or names.model, version or names.version
        is_same_model = names.model == model and names.version == version
        if is_same_model and split.id == request_id:
            return self.message
        return [
            split.head if is_same_model else names.renamed(model, version),
            string_field(ID, request_id) if request_id else b"",
            *split.entries(self.data),
        ]


@mypyc_attr(allow_interpreted_subclasses=True)
class PassThroughHeads:
    """A cache of the heads of responses that pass through."""

    def __init__(self) -> None:
        self._heads: Final[MessageHeadCache[PassThroughHead]] = MessageHeadCache()
        self._layouts: Final = MessageLayouts()

    def find(self, message: Sequence[Buffer], limits: Limits) -> PassThroughResponse | None:
        """Split `message` and find its head. Return None if the fast path does not apply, or if
        tensors may have typed contents."""
        data = message[0] if len(message) == 1 else join_parts(message)
        by_layout = self._layouts.split(data)
        split = split_message(data, RAW_OUTPUTS) if by_layout is None else by_layout
        if split is None:
            return None
        count = split.fields + len(split.raw)
        if count >= MIN_MAX_FIELDS and count >= max_fields(limits):
            return None
        head = self._heads.entries.get(split.head) or self._heads.get(split.head)
        if head is not None:
            if by_layout is None:
                self._layouts.keep(data, split)
        else:
            try:
                head = _pass_through_head(split.head)
            except MalformedMessageError:
                return None
            self._heads.store(split.head, head)
        return (
            _new_tuple(PassThroughResponse, (message, data, split, head))
            if split.raw or not head.has_outputs
            else None
        )


def _pass_through_head(head: bytes) -> PassThroughHead:
    names = read_strings(head, _NAMES, MAX_FIELDS, MAX_CACHED_HEAD)
    outputs = any(field.number == OUTPUTS for field in scan_fields(head, MAX_FIELDS))
    return PassThroughHead(HeadNames(head, names.get(MODEL, ""), names.get(VERSION, "")), outputs)
