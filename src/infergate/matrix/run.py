"""Sends every case from every client to every backend, and compares the results."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from infergate.core.errors import GatewayError
from infergate.core.messages import InferRequest, InferResponse, Response
from infergate.core.request_context import RequestContext
from infergate.matrix import findings
from infergate.matrix.cases import CASES, Case
from infergate.matrix.client_kinds import CLIENT_KINDS, WITHOUT_METADATA, ClientKind
from infergate.matrix.findings import Finding, Mark, finding_of
from infergate.matrix.gateways import BACKENDS, BUILTIN, MatrixGateways, client_model_name
from infergate.matrix.recording_backend import ReceivedRequest

_TIMEOUT_SECONDS: Final = 10.0
_ROUNDING_SECONDS: Final = 1.0
"""Tolerance for rounded deadlines. The timeout of a request without a deadline is much longer."""


@dataclass(frozen=True, slots=True)
class ClientResult:
    """The findings for a client, keyed by case and backend."""

    name: str
    findings: tuple[tuple[Finding, ...], ...]


class _Outcome(NamedTuple):
    """The request that the model received, and the client's result."""

    received: ReceivedRequest | None
    result: InferResponse | GatewayError


async def run_clients() -> AsyncGenerator[ClientResult, None]:
    """Yield the findings for each client when they are complete."""
    async with MatrixGateways.run() as gateways:
        for kind in CLIENT_KINDS:
            rows = [tuple(await _run_case(gateways, kind, case)) for case in CASES]
            yield ClientResult(kind.name, tuple(rows))


async def _run_case(gateways: MatrixGateways, kind: ClientKind, case: Case) -> Sequence[Finding]:
    """Return a finding for each backend. If the embedded backend, the first backend, does not
    receive the original request, the cause is the client's protocol."""
    try:
        baseline = [await _send(gateways, kind, BUILTIN, case, item) for item in case.requests]
    except _NotExpressibleError as error:
        return [Finding(Mark.NOT_EXPRESSIBLE, str(error))] * len(BACKENDS)
    pairs = zip(case.requests, baseline, strict=True)
    limit = finding_of([note for sent, got in pairs for note in _request_notes(case, sent, got)])
    if limit.mark is Mark.CONVERTED:
        limit = Finding(Mark.NOT_EXPRESSIBLE, limit.note)
    if limit.mark is not Mark.EXACT:
        return [limit] * len(BACKENDS)
    results = [_compare(BUILTIN, case, baseline, baseline)]
    for backend in BACKENDS[1:]:
        outcomes = [await _send(gateways, kind, backend, case, item) for item in case.requests]
        results.append(_compare(backend, case, outcomes, baseline))
    return results


class _NotExpressibleError(Exception):
    """The client's protocol cannot express the request."""


async def _send(
    gateways: MatrixGateways, kind: ClientKind, backend: str, case: Case, request: InferRequest
) -> _Outcome:
    """Send ``request`` of ``case``. Raises _NotExpressibleError."""
    named = replace(request, model=client_model_name(backend, request.model))
    client = gateways.client(kind, named.model, named.version)
    models = gateways.recorder.models
    try:
        model = models.get(request.model, models["FP32"])
        client.codec.build_request(named, kind.profile, model)
    except GatewayError as error:
        raise _NotExpressibleError(error.public) from None
    gateways.recorder.take_requests()
    context = RequestContext("matrix", time.monotonic() + (case.deadline or _TIMEOUT_SECONDS))
    if kind.protocol in WITHOUT_METADATA:
        context.policy = replace(context.policy, declared_metadata=model)
    result: Response | GatewayError
    try:
        result = await client.perform(named, context)
    except GatewayError as error:
        result = error
    assert isinstance(result, InferResponse | GatewayError)
    requests = gateways.recorder.take_requests()
    received = (item for item in requests if item.request.model == request.model)
    return _Outcome(next(received, None), result)


def _request_notes(case: Case, sent: InferRequest, outcome: _Outcome) -> Iterator[str]:
    received = outcome.received
    if received is None:
        return
    yield from findings.request_differences(sent, received.request)
    if case.deadline is not None:
        remaining = received.remaining_seconds
        if remaining is None or remaining > case.deadline + _ROUNDING_SECONDS:
            yield "the deadline is not sent to the server; infergate enforces it"


def _compare(
    backend: str, case: Case, outcomes: Sequence[_Outcome], baseline: Sequence[_Outcome]
) -> Finding:
    """Compare the requests that the model received with the ``baseline``, and the client's
    responses with the model's."""
    if case.expected_error is not None:
        result = outcomes[-1].result
        error = result if isinstance(result, GatewayError) else None
        return finding_of([*findings.error_differences(case.expected_error, error)])
    notes: list[str] = []
    for request, outcome, expected in zip(case.requests, outcomes, baseline, strict=True):
        name = client_model_name(backend, request.model)
        if isinstance(outcome.result, GatewayError):
            return findings.rejection(outcome.result, name, request.model)
        if outcome.received is None or outcome.received.response is None:
            return Finding(Mark.WRONG, "! a response that no model sent")
        reference = expected.received or outcome.received
        response = reference.response or outcome.received.response
        named = replace(request, model=name)
        notes += _request_notes(case, reference.request, outcome)
        notes += findings.response_differences(response, outcome.result, named)
    return finding_of(notes)
