"""A gateway in its own thread, for tests that are not async."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from infergate.backends.builtin.backend import BuiltinBackend
from infergate.backends.builtin.model import Model
from infergate.config.load import from_mapping, load
from infergate.config.protocols import BUILTIN
from infergate.config.schema import BackendConfig, Config
from infergate.config.tracing import TracingConfig
from infergate.config.traffic import MirrorConfig
from infergate.core.errors import Kind, backend_failure
from infergate.core.exchange import Exchange
from infergate.core.messages import InferRequest, InferResponse, Operation, Response
from infergate.core.request_context import RequestContext
from infergate.gateway.observation import Observation
from infergate.library.addresses import ListenerAddress
from infergate.library.gateway import Gateway
from infergate.runtime.assemble import assemble
from infergate.runtime.running import RunningGateway
from infergate.testing.recorded_model import recorded_models
from infergate.transport.base import Address

_FREE_PORT: Final = Address("127.0.0.1", 0)
_MAX_REQUESTS: Final = 10_000
"""Maximum number of requests that are kept. Older requests are dropped."""
_DEMO: Final[Mapping[str, Any]] = {
    "backends": {"models": {"protocol": BUILTIN}},
    "routes": ({"model": "*", "backend": "models"},),
}


class BackgroundGateway:
    """A gateway on free ports of 127.0.0.1, in a thread with its own event loop. Use it as a
    context manager.

    - ``config`` is a mapping with the keys of a configuration file, or the file's path. The
      TCP listeners get free ports. Without backends and routes, there is one route for all models.
    - ``models`` and the models in ``recordings`` replace every backend of ``config``, so a
      configuration can be tested without its servers. Without both, backends with ``protocol:
      builtin`` serve the models embedded in infergate.
    - ``recordings`` are files of ``infergate record``, or folders with such files.
    - ``folder`` is the base of relative paths.

    The constructor raises ConfigError, RecordingError, OSError, and TypeError for an argument of
    the wrong type. ``with`` raises OSError, for example if an address is in use."""

    def __init__(
        self,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        models: Sequence[Model] = (),
        recordings: Iterable[str | os.PathLike[str]] = (),
        folder: str | os.PathLike[str] = ".",
    ) -> None:
        base = Path(folder)
        _check_arguments(models, recordings)
        fakes = [*models, *recorded_models(base / name for name in recordings)]
        self._received: Final[deque[_ReceivedInference]] = deque(maxlen=_MAX_REQUESTS)
        gateway = _adapt_config(_read(config, base), replaces_backends=bool(fakes))
        self._gateway: Final = _FakeGateway(gateway, fakes or None, self._received)
        self._started: Final[Future[None]] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Final = asyncio.Event()
        self._thread: Final = threading.Thread(
            target=self._run, name="infergate-gateway", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._gateway.start()
        try:
            self._addresses = self._gateway.addresses
            self._started.set_result(None)
            await self._stop.wait()
        finally:
            await self._gateway.stop(0)

    # ---- the interface for tests

    @property
    def addresses(self) -> Mapping[str, ListenerAddress]:
        """The bound addresses of the listeners, by name, as ``Gateway.addresses`` returns them."""
        return self._addresses

    @property
    def http(self) -> str:
        """The ``host:port`` of the HTTP listener."""
        return str(self.addresses["http"])

    @property
    def grpc(self) -> str:
        """The ``host:port`` of the gRPC listener."""
        return str(self.addresses["grpc"])

    @property
    def requests(self) -> list[Exchange]:
        """The inferences that have reached a fake, recorded or embedded model so far, in the order
        of their arrival, with their responses or errors. Models and tensors have the backend's
        names. Only the last 10,000 inferences are kept."""
        return [each.exchange for each in tuple(self._received)]

    def clear_requests(self) -> None:
        """Forget the requests that have arrived so far."""
        self._received.clear()


class _FakeGateway(Gateway):
    """A gateway whose embedded backends serve ``models``, by default the embedded models."""

    def __init__(
        self, config: Config, models: Sequence[Model] | None, received: deque[_ReceivedInference]
    ) -> None:
        self._models: Final = models
        self._received: Final = received
        super().__init__(config)

    def _assemble(self, config: Config) -> RunningGateway:
        return assemble(
            config, lambda name, timeout: _Backend(name, self._models, timeout, self._received)
        )


class _ReceivedInference:
    """An inference that has arrived, and its exchange so far."""

    def __init__(self, observation: Observation) -> None:
        self._observation: Final = observation
        self._finished: Exchange | None = None

    @property
    def exchange(self) -> Exchange:
        return self._finished or self._observation.exchange()

    def finish(self) -> None:
        self._finished = self._observation.exchange()


class _Backend(BuiltinBackend):
    """Serves ``models``, and records their inferences in ``received``. Unary inferences also run as
    streams."""

    def __init__(
        self,
        name: str,
        models: Sequence[Model] | None,
        timeout: float,
        received: deque[_ReceivedInference],
    ) -> None:
        super().__init__(name, models, timeout=timeout)
        self._received: Final = received

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        if not isinstance(operation, InferRequest):
            return await super().perform(operation, context)
        received: list[InferResponse] = []
        inference = self._record_inference(operation, context, is_stream=False)
        async with aclosing(inference) as responses:
            async for response in responses:
                received.append(response)
                if len(received) > 1:
                    break
        if len(received) != 1:
            raise backend_failure(
                Kind.UNSUPPORTED,
                f"model '{operation.model}' does not send exactly one response per request: use a "
                "stream",
            )
        return replace(received[0], is_last=False)

    def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        return self._record_inference(request, context, is_stream=True)

    async def _record_inference(
        self, request: InferRequest, context: RequestContext, *, is_stream: bool
    ) -> AsyncGenerator[InferResponse, None]:
        observation = Observation(request, context, is_stream=is_stream)
        received = _ReceivedInference(observation)
        self._received.append(received)
        try:
            async with aclosing(super().stream(request, context)) as responses:
                async for response in responses:
                    observation.add(response)
                    yield response
        except BaseException as error:
            observation.fail(error)
            raise
        finally:
            received.finish()
            observation.release()


def _check_arguments(models: Sequence[Model], recordings: Iterable[object]) -> None:
    for name, value in (("models", models), ("recordings", recordings)):
        if isinstance(value, (str, os.PathLike)) or not isinstance(value, Iterable):
            raise TypeError(f"{name} must be a list, not {type(value).__name__}")
    for index, model in enumerate(models):
        if not hasattr(model, "metadata"):
            raise TypeError(f"models[{index}] must be a model, not {type(model).__name__}")


def _read(config: Mapping[str, Any] | str | os.PathLike[str] | None, folder: Path) -> Config:
    if isinstance(config, (str, os.PathLike)):
        return load(folder / config, os.environ)
    mapping = dict(config or {})
    if not mapping.keys() & _DEMO.keys():
        mapping.update(_DEMO)
    return from_mapping(mapping, folder, needs_listener=False)


def _adapt_config(config: Config, *, replaces_backends: bool) -> Config:
    """Return ``config`` with free ports, and without helper processes unless they are configured.
    With ``replaces_backends``, also replace every backend with ``builtin``, and apply
    ``_without_side_effects``."""
    listeners = config.listeners
    changes: dict[str, Any] = {
        "listeners": listeners.model_copy(
            update={
                **{name: _on_free_port(getattr(listeners, name)) for name in _SINGLE_LISTENERS},
                "graphpipe": tuple(map(_on_free_port, listeners.graphpipe)),
                "additional": {
                    name: _on_free_port(each) for name, each in listeners.additional.items()
                },
            }
        )
    }
    if "helpers" not in config.model_fields_set:
        changes["helpers"] = 0
    if replaces_backends:
        fake = BackendConfig.model_validate({"protocol": BUILTIN})
        changes["backends"] = {
            name: fake.model_copy(update={"timeout": backend.timeout})
            for name, backend in config.backends.items()
        }
        changes |= _without_side_effects(config)
    return config.model_copy(update=changes)


def _without_side_effects(config: Config) -> dict[str, Any]:
    """Return changes to ``config`` that prevent a test from writing to the Redis server, the
    recordings, the stored mismatches, the payload log and the traces of the real gateway."""
    access = config.access
    return {
        "access": None if access is None else access.model_copy(update={"redis": None}),
        "cache": config.cache.model_copy(update={"redis": None}),
        "tracing": TracingConfig(),
        "recording": None,
        "payload_log": None,
        "routes": tuple(
            route.model_copy(
                update={"record": None, "payload_log": None, "mirror": _without_keep(route.mirror)}
            )
            for route in config.routes
        ),
    }


def _without_keep(mirror: MirrorConfig | None) -> MirrorConfig | None:
    """Return ``mirror`` with the comparison of responses, but without stored mismatches."""
    if mirror is None or mirror.compare is None:
        return mirror
    compare = mirror.compare.model_copy(update={"keep": None})
    return mirror.model_copy(update={"compare": compare})


_SINGLE_LISTENERS: Final = ("http", "grpc", "admin")


def _on_free_port(listener: Any) -> Any:
    if listener is None or listener.address.unix:
        return listener
    return listener.model_copy(update={"address": _FREE_PORT})
