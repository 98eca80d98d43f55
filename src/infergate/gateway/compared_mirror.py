"""Sends copies of inferences to a mirror, and compares the mirror's responses with the served
responses.

- The served responses are kept until the mirror has responded. If the served responses exceed a
  limit, the copy is sent, but the comparison is dropped and counted.
- After the copy, a share of the inferences is also sent to the noise baseline: a second server with
  the old model, or the backend that served the inference. A request of a sequence is never sent
  twice to the same backend, because the second request would change the sequence's state.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from infergate.core.errors import GatewayError, Kind
from infergate.core.exchange import Exchange, Outcome
from infergate.core.memory import DetachedMemoryAccount
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import RequestContext
from infergate.core.sequences import sequence_key
from infergate.gateway.comparer import ComparisonJob, RouteComparer
from infergate.gateway.mirror import copy_context
from infergate.gateway.observation import Observation
from infergate.gateway.route_plan import RoutePlan
from infergate.routing.split import pick_target

MAX_RESPONSES: Final = 2048
"""Maximum number of responses in a stream that is compared."""


class KeptInference(Observation):
    """An inference whose responses are kept for a comparison."""

    target: RoutePlan | None = None
    """The target that served the inference."""
    is_complete = True
    """Whether all responses were kept."""

    def keep(self, response: InferResponse) -> None:
        """Keep ``response`` of a stream if no limit has been reached."""
        if not self.is_complete:
            return
        if len(self.responses) == MAX_RESPONSES:
            self.release()
            self.is_complete = False
        else:
            self.is_complete = self.add(response)

    def fail(self, error: BaseException) -> None:
        """Record that ``error`` ended the inference. A caller that closes a stream after its last
        response does not fail the inference."""
        if not (isinstance(error, GeneratorExit) and self.responses and self.responses[-1].is_last):
            super().fail(error)

    async def run(self, target: RoutePlan) -> Outcome | None:
        """Send the request to ``target``. Return the outcome, or None if the responses exceed a
        limit."""
        try:
            if not self.is_stream:
                self.responses.append(await target.infer(self.request, self.context))
            else:
                async with aclosing(target.stream(self.request, self.context)) as responses:
                    async for response in responses:
                        self.keep(response)
        except GatewayError as error:
            self.fail(error)
        return self.outcome() if self.is_complete else None


class ComparedMirror:
    """Sends copies to ``mirror``, and ``baseline_percent`` percent of the copies to the baseline.
    If ``baseline`` is None, the baseline is the backend that served the inference."""

    def __init__(
        self,
        comparer: RouteComparer,
        mirror: RoutePlan,
        baseline: RoutePlan | None,
        baseline_percent: float,
    ) -> None:
        self.comparer: Final = comparer
        self._mirror: Final = mirror
        self._baseline: Final = baseline
        self._baseline_percentages: Final = (baseline_percent,)

    @staticmethod
    def keep(request: InferRequest, context: RequestContext, *, is_stream: bool) -> KeptInference:
        """Return an object that keeps the responses to ``request``."""
        return KeptInference(request, context, is_stream=is_stream)

    async def run(
        self, kept: KeptInference, exchange: Exchange, key: str, memory: DetachedMemoryAccount
    ) -> None:
        """Send the copy of ``exchange``, and submit the comparison. ``key`` determines whether the
        request is also sent to the baseline. ``memory`` is the account of the copy. Raises the
        copy's error."""
        comparer, mirrored, baseline = self.comparer, None, None
        try:
            mirrored = await self._send(self._mirror, kept, memory)
            target = self._baseline_target(kept, key)
            if target is not None:
                baseline = await self._send(target, kept, memory)
        except Exception:
            comparer.count("error")
            raise
        if mirrored is None or not kept.is_complete or exchange.outcome.kind == _CANCELLED:
            comparer.count("dropped")
        else:
            comparer.submit(ComparisonJob(exchange, mirrored, baseline), memory)
        if mirrored is not None and mirrored.error is not None:
            raise mirrored.error

    @staticmethod
    async def _send(
        target: RoutePlan, kept: KeptInference, memory: DetachedMemoryAccount
    ) -> Outcome | None:
        context = copy_context(kept.context, memory)
        target.binding.apply_to(context)
        return await KeptInference(kept.request, context, is_stream=kept.is_stream).run(target)

    def _baseline_target(self, kept: KeptInference, key: str) -> RoutePlan | None:
        target = self._baseline
        if target is None and sequence_key(kept.request) is None:
            target = kept.target
        if pick_target(self._baseline_percentages, key) is None:
            return None
        return target


_CANCELLED: Final = Kind.CANCELLED.value
