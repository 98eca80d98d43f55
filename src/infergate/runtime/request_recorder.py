"""Records a request in the metrics, the access log, the console and the trace."""

from __future__ import annotations

import time

from infergate.core.call import Call
from infergate.core.tracing import Tracer
from infergate.gateway.dispatch import CallObserver, assign_request_id
from infergate.gateway.statistics import GatewayStatistics
from infergate.observe.access_log import AccessLog
from infergate.runtime.worker_group import WorkerGroup


def request_tracing_starter(tracer: Tracer) -> CallObserver:
    """Return an observer that gives a request its id and starts its trace."""

    def name(call: Call) -> None:
        assign_request_id(call)
        tracer.start_request(call)

    return name


def make_request_recorder(
    group: WorkerGroup,
    statistics: GatewayStatistics,
    access_log: AccessLog | None,
    tracer: Tracer | None,
) -> CallObserver:
    """Return an observer that counts, logs and traces each finished request."""
    metrics, pipelines, add_failure = (
        group.metrics,
        group.recent_requests.pipelines,
        group.recent_requests.record_failure,
    )
    count = metrics.record if tracer is None else metrics.record_traced

    def record(call: Call) -> None:
        seconds, now = time.monotonic() - call.started_at, time.time()
        count(call, seconds)
        if call.pipeline:
            pipeline = call.protocol, call.backend_protocol, call.pipeline
            pipelines[pipeline] = pipelines.get(pipeline, 0) + 1
        if call.outcome != "ok":
            add_failure(call, seconds, now)
        if call.exceeded_limit:
            metrics.refused_requests.labels(call.exceeded_limit).inc()
        statistics.record(call, seconds, now)
        if access_log is not None:
            access_log.record(call, seconds, now)

    if tracer is None:
        return record

    def traced(call: Call) -> None:
        record(call)
        tracer.end_request(call)

    return traced
