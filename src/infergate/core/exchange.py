"""Inferences with their results, for comparison, recording and payload logging.

Requests and responses are in canonical form with the client's names, so they do not depend on the
protocols of the client and the backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from infergate.core.errors import GatewayError
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.records import record
from infergate.core.tensor import data_bytes
from infergate.core.wire import NO_HEADERS


@record
class Outcome:
    """The result of an inference: one response or an error. A stream has any number of responses,
    which an error may follow.

    ``duration`` is in seconds. ``offsets`` are the seconds from the request to each response of a
    stream."""

    responses: tuple[InferResponse, ...] = ()
    error: GatewayError | None = None
    duration: float = 0.0
    offsets: tuple[float, ...] = ()

    @property
    def kind(self) -> str:
        """``ok``, or the kind of the error, as in the access log."""
        return OK if self.error is None else self.error.kind.value

    @property
    def size(self) -> int:
        """The size of all outputs in bytes."""
        return sum(data_bytes(each.outputs) for each in self.responses)


@record
class Exchange:
    """An inference and its outcome.

    ``protocol`` is the client's protocol; ``route`` and ``backend`` are names in the configuration.
    ``headers`` are the client's headers (lower-case names); they may contain credentials.
    ``started_at`` is in seconds since the Unix epoch."""

    request: InferRequest
    outcome: Outcome
    protocol: str = ""
    route: str = ""
    backend: str = ""
    request_id: str = ""
    headers: Mapping[str, str] = NO_HEADERS
    started_at: float = 0.0
    is_stream: bool = False

    @property
    def size(self) -> int:
        """The size of all tensors of the request and the responses in bytes."""
        return data_bytes(self.request.inputs) + self.outcome.size


OK: Final = "ok"
"""The kind of an outcome without an error."""
