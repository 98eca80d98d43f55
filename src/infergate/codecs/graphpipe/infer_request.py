"""InferRequest ⇄ the canonical one.

*Rule 1.* What the message alone tells wrong is refused before the model's metadata is asked for.
*Rule 2.* Outputs are asked of a backend in the order of its metadata: graphpipe-go's Serve ignores
their names and answers with all, in that order.
*Rule 3.* A client who asks for no outputs wants all: a backend is asked for those that its metadata
has. Where that has one name as input and output it lists the nodes of a graph (graphpipe-tf: all of
them), and the server is left to choose what it gives by default.
*Rule 4.* An output that the metadata has not is asked of a graph alone, which gives any of its
nodes: a server that ignores names would answer with another output.
*Rule 5.* Model, version, id and the parameters of tensors have no place in the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from infergate.codecs.base import Parsed, Unfinished
from infergate.codecs.graphpipe import layout
from infergate.codecs.graphpipe.config_text import read_config, write_config
from infergate.codecs.graphpipe.fields import CONFIG, INPUT_NAMES, INPUT_TENSORS, OUTPUT_NAMES
from infergate.codecs.graphpipe.names import resolve_inputs, resolve_outputs
from infergate.codecs.graphpipe.reading import Table
from infergate.codecs.graphpipe.tensors import read_tensors
from infergate.core.errors import bad_request
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, ModelMetadata, RequestedOutput
from infergate.core.records import record
from infergate.core.tensor import Buffer, Parameters, Tensor


@record
class Reply:
    """The outputs a client wants, in order; if it ``asked`` for none, those that the model has."""

    outputs: tuple[str, ...]
    asked: bool


# ---- from clients


def read_request(table: Table, model: str, version: str, limits: Limits) -> Unfinished[Parsed]:
    """The inference in ``table``, of ``model`` and ``version``. Raises BAD_REQUEST, also when it is
    finished, and TOO_LARGE."""
    parameters = read_config(table.data(CONFIG))
    tables = table.tables(INPUT_TENSORS, limits.tensors)
    inputs = table.texts(INPUT_NAMES, len(tables), cut=True)
    inputs += [""] * (len(tables) - len(inputs))
    called = (name or f"input {index}" for index, name in enumerate(inputs))
    tensors = read_tensors(zip(called, tables, strict=True), limits)
    outputs = table.texts(OUTPUT_NAMES, limits.tensors)
    finish = partial(_finish, model, version, parameters, tensors, inputs, outputs)
    return Unfinished(model, version, finish)


def _finish(  # noqa: PLR0913, PLR0917 - all of a request
    model: str,
    version: str,
    parameters: Parameters,
    tensors: Sequence[Tensor],
    inputs: Sequence[str],
    outputs: Sequence[str],
    metadata: ModelMetadata,
) -> Parsed:
    names = resolve_inputs(inputs, metadata)
    wanted = resolve_outputs(outputs, metadata)
    request = InferRequest(
        model,
        version,
        parameters=parameters,
        inputs=tuple(
            [
                tensor if tensor.name == name else replace(tensor, name=name)
                for tensor, name in zip(tensors, names, strict=True)
            ]
        ),
        outputs=tuple(map(RequestedOutput, dict.fromkeys(wanted))),
    )
    all_names = tuple(told.name for told in metadata.outputs)
    return Parsed(request, Reply(wanted or all_names, asked=bool(wanted)))


# ---- to backends


def asked_outputs(request: InferRequest, model: ModelMetadata) -> list[str]:
    """The names that the backend is asked for; none where it is to choose."""
    known = [told.name for told in model.outputs]
    if request.outputs:
        places = {name: place for place, name in enumerate(known)}
        wanted = [output.name for output in request.outputs]
        return sorted(wanted, key=lambda name: places.get(name, len(places)))
    return [] if _is_graph(model) else known


def _is_graph(model: ModelMetadata) -> bool:
    inputs = {told.name for told in model.inputs}
    return any(told.name in inputs for told in model.outputs)


def _check_outputs(request: InferRequest, model: ModelMetadata) -> None:
    """Rule 4. Raises BAD_REQUEST."""
    known = {told.name for told in model.outputs}
    unknown = [output.name for output in request.outputs if output.name not in known]
    if unknown and known and not _is_graph(model):
        raise bad_request(f"model '{request.model}' has no output '{unknown[0]}'")


def write_request(request: InferRequest, model: ModelMetadata) -> list[Buffer]:
    """The Request. Raises UNSUPPORTED for datatypes GraphPipe lacks, BAD_REQUEST for parameters
    that config cannot tell and for outputs that the model has not, TOO_LARGE."""
    _check_outputs(request, model)
    return layout.write_request(
        write_config(request.parameters), request.inputs, asked_outputs(request, model)
    )
