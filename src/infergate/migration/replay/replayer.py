"""Sends recorded inferences and compares the outcomes.

*Rule 1.* An inference of a sequence is sent after the response to the previous inference of the
sequence.
*Rule 2.* Memory is bounded: at most one batch of entries is read ahead, and an inference is sent
only if it and the inferences in progress hold at most ``_MAX_HELD_BYTES`` together. A single
inference may exceed this limit.
*Rule 3.* Reading files and comparing large outcomes run in threads."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, NamedTuple

from infergate.comparison.outcomes import OTHER, Comparison, compare
from infergate.comparison.rules import ComparisonRuleError, ComparisonRules, Tolerance
from infergate.core.datatypes import FLOATS
from infergate.core.errors import GatewayError, Kind
from infergate.core.exchange import Exchange, Outcome
from infergate.core.limits import KIB, MIB
from infergate.core.request_context import REQUEST_ID_HEADER, RequestContext
from infergate.core.sequences import SequenceKey
from infergate.gateway.dispatch import assign_request_id
from infergate.gateway.gateway import RoutingGateway
from infergate.gateway.observation import Observation
from infergate.migration.replay.entries import Entry, start_time, valid_outcome
from infergate.migration.replay.pace import Pace
from infergate.migration.replay.result import ReplayResult
from infergate.migration.replay.target import ReplayTarget, ReplayTargetError
from infergate.recording.encoding import RecordedExchange
from infergate.recording.redaction import BODY

__all__ = ["EXACT", "ComparisonRuleError", "ComparisonRules", "ReplayOptions", "Replayer"]
EXACT: Final = ComparisonRules({datatype: Tolerance(0.0, 0.0) for datatype in FLOATS})
"""Rules without tolerances."""
_MAX_HELD_BYTES: Final = 256 * MIB
_BATCH: Final = 64
_BATCH_BYTES: Final = 8 * MIB
_MAX_INLINE_BYTES: Final = 64 * KIB
"""Maximum total size of two outcomes that are compared on the event loop."""
_MAX_OUTPUT_NAMES: Final = 10_000
_MAX_ROUTES: Final = 1000
_PEER: Final = "replay"
_BODY_REDACTED: Final = "the body of the request was redacted in the recording"


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The options of a replay. ``headers`` are sent with each inference, in addition to the
    recorded headers. ``rules`` decide whether outcomes are equal. If ``max_requests`` is None, all
    recorded inferences are sent."""

    pace: Pace = field(default_factory=Pace)
    concurrency: int = 32
    max_requests: int | None = None
    rules: ComparisonRules = field(default_factory=ComparisonRules)
    headers: Mapping[str, str] = field(default_factory=dict)


class _Job(NamedTuple):
    """An inference to send ``due`` seconds after the start, but not before ``previous`` is set.
    ``done`` is set when the outcome is known."""

    entry: RecordedExchange
    due: float
    size: int
    previous: asyncio.Event | None
    done: asyncio.Event


class Replayer:
    """Replays ``entries`` to ``target``. After each inference or damaged part, ``on_progress`` is
    called with the result so far and the size of this inference or part in the file in bytes."""

    def __init__(
        self,
        entries: Iterator[Entry],
        target: ReplayTarget,
        options: ReplayOptions,
        on_progress: Callable[[ReplayResult, int], object] = lambda _result, _bytes: None,
    ) -> None:
        self._entries: Final = entries
        self._target: Final = target
        self._options: Final = options
        self._on_progress: Final = on_progress
        self.result: Final = ReplayResult()
        """The result so far."""
        self._reading: Final = asyncio.Lock()
        self._released: Final = asyncio.Event()
        self._batch: Final[deque[Entry]] = deque()
        self._held_bytes = 0
        self._job_count = 0
        self._last_of_sequence: Final[dict[SequenceKey, asyncio.Event]] = {}
        self._output_names: Final[set[str]] = set()
        self._started = 0.0

    async def run(self) -> ReplayResult:
        """Replay the entries and return the result. Raises RecordingError, and ComparisonRuleError
        if a rule names an output that no response has, or does not apply to the datatype of its
        output."""
        try:
            async with asyncio.TaskGroup() as senders:
                for _ in range(self._options.concurrency):
                    senders.create_task(self._send_jobs())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self.result.counts.seconds = time.monotonic() - self._started
        unknown = self._options.rules.outputs.keys() - self._output_names
        if unknown and self._output_names:
            raise ComparisonRuleError(
                f"the rules name the output '{min(unknown)}', but no response has it; expected one "
                f"of: {', '.join(sorted(self._output_names))}"
            )
        return self.result

    # ---- taking jobs, in the order of the entries

    async def _send_jobs(self) -> None:
        while (job := await self._next_job()) is not None:
            try:
                await self._run_job(job)
            finally:
                job.done.set()
                self._held_bytes -= job.size
                self._released.set()
                self._on_progress(self.result, job.entry.length)
            del job

    async def _next_job(self) -> _Job | None:
        async with self._reading:
            while (entry := await self._next_entry()) is not None:
                if isinstance(entry, RecordedExchange):
                    return await self._make_job(entry)
                self.result.add_damaged(entry.text)
                self._on_progress(self.result, entry.part.length)
            return None

    async def _next_entry(self) -> Entry | None:
        if self._job_count == self._options.max_requests:
            return None
        if not self._batch:
            self._batch.extend(await asyncio.to_thread(self._read_batch))
        return self._batch.popleft() if self._batch else None

    def _read_batch(self) -> list[Entry]:
        entries: list[Entry] = []
        size = 0
        for entry in self._entries:
            entries.append(entry)
            size += entry.size if isinstance(entry, RecordedExchange) else 0
            if len(entries) == _BATCH or size > _BATCH_BYTES:
                break
        return entries

    async def _make_job(self, entry: RecordedExchange) -> _Job:
        # The new response is likely to be as long as the recorded response.
        size = entry.size + entry.exchange.outcome.size
        while self._held_bytes and self._held_bytes + size > _MAX_HELD_BYTES:
            self._released.clear()
            await self._released.wait()
        self._held_bytes += size
        self._started = self._started or time.monotonic()
        due = self._options.pace.due(self._job_count, start_time(entry))
        self._job_count += 1
        done, previous = asyncio.Event(), None
        sequence = entry.sequence
        if sequence is not None:
            previous = self._last_of_sequence.get(sequence)
            self._last_of_sequence[sequence] = done
        return _Job(entry, due, size, previous, done)

    # ---- sending

    async def _run_job(self, job: _Job) -> None:
        wait = self._started + job.due - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        if job.previous is not None:
            await job.previous.wait()
        counts, exchange = self.result.counts, job.entry.exchange
        late = time.monotonic() - self._started - job.due
        if self._options.pace.speed is not None or self._options.pace.rate is not None:
            counts.max_delay = max(counts.max_delay, late)
        try:
            gateway = await self._gateway_for(job.entry)
        except ReplayTargetError as error:
            self.result.add_not_sent(str(error))
        else:
            outcome = await self._send(gateway, exchange)
            counts.sent += 1
            await self._compare(job.entry, outcome)
        finally:
            sequence = job.entry.sequence
            if sequence is not None and self._last_of_sequence.get(sequence) is job.done:
                del self._last_of_sequence[sequence]

    async def _gateway_for(self, entry: RecordedExchange) -> RoutingGateway:
        """Return the gateway that sends ``entry``. Raises ReplayTargetError."""
        if BODY in entry.redacted:
            raise ReplayTargetError(_BODY_REDACTED)
        return await self._target.gateway_for(entry.exchange)

    async def _send(self, gateway: RoutingGateway, exchange: Exchange) -> Outcome:
        context, request = self._context(exchange), exchange.request
        observation = Observation(request, context, is_stream=exchange.is_stream)
        responses = observation.responses
        try:
            binding = gateway.bind(request.model, request.version, context)
            if exchange.is_stream:
                async with aclosing(gateway.stream(request, binding, context)) as stream:
                    async for response in stream:
                        observation.add(response)
                        # A response beyond the recorded responses is already a difference.
                        if len(responses) > len(exchange.outcome.responses):
                            break
            else:
                responses.append(await gateway.infer(request, binding, context))
        except GatewayError as error:
            observation.fail(error)
        return observation.outcome()

    def _context(self, exchange: Exchange) -> RequestContext:
        headers = {**exchange.headers, **self._options.headers}
        if exchange.request_id:
            headers.setdefault(REQUEST_ID_HEADER, exchange.request_id)
        context = RequestContext(_PEER, headers=headers)
        context.record.protocol = exchange.protocol
        assign_request_id(context)
        return context

    async def _compare(self, entry: RecordedExchange, outcome: Outcome) -> None:
        exchange, counts = entry.exchange, self.result.counts
        if exchange.outcome.kind == Kind.CANCELLED.value:
            counts.cancelled += 1
            return
        if not (exchange.is_stream or exchange.outcome.responses or exchange.outcome.error):
            counts.unanswered += 1
            return
        if not _are_outputs(entry.redacted, exchange):
            counts.redacted += 1
            return
        expected = _without_outputs(entry.redacted, valid_outcome(exchange.outcome))
        comparison = await self._comparison(expected, _without_outputs(entry.redacted, outcome))
        counts.compared += 1
        counts.equal += comparison.is_equal
        self._add_output_names(exchange.outcome, comparison)
        self.result.summary.add(
            self._route_name(exchange),
            exchange.request.model,
            comparison,
            time=start_time(entry),
            request_id=exchange.request_id,
        )

    def _add_output_names(self, expected: Outcome, comparison: Comparison) -> None:
        """Add the names of the recorded outputs and of the compared outputs. A comparison has no
        outputs if the server failed."""
        recorded = (output.name for each in expected.responses for output in each.outputs)
        for name in chain(recorded, (each.name for each in comparison.outputs)):
            if len(self._output_names) == _MAX_OUTPUT_NAMES:
                break
            self._output_names.add(name)

    def _route_name(self, exchange: Exchange) -> str:
        """Return the recorded route, or OTHER if the recording has too many routes."""
        routes = self.result.summary.routes
        is_known = exchange.route in routes or len(routes) < _MAX_ROUTES
        return exchange.route if is_known else OTHER

    async def _comparison(self, expected: Outcome, actual: Outcome) -> Comparison:
        rules = self._options.rules
        if expected.size + actual.size <= _MAX_INLINE_BYTES:
            return compare(rules, expected, actual)
        return await asyncio.to_thread(compare, rules, expected, actual)


def _are_outputs(names: Sequence[str], exchange: Exchange) -> bool:
    """Return whether every redacted tensor is a recorded output. Otherwise it may have been an
    input, which the recorded request would lack."""
    responses = exchange.outcome.responses
    outputs = {tensor.name for response in responses for tensor in response.outputs}
    return outputs.issuperset(names) and not any(
        tensor.name in names for tensor in exchange.request.inputs
    )


def _without_outputs(names: Sequence[str], outcome: Outcome) -> Outcome:
    """Return ``outcome`` without the redacted outputs, whose recorded data is not the original
    data."""
    if not names:
        return outcome
    responses = [
        replace(
            response, outputs=tuple(each for each in response.outputs if each.name not in names)
        )
        for response in outcome.responses
    ]
    return replace(outcome, responses=tuple(responses))
