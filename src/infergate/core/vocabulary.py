"""The events that lines of the log tell of, and what an operator does next about bad ones.

*Strategy.* Whoever logs gives one of these as ``extra``: ``_log.warning("…", extra=EVENT)``. Lines
tell its name in both forms, so that alerts need not read sentences. docs/logs.md lists them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infergate.core.errors import Kind

Event = Mapping[str, Any]
"""As ``logging`` takes it: ``event`` is its name, ``advice`` what is to be done; empty: nothing."""

EVENTS: Final[dict[str, Event]] = {}
"""All, by name. The event of a line that is somebody else's, say a library's, is ``log``."""


def _event(name: str, advice: str = "") -> Event:
    EVENTS[name] = event = {"event": name, "advice": advice}
    return event


def telling(event: Event, **fields: object) -> Event:
    """``event`` with ``fields``, which lines of JSON have as members of their own. Text of clients
    among them has to be cut."""
    return {**event, "fields": fields}


AUDIT: Final = _event("audit")
BUG: Final = _event(
    "bug", "report it with this traceback; the request got 'internal error', others did not notice"
)

# ---- the process

DRAIN: Final = _event("drain")
STOPPED: Final = _event("stopped")
START_FAILED: Final = _event(
    "start_failed", "the lines before tell why; 'infergate --check' looks at the configuration"
)
NOTHING_TO_RELOAD: Final = _event("nothing_to_reload", "start infergate with --config")
CONFIG_TAKEN: Final = _event("config_taken")
CONFIG_REFUSED: Final = _event(
    "config_refused", "mend the file ('infergate --config FILE --check' tells all that is wrong)"
)
UNWATCHED: Final = _event(
    "files_not_watched", "nothing need be done; fs.inotify.max_user_watches may be raised"
)
WORKER_SERVES: Final = _event("worker_serves")
WORKER_ENDED: Final = _event(
    "worker_ended", "look for what ended it: SIGKILL is often the kernel's, for want of memory"
)
WORKER_FAILED: Final = _event("worker_failed", "another start is tried; the lines before tell why")
SUPERVISOR_LOST: Final = _event("supervisor_lost", "start infergate again; what killed it?")
FEW_DESCRIPTORS: Final = _event(
    "few_descriptors", "raise the limit of open files (ulimit -n, LimitNOFILE)"
)
TRACES_NOT_SENT: Final = _event(
    "traces_not_sent", "does the collector at OTEL_EXPORTER_OTLP_ENDPOINT answer? Requests go on"
)

# ---- clients

CONNECTION_REFUSED: Final = _event("connection_refused")
CANNOT_ACCEPT: Final = _event(
    "cannot_accept", "raise the limit of open files (ulimit -n, LimitNOFILE)"
)
CERTIFICATE_TAKEN: Final = _event("certificate_taken")
CERTIFICATE_REFUSED: Final = _event(
    "certificate_refused", "put a certificate and its key in place, both files"
)
CERTIFICATE_EXPIRED: Final = _event("certificate_expired", "renew it: clients refuse it")
ACCESS_FILE_TAKEN: Final = _event("access_file_taken")
ACCESS_FILE_REFUSED: Final = _event("access_file_refused", "mend the file; it is looked at again")
JWT_KEYS_AWAY: Final = _event(
    "jwt_keys_away", "is the issuer's address right, and can it be reached from here?"
)
JWT_KEY_UNUSABLE: Final = _event("jwt_key_unusable", "tell the issuer; its other keys are used")
RATES_AWAY: Final = _event("rates_away", "see to Redis; it is asked again")
RATES_BACK: Final = _event("rates_back")

# ---- backends

ENDPOINT_EJECTED: Final = _event(
    "endpoint_ejected", "look at that server: requests to it fail, whatever its checks say"
)
ENDPOINT_DOWN: Final = _event("endpoint_down", "look at that server: it is not ready")
ENDPOINT_UP: Final = _event("endpoint_up")
ADDRESSES_CHANGED: Final = _event("addresses_changed")
REGION_NOT_TOLD: Final = _event(
    "region_not_told", "clients have to register the region again before that backend knows it"
)

REQUEST: Final = "request"
"""The event of the access log's lines."""
ADVICE: Final[Mapping[str, str]] = {
    Kind.BAD_REQUEST.value: "the client's mistake: the error names what is wrong with the request",
    Kind.UNAUTHENTICATED.value: "the client has to send a key or a token that 'access' knows",
    Kind.FORBIDDEN.value: "if it shall be allowed, a rule of 'access.rules' has to say so",
    Kind.NOT_FOUND.value: "is the name right? If it is, a route is missing, or the backend has "
    "not loaded the model",
    Kind.ALREADY_EXISTS.value: "the client has to unregister it first, or take another name",
    Kind.METHOD_NOT_ALLOWED.value: "the client's mistake: the path wants another HTTP method",
    Kind.UNSUPPORTED.value: "one of the two protocols has no such thing: see the page on fidelity, "
    "or declare or switch on what the error names",
    Kind.UNSUPPORTED_ENCODING.value: "the client has to compress in a way that the error names, or "
    "not at all",
    Kind.TOO_LARGE.value: "raise the limit that the error names, or have the client send less",
    Kind.RATE_LIMITED.value: "the client has to wait, or gets a higher rate in 'access.rates'",
    Kind.OVERLOADED.value: "more servers, workers or gateways, or raise the limit that the error "
    "names",
    Kind.NO_BACKEND.value: "no endpoint may be asked: look at the servers of this backend",
    Kind.CONNECT.value: "is the server up, and its URL in the configuration right? The detail "
    "names the address",
    Kind.TIMEOUT.value: "if the server is sound, raise the route's 'timeout' or the client's; else "
    "look why it is slow",
    Kind.BACKEND_GARBAGE.value: "is the backend's 'protocol' right for that port? If it is, the "
    "server broke off: see its log",
    Kind.BACKEND_ERROR.value: "the server said so: its own log tells more",
    Kind.CANCELLED.value: "the client went away: is its own timeout too short?",
    Kind.INTERNAL.value: "a bug: report it with the traceback that the log has for event 'bug'",
}
"""What is to be done where a request ended otherwise than ``ok``."""
