"""The Prometheus metrics of a process.

*Rule 1.* Label values come from the configuration or the code: route patterns, backend names,
protocols, operations and outcomes. The only exception is a limited number of output names, which
come from servers. No label value comes from a client. A request without a route has an empty label.
*Rule 2.* docs/metrics.md documents every metric with its type, unit and labels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, ProcessCollector
from prometheus_client.core import Metric

from infergate import __version__
from infergate.observe.backend_metrics import BackendMetrics
from infergate.observe.cache_metrics import CacheMetrics
from infergate.observe.endpoint_metrics import EndpointMetrics
from infergate.observe.exposition import Exposition, exposition
from infergate.observe.family import MetricFamily
from infergate.observe.label_names import MetricNames
from infergate.observe.listener_metrics import ListenerMetrics
from infergate.observe.plugin_metrics import PluginMetrics
from infergate.observe.recording_metrics import RecordingMetrics
from infergate.observe.request_counters import RequestCounters


class Metrics:
    """All metrics of a process."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry: Final = registry
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        Info("infergate_build", "Version of the running infergate.", registry=registry).info(
            {"version": __version__}
        )
        self._requests: Final = RequestCounters()
        self.endpoints: Final = EndpointMetrics()
        self.listeners: Final = ListenerMetrics()
        self.backends: Final = BackendMetrics()
        self.recording: Final = RecordingMetrics()
        self.cache: Final = CacheMetrics()
        self.plugins: Final = PluginMetrics()
        for collector in (
            self._requests,
            self.endpoints,
            self.listeners,
            self.backends,
            self.recording,
            self.cache,
            self.plugins,
        ):
            registry.register(collector)
        self.flows: Final = self._requests.flows
        self.record: Final = self._requests.record
        self.restart_slowest: Final = self._requests.restart_slowest
        ProcessCollector(registry=registry)
        self.in_flight: Final = gauge("infergate_in_flight_requests", "Requests in progress.")
        self.streams: Final = gauge("infergate_open_streams", "Open gRPC streams.")
        self.tasks: Final = gauge("infergate_tasks", "Tasks of the event loop.")
        self.loop_blocked_seconds: Final = counter(
            "infergate_loop_held_up_seconds",
            "Total time for which callbacks of 0.1 s or more blocked the event loop, in seconds.",
            unit="seconds",
        )
        self.in_flight_bytes: Final = gauge(
            "infergate_in_flight_bytes",
            "Memory held by requests in progress, including unread responses, in bytes.",
            unit="bytes",
        )
        self.limits: Final = gauge(
            "infergate_limits",
            "Configured limits, by name: connections, in_flight, in_flight_bytes.",
            ["limit"],
        )
        self.draining: Final = gauge(
            "infergate_draining",
            "1 during graceful shutdown, when readiness fails and requests finish; else 0.",
        )
        self.generations: Final = gauge(
            "infergate_config_generations",
            "Configurations in use: the current configuration, and older configurations that still "
            "have requests in progress.",
        )
        self.reloads: Final = counter(
            "infergate_config_reloads", "Configuration reloads by result: ok or failed.", ["result"]
        )
        for result in ("ok", "failed"):
            self.reloads.labels(result)
        self.last_reload_succeeded: Final = gauge(
            "infergate_config_last_reload_successful",
            "1 if the last configuration reload succeeded; 0 if it failed.",
        )
        self.loaded_at: Final = gauge(
            "infergate_config_loaded_timestamp_seconds",
            "Time at which the current configuration was loaded, in seconds since 1970.",
            unit="seconds",
        )
        self.config: Final = Info(
            "infergate_config",
            "The current configuration: the SHA-256 of its files, and its number in this run.",
            registry=registry,
        )
        self.refused_connections: Final = counter(
            "infergate_refused_connections",
            "Client connections refused or aborted, by reason (docs/operations.md).",
            ["listener", "reason"],
        )
        self.refused_requests: Final = counter(
            "infergate_refused_requests",
            "Requests rejected because of a limit, by the limit's name (docs/limits.md).",
            ["limit"],
        )
        self.certificate_reloads: Final = counter(
            "infergate_certificate_reloads",
            "Reloads of certificate files: taken (in use), or failed (the old files stay in use).",
            ["listener", "outcome"],
        )
        self.open_descriptors: Final = gauge("infergate_open_descriptors", "Open file descriptors.")
        self.log_dropped: Final = counter(
            "infergate_access_log_dropped_lines",
            "Access log lines dropped because the reader is too slow.",
        )

        self.payload_events: Final = counter(
            "infergate_payload_events",
            "Events of the payload log by result: sent, rejected, failed, dropped or too_large.",
            ["result"],
        )
        self.access_refused: Final = counter(
            "infergate_access_refused",
            "Requests rejected by authentication, authorization or rate limiting, by reason.",
            ("reason",),
        )
        self.access_failures: Final = counter(
            "infergate_access_failures",
            "Failures to read a source of access control: keys_file, jwks or redis.",
            ("source",),
        )

    def restrict_labels(self, names: Callable[[], MetricNames]) -> None:
        """At each scrape, drop the series of routes and backends that ``names`` does not return."""
        self._requests.names = self.backends.names = names

    def console_families(self) -> list[Metric]:
        """Return the metrics for the console, without the metrics of requests."""
        gauges = self.in_flight, self.in_flight_bytes, self.streams, self.generations
        families = chain.from_iterable(
            item.collect() for item in (self.endpoints, self.listeners, self.backends, *gauges)
        )
        return [
            item.with_rows(list(item.rows)) if isinstance(item, MetricFamily) else item
            for item in families
        ]

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return b"".join(exposition(self.registry).chunks)

    async def scrape(self, accept: str) -> Exposition:
        """Return all metrics in the format that the Accept header ``accept`` requests."""
        return exposition(self.registry, accept)
