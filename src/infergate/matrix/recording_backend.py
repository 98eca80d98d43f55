"""The model of the matrix, and the backend that records the requests that reach it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from infergate.backends.builtin.backend import BuiltinBackend
from infergate.backends.builtin.model import Model, Signature, UnaryModel
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse, Operation, Response
from infergate.core.request_context import RequestContext
from infergate.core.tensor import NO_PARAMETERS, Parameters

_FOREVER_SECONDS: Final = 3600.0
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
    """A request that reached a model, the seconds until its deadline, and the response or None."""

    request: InferRequest
    remaining_seconds: float | None
    response: InferResponse | None = None


class RecordingBackend(BuiltinBackend):
    """Serves models and records the inference requests."""

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__("recording", models)
        self.models: Final = {model.metadata.name: model.metadata for model in models}
        self._requests: list[ReceivedRequest] = []

    def take_requests(self) -> list[ReceivedRequest]:
        """Return the requests since the last call."""
        received, self._requests = self._requests, []
        return received

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        """Perform ``operation``, and record it if it is an inference. A model's TIMEOUT is raised
        after the deadline, so that the caller times out first."""
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
                await asyncio.sleep((remaining or _FOREVER_SECONDS) + _GRACE_SECONDS)
            raise
        finally:
            self._requests.append(received)
        return response
