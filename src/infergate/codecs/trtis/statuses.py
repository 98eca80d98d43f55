"""RequestStatus, which every answer holds: what a client is told, and what a backend's means.

*Rule 1.* Each kind of error has one code; where the servers have words of their own for a case,
clients are told those.
*Rule 2.* A request that reached a handler has a number, counted by codec as the servers count. One
whose answer a helper wrote is given it afterwards (``Numbering``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any, Final

from infergate.codecs.trtis.messages import CODES, RequestStatus
from infergate.codecs.trtis.options import Options
from infergate.core.errors import GatewayError, Kind, Origin, UnknownRegion, garbage, retry_seconds
from infergate.core.messages import (
    InferRequest,
    Operation,
    ServerStatusRequest,
    SharedMemoryRegisterRequest,
)

SUCCESS: Final = "SUCCESS"

CODE: Final[dict[Kind, str]] = {
    Kind.BAD_REQUEST: "INVALID_ARG",
    Kind.UNAUTHENTICATED: "INVALID_ARG",
    Kind.FORBIDDEN: "INVALID_ARG",
    Kind.NOT_FOUND: "NOT_FOUND",
    Kind.METHOD_NOT_ALLOWED: "UNSUPPORTED",
    Kind.ALREADY_EXISTS: "ALREADY_EXISTS",
    Kind.UNSUPPORTED: "UNSUPPORTED",
    Kind.UNSUPPORTED_ENCODING: "UNSUPPORTED",
    Kind.TOO_LARGE: "INVALID_ARG",
    Kind.RATE_LIMITED: "UNAVAILABLE",
    Kind.OVERLOADED: "UNAVAILABLE",
    Kind.NO_BACKEND: "UNAVAILABLE",
    Kind.CONNECT: "UNAVAILABLE",
    Kind.TIMEOUT: "UNAVAILABLE",
    Kind.BACKEND_GARBAGE: "INTERNAL",
    Kind.BACKEND_ERROR: "INTERNAL",
    Kind.CANCELLED: "UNAVAILABLE",
    Kind.INTERNAL: "INTERNAL",
}
"""What a client is told. Every kind has its row; a test walks them."""

KINDS: Final[dict[str, Kind]] = {
    "INVALID": Kind.BACKEND_GARBAGE,
    "UNKNOWN": Kind.BACKEND_ERROR,
    "INTERNAL": Kind.BACKEND_ERROR,
    "NOT_FOUND": Kind.NOT_FOUND,
    "INVALID_ARG": Kind.BAD_REQUEST,
    "UNAVAILABLE": Kind.NO_BACKEND,
    "UNSUPPORTED": Kind.UNSUPPORTED,
    "ALREADY_EXISTS": Kind.ALREADY_EXISTS,
}
"""What a backend's code means. One the API does not define is a BACKEND_ERROR."""
_NAMES: Final = {number: name for name, number in CODES.items()}

_UNKNOWN_MODEL: Final = re.compile(
    "(Inference request for|Request for|no status available for) unknown model"
)
"""How the servers word it, by code UNAVAILABLE to an inference, INVALID_ARG to a status request."""
_SEQUENCE: Final = re.compile(
    r"^(?:\[request id: [^\]]*\] )?"
    r"(inference request to model '.*' must specify a )non-zero or non-empty correlation ID"
)
"""What servers say that came after; those of the API know numbers only."""
_LONGEST: Final = 1500
"""Bytes of a message. Printed into a header each may take four characters, and clients and proxies
turn headers over 8 KiB away."""


class Refusal(GatewayError):  # noqa: N818 - a refusal is an answer
    """What a client did wrong, where the servers have a ``code`` of their own for it."""

    def __init__(self, code: str, public: str, kind: Kind = Kind.BAD_REQUEST) -> None:
        super().__init__(kind, public)
        self.code = code


class Statuses:
    """Makes the RequestStatus of each answer, numbered."""

    def __init__(self, options: Options) -> None:
        self._options: Final = options
        self._numbers: Final = itertools.count(1)

    def success(self) -> Any:
        """Of an answer."""
        return self._status(SUCCESS)

    def error(self, error: GatewayError, operation: Operation | None) -> Any:
        """Of ``error`` in answer to ``operation``; None where that is not known."""
        code, told = self._words(error, operation)
        told = told.encode("utf-8", "replace")[:_LONGEST].decode("utf-8", "ignore")
        return self._status(code, told)

    def number(self) -> int:
        """The next."""
        return next(self._numbers)

    def _status(self, code: str, told: str = "") -> Any:
        return RequestStatus(
            code=CODES[code],
            msg=told,
            server_id=self._options.server_id,
            request_id=self.number(),
        )

    def _words(self, error: GatewayError, operation: Operation | None) -> tuple[str, str]:
        if isinstance(error, Refusal):
            return error.code, error.public
        if isinstance(error, UnknownRegion):
            return "NOT_FOUND", f"shared memory block '{error.region}' not found in manager"
        match error.kind, operation:
            case Kind.NOT_FOUND, InferRequest(model, version):
                return "UNAVAILABLE", self._options.level.unknown_model(model, version)
            # A name that is refused is none of a model, and the servers look for any.
            case Kind.NOT_FOUND | Kind.BAD_REQUEST, ServerStatusRequest(model):
                return "INVALID_ARG", f"no status available for unknown model '{model}'"
            case Kind.ALREADY_EXISTS, SharedMemoryRegisterRequest(name):
                return "ALREADY_EXISTS", f"shared memory block '{name}' already in manager"
            case Kind.BAD_REQUEST, SharedMemoryRegisterRequest(device=None):
                return "INTERNAL", error.public
            case Kind.UNSUPPORTED, SharedMemoryRegisterRequest(name, key, device=None):
                return "INTERNAL", f"Unable to open shared memory region: '{key}'"
            case Kind.UNSUPPORTED, SharedMemoryRegisterRequest(name):
                return "INVALID_ARG", (
                    f"failed to register CUDA shared memory region: '{name}', GPUs not supported"
                )
            case Kind.BAD_REQUEST, InferRequest():
                return CODE[error.kind], _SEQUENCE.sub(r"\1non-zero correlation ID", error.public)
        return CODE[error.kind], error.public


def check_status(status: Any, headers: Mapping[str, str]) -> None:
    """Raises what a backend's ``status`` tells, unless that is success. The API has no word for
    when to try again; the ``headers`` (or metadata) that the status came with may."""
    code = _NAMES.get(status.code, str(status.code))
    if code == SUCCESS:
        return
    if _UNKNOWN_MODEL.match(status.msg):
        kind = Kind.NOT_FOUND
    else:
        kind = KINDS.get(code, Kind.BACKEND_ERROR)
    if kind is Kind.BACKEND_GARBAGE:
        raise garbage("the backend's status has no code")
    raise GatewayError(
        kind,
        status.msg or f"the backend answered with {code} and no message",
        origin=Origin.BACKEND,
        detail=code,
        retry_after=retry_seconds(headers),
    )
