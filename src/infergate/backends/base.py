"""The interface of a backend, which executes canonical operations and returns canonical
responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, runtime_checkable

from infergate.codecs.base import Profile
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.request_context import RequestContext
from infergate.core.stats import ConcurrencyStats, EndpointStats


class Backend(Protocol):
    """A destination that serves models."""

    @property
    def name(self) -> str:
        """The backend's name in the configuration."""
        ...

    @property
    def protocol(self) -> str:
        """The name of the backend's protocol in the codec registry."""
        ...

    @property
    def datatypes(self) -> frozenset[Datatype]:
        """The datatypes that the backend accepts."""
        ...

    @property
    def supports_sequences(self) -> bool:
        """Whether the backend accepts requests that belong to a sequence."""
        ...

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        """Execute ``operation`` as ``context`` and its policy specify, and return the response.
        Raises GatewayError."""
        ...

    def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses to ``request`` before ``context.deadline``, each of them on
        demand. Closing the generator abandons the remaining responses. Raises GatewayError."""
        ...

    async def describe(
        self, model: str, version: str, context: RequestContext, *, refresh: bool = False
    ) -> ModelMetadata:
        """Return a model's metadata, including ``max_batch_size`` if known. The result may be up to
        a minute old, or up to a second old with ``refresh``. Raises GatewayError."""
        ...

    async def perform_on_all(
        self, operation: Operation, context: RequestContext
    ) -> Sequence[Response]:
        """Execute ``operation`` on every endpoint concurrently and return at least one response, in
        the endpoints' order. If any endpoint fails, wait for the other endpoints, then raise the
        first GatewayError with the number of failed endpoints in its text."""
        ...

    async def server_profile(self, context: RequestContext) -> Profile:
        """Return the capabilities and known behavior of the servers. Raises GatewayError."""
        ...

    async def supports_classification(self, context: RequestContext) -> bool:
        """Return whether the backend can return classification labels. Raises GatewayError."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


@runtime_checkable
class SupportsHealthWatch(Protocol):
    """Additional interface of a backend with remote servers."""

    @property
    def is_ready(self) -> bool | None:
        """Whether any endpoint passes its health checks, or None if this is unknown because health
        checks are disabled or have not covered all endpoints."""
        ...

    def start(self) -> None:
        """Start monitoring the endpoints until the backend is closed. Another call has no
        effect."""
        ...

    def endpoint_stats(self) -> Sequence[EndpointStats]:
        """Return the current statistics of each configured endpoint."""
        ...


@runtime_checkable
class SupportsConcurrencyLimit(Protocol):
    """Additional interface of a backend that limits concurrent inferences."""

    @property
    def concurrency_stats(self) -> ConcurrencyStats | None:
        """The limit and its current use, or None if there is no limit."""
        ...


def add_backend_name(error: GatewayError, backend: str) -> GatewayError:
    """Return a copy of ``error`` that names the backend. The text of an error about a limit of the
    gateway is not changed."""
    is_own_limit = error.kind is Kind.OVERLOADED and error.origin is Origin.GATEWAY
    return error.reworded(error.public if is_own_limit else f"backend '{backend}': {error.public}")


def combine_errors(errors: Sequence[GatewayError], count: int, backend: str) -> GatewayError:
    """Return a copy of the first of ``errors`` that also states how many of the ``count`` endpoints
    failed. The error of a single endpoint is returned unchanged."""
    first = errors[0]
    if count == 1:
        return first
    return first.reworded(
        f"{len(errors)} of {count} endpoints of backend '{backend}' failed: {first.public}",
        "; ".join(f"{error.public} {error.detail}" for error in errors),
    )


def attribute_parse_error(error: GatewayError, backend: str) -> GatewayError:
    """Return a copy of ``error`` that names the backend if the response was malformed. Return any
    other error unchanged."""
    return add_backend_name(error, backend) if error.kind is Kind.BACKEND_GARBAGE else error
