"""The base class of backends whose models run in this process."""

from __future__ import annotations

import abc
import time
from collections.abc import Iterable, Sequence
from typing import Final

from infergate.codecs.base import Profile
from infergate.core import messages
from infergate.core.accounting import charge_tensors, needs_accounting
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, backend_failure
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.request_context import RequestContext


class InProcessBackend(abc.ABC):
    """Implements the operations of a ``Backend`` that do not run a model. ``server`` is the server
    metadata for clients. ``timeout`` is the maximum time for each response to an inference, in
    seconds, unless the route sets a timeout."""

    datatypes = frozenset(Datatype)
    supports_sequences = True
    profile: Profile
    server: messages.ServerMetadata
    models_label: str
    """The term for the models in error texts."""

    def __init__(self, name: str, models: Iterable[ModelMetadata], timeout: float) -> None:
        self.name = name
        self.protocol = self.profile.name
        self._timeout: Final = timeout
        self._metadata_by_name: Final = {model.name: model for model in models}

    @abc.abstractmethod
    async def _infer(self, request: InferRequest, context: RequestContext) -> InferResponse:
        """Return the only response to ``request``."""

    def _is_ready(self) -> bool:
        return True

    def _unsupported(self, operation: Operation) -> GatewayError:
        name = messages.OPERATION_NAMES[type(operation)]
        return backend_failure(Kind.UNSUPPORTED, f"{self.models_label} do not support {name}")

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        """Execute ``operation``. Raises NOT_FOUND, BAD_REQUEST, UNSUPPORTED, OVERLOADED, TIMEOUT,
        and the errors of the model."""
        match operation:
            case InferRequest():
                return await self._infer(operation, context)
            case messages.ServerLiveRequest():
                return messages.HealthStatus(ok=True)
            case messages.ServerReadyRequest():
                return messages.HealthStatus(ok=self._is_ready())
            case messages.ServerMetadataRequest():
                return self.server
            case messages.ModelIndexRequest():
                entries = (
                    messages.ModelIndexEntry(name, version, "READY")
                    for name, model in self._metadata_by_name.items()
                    for version in model.versions
                )
                return messages.ModelIndex(tuple(entries))
            case messages.ModelReadyRequest(model, version):
                self._find_metadata(model, version)
                return messages.HealthStatus(ok=self._is_ready())
            case messages.ModelMetadataRequest(model, version):
                return self._find_metadata(model, version)
            case _:
                raise self._unsupported(operation)

    async def perform_on_all(
        self, operation: Operation, context: RequestContext
    ) -> Sequence[Response]:
        """Execute ``operation`` once, because this backend has no endpoints."""
        return (await self.perform(operation, context),)

    async def describe(
        self, model: str, version: str, context: RequestContext, *, refresh: bool = False
    ) -> ModelMetadata:
        del context, refresh
        return self._find_metadata(model, version)

    async def server_profile(self, context: RequestContext) -> Profile:
        del context
        return self.profile

    async def supports_classification(self, context: RequestContext) -> bool:
        del context
        return self.profile.supports_classification

    def _find_metadata(self, model: str, version: str) -> ModelMetadata:
        metadata = self._metadata_by_name.get(model)
        if metadata is None:
            raise backend_failure(Kind.NOT_FOUND, f"unknown model '{model}'")
        if version not in ("", *metadata.versions):
            raise backend_failure(Kind.NOT_FOUND, f"unknown version '{version}' of model '{model}'")
        return metadata

    def _deadline(self, context: RequestContext) -> float:
        timeout = context.policy.timeout
        latest = time.monotonic() + (self._timeout if timeout is None else timeout)
        return latest if context.deadline is None else min(latest, context.deadline)


def charge_outputs(
    response: InferResponse, request: InferRequest, context: RequestContext
) -> InferResponse:
    """Charge the memory of the outputs to the request, except outputs that share the memory of
    inputs. Return ``response``."""
    if needs_accounting(response.outputs):
        inputs = (tensor.data for tensor in request.inputs)
        charge_tensors(response.outputs, inputs, context.memory)
    return response
