"""Metrics, the access log, the format of other log lines, and tracing.

``metrics.Metrics`` has all metrics of a process, ``access_log.AccessLog`` writes a line per
request, and ``tracing.OpenTelemetry`` exports spans. Read ``metrics`` first, then the collectors
that it registers, such as ``request_counters`` and ``backend_metrics``. These collectors produce
``family.MetricFamily`` objects, which ``exposition`` writes and ``aggregation`` adds up over
several processes. ``log_sampler`` samples the access log, ``log_lines`` formats the other log
lines, and ``log_rate_limit`` limits repeated lines. ``recent_requests`` has data for the console.
"""
