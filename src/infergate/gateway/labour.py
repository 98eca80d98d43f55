"""A codec's work on one message, done on the event loop or, where it takes long, in a helper
process.

The libraries that read and write JSON hold the interpreter lock, and so does each loop over the
parts of a message, so other requests would wait (docs/decisions/0008-helper-processes.md). A codec
estimates the text of a message beforehand (``SupportsLongText``). Other costs show up only during
the work: with ``LoopLimits`` the codec raises NeedsOffloadError before it starts a long step, and
is called again in a helper (docs/decisions/0037-costly-messages.md).

Where the work is done does not change its result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, TypeVar

from infergate.codecs.base import Codec, Numbering, Parsed, Textual, Unfinished
from infergate.core.accounting import JSON_TIMES, Writing, check_answer, parts, reading
from infergate.core.aside import Aside, client_of
from infergate.core.call import Call
from infergate.core.limits import Limits, for_loop
from infergate.core.memory import SMALL
from infergate.core.messages import Answer, InferResponse, ModelMetadata
from infergate.core.wire import HttpRequest, HttpResponse, size

Req = TypeVar("Req")
Resp = TypeVar("Resp")
T = TypeVar("T")


class Labour(Generic[Req, Resp]):
    """Runs the costly methods of ``codec``. ``offload`` None: all of them run in this process."""

    def __init__(self, codec: Codec[Req, Resp], limits: Limits, aside: Aside | None) -> None:
        self.codec: Final = codec
        self.limits: Final = limits if aside is None else for_loop(limits)
        self._aside: Final = aside
        self._textual: Final = codec if isinstance(codec, Textual) else None
        self._numbering: Final = codec if isinstance(codec, Numbering) else None
        self._text: Final = None if aside is None else self._textual
        self._short: Final = min(SMALL, limits.json_inline)
        self.parse_request: Final = partial(codec.parse_request, limits=self.limits)
        """One object, so that the helpers can keep it after its first use."""

    def reads_here(self, wire: Req) -> bool:
        """Return whether ``wire`` is read on the event loop. Checked first, so that short messages
        await nothing."""
        return self._text is None or self._text.text_in(wire) <= self.limits.json_inline

    def writes_here(self, answer: Answer, parsed: Parsed) -> bool:
        """Return whether ``response`` to ``parsed`` is written on the event loop."""
        return self._text is None or self._text.text_out(answer, parsed) <= self.limits.json_inline

    def writes_short(self, answer: Answer, parsed: Parsed) -> bool:
        """Return whether ``response`` has so little text that it can be written without
        accounting."""
        return self._textual is None or self._textual.text_out(answer, parsed) <= self._short

    async def written(
        self, call: Call, how: Callable[[Any, Parsed], Any], answer: Answer, parsed: Parsed
    ) -> tuple[Any, int]:
        """Return ``build(response, parsed)`` and the number of its bytes that are counted as
        memory. Raises OVERLOADED, and TOO_LARGE for more than ``limits.body``."""
        assert self._textual is not None
        if not isinstance(answer, InferResponse):
            if self.writes_here(answer, parsed):
                return how(answer, parsed), 0
            return await self.answered_aside(call, how, answer, parsed), 0
        min_bytes, max_bytes = self._textual.size_out(answer, parsed)
        check_answer(min_bytes, self.limits)
        writing = Writing(max_bytes, call.memory)
        try:
            if self.writes_here(answer, parsed):
                wire = how(answer, parsed)
            else:
                wire = await self.answered_aside(call, how, answer, parsed)
        except BaseException:
            writing.failed()
            raise
        length = writing.done(wire)
        check_answer(length, self.limits)
        return wire, length

    async def answered_aside(self, call: Call, how: Callable[..., Resp], *arguments: Any) -> Resp:
        """Run ``build``, a codec method that builds a response, in a helper."""
        wire = await self.aside(call, how, *arguments)
        return wire if self._numbering is None else self._numbering.numbered(wire)

    async def aside(self, call: Call, how: Callable[..., T], *arguments: Any) -> T:
        """Run ``method(*arguments)``, a method of the codec, in a helper for the client of
        ``call``."""
        assert self._aside is not None
        cost = self._cost(*arguments)
        return await self._aside.run(
            call.deadline,
            how,
            *arguments,
            client=client_of(call),
            cost=cost,
            memory=call.memory,
            size=self._allocated(arguments[0], cost),
        )

    def _cost(self, message: Any, *arguments: Any) -> int:
        """Return the most bytes that a method of the codec goes through to read or write
        ``message``."""
        if isinstance(message, Unfinished):
            return message.text
        estimator, max_bytes = self._text, self.limits.body
        if estimator is None:
            return size(parts(message))
        if isinstance(message, Answer):
            return estimator.text_out(message, arguments[0])
        if isinstance(message, HttpResponse):
            return min(estimator.text_forwarded(message, arguments[0]), max_bytes)
        return min(max(estimator.text_in(message), size(parts(message))), max_bytes)

    def _allocated(self, message: Any, cost: int) -> int:
        """Return the bytes that a helper allocates to go through ``cost`` bytes of ``message``, not
        counting the text of a response (see ``Writing``)."""
        if isinstance(message, Answer | HttpResponse):
            return cost
        if not isinstance(message, HttpRequest) or self._text is None:
            return reading(cost, 0)
        json_bytes = self._text.json_in(message, self.limits.json)
        if cost > (body_bytes := size(message.body)):  # compressed
            return cost - body_bytes + JSON_TIMES * json_bytes
        return reading(cost, json_bytes)

    def forwards_here(self, answer: Resp, asked: Req) -> bool:
        """Return whether ``response`` to ``request``, which is passed through, is rewritten on the
        event loop."""
        estimator = self._text
        return (
            estimator is None or estimator.text_forwarded(answer, asked) <= self.limits.json_inline
        )

    async def finish(
        self, unfinished: Unfinished[T], model: ModelMetadata, call: Call, *, here: bool
    ) -> T:
        """Complete ``partial`` with ``model``. ``inline``: the event loop made ``partial`` and
        tries to complete it, or raises NeedsOffloadError."""
        if self._aside is None or (here and unfinished.text <= self.limits.json_inline):
            return unfinished.finish(model)
        return await self.aside(call, _finished, unfinished, model)


def _finished(unfinished: Unfinished[T], model: ModelMetadata) -> T:
    return unfinished.finish(model)
