"""The KServe V1 codec: contract checks, round trips of inferences, and corrupted messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_errors import error_of
from infergate.codecs.kserve_v1 import PLUGIN
from infergate.codecs.profiles import GENERIC
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import (
    HealthStatus,
    InferRequest,
    InferResponse,
    ModelIndex,
    ModelIndexEntry,
    ModelIndexRequest,
    ModelReadyRequest,
    Operation,
    Response,
    ServerLiveRequest,
    ServerReadyRequest,
)
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest, join_parts
from infergate.testing import strategies
from infergate.testing.canonical import is_same
from infergate.testing.codec_check import check_codec
from infergate.testing.samples import metadata_for
from infergate.testing.vectors import completed, with_body


def round_trip(value: Any) -> Any:
    """Return the part of ``value`` that the V1 protocol can express."""
    match value:
        case ServerReadyRequest():
            return ServerLiveRequest()
        case ModelReadyRequest(model):
            return ModelIndexRequest(model=model)
        case ModelIndex(models):
            return ModelIndex(tuple(ModelIndexEntry(entry.name) for entry in models))
        case InferRequest():
            return replace(value, version="", id="", parameters={}, outputs=())
        case InferResponse():
            return replace(value, id="", parameters={})
    return value


def status_response(operation: Operation, response: Response) -> Response:
    """Return a server's response. For readiness, the response has the state of the model."""
    match operation, response:
        case ModelReadyRequest(model), HealthStatus(ok):
            return ModelIndex((ModelIndexEntry(model, state="READY" if ok else "UNAVAILABLE"),))
    return response


@pytest.mark.no_cover
def test_contract() -> None:
    check_codec(PLUGIN, round_trip=round_trip, server_response=status_response)


def is_finite(tensor: Tensor) -> bool:
    """Return whether ``tensor`` has neither NaN nor infinity, which JSON cannot express."""
    array = tensor.numpy()
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


@st.composite
def inferences(draw: st.DrawFn) -> tuple[InferRequest, InferResponse]:
    """Draw an inference and its response. The tensors of a message have the same number of rows."""

    def rows() -> tuple[Tensor, ...]:
        tensors = draw(strategies.tensor_lists())
        plain = [
            replace(tensor, parameters={})
            for tensor in tensors
            if tensor.shape and tensor.data and is_finite(tensor)
        ]
        return tuple(tensor for tensor in plain if tensor.shape[0] == plain[0].shape[0])

    request = InferRequest(draw(strategies.names()), inputs=rows())
    return request, InferResponse(request.model, outputs=rows())


@given(inferences(), st.data())
def test_inferences_and_corrupted_bytes(
    case: tuple[InferRequest, InferResponse], data: st.DataObject
) -> None:
    request, response = case
    codec: Any = PLUGIN.create({})
    metadata = metadata_for(request, response)
    error = error_of(codec.build_request, request, GENERIC, metadata)
    if error is not None:
        assert "cannot express" in error.public or "no common first" in error.public
        return
    wire = codec.build_request(request, GENERIC, metadata)
    parsed = completed(codec.parse_request(wire, DEFAULT_LIMITS), metadata)
    assert is_same(parsed.operation, request)
    if response.outputs:
        sent = codec.build_response(response, parsed)
        parsed_response = codec.parse_response(sent, request, DEFAULT_LIMITS, metadata)
        assert is_same(parsed_response, response)
        body = data.draw(strategies.corrupted_bytes(bytes(join_parts(sent.body))))
        error = error_of(
            codec.parse_response, with_body(sent, (body,)), request, DEFAULT_LIMITS, metadata
        )
        assert error is None or error.public
    body = data.draw(strategies.corrupted_bytes(bytes(join_parts(wire.body))))
    broken: Any = with_body(wire, (body,))
    error = error_of(lambda: completed(codec.parse_request(broken, DEFAULT_LIMITS), metadata))
    assert error is None or codec.build_error(error, broken).status >= 400
    if error is None:
        assert error_of(codec.validate, broken, DEFAULT_LIMITS) is None


@given(
    st.binary(max_size=80) | st.text(alphabet='{}[]:,"12.e-ab', max_size=60).map(str.encode),
    st.sampled_from(["GET", "POST", "PUT"]),
    st.sampled_from(["/", "/v1/models/m:predict", "/v1/models/m:explain", "/v1/models/m", "/v1/x"]),
    st.sampled_from(["application/json", "application/cloudevents+json", "text/plain"]),
)
def test_any_bytes_are_parsed_or_refused(body: bytes, method: str, path: str, mime: str) -> None:
    codec: Any = PLUGIN.create({})
    wire = HttpRequest(method, path, "", {"content-type": mime}, (body,))
    for read in (codec.summarize, lambda w: codec.parse_request(w, DEFAULT_LIMITS)):
        error = error_of(read, wire)
        assert error is None or codec.build_error(error, wire).status >= 400
