"""The models of the matrix, and the backend that records the requests that reach them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from infergate.backends.builtin.backend import BuiltinBackend
from infergate.backends.builtin.model import (
    Model,
    Signature,
    UnaryModel,
    check_outputs,
    tensors_by_name,
)
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse, Operation, Response
from infergate.core.request_context import RequestContext
from infergate.core.tensor import NO_PARAMETERS, Parameters, Tensor

_FOREVER_SECONDS: Final = 3600.0
_GRACE_SECONDS: Final = 0.2


class EchoModel(UnaryModel):
    """Returns the nth input as the nth output, with the request's id and version and with ``tells``
    as the response's parameters."""

    def __init__(self, signature: Signature, parameters: Parameters = NO_PARAMETERS) -> None:
        self.signature = signature
        self._parameters: Final = parameters
        self._outputs: Final = {
            given.name: output.name
            for given, output in zip(signature.inputs, signature.outputs, strict=True)
        }

    def infer(self, request: InferRequest) -> InferResponse:
        """Return the inputs as outputs."""
        given = self.signature.checked_inputs(request)
        check_outputs(request.model, request.outputs, self._outputs.values())
        returned = tensors_by_name(
            Tensor(self._outputs[tensor.name], tensor.datatype, tensor.shape, tensor.data)
            for tensor in given.values()
        )
        built = self.signature.build_response(request, returned.values())
        return InferResponse(
            built.model, request.version, built.id, self._parameters, built.outputs, is_last=True
        )


class RejectingModel(EchoModel):
    """Fails every inference with ``error``."""

    def __init__(self, signature: Signature, error: GatewayError) -> None:
        super().__init__(signature)
        self.error: Final = error

    def infer(self, request: InferRequest) -> InferResponse:
        """Raise ``error``."""
        del request
        raise self.error


class HangingModel(EchoModel):
    """Never responds (see :meth:`Witness.perform`)."""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request that reached a model, the seconds until its deadline (``allowed``; None: no
    deadline), and the model's response, if any (``given``)."""

    request: InferRequest
    remaining_seconds: float | None
    response: InferResponse | None


class RecordingBackend(BuiltinBackend):
    """Serves models and records the inference requests."""

    def __init__(self, models: Iterable[Model]) -> None:
        served = tuple(models)
        super().__init__("witness", served)
        self.models: Final = {model.metadata.name: model.metadata for model in served}
        self._hanging_models: Final = {
            model.metadata.name for model in served if isinstance(model, HangingModel)
        }
        self._requests: list[ReceivedRequest] = []

    def take_requests(self) -> list[ReceivedRequest]:
        """Return the requests since the last call."""
        seen, self._requests = self._requests, []
        return seen

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        """Perform ``operation``; if it is an inference, record it."""
        if not isinstance(operation, InferRequest):
            return await super().perform(operation, context)
        allowed = None if context.deadline is None else context.deadline - time.monotonic()
        given: InferResponse | None = None
        try:
            if operation.model in self._hanging_models:
                # Longer than the deadline, so that the caller times out first.
                await asyncio.sleep(
                    _FOREVER_SECONDS if allowed is None else allowed + _GRACE_SECONDS
                )
                raise GatewayError(Kind.TIMEOUT, "the model did not respond in time")
            response = await super().perform(operation, context)
            assert isinstance(response, InferResponse)
            given = response
        finally:
            self._requests.append(ReceivedRequest(operation, allowed, given))
        return response
