"""The echo model of the matrix, and the backend that records the requests to its models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from infergate.backends.builtin.backend import BuiltinBackend
from infergate.backends.builtin.model import Model, Signature, UnaryModel
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.request_context import RequestContext
from infergate.core.tensor import NO_PARAMETERS, Parameters

HANGING_TIMEOUT: Final = 0.05
"""The timeout of routes to a model that raises TIMEOUT, in seconds."""
_GRACE_SECONDS: Final = 0.2


class EchoModel(UnaryModel):
    """Returns the inputs as outputs, with the request's id and version, or raises ``error``."""

    def __init__(
        self,
        signature: Signature,
        parameters: Parameters = NO_PARAMETERS,
        error: GatewayError | None = None,
    ) -> None:
        self.signature = signature
        self._parameters: Final = parameters
        self._error: Final = error

    def infer(self, request: InferRequest) -> InferResponse:
        if self._error is not None:
            raise self._error
        inputs = self.signature.checked_inputs(request)
        pairs = zip(self.signature.inputs, self.signature.outputs, strict=True)
        outputs = [replace(inputs[tensor.name], name=output.name) for tensor, output in pairs]
        response = self.signature.build_response(request, outputs)
        return replace(response, version=request.version, parameters=self._parameters, is_last=True)


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request that reached a model, the seconds until the request's deadline, and the response.
    ``response`` is None after an error."""

    request: InferRequest
    remaining_seconds: float | None
    response: InferResponse | None = None


class RecordingBackend(BuiltinBackend):
    """Serves models and records the inference requests."""

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__("recording", models)
        self._metadata: Final = {model.metadata.name: model.metadata for model in models}
        self.requests: Final[list[ReceivedRequest]] = []

    def metadata_of(self, model: str) -> ModelMetadata:
        """Return the metadata of ``model``. For an unknown model, return the metadata of the model
        FP32."""
        return replace(self._metadata.get(model, self._metadata["FP32"]), name=model)

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        """Perform ``operation``, and record it if it is an inference. A model's TIMEOUT error is
        delayed beyond the timeout of the route, so that the gateway times out first."""
        if not isinstance(operation, InferRequest):
            return await super().perform(operation, context)
        remaining = None if context.deadline is None else context.deadline - time.monotonic()
        received = ReceivedRequest(operation, remaining)
        try:
            response = await super().perform(operation, context)
            assert isinstance(response, InferResponse)
            received = replace(received, response=response)
        except GatewayError as error:
            if error.kind is Kind.TIMEOUT:
                await asyncio.sleep(HANGING_TIMEOUT + _GRACE_SECONDS)
            raise
        finally:
            self.requests.append(received)
        return response
