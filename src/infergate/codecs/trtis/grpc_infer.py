"""InferRequest and InferResponse of gRPC: their raw data apart from the rest.

*Strategy.* Tensors are memoryviews of the message on the way in and message parts on the way out
(``protos.scan``); only the rest goes through the protobuf runtime.

*Rule.* What the runtime makes of a message is many times its size, so the fields of the rest are
counted first (``protos.parsing``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

from infergate.codecs.protos.parsing import loop_bound, parse
from infergate.codecs.protos.scan import (
    DELIMITED,
    MAX_NAME,
    VARINT,
    VARINT_BYTES,
    Allowance,
    Malformed,
    counted,
    fields,
    prefix,
    split,
    varint,
)
from infergate.codecs.trtis import infer_response
from infergate.codecs.trtis.checks import Input
from infergate.codecs.trtis.infer_request import Allot
from infergate.codecs.trtis.messages import InferRequest, InferResponse
from infergate.core.classification import MOST_CLASSES
from infergate.core.errors import bad_request, garbage
from infergate.core.limits import KIB, MIB, Limits
from infergate.core.tensor import Buffer
from infergate.core.wire import joined

RAW_INPUT: Final = 4
RAW_OUTPUT: Final = 3
MOST_HEAD: Final = 4 * MIB
"""A message without raw data. Parsing it holds the interpreter about 6 ms a MiB."""
MOST_FIELDS: Final = 24 * KIB
"""Fields of one request that are ever looked at: at most 50 ms of the interpreter's time."""
MOST_ANSWER_FIELDS: Final = MOST_FIELDS + 4 * MOST_CLASSES
"""Fields of one response: a class has three, and is one."""
_FEW: Final = 16
"""Fields beside raw data: there are three."""


def read_names(message: Sequence[Buffer]) -> tuple[str, int]:
    """``model_name`` and ``model_version`` (fields 1 and 2), of each the last. Raises Malformed;
    BAD_REQUEST for a name of over ``MAX_NAME`` bytes."""
    data = joined(message)
    model, version = "", 0
    for number, wire_type, _, value, end in fields(data, MOST_FIELDS):
        if number == 1 and wire_type == DELIMITED:
            if end - value > MAX_NAME:
                raise bad_request(f"model_name is longer than {MAX_NAME} bytes")
            model = _text(data[value:end])
        elif number == 2 and wire_type == VARINT:
            version = _uint64(data, value)
    return model, version - 2**64 if version >= 2**63 else version


def read_id(message: Sequence[Buffer]) -> int:
    """``meta_data.id`` (field 5 of 3). Raises Malformed."""
    found = 0
    data = memoryview(joined(message))
    allowance = Allowance(MOST_FIELDS)
    for field in counted(data, allowance):
        if field.number == 3 and field.wire_type == DELIMITED:
            header = data[field.value : field.end]
            for inner in counted(header, allowance):
                if inner.number == 5 and inner.wire_type == VARINT:
                    found = _uint64(header, inner.value)
    return found


def _text(value: Buffer) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        raise Malformed("a text is not UTF-8") from None


def _uint64(data: Buffer, position: int) -> int:
    return varint(data, position, VARINT_BYTES)[0] % 2**64


def read_request(message: Sequence[Buffer], limits: Limits) -> tuple[Any, list[memoryview]]:
    """An InferRequest without its raw data, and that. Raises Malformed."""
    head, raw = split_request(message, limits)
    return parse_head(head), raw


def split_request(message: Sequence[Buffer], limits: Limits) -> tuple[Buffer, list[memoryview]]:
    """The bytes of an InferRequest without its raw data, and that. Raises Malformed."""
    return _split(message, RAW_INPUT, limits)


def parse_head(head: Buffer) -> Any:
    """An InferRequest from its bytes without raw data. Raises Malformed."""
    return parse(InferRequest, head, MOST_FIELDS, MOST_HEAD)


def read_response(message: Sequence[Buffer], limits: Limits) -> tuple[Any, list[memoryview]]:
    """An InferResponse without its raw data, and that. Raises Malformed."""
    head, raw = split_response(message, limits)
    return parse_answer_head(head, limits), raw


def split_response(message: Sequence[Buffer], limits: Limits) -> tuple[Buffer, list[memoryview]]:
    """The bytes of an InferResponse without its raw data, and that. Raises Malformed."""
    return _split(message, RAW_OUTPUT, limits)


def parse_answer_head(head: Buffer, limits: Limits) -> Any:
    """An InferResponse from its bytes without raw data. Raises Malformed, and CostlyError."""
    return parse(InferResponse, head, MOST_ANSWER_FIELDS, MOST_HEAD, loop_bound(limits))


def _split(message: Sequence[Buffer], raw: int, limits: Limits) -> tuple[Buffer, list[memoryview]]:
    rest, entries = split(joined(message), raw, 2 * limits.tensors + _FEW)
    if len(rest) > MOST_HEAD:
        raise Malformed(f"it has {len(rest)} bytes beside raw data, the limit is {MOST_HEAD}")
    return rest, entries


def message_parts(head: Any, number: int, raw: Iterable[Buffer]) -> list[Buffer]:
    """The parts of ``head`` and a raw entry for each of ``raw``, in field ``number``; no copy."""
    return add_raw([head.SerializeToString(deterministic=True)], number, raw)


def add_raw(parts: list[Buffer], number: int, raw: Iterable[Buffer]) -> list[Buffer]:
    """``parts`` of a message, and a raw entry for each of ``raw``, in field ``number``; no copy."""
    for entry in raw:
        parts.append(prefix(number, len(entry)))
        if len(entry):
            parts.append(entry)
    return parts


def allot(raw: Sequence[Buffer]) -> Allot:
    """An entry for each input that is not in shared memory; what is over is left, as the servers
    do."""
    return partial(_allotted, raw)


def _allotted(raw: Sequence[Buffer], inputs: Sequence[Input], model: str) -> Sequence[Buffer]:
    here = [each for each in inputs if each.place is None]
    for index, each in enumerate(here):
        if index >= len(raw):
            raise bad_request(
                f"expected tensor data for at least {index} inputs but got only {len(raw)} "
                f"sets of data for model '{model}'"
            )
        if len(raw[index]) != each.size:
            raise bad_request(
                f"unexpected size {len(raw[index])} for input '{each.name}', expecting "
                f"{each.size} for model '{model}'"
            )
    entries = iter(raw)
    return [next(entries) if each.place is None else b"" for each in inputs]


def allot_outputs(raw: Sequence[Buffer]) -> infer_response.Allot:
    """An entry for each output, empty where its classes are in the header."""

    def entries(sizes: Sequence[int | None]) -> Sequence[Buffer]:
        if len(raw) != len(sizes):
            raise garbage(f"{len(raw)} raw_output for {len(sizes)} outputs")
        return raw

    return entries
