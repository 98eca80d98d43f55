"""Records a request in the metrics, the access log, the console and the trace."""

from __future__ import annotations

import time

from infergate.core.request_context import RequestContext
from infergate.core.tracing import Tracer
from infergate.gateway.dispatch import CallObserver, assign_request_id
from infergate.gateway.statistics import GatewayStatistics
from infergate.observe.access_log import AccessLog
from infergate.runtime.worker_group import WorkerGroup


def request_tracing_starter(tracer: Tracer) -> CallObserver:
    """Return an observer that gives a request its id and starts its trace."""

    def name(context: RequestContext) -> None:
        assign_request_id(context)
        tracer.start_request(context)

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

    def record(context: RequestContext) -> None:
        seconds, now = time.monotonic() - context.started_at, time.time()
        count(context, seconds)
        if context.pipeline:
            pipeline = context.protocol, context.backend_protocol, context.pipeline
            pipelines[pipeline] = pipelines.get(pipeline, 0) + 1
        if context.outcome != "ok":
            add_failure(context, seconds, now)
        if context.exceeded_limit:
            metrics.refused_requests.labels(context.exceeded_limit).inc()
        statistics.record(context, seconds, now)
        if access_log is not None:
            access_log.record(context, seconds, now)

    if tracer is None:
        return record

    def traced(context: RequestContext) -> None:
        record(context)
        tracer.end_request(context)

    return traced
