"""InferRequestHeader and raw tensors ⇄ InferRequest.

Both carriers spell an inference alike: a header, and each input's raw data in the header's order;
HTTP has the data in one piece, gRPC a piece for each input. What datatypes and shapes they have,
the model's metadata tells.

*Rule 1.* A client that asks for no outputs gets none, though the backend is asked for all.
*Rule 2.* A backend is asked for every output by name: asked for none, it would give none.
*Rule 3.* What goes to a backend agrees with its metadata in names and datatypes, which the wire
does not tell: the server would take FP32 for INT32. The rest of the checks are the server's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from infergate.codecs.base import Parsed, Unfinished
from infergate.codecs.trtis.checks import (
    Input,
    Output,
    check_batch,
    check_classes,
    check_counts,
    check_inputs,
    check_outputs,
    datatype_of,
    is_batched,
)
from infergate.codecs.trtis.messages import Carried, InferRequestHeader
from infergate.codecs.trtis.options import Level
from infergate.codecs.trtis.parameters import read_id, read_parameters, write_parameters
from infergate.codecs.trtis.statuses import Refusal
from infergate.core.classification import PARAMETER, class_count
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, ModelMetadata, RequestedOutput
from infergate.core.places import Place
from infergate.core.records import record
from infergate.core.tensor import Buffer, Tensor, add_bytes_elements, check_data

Allot = Callable[[Sequence[Input], str], Sequence[Buffer]]
"""The raw data of each input, for the model named so. Raises BAD_REQUEST where it is too little or
too much."""


@record
class Reply:
    """How a client wants its inference answered. ``batch``: the first dimension of every shape, or
    nothing where the model does not batch."""

    id: int
    batch_size: int
    batch: tuple[int, ...]
    outputs: tuple[Output, ...]


# ---- from clients


def read_request(
    header: Any, asked: InferRequest, allot: Allot, level: Level, limits: Limits
) -> Unfinished[Parsed]:
    """The inference that ``header`` asks for, of the model and version of ``asked``. Raises
    BAD_REQUEST, also when it is finished."""
    check_counts(header, limits)
    finish = partial(_finish, Carried(header), asked, allot, level, limits)
    return Unfinished(asked.model, asked.version, finish)


def _finish(  # noqa: PLR0913, PLR0917 - all of a request
    carried: Carried,
    asked: InferRequest,
    allot: Allot,
    level: Level,
    limits: Limits,
    metadata: ModelMetadata,
) -> Parsed:
    if metadata.unavailable:
        told = level.unavailable_model(asked.model, asked.version)
        raise Refusal("UNAVAILABLE", told, Kind.NO_BACKEND)
    header = carried.message
    check_batch(header, metadata)
    outputs = check_outputs(header, metadata, level)
    inputs = check_inputs(header, metadata, limits)
    batch = (header.batch_size,) if is_batched(metadata) else ()
    tensors = _tensors(inputs, batch, allot(inputs, metadata.name), limits)
    check_classes(outputs)
    request = InferRequest(
        asked.model,
        asked.version,
        read_id(header),
        read_parameters(header),
        tensors,
        tuple([_requested(output) for output in dict.fromkeys(outputs)]),
    )
    return Parsed(request, Reply(header.id, header.batch_size, batch, outputs))


def _tensors(
    inputs: Sequence[Input], batch: tuple[int, ...], datas: Sequence[Buffer], limits: Limits
) -> tuple[Tensor, ...]:
    tensors: list[Tensor] = []
    elements = 0
    for each, data in zip(inputs, datas, strict=True):
        shape = (*batch, *each.dims)
        if each.datatype is Datatype.BYTES:
            elements = add_bytes_elements(each.name, shape, elements, limits)
        if each.place is None:
            check_data(each.name, each.datatype, shape, data)
        tensors.append(Tensor(each.name, each.datatype, shape, data, place=each.place))
    return tuple(tensors)


def _requested(output: Output) -> RequestedOutput:
    if not output.classes:
        return RequestedOutput(output.name, place=output.place)
    return RequestedOutput(output.name, {PARAMETER: output.classes}, output.place)


# ---- to backends

_LATEST: Final = -1
LARGEST_UINT32: Final = 2**32 - 1
_LARGEST_VERSION: Final = 2**63 - 1


def version_number(model: str, version: str) -> int:
    """``version`` as the API has it, -1 for the latest. Raises BAD_REQUEST for what is none."""
    if not version:
        return _LATEST
    if version.isascii() and version.isdecimal() and len(version) <= len(str(_LARGEST_VERSION)):
        number = int(version)
        if number <= _LARGEST_VERSION:
            return number
    raise bad_request(
        f"version '{version}' of model '{model}' is not found: the backend's versions are integers"
    )


def wanted_outputs(
    operation: InferRequest, model: ModelMetadata
) -> list[tuple[RequestedOutput, Datatype]]:
    """Each output that the backend is to be asked for, with its datatype. Raises BAD_REQUEST."""
    known = {told.name: told for told in model.outputs}
    asked = operation.outputs or tuple(RequestedOutput(name) for name in known)
    for output in asked:
        if output.name not in known:
            raise bad_request(
                f"unexpected inference output '{output.name}' for model '{operation.model}'"
            )
    return [(output, datatype_of("output", known[output.name])) for output in asked]


def write_request(operation: InferRequest, model: ModelMetadata, *, schedules: bool) -> Any:
    """The header of ``operation``, with priority and timeout where the server ``schedules``; its
    raw data is that of the inputs in order. Raises NO_BACKEND for a model that is not ready,
    BAD_REQUEST for what the header cannot tell or ``model`` contradicts."""
    if model.unavailable:
        raise GatewayError(
            Kind.NO_BACKEND, _unavailable(operation.model, operation.version), origin=Origin.BACKEND
        )
    header = InferRequestHeader(batch_size=batch_size(operation, model))
    write_parameters(header, operation.id, operation.parameters, schedules=schedules)
    known = {told.name: told for told in model.inputs}
    batched = is_batched(model)
    for tensor in operation.inputs:
        told = known.get(tensor.name)
        if told is None:
            raise bad_request(
                f"unexpected inference input '{tensor.name}' for model '{operation.model}'"
            )
        if datatype_of("input", told) is not tensor.datatype:
            raise bad_request(
                f"tensor '{tensor.name}' is {tensor.datatype.value}, "
                f"model '{operation.model}' takes {told.datatype}"
            )
        size = len(tensor.data) if tensor.place is None else tensor.place.size
        given = header.input.add(
            name=tensor.name,
            dims=tensor.shape[1:] if batched else tensor.shape,
            batch_byte_size=size if tensor.datatype is Datatype.BYTES else 0,
        )
        if tensor.place is not None:
            _write_place(given.shared_memory, tensor.place)
    for output, _ in wanted_outputs(operation, model):
        asked = header.output.add(name=output.name)
        if (count := class_count(output)) is not None:
            asked.cls.count = count
        if output.place is not None:
            _write_place(asked.shared_memory, output.place)
    return header


def _unavailable(model: str, version: str) -> str:
    """In the words of the servers that came after."""
    if version:
        return f"Request for unknown model: '{model}' version {version} is not at ready state"
    return f"Request for unknown model: '{model}' has no available versions"


def _write_place(memory: Any, place: Place) -> None:
    memory.name, memory.offset, memory.byte_size = place.region, place.offset, place.size


def batch_size(operation: InferRequest, model: ModelMetadata) -> int:
    """How many batch entries the inputs hold. Raises BAD_REQUEST naming the one at fault."""
    if not is_batched(model):
        return 1
    found: int | None = None
    for tensor in operation.inputs:
        if not tensor.shape:
            raise bad_request(
                f"tensor '{tensor.name}': shape [] has no batch, which model "
                f"'{operation.model}' takes"
            )
        if found is not None and tensor.shape[0] != found:
            raise bad_request(
                f"tensor '{tensor.name}': a batch of {tensor.shape[0]} beside one of {found}"
            )
        found = tensor.shape[0]
    if found is not None and found > LARGEST_UINT32:
        raise bad_request(f"a batch of {found} is over {LARGEST_UINT32}, the API's most")
    return 1 if found is None else found
