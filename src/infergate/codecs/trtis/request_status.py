"""Builds the RequestStatus of responses to clients, and reads the RequestStatus of backends.

Clients receive the error texts of legacy servers. Each codec numbers its responses, as legacy
servers do. If a helper process builds a response, the gateway process sets the number
(``SupportsResponseNumbering``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any, Final

from infergate.codecs.protos.wire_scanner import varint_field
from infergate.codecs.trtis import text_format
from infergate.codecs.trtis.messages import CODES, RequestStatus
from infergate.codecs.trtis.options import TrtisOptions
from infergate.core.errors import (
    GatewayError,
    Kind,
    Origin,
    UnknownRegionError,
    backend_garbage,
    parse_retry_after,
)
from infergate.core.messages import (
    InferRequest,
    Operation,
    ServerStatusRequest,
    SharedMemoryRegisterRequest,
)

SUCCESS: Final = "SUCCESS"
_REQUEST_ID: Final = 4
"""The field number of RequestStatus.request_id, the last field."""

CODE_BY_KIND: Final[dict[Kind, str]] = {
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
    Kind.LOOP_DETECTED: "INTERNAL",
    Kind.TOO_MANY_HOPS: "INTERNAL",
    Kind.CONNECT: "UNAVAILABLE",
    Kind.TIMEOUT: "UNAVAILABLE",
    Kind.BACKEND_GARBAGE: "INTERNAL",
    Kind.BACKEND_ERROR: "INTERNAL",
    Kind.CANCELLED: "UNAVAILABLE",
    Kind.INTERNAL: "INTERNAL",
}
"""The code for each kind of error."""

KIND_BY_CODE: Final[dict[str, Kind]] = {
    "INVALID": Kind.BACKEND_GARBAGE,
    "UNKNOWN": Kind.BACKEND_ERROR,
    "INTERNAL": Kind.BACKEND_ERROR,
    "NOT_FOUND": Kind.NOT_FOUND,
    "INVALID_ARG": Kind.BAD_REQUEST,
    "UNAVAILABLE": Kind.NO_BACKEND,
    "UNSUPPORTED": Kind.UNSUPPORTED,
    "ALREADY_EXISTS": Kind.ALREADY_EXISTS,
}
"""The kind of error for a backend's code. An undefined code is a BACKEND_ERROR."""
_NAME_BY_CODE: Final = {number: name for name, number in CODES.items()}

_UNKNOWN_MODEL: Final = re.compile(
    "(Inference request for|Request for|no status available for) unknown model"
)
"""Matches a server's text for an unknown model. Servers send the text with the code UNAVAILABLE for
an inference, and with INVALID_ARG for other operations."""
_SEQUENCE_ERROR: Final = re.compile(
    r"^(?:\[request id: [^\]]*\] )?"
    r"(inference request to model '.*' must specify a )non-zero or non-empty correlation ID"
)
"""Matches the text with which Triton rejects a missing correlation id. The text mentions non-empty
ids, because Triton also accepts strings as ids."""
_MAX_MESSAGE_BYTES: Final = 1500
"""Maximum size of an error text in bytes. In NV-Status, whose limit is 8 KiB, a byte may take four
characters."""


class TrtisStatusError(GatewayError):
    """An error with a given status ``code``, which is the name of a RequestStatusCode."""

    def __init__(self, code: str, public: str, kind: Kind = Kind.BAD_REQUEST) -> None:
        super().__init__(kind, public)
        self.code = code


class RequestStatusFactory:
    """Creates the RequestStatus of each response, and numbers the responses."""

    def __init__(self, options: TrtisOptions) -> None:
        self._options: Final = options
        self._numbers: Final = itertools.count(1)
        success = RequestStatus(code=CODES[SUCCESS], server_id=options.server_id)
        self._success_bytes: Final[bytes] = success.SerializeToString(deterministic=True)
        self._success_line: Final = text_format.to_line(success)

    def success(self) -> Any:
        return self._status(SUCCESS)

    def success_bytes(self) -> bytes:
        """Return the serialized status of a successful response."""
        return self._success_bytes + varint_field(_REQUEST_ID, self.next_number())

    def success_line(self) -> str:
        """Return the status of a successful response as one line of text."""
        return f"{self._success_line} request_id: {next(self._numbers)}"

    def error(self, error: GatewayError, operation: Operation | None) -> Any:
        """Return the status for ``error`` in the response to ``operation``, or to an unknown
        operation if ``operation`` is None."""
        code, text = self._code_and_text(error, operation)
        text = text.encode("utf-8", "replace")[:_MAX_MESSAGE_BYTES].decode("utf-8", "ignore")
        return self._status(code, text)

    def next_number(self) -> int:
        return next(self._numbers)

    def _status(self, code: str, text: str = "") -> Any:
        return RequestStatus(
            code=CODES[code],
            msg=text,
            server_id=self._options.server_id,
            request_id=self.next_number(),
        )

    def _code_and_text(self, error: GatewayError, operation: Operation | None) -> tuple[str, str]:
        if isinstance(error, TrtisStatusError):
            return error.code, error.public
        if isinstance(error, UnknownRegionError):
            return "NOT_FOUND", f"shared memory block '{error.region}' not found in manager"
        match error.kind, operation:
            case Kind.NOT_FOUND, InferRequest(model, version):
                return "UNAVAILABLE", self._options.level.unknown_model_text(model, version)
            # Legacy servers do not check names, so for them an invalid name is an unknown model.
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
                return CODE_BY_KIND[error.kind], _SEQUENCE_ERROR.sub(
                    r"\1non-zero correlation ID", error.public
                )
        return CODE_BY_KIND[error.kind], error.public


def check_status(status: Any, headers: Mapping[str, str]) -> None:
    """Raise the error in a backend's ``status`` unless the status is SUCCESS. ``headers`` are the
    headers or the metadata of the response, which may include Retry-After."""
    code = _NAME_BY_CODE.get(status.code, str(status.code))
    if code == SUCCESS:
        return
    if _UNKNOWN_MODEL.match(status.msg):
        kind = Kind.NOT_FOUND
    else:
        kind = KIND_BY_CODE.get(code, Kind.BACKEND_ERROR)
    if kind is Kind.BACKEND_GARBAGE:
        raise backend_garbage("the backend's status has no code")
    raise GatewayError(
        kind,
        status.msg or f"the backend responded with {code} and no message",
        origin=Origin.BACKEND,
        detail=code,
        retry_after=parse_retry_after(headers),
    )
