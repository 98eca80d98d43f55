"""Sends every case over every pair of client and backend, and compares the results."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

from infergate.core.call import Call
from infergate.core.errors import GatewayError
from infergate.core.messages import InferResponse
from infergate.matrix import findings
from infergate.matrix.cases import CASES, Case
from infergate.matrix.clients import SPEAKERS, Speaker
from infergate.matrix.findings import Finding, Mark, found
from infergate.matrix.site import BACKENDS, BUILTIN, Site, routed, site
from infergate.matrix.witness import Seen

_ENOUGH: Final = 10.0
"""Timeout of an exchange, in seconds."""
_LATE: Final = "the deadline is not sent to the server; infergate enforces it"


@dataclass(frozen=True, slots=True)
class Pair:
    """The findings for a client and a backend, in the order of ``CASES``."""

    speaker: Speaker
    backend: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The request that the model received, and the client's result."""

    seen: Seen | None
    got: InferResponse | GatewayError


Said = Sequence[Seen | None] | Finding
"""The requests that the embedded backend received for a client's case, with which those of other
backends are compared; or a finding if the client cannot send the case, or was misread."""


async def run() -> AsyncGenerator[Pair, None]:
    """Yield each pair when it is finished; for each client, the embedded backend comes first."""
    async with site() as running:
        for speaker in SPEAKERS:
            baselines: dict[str, Said] = {}
            for backend in BACKENDS:
                cells = [await _cell(running, speaker, backend, case, baselines) for case in CASES]
                yield Pair(speaker, backend, tuple(cells))


async def matrix() -> tuple[Pair, ...]:
    """Return all pairs."""
    async with aclosing(run()) as pairs:
        return tuple([pair async for pair in pairs])


async def _cell(
    running: Site, speaker: Speaker, backend: str, case: Case, baselines: dict[str, Said]
) -> Finding:
    baseline = baselines.get(case.name)
    if isinstance(baseline, Finding):
        return baseline
    outcomes = []
    for request in case.requests:
        named = replace(request, model=routed(backend, request.model))
        client = running.client(speaker, named.model, named.version)
        known_models = running.witness.models
        declared = known_models.get(request.model, known_models["FP32"])
        call = Call("matrix", time.monotonic())
        call.shorten_deadline(call.started_at + (case.deadline or _ENOUGH))
        try:
            client.codec.build_request(named, speaker.profile, declared)
        except GatewayError as error:
            finding = Finding(Mark.UNSAID, error.public)
            baselines[case.name] = finding
            return finding
        running.witness.taken()
        try:
            got = await client.perform(named, call)
            assert isinstance(got, InferResponse)
            outcome: InferResponse | GatewayError = got
        except GatewayError as error:
            outcome = error
        seen = [seen for seen in running.witness.taken() if seen.request.model == request.model]
        outcomes.append(_Outcome(seen[0] if seen else None, outcome))
    if backend == BUILTIN:
        baselines[case.name] = baseline = _said(case, outcomes)
        if isinstance(baseline, Finding):
            return baseline
    assert baseline is not None
    return _judged(backend, case, outcomes, baseline)


def _said(case: Case, outcomes: Sequence[_Outcome]) -> Said:
    received = [outcome.seen for outcome in outcomes]
    notes: list[str] = []
    for request, seen in zip(case.requests, received, strict=True):
        if seen is not None:
            notes += findings.of_request(request, seen.request)
            notes += _of_deadline(case, seen)
    finding = found(notes)
    if finding.mark is Mark.WRONG:  # a misread request is useless for comparison
        return finding
    return Finding(Mark.UNSAID, finding.note) if finding.mark is Mark.CONVERTED else received


def _of_deadline(case: Case, seen: Seen) -> Iterator[str]:
    if not case.is_bounded(seen):
        yield _LATE


def _judged(
    backend: str, case: Case, outcomes: Sequence[_Outcome], said: Sequence[Seen | None]
) -> Finding:
    if case.expects is not None:
        got = outcomes[-1].got
        error = got if isinstance(got, GatewayError) else None
        return found([*findings.of_error(case.expects, error)])
    notes: list[str] = []
    for request, outcome, meant in zip_longest(case.requests, outcomes, said):
        name = routed(backend, request.model)
        if isinstance(outcome.got, GatewayError):
            return findings.refused(outcome.got, {name: "'…'", request.model: "'…'"})
        if outcome.seen is None or outcome.seen.given is None:
            return Finding(Mark.WRONG, "! a response that no model sent")
        if backend != BUILTIN:
            notes += findings.of_request(meant.request if meant else request, outcome.seen.request)
            notes += _of_deadline(case, outcome.seen)
        given = meant.given if meant and meant.given else outcome.seen.given
        notes += findings.of_answer(given, outcome.got, replace(request, model=name))
    return found(notes)
