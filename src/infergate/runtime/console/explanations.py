"""What each kind of error means to an operator; what to do about it is what the log says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from infergate.core.errors import Kind
from infergate.core.vocabulary import ADVICE

MEANINGS: Final[Mapping[str, str]] = {
    Kind.BAD_REQUEST.value: "The request contradicts its protocol, or the model's metadata.",
    Kind.UNAUTHENTICATED.value: "Nobody said who asks, or the key or token is not good.",
    Kind.FORBIDDEN.value: "The client is known, and no rule allows it this operation on this "
    "model.",
    Kind.NOT_FOUND.value: "No route fits the model's name and version, or its backend does not "
    "have the model.",
    Kind.ALREADY_EXISTS.value: "What was to be registered is there already.",
    Kind.METHOD_NOT_ALLOWED.value: "The path exists and is not asked by this HTTP method.",
    Kind.UNSUPPORTED.value: "One of the two protocols cannot carry what was asked: a datatype, an "
    "operation, a sequence.",
    Kind.UNSUPPORTED_ENCODING.value: "The body is compressed in a way that is not understood.",
    Kind.TOO_LARGE.value: "A request or answer is larger than a limit.",
    Kind.RATE_LIMITED.value: "The client has used up its rate.",
    Kind.OVERLOADED.value: "There is no room: the gateway's limits, the backend's queue, or the "
    "model said so.",
    Kind.NO_BACKEND.value: "No backend can serve this now.",
    Kind.CONNECT.value: "No connection to the backend: it is down, its address is wrong, or TLS "
    "does not fit.",
    Kind.TIMEOUT.value: "The answer did not come within the client's deadline or the route's "
    "timeout.",
    Kind.BACKEND_GARBAGE.value: "The backend's answer broke off or is not what its protocol "
    "allows.",
    Kind.BACKEND_ERROR.value: "The backend itself failed, and its error was relayed.",
    Kind.CANCELLED.value: "The client went away before it was answered.",
    Kind.INTERNAL.value: "A bug of infergate's.",
}
"""By ``Kind``'s words."""


def explained(kind: str) -> dict[str, str]:
    """``meaning`` and ``advice`` of an outcome, as sentences; empty where it is none of these."""
    advice = ADVICE.get(kind, "")
    end = "" if not advice or advice.endswith("?") else "."
    return {
        "meaning": MEANINGS.get(kind, ""),
        "advice": f"{advice[:1].upper()}{advice[1:]}{end}",
    }
