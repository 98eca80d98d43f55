"""The backend that serves the embedded models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Final

from infergate import __version__
from infergate.backends.builtin.accumulate import Accumulate
from infergate.backends.builtin.arithmetic import Simple, SimpleString
from infergate.backends.builtin.digits import Digits
from infergate.backends.builtin.embed import Embed
from infergate.backends.builtin.identity import Identity
from infergate.backends.builtin.model import VERSION, Model
from infergate.backends.builtin.repeat import Repeat
from infergate.codecs.base import Profile
from infergate.core import messages
from infergate.core.accounting import charge_tensors, needs_accounting
from infergate.core.classification import CLASSIFICATION
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import KIB
from infergate.core.messages import InferRequest, InferResponse, Operation, Response
from infergate.core.request_context import RequestContext

_MAX_INLINE_CLASSIFY_BYTES: Final = 64 * KIB
"""Maximum bytes of tensors classified on the event loop, which takes at most 15 ms."""
_PROFILE: Final = Profile("builtin", supports_classification=True)
EXTENSIONS: Final = ("classification", "sequence")


def embedded_models() -> tuple[Model, ...]:
    """Return all models that ship with infergate, each with its own state."""
    return (Simple(), SimpleString(), Identity(), Repeat(), Accumulate(), Digits(), Embed())


class BuiltinBackend:
    """A ``Backend`` that serves ``models``, by default all embedded models.

    ``timeout`` limits each response to an inference, in seconds, unless the route sets a timeout.
    """

    protocol = "builtin"
    datatypes = frozenset(Datatype)
    supports_sequences = True

    def __init__(
        self, name: str, models: Iterable[Model] | None = None, *, timeout: float = 30.0
    ) -> None:
        self.name = name
        self._timeout: Final = timeout
        all_models = embedded_models() if models is None else models
        self._models: Final = {model.metadata.name: model for model in all_models}

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        """Execute ``operation``. Raises NOT_FOUND, BAD_REQUEST, UNSUPPORTED, OVERLOADED and
        TIMEOUT."""
        match operation:
            case messages.ServerLiveRequest() | messages.ServerReadyRequest():
                return messages.HealthStatus(ok=True)
            case messages.ServerMetadataRequest():
                return messages.ServerMetadata("infergate", __version__, EXTENSIONS)
            case messages.ModelIndexRequest():  # every model is always ready
                return messages.ModelIndex(
                    tuple(messages.ModelIndexEntry(name, VERSION, "READY") for name in self._models)
                )
            case messages.ModelReadyRequest(model, version):
                self._find(model, version)
                return messages.HealthStatus(ok=True)
            case messages.ModelMetadataRequest(model, version):
                return self._find(model, version).metadata
            case InferRequest():
                if _classifies_large_inputs(operation):
                    response = await asyncio.to_thread(self._infer, operation, context)
                else:
                    response = self._infer(operation, context)
                if needs_accounting(response.outputs):
                    input_data = (tensor.data for tensor in operation.inputs)
                    charge_tensors(response.outputs, input_data, context.memory)
                return response
            case messages.ModelLoadRequest(model) | messages.ModelUnloadRequest(model):
                raise GatewayError(
                    Kind.UNSUPPORTED,
                    f"model '{model}' is inside infergate and cannot be loaded or unloaded",
                    origin=Origin.BACKEND,
                )
            case _:
                raise GatewayError(
                    Kind.UNSUPPORTED,
                    f"embedded models do not support {messages.OPERATION_NAMES[type(operation)]}",
                    origin=Origin.BACKEND,
                )

    def _infer(self, request: InferRequest, context: RequestContext) -> InferResponse:
        deadline = self._deadline(context)
        response = self._find(request.model, request.version).infer(request)
        if time.monotonic() >= deadline:
            raise _timeout_error(request)
        return response

    def _deadline(self, context: RequestContext) -> float:
        timeout = context.policy.timeout
        allowed = self._timeout if timeout is None else timeout
        latest = time.monotonic() + allowed
        return latest if context.deadline is None else min(latest, context.deadline)

    async def describe(
        self,
        model: str,
        version: str,
        context: RequestContext,  # noqa: ARG002 - instant
        *,
        refresh: bool = False,  # noqa: ARG002 - nothing changes
    ) -> messages.ModelMetadata:
        return self._find(model, version).metadata

    async def perform_on_all(
        self, operation: Operation, context: RequestContext
    ) -> Sequence[Response]:
        """Execute ``operation`` once, because this backend has no endpoints."""
        return (await self.perform(operation, context),)

    async def server_profile(self, context: RequestContext) -> Profile:  # noqa: ARG002 - instant
        return _PROFILE

    async def supports_classification(self, context: RequestContext) -> bool:  # noqa: ARG002 - instant
        """Return True, because every model can classify."""
        return True

    async def stream(
        self, operation: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses to ``operation``. Each response is computed on demand and has its own
        timeout.

        A model without streams yields its only response. Raises the errors of ``perform``.
        """
        responses = self._find(operation.model, operation.version).stream(operation)
        async with aclosing(responses) as pulled:
            while True:
                # The timeout applies to each pull, not to the loop: between two pulls the caller's
                # own code runs, and a timeout must not cancel that code.
                try:
                    async with asyncio.timeout(self._deadline(context) - time.monotonic()):
                        response = await anext(pulled, None)
                except TimeoutError:
                    raise _timeout_error(operation) from None
                if response is None:
                    return
                yield response

    async def close(self) -> None:
        """Do nothing, because the backend holds no resources."""

    def _find(self, name: str, version: str) -> Model:
        model = self._models.get(name)
        if model is None:
            raise GatewayError(Kind.NOT_FOUND, f"unknown model '{name}'", origin=Origin.BACKEND)
        if version not in ("", VERSION):
            raise GatewayError(
                Kind.NOT_FOUND,
                f"unknown version '{version}' of model '{name}'",
                origin=Origin.BACKEND,
            )
        return model


def _timeout_error(request: InferRequest) -> GatewayError:
    return GatewayError(
        Kind.TIMEOUT,
        f"model '{request.model}' did not respond before the deadline",
        origin=Origin.BACKEND,
    )


def _classifies_large_inputs(request: InferRequest) -> bool:
    size = sum(len(tensor.data) for tensor in request.inputs)
    return size > _MAX_INLINE_CLASSIFY_BYTES and any(
        CLASSIFICATION in tensor.parameters for tensor in request.outputs
    )
