"""InferResponseHeader and raw tensors ⇄ InferResponse.

*Rule 1.* Clients are given the outputs they asked for, in their order. An output's classes are in
the header, its values in the raw data.
*Rule 2.* Backends give outputs in an order of their own, which the header tells (v1.12 on: any).
What does not fit the metadata is BACKEND_GARBAGE naming the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from infergate.codecs.trtis.checks import Output, is_batched
from infergate.codecs.trtis.classes import read_classes, write_classes
from infergate.codecs.trtis.datatypes import NUMBERS
from infergate.codecs.trtis.infer_request import Reply, batch_size, wanted_outputs
from infergate.codecs.trtis.messages import InferResponseHeader
from infergate.core.classification import class_count
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, blamed, garbage
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.core.places import Place
from infergate.core.tensor import (
    Buffer,
    Tensor,
    add_bytes_elements,
    check_data,
    check_shape,
)

# ---- to clients


def write_response(
    answer: InferResponse, asked: InferRequest, reply: Reply, *, data_type: bool
) -> tuple[Any, Sequence[Buffer]]:
    """The header, and the raw data of each output: nothing for those that are told as classes or
    went to shared memory.

    Raises BACKEND_GARBAGE for an answer that is none to what was asked.
    """
    header = InferResponseHeader(
        model_name=asked.model,
        model_version=model_version(answer.version),
        batch_size=reply.batch_size,
        id=reply.id,
    )
    given = {tensor.name: tensor for tensor in answer.outputs}
    raw: list[Buffer] = []
    for output in reply.outputs:
        tensor = given.get(output.name)
        if tensor is None:
            raise garbage(f"the answer lacks output '{output.name}'")
        told = header.output.add(name=output.name)
        if data_type:
            told.data_type = NUMBERS[output.datatype]
        if output.classes:
            write_classes(told.batch_classes, tensor, reply.batch_size)
            raw.append(b"")
            continue
        if tensor.datatype is not output.datatype:
            raise garbage(
                f"output '{output.name}' is {tensor.datatype.value} and not, as in the model's "
                f"metadata, {output.datatype.value}"
            )
        rank = len(reply.batch)
        if tensor.shape[:rank] != reply.batch:
            raise garbage(
                f"output '{output.name}' is of shape {list(tensor.shape)} "
                f"and not of batch size {reply.batch_size}"
            )
        told.raw.dims.extend(tensor.shape[rank:])
        size = len(tensor.data) if tensor.place is None else tensor.place.size
        told.raw.batch_byte_size = size
        told.raw.SetInParent()
        raw.append(tensor.data)
    return header, raw


def written_text(tensors: Sequence[Tensor], outputs: Sequence[Output]) -> int:
    """What it costs to write the header of ``tensors``, in bytes of JSON that cost as much: every
    dimension takes some microseconds, every byte of a class nearly one."""
    cost = 0
    for tensor in tensors:
        cost += _DIMENSION * len(tensor.shape)
    for output in outputs:
        if output.classes:
            cost += sum(_CLASS * len(each.data) for each in tensors if each.name == output.name)
    return cost


_DIMENSION: Final = 64
_CLASS: Final = 8


def model_version(version: str) -> int:
    """As the API has it; 0, which is not told, for what is no number."""
    if version.isascii() and version.isdecimal() and len(version) < len(str(2**63)):
        return int(version)
    return 0


# ---- from backends

Allot = Callable[[Sequence[int | None]], Sequence[Buffer]]
"""The raw data of outputs of so many bytes, None where an output has none. Raises
BACKEND_GARBAGE."""


def read_response(
    header: Any, allot: Allot, operation: InferRequest, model: ModelMetadata, limits: Limits
) -> InferResponse:
    """The answer of ``header`` and its raw data to ``operation``, its id the request's.

    Raises BACKEND_GARBAGE, TOO_LARGE.
    """
    try:
        outputs = _read_outputs(header, allot, operation, model, limits)
    except GatewayError as error:
        raise blamed(error) from None
    return InferResponse(
        model=header.model_name or operation.model,
        version=str(header.model_version) if header.model_version > 0 else "",
        id=operation.id,
        outputs=outputs,
    )


def _raw_size(told: Any) -> int | None:
    return told.raw.batch_byte_size if told.HasField("raw") else None


def _tensor(
    told: Any, datatype: Datatype, shape: tuple[int, ...], data: Buffer, place: Place | None
) -> Tensor:
    if not told.HasField("raw"):
        raise garbage(f"output '{told.name}' has no raw data")
    if place is None:
        check_data(told.name, datatype, shape, data)
        return Tensor(told.name, datatype, shape, data)
    written = replace(place, size=told.raw.batch_byte_size)
    return Tensor(told.name, datatype, shape, b"", place=written)


def _read_outputs(
    header: Any, allot: Allot, operation: InferRequest, model: ModelMetadata, limits: Limits
) -> tuple[Tensor, ...]:
    wanted = {
        output.name: (output, datatype) for output, datatype in wanted_outputs(operation, model)
    }
    batch = (batch_size(operation, model),) if is_batched(model) else ()
    if batch and header.batch_size != batch[0]:
        raise garbage(f"it is of batch size {header.batch_size}, not {batch[0]}")
    if len(header.output) > limits.tensors:
        raise garbage(f"there are {len(header.output)} outputs, the limit is {limits.tensors}")
    placed = {output.name for output, _ in wanted.values() if output.place is not None}
    sizes = [None if told.name in placed else _raw_size(told) for told in header.output]
    found: dict[str, Tensor] = {}
    elements = 0
    for told, data in zip(header.output, allot(sizes), strict=True):
        if told.name not in wanted or told.name in found:
            raise garbage(f"output '{told.name}' was not asked for, or is there twice")
        output, datatype = wanted[told.name]
        if class_count(output) is not None:
            tensor = read_classes(told.name, told.batch_classes, batch, datatype)
        else:
            shape = check_shape(told.name, (*batch, *told.raw.dims), limits)
            if datatype is Datatype.BYTES:
                elements = add_bytes_elements(told.name, shape, elements, limits)
            tensor = _tensor(told, datatype, shape, data, output.place)
        found[told.name] = tensor
    for name in wanted:
        if name not in found:
            raise garbage(f"it lacks output '{name}'")
    return tuple(found[name] for name in wanted)
