"""The gateways through which a replay sends inferences: one gateway for each protocol and URL, or
the gateway of a configuration."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Protocol
from urllib.parse import quote

from infergate.assembly.backends import make_remote_backend
from infergate.assembly.plugins import make_python_backend
from infergate.assembly.transforms import make_transform_layer
from infergate.backends.base import Backend, SupportsHealthWatch
from infergate.backends.builtin import BuiltinBackend
from infergate.backends.remote import RemoteBackend
from infergate.codecs.registry import plugins
from infergate.config import compile as compiled
from infergate.config import protocols
from infergate.config.load import parse
from infergate.config.mistakes import ConfigError
from infergate.config.schema import Config
from infergate.core.errors import GatewayError, Kind
from infergate.core.exchange import Exchange
from infergate.core.messages import ModelMetadata
from infergate.core.request_context import RequestContext
from infergate.gateway.gateway import GatewayOptions, RoutingGateway
from infergate.migration.recorded import recorded_metadata
from infergate.routing.table import RouteTable

MODEL: Final = "{model}"
"""The placeholder for the model's name in URLs."""
_BACKEND: Final = "target"
_MAX_BODY_BYTES: Final = 2**31 - 1
_MAX_GATEWAYS: Final = 1000
_MAX_CHECKED_MODELS: Final = 10_000
_MAX_SHOWN_CHARACTERS: Final = 64
_TIMEOUT: Final = "5m"


class ReplayTargetError(ValueError):
    """The target cannot receive the recorded inferences. The message tells the operator what to
    change."""


class ReplayTarget(Protocol):
    """The destination of a replay's inferences."""

    async def gateway_for(self, exchange: Exchange) -> RoutingGateway:
        """Return the gateway that sends ``exchange``. Raises ReplayTargetError."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class ConfigTarget:
    """Sends inferences through the routes of a configuration, without mirrors, hooks and response
    caches."""

    def __init__(self, config: Config) -> None:
        self._gateway: Final = _make_gateway(config, {})

    async def gateway_for(self, exchange: Exchange) -> RoutingGateway:
        del exchange
        return self._gateway

    async def close(self) -> None:
        await _close(self._gateway)


class UrlTarget:
    """Sends inferences to ``urls``, using ``protocol`` or, if ``protocol`` is empty, the protocol
    of the recorded client. The URL is the first that begins with ``<protocol>=``, or else the first
    with a scheme of the protocol."""

    def __init__(
        self, urls: Sequence[str], protocol: str = "", header_names: Sequence[str] = ()
    ) -> None:
        """``header_names`` are headers to send even if they may hold credentials. Raises
        ReplayTargetError for a URL or protocol that no inference could use."""
        _check_urls(urls, protocol)
        self._urls: Final = tuple(urls)
        self._header_names: Final = tuple(header_names)
        self._protocol: Final = protocol
        self._gateways: Final[dict[tuple[str, str], RoutingGateway]] = {}
        self._declared: Final[dict[tuple[str, str], dict[str, ModelMetadata]]] = {}
        self._checked: Final[set[tuple[str, str, str, str]]] = set()
        self._lock: Final = asyncio.Lock()

    async def gateway_for(self, exchange: Exchange) -> RoutingGateway:
        protocol = self._protocol or exchange.protocol
        request = exchange.request
        url = self._url(protocol).replace(MODEL, quote(request.model, safe=""))
        key = protocol, url
        if key not in self._gateways:
            if len(self._gateways) >= _MAX_GATEWAYS:
                raise ReplayTargetError(
                    f"the recording has more than {_MAX_GATEWAYS} models (the limit)"
                )
            declared = self._declared[key] = {}
            self._gateways[key] = _make_gateway(self._config(*key), declared)
        (backend,) = self._gateways[key].backends
        assert isinstance(backend, RemoteBackend)
        model = (*key, request.model, request.version)
        is_checked = model in self._checked or len(self._checked) >= _MAX_CHECKED_MODELS
        if backend.codec.needs_metadata and not is_checked:
            async with self._lock:  # only a model's first inference declares metadata
                await self._declare(key, backend, exchange)
                self._checked.add(model)
        return self._gateways[key]

    def _url(self, protocol: str) -> str:
        if protocol not in plugins():
            raise ReplayTargetError(
                f"inferences were recorded in the protocol '{protocol[:_MAX_SHOWN_CHARACTERS]}', "
                "which servers do not speak; choose another protocol with --protocol: "
                f"{', '.join(plugins())}"
            )
        prefix, schemes = f"{protocol}=", protocols.schemes(protocol)
        own = (url.removeprefix(prefix) for url in self._urls if url.startswith(prefix))
        usable = (url for url in self._urls if url.partition(":")[0] in schemes)
        if (url := next(own, None) or next(usable, None)) is not None:
            return url
        raise ReplayTargetError(
            f"{protocol} needs a URL with the scheme {' or '.join(schemes)}; add --to, or choose "
            "another protocol with --protocol"
        )

    async def _declare(
        self, key: tuple[str, str], backend: RemoteBackend[Any, Any], exchange: Exchange
    ) -> None:
        """Declare metadata derived from the recorded tensors if the server does not provide the
        metadata that the protocol needs."""
        request = exchange.request
        if request.model in self._declared[key]:
            return
        try:
            await backend.describe(request.model, request.version, RequestContext(_BACKEND))
        except GatewayError as error:
            if error.kind is not Kind.UNSUPPORTED:
                return  # sending the inference will raise the same error
            self._declared[key][request.model] = recorded_metadata(exchange)
            # The previous gateway may have compiled its route without this metadata.
            backends = {each.name: each for each in self._gateways[key].backends}
            table = compiled.routing_table(self._config(*key))
            self._gateways[key] = RoutingGateway(table, backends, self._declared[key])

    def _config(self, protocol: str, url: str) -> Config:
        return _single_backend(protocol, url, ["*", *self._header_names])

    async def close(self) -> None:
        for gateway in self._gateways.values():
            await _close(gateway)


def _check_urls(urls: Sequence[str], protocol: str) -> None:
    supported = plugins()
    if protocol and protocol not in supported:
        raise ReplayTargetError(
            f"'{protocol}' is not a protocol; expected one of: {', '.join(supported)}"
        )
    all_schemes = {scheme for name in supported for scheme in protocols.schemes(name)}
    for url in urls:
        prefix, separator, rest = url.partition("=")
        is_prefixed = bool(separator) and ":" not in prefix
        schemes = protocols.schemes(prefix) if is_prefixed else all_schemes
        if (rest if is_prefixed else url).partition(":")[0] not in schemes:
            expected = ", ".join(f"{scheme}:" for scheme in sorted(schemes or all_schemes))
            raise ReplayTargetError(
                f"{url}: expected a URL that begins with one of {expected}, or PROTOCOL=URL"
            )


def _single_backend(protocol: str, url: str, forward_headers: Sequence[str]) -> Config:
    """Return a configuration that routes every model to ``url``. Raises ReplayTargetError."""
    document: dict[str, Any] = {
        # No listener is opened. With the default ports, the configuration check would mistake a
        # gateway on this machine for this gateway.
        "listeners": {"http": {"address": "127.0.0.1:0"}, "grpc": None, "admin": None},
        "backends": {
            _BACKEND: {
                "protocol": protocol,
                "endpoints": [url],
                "timeout": _TIMEOUT,
                "forward_headers": list(forward_headers),
            }
        },
        "routes": [{"model": "*", "backend": _BACKEND}],
        "limits": {"body": _MAX_BODY_BYTES, "json": _MAX_BODY_BYTES,
                   "in_flight_bytes": 2 * _MAX_BODY_BYTES},
        "allow_slash_in_model_names": True,
    }  # fmt: skip
    try:
        return parse(json.dumps(document).replace("${", "$${"), url, {})  # JSON is YAML
    except ConfigError as error:
        raise ReplayTargetError(f"{url}: {error.mistakes[0].message}") from None


def _make_gateway(config: Config, declared: dict[str, ModelMetadata]) -> RoutingGateway:
    backends = {name: _make_backend(name, config) for name in config.backends}
    for backend in backends.values():
        if isinstance(backend, SupportsHealthWatch):
            backend.start()
    models = compiled.declared_models(config) | declared
    table = compiled.routing_table(config)
    routes = (replace(route, mirror=None) for route in table.routes)
    limits = compiled.limits(config)
    layers = {
        position: (layer,)
        for position, route in enumerate(config.routes)
        if (layer := make_transform_layer(route, limits, None)) is not None
    }
    options = GatewayOptions(layers=layers)
    return RoutingGateway(RouteTable(routes, table.name_rule), backends, models, options)


def _make_backend(name: str, config: Config) -> Backend:
    if config.backends[name].protocol == protocols.PYTHON:
        return make_python_backend(name, config.backends[name], compiled.limits(config))
    if config.backends[name].protocol == protocols.BUILTIN:
        return BuiltinBackend(name, timeout=config.backends[name].timeout)
    return make_remote_backend(name, config, compiled.limits(config))


async def _close(gateway: RoutingGateway) -> None:
    await gateway.close()
    for backend in gateway.backends:
        await backend.close()
