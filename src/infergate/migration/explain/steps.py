"""Describes how the inference that a server reads differs from the client's inference, and the
positions of tensors in a message. This module has no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from infergate.core.classification import CLASSIFICATION
from infergate.core.messages import InferRequest
from infergate.core.tensor import Buffer, Parameters, Tensor
from infergate.core.wire import join_parts
from infergate.routing.table import Rewrite


def describe_tensor(tensor: Tensor) -> str:
    """Return the datatype, the shape and the size of ``tensor`` as text."""
    shape = ", ".join(map(str, tensor.shape))
    return f"{tensor.datatype.value} [{shape}], {len(tensor.data)} bytes"


def request_steps(
    client: InferRequest, sent: InferRequest, rewrite: Rewrite, protocol: str
) -> Iterator[str]:
    """Yield a sentence for each difference between ``client`` and ``sent``, the inference as a
    server of ``protocol`` reads it."""
    if client.model != sent.model:
        yield f"rewrite.model: model '{client.model}' becomes '{sent.model}'"
    if client.version != sent.version:
        if rewrite.version:
            yield f"rewrite.version: version '{client.version}' becomes '{sent.version}'"
        elif not sent.version:
            yield f"version '{client.version}' is not sent, because {protocol} does not carry it"
    if len(client.inputs) == len(sent.inputs):
        for before, after in _pair_inputs(client.inputs, sent.inputs, rewrite):
            yield from _input_steps(before, after, rewrite, protocol)
    yield from _output_steps(client, sent, rewrite, protocol)
    yield from _parameter_steps(client.parameters, sent.parameters, protocol)
    if client.id and not sent.id:
        yield "the request's id is not sent; the gateway adds it to the response"


def _output_steps(
    client: InferRequest, sent: InferRequest, rewrite: Rewrite, protocol: str
) -> Iterator[str]:
    sent_outputs = {output.name: output for output in sent.outputs}
    for output in client.outputs:
        name = rewrite.outputs.get(output.name, output.name)
        if name != output.name:
            yield f"rewrite.outputs: requested output '{output.name}' becomes '{name}'"
        matching = sent_outputs.get(name)
        if matching is None:
            yield (
                f"the request for output '{name}' is not sent, because {protocol} does not carry it"
            )
        elif CLASSIFICATION in output.parameters and CLASSIFICATION not in matching.parameters:
            yield f"classification of '{output.name}': the gateway computes the classes"


def transform_steps(client: InferRequest, transformed: InferRequest) -> Iterator[str]:
    """Yield a sentence for each input and requested output of ``transformed`` that results from the
    route's transforms."""
    kept = {id(tensor) for tensor in client.inputs}
    for tensor in transformed.inputs:
        if id(tensor) not in kept:
            yield f"transforms: input '{tensor.name}' becomes {describe_tensor(tensor)}"
    names = {output.name for output in client.outputs}
    for output in transformed.outputs:
        if output.name not in names:
            yield f"transforms: output '{output.name}' is requested"


def response_steps(rewrite: Rewrite) -> Iterator[str]:
    """Yield a sentence for each change that ``rewrite`` makes to the response."""
    for client_name, backend_name in rewrite.outputs.items():
        yield f"rewrite.outputs: output '{backend_name}' is returned as '{client_name}'"
    if rewrite.model:
        yield "rewrite.model: the response has the client's model name"


def _pair_inputs(
    client: Sequence[Tensor], sent: Sequence[Tensor], rewrite: Rewrite
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pair the inputs by name or, for protocols without input names, by position."""
    by_name = {tensor.name: tensor for tensor in sent}
    for before, at_position in zip(client, sent, strict=True):
        yield before, by_name.get(rewrite.inputs.get(before.name, before.name), at_position)


def _input_steps(before: Tensor, after: Tensor, rewrite: Rewrite, protocol: str) -> Iterator[str]:
    if before.name != after.name:
        cause = "rewrite.inputs" if before.name in rewrite.inputs else f"input names of {protocol}"
        yield f"{cause}: input '{before.name}' becomes '{after.name}'"
    if before.datatype is not after.datatype:
        yield (
            f"cast {before.datatype.value}: {after.datatype.value} for input '{before.name}', "
            f"because one of the two protocols does not have {before.datatype.value}"
        )
    if before.shape != after.shape:
        yield f"input '{before.name}': shape {list(before.shape)} becomes {list(after.shape)}"


def _parameter_steps(client: Parameters, sent: Parameters, protocol: str) -> Iterator[str]:
    for name in client:
        if name not in sent:
            yield f"parameter '{name}' is not sent, because {protocol} does not carry it"


def tensor_layout(body: Sequence[Buffer], tensors: Sequence[Tensor]) -> list[str]:
    """Return lines with the positions of the tensors that ``body`` contains in canonical layout,
    and of the bytes around them. Return no lines if ``body`` contains none of the tensors."""
    data = bytes(join_parts(body)) if body else b""
    lines: list[str] = []
    end = 0
    for tensor in tensors:
        start = data.find(bytes(tensor.data), end) if len(tensor.data) else -1
        if start < 0:
            continue
        if start > end:
            lines.append(f"bytes {end}-{start - 1}: {'head' if end == 0 else 'structure'}")
        end = start + len(tensor.data)
        lines.append(f"bytes {start}-{end - 1}: '{tensor.name}', {describe_tensor(tensor)}")
    if lines and end < len(data):
        lines.append(f"bytes {end}-{len(data) - 1}: structure")
    return lines
