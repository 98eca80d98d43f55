"""Sends every case over every pair of client and backend, and compares the results."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

from infergate.core.errors import GatewayError
from infergate.core.messages import InferResponse
from infergate.core.request_context import RequestContext
from infergate.matrix import findings
from infergate.matrix.cases import CASES, Case
from infergate.matrix.client_kinds import CLIENT_KINDS, ClientKind
from infergate.matrix.findings import Finding, Mark, finding_of
from infergate.matrix.gateways import (
    BACKENDS,
    BUILTIN,
    MatrixGateways,
    client_model_name,
    run_gateways,
)
from infergate.matrix.recording_backend import ReceivedRequest

_TIMEOUT_SECONDS: Final = 10.0
"""Timeout of an exchange, in seconds."""
_DEADLINE_NOTE: Final = "the deadline is not sent to the server; infergate enforces it"


@dataclass(frozen=True, slots=True)
class Pair:
    """The findings for a client and a backend, in the order of ``CASES``."""

    client_kind: ClientKind
    backend: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The request that the model received, and the client's result."""

    received: ReceivedRequest | None
    result: InferResponse | GatewayError


Baseline = Sequence[ReceivedRequest | None] | Finding
"""The requests that the embedded backend received for a client's case, with which those of other
backends are compared; or a finding if the client cannot send the case, or was misread."""


async def run_pairs() -> AsyncGenerator[Pair, None]:
    """Yield each pair when it is finished; for each client, the embedded backend comes first."""
    async with run_gateways() as running:
        for speaker in CLIENT_KINDS:
            baselines: dict[str, Baseline] = {}
            for backend in BACKENDS:
                cells = [
                    await _finding(running, speaker, backend, case, baselines) for case in CASES
                ]
                yield Pair(speaker, backend, tuple(cells))


async def run_all() -> tuple[Pair, ...]:
    """Return all pairs."""
    async with aclosing(run_pairs()) as pairs:
        return tuple([pair async for pair in pairs])


async def _finding(
    running: MatrixGateways,
    speaker: ClientKind,
    backend: str,
    case: Case,
    baselines: dict[str, Baseline],
) -> Finding:
    baseline = baselines.get(case.name)
    if isinstance(baseline, Finding):
        return baseline
    outcomes = []
    for request in case.requests:
        named = replace(request, model=client_model_name(backend, request.model))
        client = running.client(speaker, named.model, named.version)
        known_models = running.witness.models
        declared = known_models.get(request.model, known_models["FP32"])
        context = RequestContext("matrix", time.monotonic() + (case.deadline or _TIMEOUT_SECONDS))
        try:
            client.codec.build_request(named, speaker.profile, declared)
        except GatewayError as error:
            finding = Finding(Mark.NOT_EXPRESSIBLE, error.public)
            baselines[case.name] = finding
            return finding
        running.witness.take_requests()
        try:
            got = await client.perform(named, context)
            assert isinstance(got, InferResponse)
            outcome: InferResponse | GatewayError = got
        except GatewayError as error:
            outcome = error
        seen = [
            seen for seen in running.witness.take_requests() if seen.request.model == request.model
        ]
        outcomes.append(_Outcome(seen[0] if seen else None, outcome))
    if backend == BUILTIN:
        baselines[case.name] = baseline = _baseline(case, outcomes)
        if isinstance(baseline, Finding):
            return baseline
    assert baseline is not None
    return _compare(backend, case, outcomes, baseline)


def _baseline(case: Case, outcomes: Sequence[_Outcome]) -> Baseline:
    received = [outcome.received for outcome in outcomes]
    notes: list[str] = []
    for request, seen in zip(case.requests, received, strict=True):
        if seen is not None:
            notes += findings.request_differences(request, seen.request)
            notes += _deadline_note(case, seen)
    finding = finding_of(notes)
    if finding.mark is Mark.WRONG:  # a misread request is useless for comparison
        return finding
    return (
        Finding(Mark.NOT_EXPRESSIBLE, finding.note) if finding.mark is Mark.CONVERTED else received
    )


def _deadline_note(case: Case, received: ReceivedRequest) -> Iterator[str]:
    if not case.has_deadline(received):
        yield _DEADLINE_NOTE


def _compare(
    backend: str,
    case: Case,
    outcomes: Sequence[_Outcome],
    baseline: Sequence[ReceivedRequest | None],
) -> Finding:
    if case.expected_error is not None:
        got = outcomes[-1].result
        error = got if isinstance(got, GatewayError) else None
        return finding_of([*findings.error_differences(case.expected_error, error)])
    notes: list[str] = []
    for request, outcome, meant in zip_longest(case.requests, outcomes, baseline):
        name = client_model_name(backend, request.model)
        if isinstance(outcome.result, GatewayError):
            return findings.rejection(outcome.result, {name: "'…'", request.model: "'…'"})
        if outcome.received is None or outcome.received.response is None:
            return Finding(Mark.WRONG, "! a response that no model sent")
        if backend != BUILTIN:
            notes += findings.request_differences(
                meant.request if meant else request, outcome.received.request
            )
            notes += _deadline_note(case, outcome.received)
        given = meant.response if meant and meant.response else outcome.received.response
        notes += findings.response_differences(given, outcome.result, replace(request, model=name))
    return finding_of(notes)
