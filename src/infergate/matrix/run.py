"""Ask every case over every pair, and find what became of it."""

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
"""Seconds for one exchange."""
_LATE: Final = "the server is not told the deadline, infergate keeps it"


@dataclass(frozen=True, slots=True)
class Pair:
    """What was found of each case, in the order of CASES, between a client and a backend."""

    speaker: Speaker
    backend: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Of one request: what the model saw, and what the client got."""

    seen: Seen | None
    got: InferResponse | GatewayError


Said = Sequence[Seen | None] | Finding
"""What the embedded backend saw of a client's case, or why nothing can be compared with that: the
client cannot ask it, or was misread."""


async def run() -> AsyncGenerator[Pair, None]:
    """Every pair as it is done, the embedded backend first."""
    async with site() as running:
        for speaker in SPEAKERS:
            said: dict[str, Said] = {}
            for backend in BACKENDS:
                cells = [await _cell(running, speaker, backend, case, said) for case in CASES]
                yield Pair(speaker, backend, tuple(cells))


async def matrix() -> tuple[Pair, ...]:
    """All pairs."""
    async with aclosing(run()) as pairs:
        return tuple([pair async for pair in pairs])


async def _cell(
    running: Site, speaker: Speaker, backend: str, case: Case, said: dict[str, Said]
) -> Finding:
    known = said.get(case.name)
    if isinstance(known, Finding):
        return known
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
            unsaid = Finding(Mark.UNSAID, error.public)
            said[case.name] = unsaid
            return unsaid
        running.witness.taken()
        try:
            got = await client.perform(named, call)
            assert isinstance(got, InferResponse)
            outcome: InferResponse | GatewayError = got
        except GatewayError as error:
            outcome = error
        seen = [each for each in running.witness.taken() if each.request.model == request.model]
        outcomes.append(_Outcome(seen[0] if seen else None, outcome))
    if backend == BUILTIN:
        said[case.name] = known = _said(case, outcomes)
        if isinstance(known, Finding):
            return known
    assert known is not None
    return _judged(backend, case, outcomes, known)


def _said(case: Case, outcomes: Sequence[_Outcome]) -> Said:
    seen = [outcome.seen for outcome in outcomes]
    notes: list[str] = []
    for request, each in zip(case.requests, seen, strict=True):
        if each is not None:
            notes += findings.of_request(request, each.request)
            notes += _of_deadline(case, each)
    told = found(notes)
    if told.mark is Mark.WRONG:  # misread: compared with that, nothing would be worth a thing
        return told
    return Finding(Mark.UNSAID, told.note) if told.mark is Mark.CONVERTED else seen


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
            return findings.refused(outcome.got, {name: "of the client", request.model: "asked"})
        if outcome.seen is None or outcome.seen.given is None:
            return Finding(Mark.WRONG, "! there is an answer, and no model gave it")
        if backend != BUILTIN:
            notes += findings.of_request(meant.request if meant else request, outcome.seen.request)
            notes += _of_deadline(case, outcome.seen)
        given = meant.given if meant and meant.given else outcome.seen.given
        notes += findings.of_answer(given, outcome.got, replace(request, model=name))
    return found(notes)
