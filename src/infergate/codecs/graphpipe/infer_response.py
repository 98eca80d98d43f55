"""InferResponse ⇄ the canonical one. Its tensors have no names: their order tells them apart.

*Rule 1.* A client gets the outputs it asked for in its order, and twice what it asked for twice.
A client that asked for none gets all, those that the metadata has first and in that order.
*Rule 2.* An answer with as many tensors as were asked for has those; else, with as many as the
model has outputs, those (graphpipe-go's Serve). Where as many were asked for as the model has, but
not the same, it may be either, and is taken for the model's: nothing else tells them apart.
Where a client asked for none and neither fits, they are called ``output0``, ``output1`` ... as by
graphpipe-go: a wrong name would be worse. An answer without any is none,
where the model has outputs.
*Rule 3.* Errors count though there are outputs beside them, as for Python's client; but not errors
that cannot be read: graphpipe-py on newer flatbuffers writes a vector of errors without elements.
"""

from __future__ import annotations

from collections.abc import Sequence

from infergate.codecs.graphpipe import layout
from infergate.codecs.graphpipe.errors import error_of_response
from infergate.codecs.graphpipe.fields import ERRORS, OUTPUT_TENSORS
from infergate.codecs.graphpipe.infer_request import Reply, asked_outputs
from infergate.codecs.graphpipe.reading import Table
from infergate.codecs.graphpipe.tensors import read_tensors
from infergate.core.errors import GatewayError, Kind, garbage
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.core.tensor import Buffer, Tensor

# ---- to clients


def write_response(answer: InferResponse, reply: Reply) -> list[Buffer]:
    """The InferResponse. Raises BACKEND_GARBAGE for an answer that lacks an output, UNSUPPORTED for
    datatypes GraphPipe lacks, TOO_LARGE."""
    if not reply.asked:
        places = {name: place for place, name in enumerate(reply.outputs)}
        ordered = sorted(answer.outputs, key=lambda tensor: places.get(tensor.name, len(places)))
        return layout.write_response(ordered)
    given = {tensor.name: tensor for tensor in answer.outputs}
    for name in reply.outputs:
        if name not in given:
            raise garbage(f"the answer lacks output '{name}'")
    return layout.write_response([given[name] for name in reply.outputs])


# ---- from backends


def read_response(
    table: Table, request: InferRequest, model: ModelMetadata, limits: Limits
) -> InferResponse:
    """The answer in ``table`` to ``request``. Raises the backend's error, BACKEND_GARBAGE for an
    answer to something else, BAD_REQUEST and TOO_LARGE for one that cannot be read."""
    tables = table.tables(OUTPUT_TENSORS, limits.tensors)
    if error := _error(table, limits, beside_outputs=bool(tables)):
        raise error
    names = _names(len(tables), request, model)
    tensors = read_tensors(zip(names, tables, strict=True), limits)
    return InferResponse(
        request.model, request.version, request.id, outputs=_wanted(tensors, request)
    )


def _error(table: Table, limits: Limits, *, beside_outputs: bool) -> GatewayError | None:
    try:
        errors = table.tables(ERRORS, limits.tensors)
        return error_of_response(errors) if errors else None
    except GatewayError as unreadable:
        if beside_outputs and unreadable.kind is Kind.BAD_REQUEST:
            return None
        raise


def _names(count: int, request: InferRequest, model: ModelMetadata) -> Sequence[str]:
    """Rule 2."""
    asked = asked_outputs(request, model)
    known = [told.name for told in model.outputs]
    if known and not count:
        raise garbage("the backend's answer has no output")
    if len(asked) == count and (len(known) != count or set(asked) == set(known)):
        return asked
    if len(known) == count:
        return known
    if request.outputs:
        raise garbage(f"{len(asked)} outputs were asked for, the backend answered with {count}")
    return [f"output{index}" for index in range(count)]


def _wanted(tensors: Sequence[Tensor], request: InferRequest) -> tuple[Tensor, ...]:
    """The outputs asked for, in order; all where none were."""
    if not request.outputs:
        return tuple(tensors)
    given = {tensor.name: tensor for tensor in tensors}
    for output in request.outputs:
        if output.name not in given:
            raise garbage(f"the backend's answer lacks output '{output.name}'")
    return tuple(given[output.name] for output in request.outputs)
