"""ModelInferResponse ⇄ InferResponse.

*Rule 1.* Clients are given raw contents, as Triton does: tritonclient's ``as_numpy`` reads no
typed contents but BYTES. Typed contents are an option of the listener.
*Rule 2.* From backends both are taken, and a mixture: KServe answers typed, MLServer as it was
asked, Triton raw with one entry an output.
*Rule 3.* What does not fit is BACKEND_GARBAGE naming the tensor, never passed on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from infergate.codecs.protos.scan import Malformed, split
from infergate.codecs.v2_grpc.contents import Typed
from infergate.codecs.v2_grpc.descriptions import cut_contents, most_fields
from infergate.codecs.v2_grpc.messages import ModelInferResponse
from infergate.codecs.v2_grpc.parameters import read_parameters, write_parameters
from infergate.codecs.v2_grpc.parts import plain_head
from infergate.codecs.v2_grpc.tensors import (
    Described,
    can_be_typed,
    raw_parts,
    read_datatype,
    read_tensors,
    write_description,
    write_typed,
)
from infergate.core.errors import GatewayError, blamed, garbage
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.places import Place, written_place
from infergate.core.tensor import Buffer
from infergate.core.wire import joined

RAW: Final = 6
"""ModelInferResponse.raw_output_contents"""


def read_response(
    message: Sequence[Buffer], limits: Limits, asked: InferRequest | None = None
) -> InferResponse:
    """The answer in a backend's ``message``, in which outputs that were ``asked`` for in shared
    memory have no data. Raises BACKEND_GARBAGE."""
    try:
        rest, raw = split(joined(message), RAW, most_fields(limits))
        described, typed = cut_contents(rest, limits)
        head = ModelInferResponse.FromString(described)
        places = {output.name: output.place for output in asked.outputs} if asked else {}
        outputs = read_tensors(_described(head.outputs, raw, typed, places), limits)
    except (Malformed, DecodeError) as error:
        raise garbage("the backend's ModelInferResponse cannot be read", str(error)) from None
    except GatewayError as error:
        raise blamed(error) from None
    return InferResponse(
        model=head.model_name,
        version=head.model_version,
        id=head.id,
        parameters=read_parameters(head.parameters),
        outputs=outputs,
    )


def _described(
    outputs: Sequence[Any],
    raw: Sequence[memoryview],
    typed: Sequence[Typed],
    places: Mapping[str, Place | None],
) -> Iterator[Described]:
    """In a mixture the raw entries belong, in order, to the outputs without typed contents; where
    there is one entry an output, an output's own entry comes first if it holds anything."""
    if len(raw) == len(outputs):
        contents: list[Buffer | Typed] = [
            entry if len(entry) or not own.hold_elements() else own
            for entry, own in zip(raw, typed, strict=True)
        ]
    else:
        contents = list(typed)
        untyped = [index for index, own in enumerate(typed) if not own.hold_elements()]
        if len(raw) not in (0, len(untyped)):
            raise garbage(f"{len(raw)} raw_output_contents for {len(outputs)} outputs")
        for index, entry in zip(untyped, raw, strict=False):
            contents[index] = entry
    for message, each in zip(outputs, contents, strict=True):
        datatype = read_datatype(message.name, message.datatype.upper())
        place = places.get(message.name)
        if place is None:
            yield message, datatype, each
        elif each.hold_elements() if isinstance(each, Typed) else len(each):
            raise garbage(f"output '{message.name}' has data and was to be in shared memory")
        else:
            yield message, datatype, written_place(place, datatype, message.shape)


def _head(response: InferResponse) -> Any:
    head = ModelInferResponse(
        model_name=response.model, model_version=response.version, id=response.id
    )
    if response.parameters:
        write_parameters(head.parameters, response.parameters)
    for tensor in response.outputs:
        write_description(head.outputs, tensor)
    return head


def write_raw(response: InferResponse) -> Sequence[Buffer]:
    """``response`` with raw contents. Raises ValueError for what protobuf cannot hold."""
    head = plain_head(response, response.outputs)
    if head is None:
        head = _head(response).SerializeToString(deterministic=True)
    return raw_parts(head, RAW, response.outputs)


def write_typed_where_possible(response: InferResponse) -> Sequence[Buffer]:
    """``response`` with typed contents, or raw as a whole where an output is FP16 or BF16: the
    two must not be mixed in one message."""
    if not can_be_typed(response.outputs):
        return write_raw(response)
    head = _head(response)
    for message, tensor in zip(head.outputs, response.outputs, strict=True):
        write_typed(message, tensor)
    return (head.SerializeToString(deterministic=True),)
