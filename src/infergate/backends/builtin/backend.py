"""The backend that serves the embedded models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Final

from infergate import __version__
from infergate.backends.builtin.accumulate import Accumulate
from infergate.backends.builtin.arithmetic import Simple, SimpleString
from infergate.backends.builtin.digits import Digits
from infergate.backends.builtin.embed import Embed
from infergate.backends.builtin.identity import Identity
from infergate.backends.builtin.model import Model
from infergate.backends.builtin.repeat import Repeat
from infergate.backends.in_process import InProcessBackend, charge_outputs
from infergate.codecs.base import Profile
from infergate.core.classification import CLASSIFICATION
from infergate.core.errors import GatewayError, Kind, backend_failure
from infergate.core.limits import KIB
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelLoadRequest,
    ModelUnloadRequest,
    Operation,
    ServerMetadata,
)
from infergate.core.request_context import RequestContext
from infergate.core.tensor import data_bytes

_MAX_INLINE_CLASSIFY_BYTES: Final = 64 * KIB
"""Maximum input bytes of a classification on the event loop. Longer inputs may take over 15 ms."""
EXTENSIONS: Final = ("classification", "sequence")


def embedded_models() -> tuple[Model, ...]:
    """Return new instances of all models that ship with infergate."""
    return (Simple(), SimpleString(), Identity(), Repeat(), Accumulate(), Digits(), Embed())


class BuiltinBackend(InProcessBackend):
    """Serves ``models``, by default all embedded models."""

    profile = Profile("builtin", supports_classification=True)
    server = ServerMetadata("infergate", __version__, EXTENSIONS)
    models_label = "embedded models"

    def __init__(
        self, name: str, models: Iterable[Model] | None = None, *, timeout: float = 30.0
    ) -> None:
        all_models = embedded_models() if models is None else tuple(models)
        self._models: Final = {model.metadata.name: model for model in all_models}
        super().__init__(name, [model.metadata for model in all_models], timeout)

    async def _infer(self, request: InferRequest, context: RequestContext) -> InferResponse:
        if _classifies_large_inputs(request):
            response = await asyncio.to_thread(self._run, request, context)
        else:
            response = self._run(request, context)
        return charge_outputs(response, request, context)

    def _run(self, request: InferRequest, context: RequestContext) -> InferResponse:
        deadline = self._deadline(context)
        response = self._find(request).infer(request)
        if time.monotonic() >= deadline:
            raise _timeout_error(request)
        return response

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses to ``request``. Each response is computed on demand and has its own
        timeout. Raises the errors of ``perform``."""
        async with aclosing(self._find(request).stream(request)) as responses:
            while True:
                # The timeout applies to each response, not to the whole iteration: between two
                # responses, the caller's own code runs, and a timeout must not cancel that code.
                try:
                    async with asyncio.timeout(self._deadline(context) - time.monotonic()):
                        response = await anext(responses, None)
                except TimeoutError:
                    raise _timeout_error(request) from None
                if response is None:
                    return
                yield response

    async def close(self) -> None:
        """Do nothing, because the backend holds no resources."""

    def _find(self, request: InferRequest) -> Model:
        return self._models[self._find_metadata(request.model, request.version).name]

    def _unsupported(self, operation: Operation) -> GatewayError:
        if isinstance(operation, ModelLoadRequest | ModelUnloadRequest):
            text = f"model '{operation.model}' is built into infergate"
            return backend_failure(Kind.UNSUPPORTED, f"{text} and cannot be loaded or unloaded")
        return super()._unsupported(operation)


def _timeout_error(request: InferRequest) -> GatewayError:
    text = f"model '{request.model}' did not respond before the deadline"
    return backend_failure(Kind.TIMEOUT, text)


def _classifies_large_inputs(request: InferRequest) -> bool:
    return data_bytes(request.inputs) > _MAX_INLINE_CLASSIFY_BYTES and any(
        CLASSIFICATION in tensor.parameters for tensor in request.outputs
    )
