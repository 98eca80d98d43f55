"""Caches of validated heads, for requests and for responses.

A result from a cached head equals that of the full check. A message that does not fit its cached
head goes to the full check, which reports the error. Heads with typed elements or regions in shared
memory are not cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from infergate.codecs.base import Peek
from infergate.codecs.protos.scan import Malformed, fields, string_field, strings, without
from infergate.codecs.v2_grpc.descriptions import MOST_FIELDS, most_fields
from infergate.codecs.v2_grpc.heads import LONGEST, Apart, Entry, Heads, take_apart
from infergate.codecs.v2_grpc.infer_request import RAW as RAW_INPUTS
from infergate.codecs.v2_grpc.infer_request import Checked, asks_for_classes, read_sequence
from infergate.codecs.v2_grpc.infer_response import RAW as RAW_OUTPUTS
from infergate.codecs.v2_grpc.infer_response import read_response
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.sequences import SequenceId
from infergate.core.tensor import Buffer, Tensor, check_data
from infergate.core.wire import RpcRequest, joined

_MODEL: Final = 1
_VERSION: Final = 2
_ID: Final = 3
_OUTPUTS: Final = 5
"""ModelInferResponse.outputs"""
_NAMES: Final = frozenset({_MODEL, _VERSION})


class Names:
    """Model and version of a head, and the head with the names that last replaced them."""

    __slots__ = ("_head", "_latest", "_told", "model", "version")

    def __init__(self, head: bytes, model: str, version: str) -> None:
        self._head: Final = head
        self.model: Final = model
        self.version: Final = version
        self._told = ("", "")
        self._latest = b""

    def renamed(self, model: str, version: str) -> bytes:
        """Return the head with `model` and `version`."""
        if self._told != (model, version) or not self._latest:
            names = (
                string_field(_MODEL, model),
                string_field(_VERSION, version) if version else b"",
            )
            self._latest = b"".join((*names, *without(self._head, _NAMES, MOST_FIELDS)))
            self._told = (model, version)
        return self._latest


class Tensors:
    """The tensors described by a head, and the sizes their raw entries must have."""

    __slots__ = ("_described", "_sizes")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._described: Final = tuple(replace(tensor, data=b"") for tensor in tensors)
        self._sizes: Final = [
            None if tensor.datatype is Datatype.BYTES else len(tensor.data) for tensor in tensors
        ]

    def fit(self, raw: Sequence[Entry], data: Buffer) -> bool:
        """Return whether the `raw` entries of `data` hold exactly what the shapes announce."""
        if len(raw) != len(self._sizes):
            return False
        for index, size in enumerate(self._sizes):
            _, value, end = raw[index]
            if end - value != size and (
                size is not None or not self._holds(index, data[value:end])
            ):
                return False
        return True

    def _holds(self, index: int, data: Buffer) -> bool:
        tensor = self._described[index]
        try:
            check_data(tensor.name, tensor.datatype, tensor.shape, data)
        except GatewayError:
            return False
        return True

    def read(self, raw: Sequence[Entry], data: Buffer) -> tuple[Tensor, ...]:
        """Return the tensors with the `raw` entries of `data` as their elements; `fits` must have
        been true."""
        view = memoryview(data)
        tensors: list[Tensor] = []
        for tensor, (_, value, end) in zip(self._described, raw, strict=True):
            elements = view[value:end]
            tensors.append(
                Tensor(tensor.name, tensor.datatype, tensor.shape, elements, tensor.parameters)
            )
        return tuple(tensors)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A cached request head. It is valid under `limits`."""

    peek: Peek
    names: Names
    request: InferRequest
    """The request without id and input data."""
    tensors: Tensors
    classes: bool
    """Whether classes are requested for an output."""
    sequence: SequenceId | None
    limits: Limits


class Asked(NamedTuple):
    """A request split into head and raw entries: `message` joined to `data`, and its cached `head`,
    if any."""

    message: Sequence[Buffer]
    data: Buffer
    apart: Apart
    head: RequestHead | None

    def passes(self, limits: Limits) -> RequestHead | None:
        """Return the head if the whole message would pass the full check."""
        head = self.head
        if head is None or head.limits is not limits:
            return None
        return head if head.tensors.fit(self.apart.raw, self.data) else None

    def read(self, head: RequestHead) -> InferRequest:
        """Return the inference; `head` is what `validated_head` returned."""
        request = head.request
        return InferRequest(
            request.model,
            request.version,
            self.apart.id,
            request.parameters,
            head.tensors.read(self.apart.raw, self.data),
            request.outputs,
        )

    def renamed(self, names: Names, model: str, version: str) -> Sequence[Buffer]:
        """Return the message, whose head has `names`, with `model` and `version`."""
        if names.model == model and names.version == version:
            return self.message
        return [names.renamed(model, version), self.apart.own, *self.apart.entries(self.data)]


class Requests:
    """The heads of requests that passed the full check."""

    def __init__(self) -> None:
        self._heads: Final[Heads[RequestHead]] = Heads()

    def find(self, wire: RpcRequest) -> Asked | None:
        """Split `wire`, an inference, at most once; return None if the fast path does not apply."""
        earlier = wire.found
        if type(earlier) is Asked and earlier.message is wire.message:
            return earlier
        data = joined(wire.message)
        split = take_apart(data, RAW_INPUTS)
        if split is None:
            return None
        wire.found = request = Asked(wire.message, data, split, self._heads.get(split.head))
        return request

    def keep(self, asked: Asked | None, checked: Checked, limits: Limits) -> None:
        """Cache the head of `split`, which passed the full check as `validated`."""
        request = checked.request
        if (
            asked is None
            or any(typed.pieces for typed in checked.typed)
            or any(tensor.place for tensor in request.inputs)
            or any(tensor.place for tensor in request.outputs)
            or asked.apart.fields + len(request.inputs) + 1 > most_fields(limits)
            or not self._heads.comes_again(asked.apart.head)
        ):
            return
        head = asked.apart.head
        tensors = Tensors(request.inputs)
        entry = RequestHead(
            Peek(InferRequest, request.model, request.version),
            Names(head, request.model, request.version),
            replace(request, id="", inputs=()),
            tensors,
            asks_for_classes(head),
            read_sequence(head, limits),
            limits,
        )
        self._heads.keep(head, entry)


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """A cached response head. It is valid under `limits`."""

    response: InferResponse
    """The response without id and output data."""
    tensors: Tensors
    limits: Limits


class Responses:
    """The heads of responses that passed the full check."""

    def __init__(self) -> None:
        self._heads: Final[Heads[ResponseHead]] = Heads()

    def read(self, message: Sequence[Buffer], limits: Limits, asked: InferRequest) -> InferResponse:
        """Return what `read_response` returns for `message`, the response to `request`."""
        data = joined(message)
        split = take_apart(data, RAW_OUTPUTS)
        if split is None or (asked.outputs and any(output.place for output in asked.outputs)):
            return read_response((data,), limits, asked)
        cached = self._heads.get(split.head)
        if cached is None or cached.limits is not limits or not cached.tensors.fit(split.raw, data):
            response = read_response((data,), limits, asked)
            self._keep(split, response, limits)
            return response
        head = cached.response
        return InferResponse(
            head.model,
            head.version,
            split.id,
            head.parameters,
            cached.tensors.read(split.raw, data),
        )

    def _keep(self, apart: Apart, response: InferResponse, limits: Limits) -> None:
        count = len(response.outputs)
        if len(apart.raw) != count or apart.fields + count + 1 > most_fields(limits):
            return
        if not self._heads.comes_again(apart.head):
            return
        head = replace(response, id="", outputs=())
        self._heads.keep(apart.head, ResponseHead(head, Tensors(response.outputs), limits))


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """A cached head of a response that passes through."""

    names: Names
    outputs: bool
    """Whether it describes any outputs."""


class Told(NamedTuple):
    """A response that passes through: its `message` joined to `data` and split, and its cached
    head."""

    message: Sequence[Buffer]
    data: Buffer
    apart: Apart
    head: AnswerHead

    def renamed(self, model: str, version: str, number: str) -> Sequence[Buffer]:
        """Return the message with `model` and `version` (empty: unchanged), and with the id
        `request_id`."""
        names, split = self.head.names, self.apart
        model, version = model or names.model, version or names.version
        is_same_model = names.model == model and names.version == version
        if is_same_model and split.id == number:
            return self.message
        return [
            split.head if is_same_model else names.renamed(model, version),
            string_field(_ID, number) if number else b"",
            *split.entries(self.data),
        ]


class Answers:
    """The heads of responses that pass through."""

    def __init__(self) -> None:
        self._heads: Final[Heads[AnswerHead]] = Heads()

    def find(self, message: Sequence[Buffer], limits: Limits) -> Told | None:
        """Split `message` and return it with its head; None if the fast path does not apply or
        elements may be typed."""
        data = joined(message)
        split = take_apart(data, RAW_OUTPUTS)
        if split is None or split.fields + len(split.raw) >= most_fields(limits):
            return None
        head = self._heads.get(split.head)
        if head is None:
            try:
                head = _answer_head(split.head)
            except Malformed:
                return None
            self._heads.keep(split.head, head)
        return Told(message, data, split, head) if split.raw or not head.outputs else None


def _answer_head(head: bytes) -> AnswerHead:
    names = strings(head, _NAMES, MOST_FIELDS, LONGEST)
    outputs = any(field.number == _OUTPUTS for field in fields(head, MOST_FIELDS))
    return AnswerHead(Names(head, names.get(_MODEL, ""), names.get(_VERSION, "")), outputs)
