"""The canonical messages that remain after a round trip through TensorFlow Serving's APIs."""

from dataclasses import replace
from typing import Any

from infergate.core import messages
from infergate.core.messages import InferRequest, InferResponse

SELECTORS = ("signature_name", "version_label")


def round_trip(value: Any) -> Any:
    """Return the part of ``value`` that a message of either API, gRPC or REST, can express."""
    match value:
        case messages.ServerLiveRequest():
            return messages.ServerReadyRequest()
        case messages.ModelReadyRequest(model, version):
            return messages.ModelIndexRequest(model=model, version=version)
        case messages.ModelMetadata():
            return replace(value, versions=("1",), platform="tensorflow_serving")
        case InferRequest():
            parameters = {k: v for k, v in value.parameters.items() if k in SELECTORS}
            outputs = tuple(messages.RequestedOutput(output.name) for output in value.outputs)
            return replace(value, id="", parameters=parameters, outputs=outputs)
        case InferResponse():
            return replace(value, id="", parameters={})
    return value


def status_response(
    operation: messages.Operation, response: messages.Response
) -> messages.Response:
    """Return the response that a server sends: states of versions for a readiness check."""
    match operation, response:
        case messages.ModelReadyRequest(model, version), messages.HealthStatus(ok):
            state = "READY" if ok else "UNAVAILABLE"
            return messages.ModelIndex((messages.ModelIndexEntry(model, version or "1", state),))
    return response
