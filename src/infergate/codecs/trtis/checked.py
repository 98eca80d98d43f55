"""Headers that passed every check, remembered, so that a repeated one is not read again.

*Strategy.* Clients send the same header over and over, and servers answer with the same one; only
the ``id`` differs. A header without its id is the key, in whatever form the carrier has it: text
over HTTP, bytes over gRPC. What is remembered of a request's header is enough to check another
body; of an answer's header, how the client is told it.

*Rule 1.* What is remembered of a request holds for the metadata and the limits that it was checked
against; what is remembered of an answer is part of it.
*Rule 2.* Only requests that go on as they came are remembered, at most ``MAX_HEADERS`` with
``MAX_ANSWERS`` answers each, in keys of at most ``MAX_KEY_LENGTH``.
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
"""The BYTES tensors of a message, without data, by their indices."""


def _strings(tensors: Iterable[Tensor]) -> Strings:
    return tuple(
        (index, Tensor(each.name, each.datatype, each.shape, b""))
        for index, each in enumerate(tensors)
        if each.datatype is Datatype.BYTES
    )


def _check_strings(strings: Strings, raw: Sequence[Buffer]) -> None:
    """Check the elements of BYTES tensors. Raises BAD_REQUEST."""
    for index, tensor in strings:
        check_data(tensor.name, tensor.datatype, tensor.shape, raw[index])


@record
class CheckedAnswer:
    """An answer's header that passed. ``sizes`` are those of the server's outputs, in bytes;
    ``order`` has the index among them of each output that the client asked for. ``header`` is what
    the client is told but for the id, in the form that its carrier needs."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    strings: Strings
    header: Any

    def data(self, raw: Sequence[Buffer]) -> list[Buffer]:
        """The data of what the client asked for, from ``raw`` data of these sizes. Raises
        BACKEND_GARBAGE."""
        if self.strings:
            try:
                _check_strings(self.strings, raw)
            except GatewayError as error:
                raise blamed(error) from None
        return [raw[index] for index in self.order]


@record
class CheckedHeader:
    """A request's header that passed the checks against ``metadata``. ``sizes`` are those of the
    inputs, in bytes. ``forwards``: every server takes the header as it stands."""

    metadata: ModelMetadata
    limits: Limits
    sizes: tuple[int, ...]
    size: int
    strings: Strings
    forwards: bool
    sequence: SequenceId | None
    answers: dict[Any, CheckedAnswer]

    def fits(self, metadata: ModelMetadata, limits: Limits) -> bool:
        """Whether the checks would have the same result now."""
        return limits is self.limits and (metadata is self.metadata or metadata == self.metadata)

    def check_strings(self, raw: Sequence[Buffer]) -> None:
        """Check the elements of BYTES inputs. Raises BAD_REQUEST."""
        _check_strings(self.strings, raw)

    def remember(self, key: tuple[Any, ...], answer: CheckedAnswer) -> None:
        """Keep ``answer``, whose own header leads the ``key``."""
        if len(key[0]) <= MAX_KEY_LENGTH:
            if len(self.answers) >= MAX_ANSWERS:
                self.answers.clear()
            self.answers[key] = answer


class CheckedHeaders:
    """A bounded memory of requests' headers."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[Key, CheckedHeader] = {}

    def find(self, key: Key | None) -> CheckedHeader | None:
        """The entry of ``key``."""
        return None if key is None else self._entries.get(key)

    def add(
        self, key: Key | None, header: Any, parsed: Parsed, metadata: ModelMetadata, limits: Limits
    ) -> CheckedHeader:
        """An entry for ``header``, which was read and checked as ``parsed``; remembered where there
        is a ``key``."""
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
    """Whether ``header`` may go on as it came. It may not where releases of the server differ in
    what they make of it (outputs asked for twice, no outputs, no classes), where it has fields that
    not all of them know, and where tensors are in shared memory, which may be the gateway's."""
    names = {output.name for output in header.output}
    return (
        len(names) == len(header.output) > 0
        and not header.priority
        and not header.timeout_microseconds
        and not any(each.HasField("shared_memory") for each in header.input)
        and not any(
            each.HasField("shared_memory") or (each.HasField("cls") and not each.cls.count)
            for each in header.output
        )
    )


def read_answer(
    header: Any, allot: Allot, parsed: Parsed, entry: CheckedHeader, names: tuple[str, str]
) -> tuple[CheckedAnswer, list[Buffer], bool]:
    """A server's ``header`` as an answer to ``parsed``, of the model and version in ``names`` where
    these are not empty. The ``CheckedAnswer`` has the client's header as a message; with it the
    data of the server's outputs that it was checked with, and whether another answer may be the
    same: classes never are. Raises BACKEND_GARBAGE, TOO_LARGE."""
    model, version = names
    request = parsed.operation
    reply: Reply = parsed.reply
    assert isinstance(request, InferRequest)
    raw: list[Buffer] = []

    def allotted(sizes: Sequence[int | None]) -> Sequence[Buffer]:
        raw.extend(allot(sizes))
        return raw

    answer = read_response(header, allotted, request, entry.metadata, entry.limits)
    answer = replace(answer, version=version or answer.version)
    asked = replace(request, model=model or request.model)
    told, _ = write_response(answer, asked, replace(reply, id=0), data_type=False)
    index = {output.name: position for position, output in enumerate(header.output)}
    has_classes = any(output.classes for output in reply.outputs)
    given = {tensor.name: tensor for tensor in answer.outputs}
    checked = CheckedAnswer(
        tuple(map(len, raw)),
        tuple([index[output.name] for output in reply.outputs]),
        () if has_classes else _strings(given[output.name] for output in header.output),
        told,
    )
    return checked, raw, not has_classes
