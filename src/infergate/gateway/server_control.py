"""Operations that load and unload models, or read and change the settings of servers. The operator
must enable operations on models and on settings separately.

An operation on a model is sent to all endpoints of the model's backend. Other operations are sent
to all endpoints of every backend that supports them. The client gets one response.

- An operation succeeds only if it succeeds on all endpoints. If it fails on any endpoint, the
  client gets the first error with the number of failed endpoints. Nothing is rolled back.
- Each enabled operation is logged to ``infergate.audit``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from infergate.backends.base import Backend
from infergate.core.errors import GatewayError, Kind, RepositoryControlDisabledError
from infergate.core.messages import (
    OPERATION_NAMES,
    LogSettingsRequest,
    ModelLoadRequest,
    ModelUnloadRequest,
    Operation,
    RepositoryOperation,
    Response,
    SettingsOperation,
    TraceSettingsRequest,
)
from infergate.core.request_context import RequestContext
from infergate.gateway.audit import audit
from infergate.gateway.rename import model_to_backend
from infergate.gateway.route_binding import RouteBinding


@dataclass(frozen=True, slots=True)
class ControlPermissions:
    """The operations that the operator has enabled."""

    repository: bool = False
    settings: bool = False

    @property
    def extensions(self) -> tuple[str, ...]:
        """The V2 extensions that the enabled operations provide."""
        repository = ("model_repository",) if self.repository else ()
        settings = ("trace", "logging") if self.settings else ()
        return (*repository, *settings)


NO_PERMISSIONS: Final = ControlPermissions()
BindAny = Callable[[str, RequestContext], RouteBinding]
"""Returns the binding that serves a model in the version of the model's first route, and records
the binding's route in the context. Raises NOT_FOUND."""
ModelsChanged = Callable[[str, bool], Awaitable[None]]
"""Called after an operation that loads or unloads a model, even if the operation fails. Receives
the backend's name, and whether the operation succeeded on all endpoints. An operation that failed
or was abandoned may continue on a server."""


class ServerControl:
    """Loads and unloads models, and reads and changes trace and log settings."""

    def __init__(
        self,
        permissions: ControlPermissions,
        backends: Sequence[Backend],
        bind_any: BindAny,
        models_changed: ModelsChanged | None = None,
    ) -> None:
        self._models_changed: Final = models_changed
        self._permissions: Final = permissions
        self._backends: Final = backends
        self._bind_any: Final = bind_any

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        """Execute ``operation``. Raises UNSUPPORTED, NOT_FOUND for a model without a route, the
        errors of the backend, and NO_BACKEND if loading and unloading are disabled."""
        match operation:
            case ModelLoadRequest() | ModelUnloadRequest():
                if not self._permissions.repository:
                    raise RepositoryControlDisabledError
                return await audit(operation, context, self._perform_on_model(operation, context))
            case TraceSettingsRequest() | LogSettingsRequest():
                if not self._permissions.settings:
                    raise GatewayError(
                        Kind.UNSUPPORTED,
                        f"{OPERATION_NAMES[type(operation)]} is disabled; enable it with "
                        "'control: {settings: true}' in the gateway's configuration",
                    )
                return await audit(operation, context, self._perform_settings(operation, context))
        raise GatewayError(Kind.UNSUPPORTED, f"{OPERATION_NAMES[type(operation)]} is not served")

    async def _perform_on_model(
        self, operation: RepositoryOperation | TraceSettingsRequest, context: RequestContext
    ) -> Response:
        binding = self._bind_any(operation.model, context)
        backend_operation = model_to_backend(operation, binding.route)
        is_finished = False
        try:
            response = (await binding.backend.perform_on_all(backend_operation, context))[0]
            is_finished = True
        finally:  # a failed operation may have changed some endpoints
            if self._models_changed and not isinstance(operation, TraceSettingsRequest):
                await self._models_changed(binding.backend.name, is_finished)
        return response

    async def _perform_settings(
        self, operation: SettingsOperation, context: RequestContext
    ) -> Response:
        if isinstance(operation, TraceSettingsRequest) and operation.model:
            binding = self._bind_any(operation.model, context)
            if not (await binding.backend.server_profile(context)).has_trace_settings:
                raise GatewayError(
                    Kind.UNSUPPORTED, f"backend '{binding.backend.name}' has no trace settings"
                )
            return await self._perform_on_model(operation, context)
        profiles = await asyncio.gather(
            *(backend.server_profile(context) for backend in self._backends)
        )
        is_trace = isinstance(operation, TraceSettingsRequest)
        supporting = [
            backend
            for backend, profile in zip(self._backends, profiles, strict=True)
            if (profile.has_trace_settings if is_trace else profile.has_log_settings)
        ]
        if not supporting:
            raise GatewayError(
                Kind.UNSUPPORTED, f"no backend supports {OPERATION_NAMES[type(operation)]}"
            )
        context.record.backend = ",".join(backend.name for backend in supporting)
        responses = await asyncio.gather(
            *(backend.perform_on_all(operation, context) for backend in supporting),
            return_exceptions=True,
        )
        return _first_response(responses)


def _first_response(responses: Sequence[Sequence[Response] | BaseException]) -> Response:
    for response in responses:
        if isinstance(response, BaseException):
            raise response
    first = responses[0]
    assert not isinstance(first, BaseException)
    return first[0]
