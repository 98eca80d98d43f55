"""A cache of headers that passed validation, so that a repeated header is not parsed again.

Clients and servers repeat their headers. Only the ``id`` differs, so the key of an entry is a
header without its id. The entry of a request header has the tensor sizes for checking the body of
the next request. The entry of a response header has the header for the client.

The entry of a request contains the entries of its responses, and is valid only for the metadata and
the limits that were used for validation. The cache contains only requests that pass through.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from infergate.codecs.base import ParsedRequest
from infergate.codecs.trtis.infer_request import TrtisResponseOptions
from infergate.codecs.trtis.infer_response import OutputSplitter, read_response, write_response
from infergate.core.bounded_cache import BoundedCache
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, as_backend_error
from infergate.core.limits import KIB, Limits
from infergate.core.messages import InferRequest, ModelMetadata
from infergate.core.records import record
from infergate.core.sequences import SequenceId
from infergate.core.tensor import Buffer, Tensor, check_data

MAX_HEADERS: Final = 512
MAX_RESPONSES: Final = 4
MAX_KEY_LENGTH: Final = 2 * KIB
HeaderKey = tuple[str | bytes, str, str]
"""A request's header (without its id), the model, and the version."""
BytesTensors = tuple[tuple[int, Tensor], ...]
"""The index of each BYTES tensor in a message, and the tensor without its data."""


def _bytes_tensors(tensors: Iterable[Tensor]) -> BytesTensors:
    return tuple(
        (index, Tensor(tensor.name, tensor.datatype, tensor.shape, b""))
        for index, tensor in enumerate(tensors)
        if tensor.datatype is Datatype.BYTES
    )


def _check_bytes_data(bytes_tensors: BytesTensors, raw: Sequence[Buffer]) -> None:
    for index, tensor in bytes_tensors:
        check_data(tensor.name, tensor.datatype, tensor.shape, raw[index])


@record
class ValidatedResponse:
    """A response header that passed validation.

    ``sizes`` are the sizes in bytes of the outputs that the server returned, and ``output_order``
    has the indices of the requested outputs in ``sizes``. ``header`` is the header for the client,
    without the id. If ``is_unchanged`` is true, the client receives all outputs in the server's
    order, and their data needs no check."""

    sizes: tuple[int, ...]
    output_order: tuple[int, ...]
    bytes_tensors: BytesTensors
    header: Any
    is_unchanged: bool

    def select_outputs(self, raw: Sequence[Buffer]) -> list[Buffer]:
        """Select the requested outputs from the ``raw`` data. Raises BACKEND_GARBAGE."""
        if self.bytes_tensors:
            try:
                _check_bytes_data(self.bytes_tensors, raw)
            except GatewayError as error:
                raise as_backend_error(error) from None
        return [raw[index] for index in self.output_order]


@record
class ValidatedHeader:
    """A request header that passed validation against ``metadata`` and ``limits``. ``sizes`` are
    the sizes of the inputs in bytes. If ``can_pass_through`` is false, the request needs
    translation."""

    metadata: ModelMetadata
    limits: Limits
    sizes: tuple[int, ...]
    total_size: int
    bytes_tensors: BytesTensors
    can_pass_through: bool
    sequence: SequenceId | None
    responses: BoundedCache[Any, ValidatedResponse]

    def is_valid_for(self, metadata: ModelMetadata, limits: Limits) -> bool:
        return limits is self.limits and (metadata is self.metadata or metadata == self.metadata)

    def check_bytes_data(self, raw: Sequence[Buffer]) -> None:
        """Check the data of BYTES inputs. Raises BAD_REQUEST."""
        _check_bytes_data(self.bytes_tensors, raw)

    def cache_response(self, key: tuple[Any, ...], response: ValidatedResponse) -> None:
        """Cache ``response`` unless its header, the first element of ``key``, is too long."""
        if len(key[0]) <= MAX_KEY_LENGTH:
            self.responses[key] = response


class ValidatedHeaderCache:
    """A bounded cache of validated request headers for a codec."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: Final = BoundedCache[HeaderKey, ValidatedHeader](MAX_HEADERS)

    def find(self, key: HeaderKey | None) -> ValidatedHeader | None:
        return None if key is None else self._entries.get(key)

    def add(
        self,
        key: HeaderKey | None,
        header: Any,
        parsed: ParsedRequest,
        metadata: ModelMetadata,
        limits: Limits,
    ) -> ValidatedHeader:
        """Return an entry for ``header``, parsed as ``parsed``. Cache the entry at ``key`` unless
        ``key`` is None, the header is too long, or the request needs translation."""
        request = parsed.operation
        assert isinstance(request, InferRequest)
        sizes = tuple([len(tensor.data) for tensor in request.inputs])
        entry = ValidatedHeader(
            metadata,
            limits,
            sizes,
            sum(sizes),
            _bytes_tensors(request.inputs),
            _can_pass_through(header),
            header.correlation_id or None,
            BoundedCache(MAX_RESPONSES),
        )
        if key is not None and entry.can_pass_through and len(key[0]) <= MAX_KEY_LENGTH:
            self._entries[key] = entry
        return entry


def _can_pass_through(header: Any) -> bool:
    """Return whether ``header`` may be sent to a server unchanged. A header needs translation if
    server releases interpret it differently (repeated outputs, no outputs, 0 classes), if some
    releases do not support one of its fields, or if it refers to shared memory, which may be
    registered only with the gateway."""
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


def validate_response(
    header: Any,
    split_outputs: OutputSplitter,
    parsed: ParsedRequest,
    entry: ValidatedHeader,
    names: tuple[str, str],
) -> tuple[ValidatedResponse, list[Buffer], bool]:
    """Validate a server's ``header`` as the response to ``parsed``.

    Non-empty names in ``names`` (model and version) replace the server's names. Returns the
    ``ValidatedResponse`` (with a message as the header), the data of the server's outputs, and
    whether the response may be cached. A response with classes may not be cached. Raises
    BACKEND_GARBAGE and TOO_LARGE."""
    model, version = names
    request = parsed.operation
    options: TrtisResponseOptions = parsed.response_options
    assert isinstance(request, InferRequest)
    raw: list[Buffer] = []

    def split_and_record(sizes: Sequence[int | None]) -> Sequence[Buffer]:
        raw.extend(split_outputs(sizes))
        return raw

    response = read_response(header, split_and_record, request, entry.metadata, entry.limits)
    response = replace(response, version=version or response.version)
    renamed = replace(request, model=model or request.model)
    client_header, _ = write_response(response, renamed, replace(options, id=0), data_type=False)
    positions = {output.name: position for position, output in enumerate(header.output)}
    has_classes = any(output.classes for output in options.outputs)
    tensors = {tensor.name: tensor for tensor in response.outputs}
    output_order = tuple([positions[output.name] for output in options.outputs])
    bytes_tensors = (
        () if has_classes else _bytes_tensors(tensors[output.name] for output in header.output)
    )
    validated = ValidatedResponse(
        tuple(map(len, raw)),
        output_order,
        bytes_tensors,
        client_header,
        not bytes_tensors and output_order == tuple(range(len(raw))),
    )
    return validated, raw, not has_classes
