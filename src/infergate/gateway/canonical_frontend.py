"""Serves callers in this process, whose requests and responses are in canonical form.

The frontend runs the same steps as the frontend of a protocol: it checks names, authorizes the
request, finds the route, calls the backend and records the request. Because there is no codec, this
module also checks the tensors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Final

from infergate.codecs.base import RequestSummary
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits, NeedsOffloadError, event_loop_limits
from infergate.core.messages import (
    OPERATION_NAMES,
    STREAM_OPERATION_NAME,
    InferRequest,
    InferResponse,
    Operation,
    Response,
)
from infergate.core.name_rules import check_tensor_name
from infergate.core.request_context import RequestContext
from infergate.core.tensor import add_bytes_elements, check_data, check_shape, data_bytes
from infergate.gateway.frontend import RequestAuthorizer
from infergate.gateway.inference_gateway import InferenceGateway
from infergate.gateway.internal_error import internal_error
from infergate.gateway.streaming import RequestObserver

IN_PROCESS: Final = "in-process"
"""The name of the protocol, the listener and the client in metrics and logs."""


class CanonicalFrontend:
    """Performs the operations of callers in this process. ``assign_id`` is called at the start of
    every request, and ``record`` at its end. ``perform`` and ``stream`` raise GatewayError."""

    def __init__(
        self,
        gateway: InferenceGateway,
        limits: Limits,
        record: RequestObserver,
        assign_id: RequestObserver,
        authorizer: RequestAuthorizer | None,
    ) -> None:
        self._gateway: Final = gateway
        self._limits: Final = limits
        self._loop_limits: Final = event_loop_limits(limits)
        self._record: Final = record
        self._assign_id: Final = assign_id
        self._authorizer: Final = authorizer

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        """Perform ``operation`` and record it."""
        context.record.operation = OPERATION_NAMES[type(operation)]
        with self._recording(operation, context):
            await self._check(operation, context)
            response = await self._gateway.perform(operation, context)
            if isinstance(response, InferResponse):
                context.record.bytes_out = data_bytes(response.outputs)
            return response

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses to ``request`` on demand, and record the request."""
        record = context.record
        record.operation, record.response_count = STREAM_OPERATION_NAME, 0
        context.stream_deadline = context.deadline
        with self._recording(request, context):
            await self._check(request, context)
            binding = self._gateway.bind(request.model, request.version, context)
            context.renew_deadline()
            async with aclosing(self._gateway.stream(request, binding, context)) as responses:
                async for response in responses:
                    record.response_count += 1
                    record.bytes_out += data_bytes(response.outputs)
                    yield response

    def refuse(
        self, error: GatewayError, operation: Operation, context: RequestContext
    ) -> GatewayError:
        """Record that ``operation`` was refused with ``error``, and return the error."""
        context.record.operation = OPERATION_NAMES[type(operation)]
        try:
            with self._recording(operation, context):
                raise error
        except GatewayError as recorded:
            return recorded

    @contextmanager
    def _recording(self, operation: Operation, context: RequestContext) -> Iterator[None]:
        record = context.record
        record.protocol, record.model = IN_PROCESS, getattr(operation, "model", "")
        record.received_at = time.monotonic()
        self._assign_id(context)
        try:
            yield
        except GatewayError as error:
            context.record_error(error)
            raise
        except Exception as error:  # noqa: BLE001 - callers get the same error as other clients
            public = internal_error("serving a caller in this process", error)
            record.record_error(public)
            raise public from None
        except BaseException:  # the caller was cancelled, or the gateway aborts the request
            if context.abort_error is None:
                record.outcome = Kind.CANCELLED.value
            else:
                record.record_error(context.abort_error)
            raise
        finally:
            self._record(context)

    async def _check(self, operation: Operation, context: RequestContext) -> None:
        self._gateway.name_rule.check_operation(operation)
        if self._authorizer is not None:
            model, version = context.record.model, getattr(operation, "version", "")
            summary = RequestSummary(type(operation), model, version)
            await self._authorizer.authorize(summary, context)
        if isinstance(operation, InferRequest):
            context.record.bytes_in = request_size(operation)
            try:
                _check_inputs(operation, self._loop_limits)
            except NeedsOffloadError:
                await asyncio.to_thread(_check_inputs, operation, self._limits)


def request_size(operation: Operation) -> int:
    """Return the size of the inputs in bytes, or 0 if ``operation`` is not an inference."""
    return data_bytes(operation.inputs) if isinstance(operation, InferRequest) else 0


def _check_inputs(request: InferRequest, limits: Limits) -> None:
    """Check the tensors of ``request``. Raises BAD_REQUEST, TOO_LARGE and, if ``limits`` are
    ``LoopLimits``, NeedsOffloadError."""
    count = max(len(request.inputs), len(request.outputs))
    if count > limits.tensors:
        text = f"there are {count} inputs or outputs; the limit is {limits.tensors}"
        raise bad_request(text, limit="tensors")
    size, elements = data_bytes(request.inputs), 0
    if size > limits.body:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"the tensors have {size} bytes; the limit is {limits.body}",
            limit="body",
        )
    for index, tensor in enumerate(request.inputs):
        check_tensor_name(tensor.name, f"input {index}")
        check_shape(tensor.name, tensor.shape, limits)
        if tensor.shared_memory is None:
            if isinstance(tensor.data, memoryview) and tensor.data.nbytes != len(tensor.data):
                raise bad_request(f"tensor '{tensor.name}': the data must be a view of bytes")
            if tensor.datatype is Datatype.BYTES:
                elements = add_bytes_elements(tensor.name, tensor.shape, elements, limits)
            check_data(tensor.name, tensor.datatype, tensor.shape, tensor.data)
    for index, output in enumerate(request.outputs):
        check_tensor_name(output.name, f"output {index}")
