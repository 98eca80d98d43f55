"""The events of log lines. Events that report a problem have advice for operators.

Each logging call passes an event as ``extra``: ``_log.warning("…", extra=EVENT)``. Text and JSON
lines both contain the name of the event, so alerts need not parse messages. docs/logs.md lists all
events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infergate.core.errors import Kind

LogEvent = Mapping[str, Any]
"""The ``extra`` of a logging call: ``event`` is the name; ``advice`` is an action for the operator,
or empty."""

LOG_EVENTS: Final[dict[str, LogEvent]] = {}
"""All events by name. In JSON, most lines that other libraries log have the event ``log``, which is
not in this mapping."""


def _event(name: str, advice: str = "") -> LogEvent:
    LOG_EVENTS[name] = event = {"event": name, "advice": advice}
    return event


def with_fields(event: LogEvent, **fields: object) -> LogEvent:
    """Return ``event`` with ``fields``, which become members of JSON lines. Text from clients must
    be truncated first."""
    return {**event, "fields": fields}


AUDIT: Final = _event("audit")
BUG: Final = _event(
    "bug",
    "report it with this traceback; this request failed with 'internal error', other "
    "requests are not affected",
)

# ---- the process

SERVING: Final = _event("serving")
DRAIN: Final = _event("drain")
STOPPED: Final = _event("stopped")
START_FAILED: Final = _event(
    "start_failed",
    "see the preceding lines for the reason; 'infergate --check' checks the configuration",
)
NOTHING_TO_RELOAD: Final = _event("nothing_to_reload", "start infergate with --config")
CONFIG_LOADED: Final = _event("config_loaded")
CONFIG_KEY_DEPRECATED: Final = _event(
    "config_key_deprecated", "rename the key; a later version will not accept the old name"
)
CONFIG_REFUSED: Final = _event(
    "config_refused", "fix the file ('infergate --config FILE --check' lists all errors)"
)
CONFIG_WARNING: Final = _event(
    "config_warning", "no action is needed if this is intended; the gateway serves all routes"
)
UNWATCHED: Final = _event(
    "files_not_watched",
    "no action is needed; raise fs.inotify.max_user_watches to detect changes sooner",
)
WORKER_SERVES: Final = _event("worker_serves")
WORKER_OUTDATED: Final = _event("worker_outdated")
WORKER_ENDED: Final = _event(
    "worker_ended",
    "find out what ended the worker; SIGKILL often comes from the kernel's out-of-memory killer",
)
WORKER_FAILED: Final = _event(
    "worker_failed", "another attempt follows; see the preceding lines for the reason"
)
SUPERVISOR_LOST: Final = _event(
    "supervisor_lost", "restart infergate, and find out what killed the supervisor"
)
OPEN_FILES_LIMIT: Final = _event(
    "open_files_limit", "raise the limit on open files (ulimit -n, LimitNOFILE)"
)
TRACES_NOT_SENT: Final = _event(
    "traces_not_sent",
    "check the collector at OTEL_EXPORTER_OTLP_ENDPOINT; requests are not affected",
)
RECORDING_STOPPED: Final = _event(
    "recording_stopped",
    "free disk space or move files away, then run 'infergate record start'; requests are not "
    "affected",
)

# ---- clients

CONNECTION_REFUSED: Final = _event("connection_refused")
CANNOT_ACCEPT: Final = _event(
    "cannot_accept", "raise the limit on open files (ulimit -n, LimitNOFILE)"
)
CERTIFICATE_LOADED: Final = _event("certificate_loaded")
CERTIFICATE_REFUSED: Final = _event(
    "certificate_refused", "replace both files with a certificate and its matching key"
)
CERTIFICATE_EXPIRED: Final = _event(
    "certificate_expired", "renew the certificate; clients reject it"
)
ACCESS_FILE_LOADED: Final = _event("access_file_loaded")
ACCESS_FILE_REFUSED: Final = _event(
    "access_file_refused", "fix the file; it is read again when it changes"
)
JWT_KEYS_UNAVAILABLE: Final = _event(
    "jwt_keys_unavailable", "check the issuer's address, and whether this host can reach it"
)
JWT_KEY_UNUSABLE: Final = _event(
    "jwt_key_unusable", "inform the issuer; its other keys remain in use"
)
REDIS_UNAVAILABLE: Final = _event("redis_unavailable", "check Redis; infergate keeps trying")
REDIS_AVAILABLE: Final = _event("redis_available")

# ---- backends

ENDPOINT_EJECTED: Final = _event(
    "endpoint_ejected", "check that server: requests to it fail, even if its health checks pass"
)
ENDPOINT_DOWN: Final = _event("endpoint_down", "check that server: it is not ready")
ENDPOINT_UP: Final = _event("endpoint_up")
ADDRESSES_CHANGED: Final = _event("addresses_changed")
ENDPOINT_WATCH_FAILS: Final = _event(
    "endpoint_watch_fails",
    "check that the API server is reachable and that the service account may list and watch "
    "endpointslices; requests are not affected",
)
ENDPOINT_WATCH_CURRENT: Final = _event("endpoint_watch_current")
ENDPOINTS_TRUNCATED: Final = _event(
    "endpoints_truncated", "split the service: the remaining endpoints receive no requests"
)
ENDPOINTS_WITHOUT_PORT: Final = _event(
    "endpoints_without_port",
    "set kubernetes.port of the backend to the name or the number of the pods' port (targetPort)",
)
NOT_COMPARED: Final = _event(
    "not_compared",
    "the rules in 'mirror.compare' do not fit the model, or the helper process has failed; "
    "requests are not affected",
)
MISMATCHES_NOT_STORED: Final = _event(
    "mismatches_not_stored",
    "check the disk and the permissions of the folder in 'mirror.compare.keep'; requests are not "
    "affected",
)
REGION_NOT_REGISTERED: Final = _event(
    "region_not_registered",
    "clients must register the region again before they can use it with that backend",
)

# ---- plug-ins

PLUGIN_SLOW: Final = _event(
    "plugin_slow",
    "if loading does not finish, fix the plug-in; the current configuration stays active",
)
PLUGIN_FAILED: Final = _event(
    "plugin_failed", "fix the plug-in that the line names; other requests are not affected"
)
PLUGIN_HANGS: Final = _event(
    "plugin_hangs",
    "fix the plug-in that the line names; the call keeps its thread and its memory until it ends",
)

# ---- payload log

PAYLOAD_LOG_FAILS: Final = _event(
    "payload_log_fails",
    "check the server or the disk in 'payload_log'; events are dropped, requests are not affected",
)
PAYLOAD_LOG_BACK: Final = _event("payload_log_back")

REQUEST_EVENT: Final = "request"
"""The event of the access log's lines."""
ADVICE: Final[Mapping[str, str]] = {
    Kind.BAD_REQUEST.value: "the client must correct the request; the error message names the "
    "problem",
    Kind.UNAUTHENTICATED.value: "the client must send a key or token that 'access' accepts",
    Kind.FORBIDDEN.value: "to allow it, add a rule to 'access.rules'",
    Kind.NOT_FOUND.value: "check the model's name; if it is correct, add a route or load the model "
    "on the backend",
    Kind.ALREADY_EXISTS.value: "the client must unregister the region first, or use another name",
    Kind.METHOD_NOT_ALLOWED.value: "the client must use another HTTP method for this path",
    Kind.UNSUPPORTED.value: "if the error names a setting, configure it; otherwise use a protocol "
    "that supports the request (see docs/fidelity.md)",
    Kind.UNSUPPORTED_ENCODING.value: "the client must use an encoding that the error names, or "
    "no encoding",
    Kind.TOO_LARGE.value: "raise the limit that the error names, or send smaller requests",
    Kind.RATE_LIMITED.value: "the client must slow down, or get a higher rate in 'access.rates'",
    Kind.OVERLOADED.value: "add servers, workers or gateways, or raise the limit that the error "
    "names",
    Kind.NO_BACKEND.value: "check the servers of this backend",
    Kind.LOOP_DETECTED.value: "find the gateways that forward to each other, and correct the "
    "endpoints of their backends",
    Kind.TOO_MANY_HOPS.value: "if gateways sent these requests, one of them reports "
    "'loop_detected'; otherwise the client must not send 'infergate-hops'",
    Kind.CONNECT.value: "check that the server is running and that its URL in the configuration "
    "is correct; the detail names the address",
    Kind.TIMEOUT.value: "if the server is healthy, raise the timeout of the route or of the "
    "client; otherwise find out why the server is slow",
    Kind.BACKEND_GARBAGE.value: "check that the server uses the backend's 'protocol' on this port; "
    "if it does, see the server's log",
    Kind.BACKEND_ERROR.value: "see the server's log",
    Kind.CANCELLED.value: "check the client's own timeout, which may be too short",
    Kind.INTERNAL.value: "report the bug with the traceback of the log event 'bug'",
}
"""Advice to the operator about a request with an outcome other than ``ok``."""
