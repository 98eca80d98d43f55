"""Records a request in the metrics, the access log, the console and the trace."""

from __future__ import annotations

import time

from infergate.core.limits import Limits
from infergate.core.request_context import RequestContext
from infergate.core.tracing import Tracer
from infergate.gateway.dispatch import assign_request_id
from infergate.gateway.statistics import GatewayStatistics
from infergate.gateway.streaming import RequestObserver
from infergate.observe.access_log import AccessLog
from infergate.observe.recent_requests import sample_of
from infergate.runtime.input_shapes import InputShapes
from infergate.runtime.worker_group import WorkerGroup


def request_tracing_starter(tracer: Tracer) -> RequestObserver:
    """Return an observer that gives a request its id and starts its trace."""

    def start(context: RequestContext) -> None:
        assign_request_id(context)
        tracer.start_request(context)

    return start


def make_request_recorder(
    group: WorkerGroup,
    statistics: GatewayStatistics,
    access_log: AccessLog | None,
    tracer: Tracer | None,
    limits: Limits,
) -> RequestObserver:
    """Return an observer that counts, logs and traces each finished request. ``limits`` apply when
    failed and slow requests are parsed again for the console."""
    metrics, recent = group.metrics, group.recent_requests
    pipelines, shapes = recent.pipelines, InputShapes(limits)
    count, count_model = metrics.record, statistics.record

    def keep_sample(context: RequestContext, seconds: float, now: float) -> None:
        record = context.record
        inputs = shapes.read(record.protocol, record.message, now)
        sample = sample_of(record, context.request_id, seconds, now, inputs)
        if record.outcome == "ok":
            recent.record_slowest(sample)
        else:
            recent.record_failure(sample)

    def record_request(context: RequestContext) -> None:
        record = context.record
        seconds, now = time.monotonic() - record.started_at, time.time()
        is_slowest = count(record, seconds, "" if context.trace is None else context.trace.id)
        if record.pipeline:
            pipeline = record.protocol, record.backend_protocol, record.pipeline
            pipelines[pipeline] = pipelines.get(pipeline, 0) + 1
        if is_slowest or record.outcome != "ok":
            keep_sample(context, seconds, now)
        if record.exceeded_limit:
            metrics.refused_requests.labels(record.exceeded_limit).inc()
        count_model(record, seconds, now)
        if access_log is not None:
            access_log.record(context, seconds, now)
        if tracer is not None:
            tracer.end_request(context)

    return record_request
