"""Writes and reads input files of NVIDIA's perf_analyzer (``--input-data FILE``). For each request,
``data`` has an object with all inputs, and ``validation_data`` has an object with the expected
outputs. A sequence is a list of such objects.

- If the model has a batch dimension, shapes in the file omit this dimension, and perf_analyzer
  sends batches of 1.
- The export writes each tensor's canonical data as base64. perf_analyzer accepts base64 for every
  datatype, and does not convert the data.

Sources: triton-inference-server/client src/c++/perf_analyzer/data_loader.cc and
docs/input_data.md.
"""

from __future__ import annotations

import base64
import binascii
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import orjson

from infergate.codecs.json_tensors.json_data import REQUEST_RULES, read_data
from infergate.codecs.json_tensors.json_document import (
    Node,
    is_array,
    parse_json,
    read_all_members,
    read_items,
    read_string,
)
from infergate.core.datatypes import DATATYPES_BY_NAME, Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.exchange import Exchange, Outcome
from infergate.core.limits import DEFAULT_LIMITS, MIB
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.sequences import sequence_id
from infergate.core.tensor import Parameters, Tensor, check_data, check_shape, pack_bytes

MAX_FILE_BYTES: Final = 64 * MIB
"""Maximum size in bytes of a file to import. Parsing takes 15 times as much memory."""
MAX_ENTRIES: Final = 1 << 20
"""Maximum number of requests in an export, and of entries in each list of an import. An export
needs about 200 bytes of memory per request."""
_CHUNK_BYTES: Final = 1 * MIB
_SEQUENCE_START: Final = "sequence_start"
_SEQUENCE_END: Final = "sequence_end"


@dataclass(slots=True)
class ExportSummary:
    """The number of exported requests, the number of exchanges that were skipped because they ended
    with an error, and whether the file has expected outputs. The file has expected outputs if every
    exported exchange has exactly one response."""

    requests: int = 0
    skipped_errors: int = 0
    has_outputs: bool = True


# ---- export -------------------------------------------------------------------------------------


def export_perf_analyzer(
    exchanges: Iterable[Exchange], file: Path, metadata: ModelMetadata | None = None
) -> ExportSummary:
    """Write ``exchanges``, all of one model, to ``file``, which is replaced only if the export
    succeeds.

    If ``metadata`` has a batch dimension, each row of a batch becomes a request. Raises BAD_REQUEST
    for several models, for inputs without a common batch and for outputs that lack a row of the
    batch, TOO_LARGE for more than ``MAX_ENTRIES`` requests, and OSError."""
    with tempfile.TemporaryFile(dir=file.parent) as spool:
        export = _Export(spool, metadata is not None and bool(metadata.max_batch_size))
        for exchange in exchanges:
            export.add(exchange)
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(descriptor, "wb") as target:
                export.write(target)
            Path(name).replace(file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    return export.summary


_Range = tuple[int, int]
"""The beginning and the size of a JSON object in the spool file."""


@dataclass(slots=True)
class _Export:
    """Groups requests by sequence, and collects them in ``spool``, because a file has all inputs
    before all outputs."""

    spool: IO[bytes]
    has_batch_dimension: bool
    summary: ExportSummary = field(default_factory=ExportSummary)
    model: str | None = None
    streams: dict[object, list[tuple[_Range, _Range]]] = field(default_factory=dict)
    """A list of requests for each sequence. A request without a sequence has its own list."""
    has_sequences: bool = False
    starts: Counter[object] = field(default_factory=Counter)
    """The number of sequences that have started with each id. Clients may reuse an id after its
    sequence has ended."""

    def add(self, exchange: Exchange) -> None:
        request, outcome = exchange.request, exchange.outcome
        if outcome.error is not None:
            self.summary.skipped_errors += 1
            return
        if self.model not in (None, request.model):
            raise bad_request(
                f"a perf_analyzer file holds requests of one model, but there are requests of "
                f"'{self.model}' and '{request.model}'"
            )
        self.model = request.model
        outputs: tuple[Tensor, ...] = ()
        if len(outcome.responses) == 1:
            outputs = outcome.responses[0].outputs
        else:
            self.summary.has_outputs = False
        sequence = sequence_id(request.parameters)
        self.has_sequences |= sequence is not None
        self.starts[sequence] += bool(request.parameters.get(_SEQUENCE_START))
        for row in range(self._row_count(request)):
            if self.summary.requests == MAX_ENTRIES:
                raise GatewayError(
                    Kind.TOO_LARGE, f"the export would have more than {MAX_ENTRIES} requests"
                )
            key = self.summary.requests if sequence is None else (sequence, self.starts[sequence])
            entry = (self._spool(request.inputs, row), self._spool(outputs, row))
            self.streams.setdefault(key, []).append(entry)
            self.summary.requests += 1

    def _row_count(self, request: InferRequest) -> int:
        if not self.has_batch_dimension:
            return 1
        batches = {tensor.shape[:1] for tensor in request.inputs}
        if len(batches) != 1 or batches == {()}:
            raise bad_request(f"the inputs of a request of '{request.model}' have no common batch")
        return batches.pop()[0]

    def _spool(self, tensors: tuple[Tensor, ...], row: int) -> _Range:
        entry = {}
        for tensor in tensors:
            shape, data = tensor.shape, tensor.data
            if self.has_batch_dimension:
                if not shape or row >= shape[0]:
                    raise bad_request(f"tensor '{tensor.name}' has no row {row}")
                shape, data = shape[1:], _row_of(tensor, row)
            text = base64.b64encode(data).decode()
            entry[tensor.name] = {"content": {"b64": text}, "shape": shape}
        begin = self.spool.tell()
        return begin, self.spool.write(orjson.dumps(entry))

    def write(self, target: IO[bytes]) -> None:
        streams = list(self.streams.values())
        target.write(b'{"data":')
        self._write_streams(target, [[entry[0] for entry in steps] for steps in streams])
        if self.summary.has_outputs and streams:
            target.write(b',\n"validation_data":')
            self._write_streams(target, [[entry[1] for entry in steps] for steps in streams])
        target.write(b"}\n")

    def _write_streams(self, target: IO[bytes], streams: list[list[_Range]]) -> None:
        separator = b"[\n"
        for steps in streams:
            target.write(separator)
            for index, (begin, size) in enumerate(steps):
                if self.has_sequences:
                    target.write(b",\n " if index else b"[")
                self._copy(target, begin, size)
            target.write(b"]" if self.has_sequences else b"")
            separator = b",\n"
        target.write(b"\n]" if streams else b"[]")

    def _copy(self, target: IO[bytes], begin: int, size: int) -> None:
        self.spool.seek(begin)
        while size:
            chunk = self.spool.read(min(size, _CHUNK_BYTES))
            target.write(chunk)
            size -= len(chunk)


def _row_of(tensor: Tensor, row: int) -> Any:
    if tensor.datatype is Datatype.BYTES:
        return pack_bytes(tensor.numpy().reshape(tensor.shape[0], -1)[row])
    size = math.prod(tensor.shape[1:]) * tensor.datatype.itemsize
    return memoryview(tensor.data)[row * size : (row + 1) * size]


# ---- import -------------------------------------------------------------------------------------


def import_perf_analyzer(file: Path, metadata: ModelMetadata) -> Iterator[Exchange]:
    """Yield an exchange for each request in ``file``. ``metadata`` describes the model. The
    exchanges have responses if the file has expected outputs.

    Each list in ``data`` becomes a sequence, whose id is the position of the list, counted from 1.
    Raises BAD_REQUEST with the position of the error, TOO_LARGE, or OSError."""
    size = file.stat().st_size
    if size > MAX_FILE_BYTES:
        raise GatewayError(
            Kind.TOO_LARGE, f"'{file}' has {size} bytes; the limit is {MAX_FILE_BYTES}"
        )
    members = read_all_members(parse_json(file.read_bytes()), "the file")
    if "data" not in members:
        raise bad_request("the file has no member 'data'")
    streams = read_items(members["data"], "data", MAX_ENTRIES)
    expected = None
    if "validation_data" in members:
        expected = read_items(members["validation_data"], "validation_data", MAX_ENTRIES)
        _check_aligned(streams, expected, "validation_data")
    for index, stream in enumerate(streams):
        path = f"data[{index}]"
        outputs = None if expected is None else expected[index]
        if not is_array(stream):
            yield _exchange(stream, outputs, path, metadata, {})
            continue
        steps = read_items(stream, path, MAX_ENTRIES)
        output_steps = None
        if outputs is not None:
            output_steps = read_items(outputs, f"validation_{path}", MAX_ENTRIES)
            _check_aligned(steps, output_steps, f"validation_{path}")
        for number, step in enumerate(steps):
            parameters: dict[str, Any] = {"sequence_id": index + 1}
            parameters |= {_SEQUENCE_START: True} if number == 0 else {}
            parameters |= {_SEQUENCE_END: True} if number == len(steps) - 1 else {}
            outputs = None if output_steps is None else output_steps[number]
            yield _exchange(step, outputs, f"{path}[{number}]", metadata, parameters)


def _check_aligned(first: list[Node], second: list[Node], path: str) -> None:
    if len(first) != len(second):
        raise bad_request(f"{path} has {len(second)} entries; expected {len(first)}, as in 'data'")


def _exchange(
    inputs: Node, outputs: Node | None, path: str, model: ModelMetadata, parameters: Parameters
) -> Exchange:
    request = InferRequest(
        model.name, parameters=parameters, inputs=_tensors(inputs, path, model, model.inputs)
    )
    outcome = Outcome()
    if outputs is not None:
        tensors = _tensors(outputs, f"validation_{path}", model, model.outputs)
        outcome = Outcome((InferResponse(model.name, outputs=tensors, is_last=True),))
    return Exchange(request, outcome)


def _tensors(
    node: Node, path: str, model: ModelMetadata, declared: tuple[TensorMetadata, ...]
) -> tuple[Tensor, ...]:
    by_name: Mapping[str, TensorMetadata] = {tensor.name: tensor for tensor in declared}
    tensors = []
    for name, value in read_all_members(node, path).items():
        if name == "model":  # perf_analyzer allows this member for other kinds of servers
            continue
        if name not in by_name:
            raise bad_request(
                f"{path}: the model has no tensor '{name}'; it has {', '.join(by_name)}"
            )
        tensors.append(_tensor(value, f"{path}.{name}", by_name[name], model))
    return tuple(tensors)


def _tensor(node: Node, path: str, tensor_metadata: TensorMetadata, model: ModelMetadata) -> Tensor:
    datatype = DATATYPES_BY_NAME.get(tensor_metadata.datatype)
    if datatype is None:
        raise bad_request(f"{path}: unknown datatype '{tensor_metadata.datatype}'")
    batch: tuple[int, ...] = (1,) if model.max_batch_size else ()
    shape, content = tensor_metadata.shape[len(batch) :], node
    if not is_array(node):
        members = read_all_members(node, path)
        if "shape" in members:
            shape = tuple(read_items(members["shape"], f"{path}.shape", DEFAULT_LIMITS.rank))
        content = node if "b64" in members else members.get("content")
    if -1 in shape:
        raise bad_request(f"{path} needs a 'shape', because the model's shape is {list(shape)}")
    shape = check_shape(path, (*batch, *shape), DEFAULT_LIMITS)
    if is_array(content):
        data = read_data(path, datatype, shape, content, REQUEST_RULES)
    else:
        data = _base64(content, path)
        check_data(path, datatype, shape, data)
    return Tensor(tensor_metadata.name, datatype, shape, data)


def _base64(content: Node, path: str) -> bytes:
    members = {} if content is None else read_all_members(content, f"{path}.content")
    if "b64" not in members:
        raise bad_request(f"{path} must be an array, or have 'content' or 'b64'")
    try:
        return base64.b64decode(read_string(members["b64"], f"{path}.b64"), validate=True)
    except (binascii.Error, ValueError):
        raise bad_request(f"{path}.b64 is not base64") from None
