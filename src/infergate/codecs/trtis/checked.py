"""A cache of headers that passed validation, so that a repeated header is not parsed again.

Clients send the same header again and again, and servers answer with the same header; only the
``id`` differs. The key is a header without its id, in the form of its transport: text over HTTP,
bytes over gRPC. The entry of a request header is enough to check another body; the entry of a
response header contains the header to send to the client.

*Rule 1.* A request's entry holds for the metadata and limits that it was validated against. A
response's entry is part of that request's entry.
*Rule 2.* Only requests that are passed through unchanged are cached: at most ``MAX_HEADERS``, with
``MAX_RESPONSES`` responses each, and with keys of at most ``MAX_KEY_LENGTH``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from infergate.codecs.base import Parsed
from infergate.codecs.trtis.infer_request import Reply
from infergate.codecs.trtis.infer_response import Allot, read_response, write_response
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, blamed
from infergate.core.limits import KIB, Limits
from infergate.core.messages import InferRequest, ModelMetadata
from infergate.core.records import record
from infergate.core.sequences import SequenceId
from infergate.core.tensor import Buffer, Tensor, check_data

MAX_HEADERS: Final = 512
MAX_ANSWERS: Final = 4
MAX_KEY_LENGTH: Final = 2 * KIB
Key = tuple[str | bytes, str, str]
"""A request's header without its id, the model and the version."""
Strings = tuple[tuple[int, Tensor], ...]
"""The BYTES tensors of a message, without their data, with their indices."""


def _strings(tensors: Iterable[Tensor]) -> Strings:
    return tuple(
        (index, Tensor(tensor.name, tensor.datatype, tensor.shape, b""))
        for index, tensor in enumerate(tensors)
        if tensor.datatype is Datatype.BYTES
    )


def _check_strings(strings: Strings, raw: Sequence[Buffer]) -> None:
    """Check the data of BYTES tensors. Raises BAD_REQUEST."""
    for index, tensor in strings:
        check_data(tensor.name, tensor.datatype, tensor.shape, raw[index])


@record
class CheckedAnswer:
    """A response header that passed validation.

    ``sizes`` are the sizes of the server's outputs in bytes. ``output_order`` has, for each output
    that the client requested, its index among them. ``header`` is the header for the client,
    without the id, in the form of its transport.
    """

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    strings: Strings
    header: Any

    def data(self, raw: Sequence[Buffer]) -> list[Buffer]:
        """Return the data of the requested outputs, from ``raw`` data of these sizes. Raises
        BACKEND_GARBAGE."""
        if self.strings:
            try:
                _check_strings(self.strings, raw)
            except GatewayError as error:
                raise blamed(error) from None
        return [raw[index] for index in self.order]


@record
class CheckedHeader:
    """A request header that passed validation against ``metadata``. ``sizes`` are the sizes of the
    inputs in bytes. ``can_pass_through``: every server release accepts the header unchanged."""

    metadata: ModelMetadata
    limits: Limits
    sizes: tuple[int, ...]
    size: int
    strings: Strings
    forwards: bool
    sequence: SequenceId | None
    answers: dict[Any, CheckedAnswer]

    def fits(self, metadata: ModelMetadata, limits: Limits) -> bool:
        """Return whether the validation would have the same result now."""
        return limits is self.limits and (metadata is self.metadata or metadata == self.metadata)

    def check_strings(self, raw: Sequence[Buffer]) -> None:
        """Check the data of BYTES inputs. Raises BAD_REQUEST."""
        _check_strings(self.strings, raw)

    def remember(self, key: tuple[Any, ...], answer: CheckedAnswer) -> None:
        """Cache ``response``. The first element of ``key`` is the response header."""
        if len(key[0]) <= MAX_KEY_LENGTH:
            if len(self.answers) >= MAX_ANSWERS:
                self.answers.clear()
            self.answers[key] = answer


class CheckedHeaders:
    """A bounded cache of validated request headers."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[Key, CheckedHeader] = {}

    def find(self, key: Key | None) -> CheckedHeader | None:
        """Return the entry of ``key``, if any."""
        return None if key is None else self._entries.get(key)

    def add(
        self, key: Key | None, header: Any, parsed: Parsed, metadata: ModelMetadata, limits: Limits
    ) -> CheckedHeader:
        """Return an entry for ``header``, which was parsed and validated as ``parsed``, and cache
        it under ``key`` if there is one."""
        request = parsed.operation
        assert isinstance(request, InferRequest)
        sizes = tuple([len(tensor.data) for tensor in request.inputs])
        entry = CheckedHeader(
            metadata,
            limits,
            sizes,
            sum(sizes),
            _strings(request.inputs),
            _forwards(header),
            header.correlation_id or None,
            {},
        )
        if key is not None and entry.forwards and len(key[0]) <= MAX_KEY_LENGTH:
            if len(self._entries) >= MAX_HEADERS:
                self._entries.clear()
            self._entries[key] = entry
        return entry


def _forwards(header: Any) -> bool:
    """Return whether ``header`` may be sent to a server unchanged.

    It may not if server releases interpret it differently (repeated outputs, no outputs, 0
    classes), if it has fields that not all releases know, or if tensors are in shared memory, which
    may be the gateway's.
    """
    names = {output.name for output in header.output}
    return (
        len(names) == len(header.output) > 0
        and not header.priority
        and not header.timeout_microseconds
        and not any(entry.HasField("shared_memory") for entry in header.input)
        and not any(
            entry.HasField("shared_memory") or (entry.HasField("cls") and not entry.cls.count)
            for entry in header.output
        )
    )


def read_answer(
    header: Any, allot: Allot, parsed: Parsed, entry: CheckedHeader, names: tuple[str, str]
) -> tuple[CheckedAnswer, list[Buffer], bool]:
    """Validate a server's ``header`` as the response to ``parsed``.

    The model and version in ``names`` replace the server's where they are not empty. Return three
    values: the ``ValidatedResponse``, whose header is a message; the data of the server's outputs;
    and whether the response may be cached, which is false if it has classes. Raises
    BACKEND_GARBAGE, TOO_LARGE.
    """
    model, version = names
    request = parsed.operation
    reply: Reply = parsed.reply
    assert isinstance(request, InferRequest)
    raw: list[Buffer] = []

    def recorded(sizes: Sequence[int | None]) -> Sequence[Buffer]:
        raw.extend(allot(sizes))
        return raw

    answer = read_response(header, recorded, request, entry.metadata, entry.limits)
    answer = replace(answer, version=version or answer.version)
    renamed = replace(request, model=model or request.model)
    client_header, _ = write_response(answer, renamed, replace(reply, id=0), data_type=False)
    positions = {output.name: position for position, output in enumerate(header.output)}
    has_classes = any(output.classes for output in reply.outputs)
    tensors = {tensor.name: tensor for tensor in answer.outputs}
    checked = CheckedAnswer(
        tuple(map(len, raw)),
        tuple([positions[output.name] for output in reply.outputs]),
        () if has_classes else _strings(tensors[output.name] for output in header.output),
        client_header,
    )
    return checked, raw, not has_classes
