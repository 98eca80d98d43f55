"""Pass-through and translation of the vectors yield equivalent requests and responses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infergate.codecs.base import ParsedRequest, PartialInferRequest, SupportsPassThrough
from infergate.codecs.profiles import MLSERVER, TRITON
from infergate.codecs.registry import plugins
from infergate.codecs.trtis import messages as legacy
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.core.wire import HttpResponse, join_parts
from infergate.testing.vectors import Vector, completed, load

VECTORS = Path(__file__).parents[2] / "vectors"
PROTOCOLS = sorted(folder.name for folder in VECTORS.iterdir() if folder.is_dir())
CASES = [
    pytest.param(protocol, vector, id=f"{protocol}/{vector.name}")
    for protocol in PROTOCOLS
    if protocol in plugins() and isinstance(plugins()[protocol].create({}), SupportsPassThrough)
    for vector in load(VECTORS / protocol)
]


def outcome(step: Any) -> Any:
    """Return the result of ``step``, or its error in a comparable form."""
    try:
        return step()
    except GatewayError as error:
        return (error.kind, error.public)


@pytest.mark.parametrize(("protocol", "vector"), CASES)
def test_pass_through_and_translation_agree(protocol: str, vector: Vector) -> None:
    codec = plugins()[protocol].create(vector.options)
    if vector.operation is None:
        check_requests(codec, vector.wire, vector.model)
    else:
        check_responses(codec, vector)


def body_of(wire: Any) -> Any:
    return wire.body if isinstance(wire, HttpResponse) else wire.message


def body_without_status(codec: Any, wire: Any) -> Any:
    """Return the body of ``wire``, without the status of the legacy gRPC API."""
    body = bytes(join_parts(body_of(wire)))
    if codec.name != "trtis-grpc":
        return body
    message = legacy.InferResponse.FromString(body)
    message.ClearField("request_status")
    return message


def check_requests(codec: Any, wire: Any, model: ModelMetadata | None) -> None:
    try:
        summary = codec.summarize(wire)
    except GatewayError:
        return  # refused before a pipeline is chosen
    if summary.operation is not InferRequest:
        return

    def read(request: Any) -> Any:
        return completed(codec.parse_request(request, DEFAULT_LIMITS), model).operation

    translated = outcome(lambda: read(wire))
    checked = outcome(lambda: completed(codec.validate(wire, DEFAULT_LIMITS), model))
    if isinstance(translated, tuple) and is_lenient(codec, wire):
        return  # the server checks the request against the metadata
    if isinstance(translated, tuple) or isinstance(checked, tuple):
        assert checked == translated
        return
    forwarded = codec.rewrite_request(checked, summary.model, summary.version, TRITON)
    if forwarded is None:
        return  # translated for servers that do not accept the message unchanged
    assert read(forwarded) == translated
    rebuilt = read(codec.build_request(translated, TRITON, model))
    # A legacy server returns only the requested outputs, so all outputs are requested.
    assert replace(rebuilt, outputs=translated.outputs) == translated


def is_lenient(codec: Any, wire: Any) -> bool:
    """Return whether only the translation of ``wire`` needs the model's metadata."""
    parsed, checked = (
        outcome(lambda function=function: function(wire, DEFAULT_LIMITS))
        for function in (codec.parse_request, codec.validate)
    )
    return isinstance(parsed, PartialInferRequest) and not isinstance(
        checked, PartialInferRequest | tuple
    )


def check_responses(codec: Any, vector: Vector) -> None:
    operation = vector.operation
    if not isinstance(operation, InferRequest):
        return
    for profile in (TRITON, MLSERVER):  # with and without binary outputs
        wire = codec.build_request(operation, profile, vector.model)
        check_response(codec, vector.wire, wire, operation, vector.model)


def check_response(
    codec: Any, wire: Any, request: Any, operation: InferRequest, model: ModelMetadata | None
) -> None:
    """Check that the client reads the same response, whether it is forwarded or translated."""
    parsed = completed(codec.parse_request(request, DEFAULT_LIMITS), model)
    checked = completed(codec.validate(request, DEFAULT_LIMITS), model)

    def translate(**names: str) -> Any:
        response = codec.parse_response(wire, operation, DEFAULT_LIMITS, model)
        # `gateway.rename` replaces the same names.
        options = ParsedRequest(replace(parsed.operation, **names), parsed.response_options)
        return codec.build_response(replace(response, id=operation.id, **names), options)

    def forward(model: str = "", version: str = "") -> Any:
        return codec.rewrite_response(wire, checked, model, version, DEFAULT_LIMITS)

    translated, forwarded = outcome(translate), outcome(forward)
    if isinstance(translated, tuple):
        if translated[0] is Kind.BACKEND_GARBAGE and not isinstance(forwarded, tuple):
            # The gateway trusts responses: it does not parse a forwarded response, so invalid
            # tensors reach the client unchanged.
            assert body_without_status(codec, forwarded) == body_without_status(codec, wire)
            return
        assert isinstance(forwarded, tuple)
        assert forwarded[0] is translated[0]
        return

    def read(response: Any) -> Any:
        return codec.parse_response(response, operation, DEFAULT_LIMITS, model)

    assert isinstance(read(translated), InferResponse)
    assert read(forwarded) == read(translated)
    names = {"model": "new name", "version": "77"}
    assert read(forward(**names)) == read(translate(**names))
