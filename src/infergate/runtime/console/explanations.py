"""What each kind of error means to an operator, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from infergate.core.errors import Kind


class Explanation(NamedTuple):
    """``meaning`` and ``advice`` are sentences."""

    meaning: str
    advice: str


EXPLANATIONS: Final[Mapping[str, Explanation]] = MappingProxyType(
    {
        Kind.BAD_REQUEST.value: Explanation(
            "The request contradicts its protocol, or the model's metadata.",
            "The client has to change: the error names the tensor or field. Send the same by "
            "'Try it' to compare.",
        ),
        Kind.UNAUTHENTICATED.value: Explanation(
            "Nobody said who asks, or the key or token is not good.",
            "Give the client a key ('infergate key') or a fresh token; see access in the "
            "configuration.",
        ),
        Kind.FORBIDDEN.value: Explanation(
            "The client is known, and no rule allows it this operation on this model.",
            "If it should be allowed, add a rule under access.rules; the log has the identity.",
        ),
        Kind.NOT_FOUND.value: Explanation(
            "No route fits the model's name and version, or its backend does not have the model.",
            "Look at the routes (first match wins) and at the names the backend has; a rewrite may "
            "be missing.",
        ),
        Kind.ALREADY_EXISTS.value: Explanation(
            "What was to be registered is there already.",
            "The client should unregister it first, or take another name.",
        ),
        Kind.METHOD_NOT_ALLOWED.value: Explanation(
            "The path exists and is not asked by this HTTP method.",
            "The client has to change its method (POST for inferences).",
        ),
        Kind.UNSUPPORTED.value: Explanation(
            "One of the two protocols cannot carry what was asked: a datatype, an operation, a "
            "sequence.",
            "See the table of what is exact, converted and refused (docs/fidelity.md); 'cast' on "
            "the route stands in for datatypes.",
        ),
        Kind.UNSUPPORTED_ENCODING.value: Explanation(
            "The body is compressed in a way that is not understood.",
            "The client should send gzip, deflate or plain bodies.",
        ),
        Kind.TOO_LARGE.value: Explanation(
            "A request or answer is larger than a limit.",
            "Raise the limit that the error names (limits.body, limits.json), if memory allows.",
        ),
        Kind.RATE_LIMITED.value: Explanation(
            "The client has used up its rate.",
            "It should wait as Retry-After says; access.rates holds the rates.",
        ),
        Kind.OVERLOADED.value: Explanation(
            "There is no room: the gateway's limits, the backend's queue, or the model said so.",
            "Look at requests in flight and at queues; add endpoints, or raise limits.in_flight or "
            "the backend's max_requests if it has room.",
        ),
        Kind.NO_BACKEND.value: Explanation(
            "No backend can serve this now.",
            "Look at the endpoints' health.",
        ),
        Kind.CONNECT.value: Explanation(
            "No connection to the backend: it is down, its address is wrong, or TLS does not fit.",
            "Check that the server runs and that endpoints name its address and port; the detail "
            "says what the system answered.",
        ),
        Kind.TIMEOUT.value: Explanation(
            "The answer did not come within the client's deadline or the route's timeout.",
            "Compare with the backend's latency: it is overloaded, or the timeout is too short.",
        ),
        Kind.BACKEND_GARBAGE.value: Explanation(
            "The backend's answer broke off or is not what its protocol allows.",
            "Check that the backend's 'protocol' is the one it speaks on that port.",
        ),
        Kind.BACKEND_ERROR.value: Explanation(
            "The backend itself failed, and its error was relayed.",
            "The backend's own log tells why.",
        ),
        Kind.CANCELLED.value: Explanation(
            "The client went away before it was answered.",
            "Often a client's own timeout: compare it with the latency shown here.",
        ),
        Kind.INTERNAL.value: Explanation(
            "A bug of infergate's.",
            "The log has a traceback under this request's id: please report it.",
        ),
    }
)
"""By ``Kind``'s words."""
UNKNOWN: Final = Explanation("", "")
