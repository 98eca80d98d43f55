"""Prometheus metrics. Labels come from the config, never from what a client sends.

*Rule 1.* A label value is a route's pattern, a backend's name, a protocol, an operation or an
outcome: all bounded by the config and the code. A request that no route takes has an empty route.
*Rule 2.* What is told, in which unit and what to do about it stands in docs/metrics.md, all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, ProcessCollector
from prometheus_client.core import Metric

from infergate import __version__
from infergate.observe.counted import Counted
from infergate.observe.doors import DoorMetrics
from infergate.observe.endpoints import EndpointMetrics
from infergate.observe.exposition import Exposition, exposition
from infergate.observe.family import Family
from infergate.observe.names import Names
from infergate.observe.traffic import Traffic


class Metrics:
    """All of one process. ``text`` is what a scrape reads."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        Info("infergate_build", "The running infergate.", registry=self.registry).info(
            {"version": __version__}
        )
        self._counted: Final = Counted()
        self.registry.register(self._counted)
        self.endpoints: Final = EndpointMetrics()
        self.registry.register(self.endpoints)
        self.doors: Final = DoorMetrics()
        self.registry.register(self.doors)
        self.flows: Final = self._counted.flows
        """What is counted of requests, at a glance."""
        self.record: Final = self._counted.record
        """Count a finished request, which took so many seconds."""
        self.record_traced: Final = self._counted.record_traced
        """The same where requests are traced: histograms have exemplars then."""
        self.traffic: Final = Traffic()
        """What is counted of each backend besides its requests."""
        self.registry.register(self.traffic)
        ProcessCollector(registry=self.registry)
        self.in_flight: Final = Gauge(
            "infergate_in_flight_requests", "Requests being served now.", registry=self.registry
        )
        self.streams: Final = Gauge(
            "infergate_open_streams", "gRPC streams open now.", registry=self.registry
        )
        self.tasks: Final = Gauge(
            "infergate_tasks", "Tasks of the event loop now.", registry=self.registry
        )
        self.held_up: Final = Counter(
            "infergate_loop_held_up_seconds",
            "By how many seconds the event loop was late, all times of 0.1 s and more together.",
            unit="seconds",
            registry=self.registry,
        )
        self.in_flight_bytes: Final = Gauge(
            "infergate_in_flight_bytes",
            "Bytes of memory that requests hold now, unread answers included.",
            registry=self.registry,
            unit="bytes",
        )
        self.limits: Final = Gauge(
            "infergate_limits",
            "What metrics of what is under way may come to, by the limit's name: connections, "
            "in_flight, in_flight_bytes.",
            ["limit"],
            registry=self.registry,
        )
        self.draining: Final = Gauge(
            "infergate_draining",
            "1 while the process ends: it fails readiness and lets requests finish.",
            registry=self.registry,
        )
        self.generations: Final = Gauge(
            "infergate_config_generations",
            "Configurations that serve now: 1, and those that calls from before a reload are "
            "still under way on.",
            registry=self.registry,
        )
        self.reloads: Final = Counter(
            "infergate_config_reloads",
            "Reloads of the configuration; result is ok or failed.",
            ["result"],
            registry=self.registry,
        )
        for result in ("ok", "failed"):
            self.reloads.labels(result)
        self.reload_worked: Final = Gauge(
            "infergate_config_last_reload_successful",
            "Whether the last reload worked: 0 where an older configuration goes on.",
            registry=self.registry,
        )
        self.loaded: Final = Gauge(
            "infergate_config_loaded_timestamp_seconds",
            "When the configuration that serves was taken, in seconds since 1970.",
            registry=self.registry,
            unit="seconds",
        )
        self.config: Final = Info(
            "infergate_config",
            "The configuration that serves: the SHA-256 of its files, and its number since the "
            "start.",
            registry=self.registry,
        )
        self.refused_connections: Final = Counter(
            "infergate_refused_connections",
            "Connections that were turned away or cut off, and why (docs/operations.md).",
            ["listener", "reason"],
            registry=self.registry,
        )
        self.refused_requests: Final = Counter(
            "infergate_refused_requests",
            "Requests that were turned away because of a limit, by its name in docs/limits.md.",
            ["limit"],
            registry=self.registry,
        )
        self.certificate_reloads: Final = Counter(
            "infergate_certificate_reloads",
            "Changes of certificates' files: taken, or failed, which keeps those from before.",
            ["listener", "outcome"],
            registry=self.registry,
        )
        self.descriptors: Final = Gauge(
            "infergate_open_descriptors", "Files and sockets open now.", registry=self.registry
        )
        self.log_dropped: Final = Counter(
            "infergate_access_log_dropped_lines",
            "Lines of the access log dropped because nobody read them.",
            registry=self.registry,
        )

        self.access_refused: Final = Counter(
            "infergate_access_refused",
            "Requests that were not let in, by reason.",
            labelnames=("reason",),
            registry=self.registry,
        )
        self.access_failures: Final = Counter(
            "infergate_access_failures",
            "Failures to read what access stands on: keys_file, jwks or redis.",
            labelnames=("source",),
            registry=self.registry,
        )

    def name_by(self, names: Callable[[], Names]) -> None:
        """From now on ``names`` tells which routes and backends there are: nothing is told of
        others."""
        self._counted.names = self.traffic.names = names

    def at_a_glance(self) -> list[Metric]:
        """What now is, and what is counted of endpoints, backends and listeners: all that costs
        little, whatever is counted of requests."""
        gauges = self.in_flight, self.in_flight_bytes, self.streams, self.generations
        told = chain.from_iterable(
            each.collect() for each in (self.endpoints, self.doors, self.traffic, *gauges)
        )
        return [each.of(list(each.rows)) if isinstance(each, Family) else each for each in told]

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return b"".join(exposition(self.registry).pieces)

    async def scrape(self, accept: str) -> Exposition:
        """All metrics in the form that a header Accept asks for. Where other processes have to be
        asked, who asks them stands for this."""
        return exposition(self.registry, accept)
