"""Finds the listener and the codec that would receive a request, and the addresses for clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infergate.codecs.base import Codec, TransportKind
from infergate.codecs.envelopes import ENVELOPES
from infergate.codecs.registry import by_claim, plugins
from infergate.config import compile as compiled
from infergate.config.schema import Config
from infergate.core.wire import HttpRequest, RpcRequest
from infergate.migration.explain.client_inference import ClientAddresses
from infergate.migration.explain.client_request import ClientRequest, RequestError
from infergate.transport.base import Address

_ALL_INTERFACES: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104
"""The local address for each wildcard address."""


def listener_of(config: Config, request: ClientRequest) -> str:
    """Return the configuration path of the listener with the request's port, or else of the first
    listener for the request's transport. Raises RequestError if no listener has this transport."""
    is_http = isinstance(request.wire, HttpRequest)
    kinds = _shared(config) | dict.fromkeys(compiled.model_listeners(config), TransportKind.HTTP)
    transport_kind = TransportKind.HTTP if is_http else TransportKind.GRPC
    usable = [name for name, kind in kinds.items() if kind is transport_kind]
    if not usable:
        raise RequestError(f"no listener serves {'HTTP' if is_http else 'gRPC'} requests")
    port = request.authority.rpartition(":")[2]
    addresses = compiled.addresses(config)
    with_port = (name for name in usable if port and port == str(addresses[name].port))
    return next(with_port, usable[0])


def _shared(config: Config) -> dict[str, TransportKind]:
    """Return the transport of each listener that serves several models."""
    return {
        name: plugins()[protocols[0]].transport_kind
        for name, protocols in compiled.listener_protocols(config).items()
    }


def codec_of(
    config: Config, listener: str, wire: HttpRequest | RpcRequest
) -> tuple[Codec[Any, Any], str]:
    """Return the codec that ``gateway.dispatch`` would choose for ``wire``, and the name of the
    codec's envelope, or an empty string if the codec is not an envelope."""
    codecs = _codecs(config, listener)
    path = wire.path if isinstance(wire, HttpRequest) else wire.method
    first = path[1:].partition("/")[0]
    return codecs.get(path) or codecs.get(first) or next(iter(codecs.values()))


def _codecs(config: Config, listener: str) -> Mapping[str, tuple[Codec[Any, Any], str]]:
    """Return the codecs of a listener with the names of their envelopes, keyed by claimed path,
    first path segment or service."""
    single = compiled.model_listeners(config).get(listener)
    if single is not None:
        return {"": (plugins()[single.protocol].create(single.options), "")}
    options = compiled.frontend_options(config)

    def create(protocol: str) -> tuple[Codec[Any, Any], str]:
        return plugins()[protocol].create(options.get(protocol, {})), ""

    codecs = by_claim(compiled.listener_protocols(config)[listener], create)
    for name, envelope in compiled.envelope_options(config, listener).items():
        codec = ENVELOPES[name](**envelope)
        codecs |= dict.fromkeys(codec.claims, (codec, name))
    return codecs


def client_addresses(config: Config, request: ClientRequest) -> ClientAddresses:
    """Return an address for each transport: the address of the first TCP listener for several
    models. If the destination of ``request`` is known, it takes precedence for its transport."""
    shared, addresses = _shared(config), compiled.addresses(config)
    by_kind: dict[TransportKind, tuple[str, bool]] = {}
    for name, kind in shared.items():
        address = addresses[name]
        if kind not in by_kind and not address.unix:
            host = _ALL_INTERFACES.get(address.host, address.host)
            by_kind[kind] = str(Address(host, address.port)), name in compiled.server_tls(config)
    if request.authority:
        is_http = isinstance(request.wire, HttpRequest)
        own = TransportKind.HTTP if is_http else TransportKind.GRPC
        by_kind[own] = request.authority, request.is_tls
    http, http_tls = by_kind.get(TransportKind.HTTP, ("", False))
    grpc, grpc_tls = by_kind.get(TransportKind.GRPC, ("", False))
    return ClientAddresses(http, grpc, http_tls, grpc_tls)
