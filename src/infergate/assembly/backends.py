"""Builds the backends of remote servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from infergate.assembly import endpoint_settings
from infergate.assembly.endpoint_slice_watch import make_watch
from infergate.assembly.engines import load_engine
from infergate.backends.backend_settings import BackendSettings
from infergate.backends.header_filter import HeaderFilter
from infergate.backends.remote import HTTP_MESSAGES, RPC_MESSAGES, RemoteBackend
from infergate.backends.traced import TracedUpstream
from infergate.codecs.base import Codec, TransportKind
from infergate.codecs.profiles import PROFILES
from infergate.codecs.registry import plugins
from infergate.config import compile as compiled
from infergate.config.schema import Config
from infergate.core.counters import BackendCounters
from infergate.core.limits import Limits
from infergate.core.offload import Offload
from infergate.core.tracing import TRACEPARENT, Tracer
from infergate.transport.client.concurrency_limit import LimitedUpstream
from infergate.transport.framed.client import HttpOrFrameUpstream


def make_remote_backend(  # noqa: PLR0913 - dependency injection
    name: str,
    gateway_config: Config,
    limits: Limits,
    *,
    counters: BackendCounters | None = None,
    offload: Offload | None = None,
    tracer: Tracer | None = None,
    make: Callable[..., RemoteBackend[Any, Any]] = RemoteBackend,
) -> RemoteBackend[Any, Any]:
    """Return the backend ``name`` of ``gateway_config``. The backend's protocol must have a codec,
    and an event loop must be running. ``make`` has the parameters of ``RemoteBackend``."""
    config = gateway_config.backends[name]
    plugin = plugins()[config.protocol]
    if config.connect_time is not None:
        limits = replace(limits, connect_time=config.connect_time)
    if plugin.max_response_header_bytes and gateway_config.limits.response_header is None:
        limits = replace(limits, response_header=plugin.max_response_header_bytes)
    settings = BackendSettings(
        name,
        endpoint_settings.configured_endpoints(config),
        config.timeout,
        PROFILES.get(config.profile),
        config.forward_headers if tracer is None else (*config.forward_headers, TRACEPARENT),
        config.return_headers,
        endpoint_settings.balance_settings(config),
        endpoint_settings.monitoring_settings(config),
        endpoint_settings.hash_key(config),
        max_requests=config.limits.max_requests,
        max_queue=config.limits.max_queue,
        priority_header=config.limits.priority_header,
        retry_share=config.limits.retry_percent / 100,
        min_retries=config.limits.min_retries,
        max_header_bytes=config.limits.forwarded_headers,
        watch=make_watch(name, config, limits),
    )
    codec: Codec[Any, Any] = plugin.create(config.options)
    tls = compiled.client_tls(config)
    engine = load_engine(gateway_config.engine)
    upstream: Any
    messages: Any
    if plugin.transport_kind is TransportKind.HTTP:
        messages = HTTP_MESSAGES
        upstream = HttpOrFrameUpstream(limits, engine.make_http_upstream, tls)
        if config.connections:
            upstream = LimitedUpstream(upstream, config.connections)
    else:
        messages, upstream = RPC_MESSAGES, engine.make_grpc_upstream(limits, tls)
    if tracer is not None:
        propagates = HeaderFilter(config.forward_headers).allows(TRACEPARENT)
        upstream = TracedUpstream(upstream, messages, tracer, name, propagates=propagates)
    return make(settings, codec, upstream, messages, limits, counters=counters, offload=offload)
