"""What is known of the heads of inferences and of their answers: the full check, remembered.

*Rule 1.* What is found by a known head is what the full check would find. Whatever does not fit is
left to that check, to say what is wrong.
*Rule 2.* Heads that hold a tensor's elements or its place in shared memory are not remembered.
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
    """The names in a head, and that head under the names that it was last given instead."""

    __slots__ = ("_head", "_latest", "_told", "model", "version")

    def __init__(self, head: bytes, model: str, version: str) -> None:
        self._head: Final = head
        self.model: Final = model
        self.version: Final = version
        self._told = ("", "")
        self._latest = b""

    def renamed(self, model: str, version: str) -> bytes:
        """The head naming ``model`` and ``version``."""
        if self._told != (model, version) or not self._latest:
            told = (
                string_field(_MODEL, model),
                string_field(_VERSION, version) if version else b"",
            )
            self._latest = b"".join((*told, *without(self._head, _NAMES, MOST_FIELDS)))
            self._told = (model, version)
        return self._latest


class Tensors:
    """The tensors that a head describes, and what their raw entries must be."""

    __slots__ = ("_described", "_sizes")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._described: Final = tuple(replace(each, data=b"") for each in tensors)
        self._sizes: Final = [
            None if each.datatype is Datatype.BYTES else len(each.data) for each in tensors
        ]

    def fit(self, raw: Sequence[Entry], data: Buffer) -> bool:
        """Whether the ``raw`` entries of ``data`` hold exactly what the shapes announce."""
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
        """The tensors whose elements are the ``raw`` entries of ``data``, which fit."""
        view = memoryview(data)
        tensors: list[Tensor] = []
        for each, (_, value, end) in zip(self._described, raw, strict=True):
            elements = view[value:end]
            tensors.append(Tensor(each.name, each.datatype, each.shape, elements, each.parameters))
        return tuple(tensors)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What is known of the head of a request. It is good within ``limits``."""

    peek: Peek
    names: Names
    request: InferRequest
    """Without its id; its inputs without data."""
    tensors: Tensors
    classes: bool
    """Whether an output is to be classified."""
    sequence: SequenceId | None
    limits: Limits


class Asked(NamedTuple):
    """A request's ``message``, joined to ``data`` and taken apart; ``head`` if that is known."""

    message: Sequence[Buffer]
    data: Buffer
    apart: Apart
    head: RequestHead | None

    def passes(self, limits: Limits) -> RequestHead | None:
        """The head, if the whole message would pass the full check."""
        head = self.head
        if head is None or head.limits is not limits:
            return None
        return head if head.tensors.fit(self.apart.raw, self.data) else None

    def read(self, head: RequestHead) -> InferRequest:
        """The inference, of which ``head`` passes."""
        known = head.request
        return InferRequest(
            known.model,
            known.version,
            self.apart.id,
            known.parameters,
            head.tensors.read(self.apart.raw, self.data),
            known.outputs,
        )

    def renamed(self, names: Names, model: str, version: str) -> Sequence[Buffer]:
        """The message, whose head has ``names``, naming ``model`` and ``version``."""
        if names.model == model and names.version == version:
            return self.message
        return [names.renamed(model, version), self.apart.own, *self.apart.entries(self.data)]


class Requests:
    """The heads of requests that passed the full check."""

    def __init__(self) -> None:
        self._heads: Final[Heads[RequestHead]] = Heads()

    def find(self, wire: RpcRequest) -> Asked | None:
        """``wire``, an inference, taken apart, once; None where that is not for here."""
        found = wire.found
        if type(found) is Asked and found.message is wire.message:
            return found
        data = joined(wire.message)
        apart = take_apart(data, RAW_INPUTS)
        if apart is None:
            return None
        wire.found = asked = Asked(wire.message, data, apart, self._heads.get(apart.head))
        return asked

    def keep(self, asked: Asked | None, checked: Checked, limits: Limits) -> None:
        """Remember the head of ``asked``, which was ``checked``."""
        request = checked.request
        if (
            asked is None
            or any(typed.pieces for typed in checked.typed)
            or any(each.place for each in request.inputs)
            or any(each.place for each in request.outputs)
            or asked.apart.fields + len(request.inputs) + 1 > most_fields(limits)
            or not self._heads.comes_again(asked.apart.head)
        ):
            return
        head = asked.apart.head
        tensors = Tensors(request.inputs)
        known = RequestHead(
            Peek(InferRequest, request.model, request.version),
            Names(head, request.model, request.version),
            replace(request, id="", inputs=()),
            tensors,
            asks_for_classes(head),
            read_sequence(head, limits),
            limits,
        )
        self._heads.keep(head, known)


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What is known of the head of an answer. It is good within ``limits``."""

    response: InferResponse
    """Without its id; its outputs without data."""
    tensors: Tensors
    limits: Limits


class Responses:
    """The heads of answers that passed the full check."""

    def __init__(self) -> None:
        self._heads: Final[Heads[ResponseHead]] = Heads()

    def read(self, message: Sequence[Buffer], limits: Limits, asked: InferRequest) -> InferResponse:
        """What ``read_response`` finds in ``message``, the answer to ``asked``."""
        data = joined(message)
        apart = take_apart(data, RAW_OUTPUTS)
        if apart is None or (asked.outputs and any(output.place for output in asked.outputs)):
            return read_response((data,), limits, asked)
        known = self._heads.get(apart.head)
        if known is None or known.limits is not limits or not known.tensors.fit(apart.raw, data):
            response = read_response((data,), limits, asked)
            self._keep(apart, response, limits)
            return response
        told = known.response
        return InferResponse(
            told.model,
            told.version,
            apart.id,
            told.parameters,
            known.tensors.read(apart.raw, data),
        )

    def _keep(self, apart: Apart, response: InferResponse, limits: Limits) -> None:
        count = len(response.outputs)
        if len(apart.raw) != count or apart.fields + count + 1 > most_fields(limits):
            return
        if not self._heads.comes_again(apart.head):
            return
        told = replace(response, id="", outputs=())
        self._heads.keep(apart.head, ResponseHead(told, Tensors(response.outputs), limits))


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What is known of the head of an answer that only goes on."""

    names: Names
    outputs: bool
    """Whether it describes any."""


class Told(NamedTuple):
    """The ``message`` of an answer that only goes on, joined to ``data`` and taken apart, and what
    is known of its head."""

    message: Sequence[Buffer]
    data: Buffer
    apart: Apart
    head: AnswerHead

    def renamed(self, model: str, version: str, number: str) -> Sequence[Buffer]:
        """The message naming ``model`` and ``version`` (empty: as it does), with this id."""
        names, apart = self.head.names, self.apart
        model, version = model or names.model, version or names.version
        same = names.model == model and names.version == version
        if same and apart.id == number:
            return self.message
        return [
            apart.head if same else names.renamed(model, version),
            string_field(_ID, number) if number else b"",
            *apart.entries(self.data),
        ]


class Answers:
    """The heads of answers whose names could be read."""

    def __init__(self) -> None:
        self._heads: Final[Heads[AnswerHead]] = Heads()

    def find(self, message: Sequence[Buffer], limits: Limits) -> Told | None:
        """``message`` taken apart, and its head; None where that is not for here, and where its
        elements may be typed."""
        data = joined(message)
        apart = take_apart(data, RAW_OUTPUTS)
        if apart is None or apart.fields + len(apart.raw) >= most_fields(limits):
            return None
        head = self._heads.get(apart.head)
        if head is None:
            try:
                head = _answer_head(apart.head)
            except Malformed:
                return None
            self._heads.keep(apart.head, head)
        return Told(message, data, apart, head) if apart.raw or not head.outputs else None


def _answer_head(head: bytes) -> AnswerHead:
    names = strings(head, _NAMES, MOST_FIELDS, LONGEST)
    outputs = any(field.number == _OUTPUTS for field in fields(head, MOST_FIELDS))
    return AnswerHead(Names(head, names.get(_MODEL, ""), names.get(_VERSION, "")), outputs)
