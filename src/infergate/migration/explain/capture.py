"""Backends that keep inferences instead of sending them, and a route layer that keeps transformed
inferences.

*Rule.* No inference is ever sent. Queries for metadata or the server's profile are sent only
through an ``online`` upstream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterable
from dataclasses import replace
from typing import Any, Final, NoReturn

from infergate.backends.builtin import BuiltinBackend, Model
from infergate.backends.remote import RemoteBackend
from infergate.codecs.base import Codec, CodecPlugin
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse, Operation, Response
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest
from infergate.gateway.route_layers import RouteInferences
from infergate.transport.base import Endpoint, Upstream


class Captured:
    """The message that a backend was about to send. All attributes are None or false at first."""

    def __init__(self) -> None:
        self.wire: HttpRequest | RpcRequest | None = None
        """The message. It is None for embedded models."""
        self.endpoint: Endpoint | None = None
        self.operation: InferRequest | None = None
        """The inference with the backend's names. It is None for messages that pass through."""
        self.needs_query = False
        """Whether the message depends on metadata or a profile that only the server knows."""
        self.runs_model = False
        """Whether an embedded model was about to run the inference."""

    @property
    def is_complete(self) -> bool:
        """Whether the gateway was about to send the message, or to run the model."""
        return self.wire is not None or self.runs_model


class TransformedInference:
    """A layer that stores the inference that it receives from the previous layers. ``request`` is
    None if no inference has arrived."""

    def __init__(self) -> None:
        self.request: InferRequest | None = None
        self._inner: RouteInferences | None = None

    def __call__(self, inner: RouteInferences) -> TransformedInference:
        self._inner = inner
        return self

    def infer(self, request: InferRequest, context: RequestContext) -> Awaitable[InferResponse]:
        assert self._inner is not None
        self.request = request
        return self._inner.infer(request, context)

    def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        assert self._inner is not None
        self.request = request
        return self._inner.stream(request, context)


class CapturingUpstream:
    """Stores inferences in ``captured`` and raises CANCELLED instead of sending them. Queries go to
    ``online``, or raise UNSUPPORTED if ``online`` is None. With ``keeps_queries``, queries are
    stored like inferences."""

    def __init__(
        self,
        plugin: CodecPlugin,
        captured: Captured,
        online: Upstream[Any, Any] | None = None,
        *,
        keeps_queries: bool = False,
    ) -> None:
        self._plugin: Final = plugin
        self._codec: Final[Codec[Any, Any]] = plugin.create({})
        self._captured: Final = captured
        self._online: Final = online
        self._keeps_queries: Final = keeps_queries

    async def exchange(self, wire: Any, endpoint: Endpoint, timeout: float) -> Any:
        if self._keeps_queries or not self._is_query(wire):
            self._keep(wire, endpoint)
        if self._online is None:
            self._captured.needs_query = True
            raise GatewayError(Kind.UNSUPPORTED, "the server was not queried")
        return await self._online.exchange(wire, endpoint, timeout)

    async def stream(
        self, wire: Any, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[Any, None]:
        del timeout
        self._keep(wire, endpoint)
        yield HttpResponse(0)  # never reached; it makes this function a generator

    def _keep(self, wire: Any, endpoint: Endpoint) -> NoReturn:
        self._captured.wire = wire
        self._captured.endpoint = endpoint
        raise GatewayError(Kind.CANCELLED, "the message was captured")

    def _is_query(self, wire: Any) -> bool:
        if self._plugin.supports_framing:  # messages of this protocol do not name the model
            wire = replace(wire, path=f"/{self._plugin.claims[0]}/model")
        try:
            return self._codec.summarize(wire).operation is not InferRequest
        except GatewayError:
            return True

    async def close(self) -> None:
        if self._online is not None:
            await self._online.close()


class CapturingBackend(RemoteBackend[Any, Any]):
    """A backend of remote servers that stores the inference in ``captured``. Its upstream is a
    ``CapturingUpstream``."""

    captured: Captured

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        if isinstance(operation, InferRequest):
            self.captured.operation = operation
        return await super().perform(operation, context)

    def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        self.captured.operation = request
        return super().stream(request, context)


class CapturingModels(BuiltinBackend):
    """A backend of embedded models or of a Python model, which stores the inference in ``captured``
    instead of running the model."""

    def __init__(
        self, name: str, captured: Captured, models: Iterable[Model] | None = None
    ) -> None:
        super().__init__(name, models)
        self._captured: Final = captured

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        if isinstance(operation, InferRequest):
            self._keep(operation)
        return await super().perform(operation, context)

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        del context
        self._keep(request)
        yield InferResponse("")  # never reached; it makes this function a generator

    def _keep(self, request: InferRequest) -> NoReturn:
        self._captured.operation = request
        self._captured.runs_model = True
        raise GatewayError(Kind.CANCELLED, "the inference was captured")
