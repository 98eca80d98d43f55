"""The gateway as an object of the caller's program.

The object owns its listeners, backends, tasks and helper processes. It does not change the process:
it installs no signal handlers, configures no logging, and prints only the access log. It belongs to
the event loop on which it was started. Several gateways may run in one process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from infergate.config.load import check_config, from_mapping, load
from infergate.config.schema import Config
from infergate.core.messages import (
    HealthStatus,
    InferRequest,
    InferResponse,
    ModelMetadata,
    ModelMetadataRequest,
    ModelReadyRequest,
    ServerReadyRequest,
)
from infergate.core.wire import NO_HEADERS
from infergate.library.addresses import ListenerAddress, listener_addresses
from infergate.library.request_types import check_types
from infergate.runtime.assemble import assemble
from infergate.runtime.running import RunningGateway


class Gateway:
    """A gateway in this process. Use it as an async context manager.

    With ``access_log``, the gateway writes the configured access log to standard output. The keys
    ``workers``, ``reload`` and ``drain.delay`` affect only ``infergate serve``: the library runs
    one process, and reloads when ``reload`` is called.

    Calls take a ``timeout`` in seconds, which includes waiting and retries. Routes, access rules
    and backends treat the ``headers`` of a call like a client's headers. Calls raise
    ``GatewayError``, or RuntimeError if the gateway is not running."""

    def __init__(self, config: Config, *, access_log: bool = False) -> None:
        """Raises ConfigError for conflicts between the entries of ``config``."""
        self._has_access_log: Final = access_log
        self._config = self._adapt_config(config)
        self._path: Path | None = None
        self._folder = Path()
        self._running: RunningGateway | None = None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, access_log: bool = False) -> Self:
        """Return a gateway configured by the file ``path``. Raises ConfigError with all errors."""
        file = Path(path)
        gateway = cls(_load(file), access_log=access_log)
        gateway._path, gateway._folder = file, file.parent
        return gateway

    @classmethod
    def from_dict(
        cls,
        config: Mapping[str, Any],
        *,
        folder: str | os.PathLike[str] = ".",
        access_log: bool = False,
    ) -> Self:
        """Return a gateway configured by ``config``, a mapping with the keys of a configuration
        file. ``folder`` is the base of relative paths. Raises ConfigError with all errors."""
        base = Path(folder)
        gateway = cls(_from_mapping(config, base), access_log=access_log)
        gateway._folder = base
        return gateway

    @property
    def config(self) -> Config:
        """The active configuration."""
        return self._config if self._running is None else self._running.config

    @property
    def addresses(self) -> Mapping[str, ListenerAddress]:
        """The bound addresses of the listeners, by name, such as ``http``, ``grpc``, ``admin``,
        ``additional.<name>`` or ``graphpipe[0]``. For port 0 in the configuration, the address has
        the port that the system assigned."""
        running = self._require_running()
        bound = {name: listener.address for name, listener in running.listeners.items()}
        return listener_addresses(running.config, bound)

    # ---- lifetime

    async def start(self) -> None:
        """Bind the listeners and accept connections. Raises OSError if an address cannot be bound
        or a file cannot be used, PluginError if a plug-in cannot be started, or RuntimeError if
        the gateway is running."""
        if self._running is not None:
            raise RuntimeError("the gateway is already running")
        running = self._running = self._assemble(self._config)
        try:
            await running.start()
        except OSError:  # ``running`` has closed everything
            self._running = None
            raise
        except BaseException:
            await self.stop(0)
            raise

    def drain(self) -> None:
        """Report in every protocol that the gateway is not ready, but continue to serve
        requests."""
        self._require_running().drain()

    async def stop(self, grace: float | None = None) -> None:
        """Stop accepting connections, wait up to ``grace`` seconds for requests to finish, and
        close everything. By default, ``grace`` is ``drain.timeout`` of the configuration. A second
        call does nothing."""
        running, self._running = self._running, None
        if running is not None:
            self._config = running.config
            await running.stop(running.config.drain.timeout if grace is None else grace)

    async def reload(self, config: Config | Mapping[str, Any] | None = None) -> None:
        """Replace the configuration. Listeners in both configurations stay open, and requests in
        progress finish under the old configuration. Without ``config``, read the file again.

        Raises ConfigError if the new configuration is invalid, and ConfigRejectedError if it cannot
        replace the active configuration, which then stays in effect. Raises ValueError if
        ``config`` is missing and the gateway was not created from a file."""
        new = await asyncio.to_thread(self._read, config)
        await self._require_running().reload(new)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop(None if kind is None else 0)

    # ---- calls

    async def infer(
        self,
        request: InferRequest,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> InferResponse:
        """Run ``request`` on the route of its model, and return the only response. Raises TypeError
        if a field of ``request`` does not have its declared type."""
        check_types(request)
        response = await self._require_running().in_process.perform(request, timeout, headers)
        assert isinstance(response, InferResponse)
        return response

    async def stream(
        self,
        request: InferRequest,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses to ``request`` on demand. Closing the generator cancels the stream.
        The route's timeout applies to each response, and ``timeout`` to the complete stream. Raises
        TypeError like ``infer``."""
        check_types(request)
        responses = self._require_running().in_process.stream(request, timeout, headers)
        async with aclosing(responses):
            async for response in responses:
                yield response

    async def metadata(
        self,
        model: str,
        version: str = "",
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> ModelMetadata:
        """Return the metadata of ``model`` as clients see it."""
        operation = ModelMetadataRequest(model, version)
        metadata = await self._require_running().in_process.perform(operation, timeout, headers)
        assert isinstance(metadata, ModelMetadata)
        return metadata

    async def is_ready(
        self,
        model: str = "",
        version: str = "",
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> bool:
        """Return whether ``model``, or by default the gateway, is ready."""
        operation = ModelReadyRequest(model, version) if model else ServerReadyRequest()
        status = await self._require_running().in_process.perform(operation, timeout, headers)
        assert isinstance(status, HealthStatus)
        return status.ok

    # ---- overridden by the subclass of ``infergate serve``, which owns the process

    def _adapt_config(self, config: Config) -> Config:
        """Check ``config``, and return it without the settings that affect the process, because the
        process belongs to the caller. Raises ConfigError."""
        check_config(config, needs_listener=False)
        changes: dict[str, Any] = {"workers": 1}
        if not self._has_access_log:
            changes["log"] = config.log.model_copy(update={"access": False})
        return config.model_copy(update=changes)

    def _assemble(self, config: Config) -> RunningGateway:
        return assemble(config)

    def _require_running(self) -> RunningGateway:
        if self._running is None:
            raise RuntimeError("the gateway is not running")
        return self._running

    def _read(self, config: Config | Mapping[str, Any] | None) -> Config:
        if config is None:
            if self._path is None:
                raise ValueError(
                    "the gateway was not started from a file; pass the new configuration"
                )
            config = _load(self._path)
        elif not isinstance(config, Config):
            config = _from_mapping(config, self._folder)
        return self._adapt_config(config)


def _load(file: Path) -> Config:
    return load(file, os.environ, needs_listener=False)


def _from_mapping(config: Mapping[str, Any], folder: Path) -> Config:
    return from_mapping(config, folder, needs_listener=False)
