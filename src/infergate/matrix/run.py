"""Sends every case from every client to every backend, and compares the results."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final, NamedTuple

from infergate.backends.base import Backend
from infergate.backends.remote import RemoteBackend
from infergate.core.errors import GatewayError
from infergate.core.messages import InferRequest, InferResponse, Response
from infergate.core.request_context import RequestContext
from infergate.matrix import findings
from infergate.matrix.cases import CASES, Case, create_models
from infergate.matrix.client_kinds import CLIENT_KINDS, ClientKind
from infergate.matrix.findings import Finding, Mark, finding_of
from infergate.matrix.gateways import BACKENDS, BUILTIN, WITHOUT_METADATA, connect, make_target
from infergate.matrix.recording_backend import ReceivedRequest, RecordingBackend

_TIMEOUT_SECONDS: Final = 10.0
_ROUNDING_SECONDS: Final = 1.0
"""Tolerance for rounded deadlines. Requests without a deadline have a much longer timeout."""


@dataclass(frozen=True, slots=True)
class ClientResult:
    """The findings for a client: for each case, one finding for each backend."""

    name: str
    findings: tuple[tuple[Finding, ...], ...]


class _Outcome(NamedTuple):
    """The request that the model received, and the client's result."""

    received: ReceivedRequest | None
    result: InferResponse | GatewayError


async def run_clients() -> AsyncGenerator[ClientResult, None]:
    """Yield the findings for each client when they are complete."""
    recorder = RecordingBackend(create_models())
    target = cache(partial(make_target, recorder))
    for kind in CLIENT_KINDS:
        clients = _Clients(kind, recorder, target)
        rows = [tuple(await clients.run_case(case)) for case in CASES]
        yield ClientResult(kind.name, tuple(rows))


class _NotExpressibleError(Exception):
    """The client's protocol cannot express the request."""


class _Clients:
    """The clients of ``kind``. ``target`` returns the backend for a protocol and a model."""

    def __init__(
        self, kind: ClientKind, recorder: RecordingBackend, target: Callable[[str, str], Backend]
    ) -> None:
        self._kind: Final = kind
        self._recorder: Final = recorder
        self._target: Final = target
        self._client: Final = cache(self._make_client)

    def _make_client(self, backend: str, model: str, version: str) -> RemoteBackend[Any, Any]:
        metadata = self._recorder.metadata_of(model)
        target = self._target(backend, model)
        return connect(self._kind, self._kind.profile, target, metadata, version)

    async def run_case(self, case: Case) -> Sequence[Finding]:
        """Return a finding for each backend. If the embedded backend, the first backend, does not
        receive the original request, the cause is the client's protocol."""
        try:
            baseline = [await self._send(BUILTIN, case, request) for request in case.requests]
        except _NotExpressibleError as error:
            return [Finding(Mark.NOT_EXPRESSIBLE, str(error))] * len(BACKENDS)
        pairs = zip(case.requests, baseline, strict=True)
        notes = [note for sent, outcome in pairs for note in _request_notes(case, sent, outcome)]
        limit = finding_of(notes)
        if limit.mark is Mark.CONVERTED:
            limit = Finding(Mark.NOT_EXPRESSIBLE, limit.note)
        if limit.mark is not Mark.EXACT:
            return [limit] * len(BACKENDS)
        results = [_compare(case, baseline, baseline)]
        for backend in BACKENDS[1:]:
            outcomes = [await self._send(backend, case, request) for request in case.requests]
            results.append(_compare(case, outcomes, baseline))
        return results

    async def _send(self, backend: str, case: Case, request: InferRequest) -> _Outcome:
        """Send ``request`` of ``case``. Raises _NotExpressibleError."""
        client = self._client(backend, request.model, request.version)
        model = self._recorder.metadata_of(request.model)
        try:
            client.codec.build_request(request, self._kind.profile, model)
        except GatewayError as error:
            raise _NotExpressibleError(error.public) from None
        self._recorder.requests.clear()
        context = RequestContext("matrix", time.monotonic() + (case.deadline or _TIMEOUT_SECONDS))
        if self._kind.protocol in WITHOUT_METADATA:
            context.policy = replace(context.policy, declared_metadata=model)
        result: Response | GatewayError
        try:
            result = await client.perform(request, context)
        except GatewayError as error:
            result = error
        assert isinstance(result, InferResponse | GatewayError)
        return _Outcome(next(iter(self._recorder.requests), None), result)


def _request_notes(case: Case, sent: InferRequest, outcome: _Outcome) -> Iterator[str]:
    received = outcome.received
    if received is None:
        return
    yield from findings.request_differences(sent, received.request)
    if case.deadline is not None:
        remaining = received.remaining_seconds
        if remaining is None or remaining > case.deadline + _ROUNDING_SECONDS:
            yield "the deadline is not sent to the server; infergate enforces it"


def _compare(case: Case, outcomes: Sequence[_Outcome], baseline: Sequence[_Outcome]) -> Finding:
    """Compare the requests that the model received with the ``baseline``, and the client's
    responses with the model's."""
    if case.expected_error is not None:
        result = outcomes[-1].result
        error = result if isinstance(result, GatewayError) else None
        return finding_of([*findings.error_differences(case.expected_error, error)])
    notes: list[str] = []
    for request, outcome, expected in zip(case.requests, outcomes, baseline, strict=True):
        if isinstance(outcome.result, GatewayError):
            return findings.rejection(outcome.result, request.model)
        reference = expected.received
        if outcome.received is None or reference is None or reference.response is None:
            return Finding(Mark.WRONG, "! a response that no model sent")
        notes += _request_notes(case, reference.request, outcome)
        notes += findings.response_differences(reference.response, outcome.result, request)
    return finding_of(notes)
