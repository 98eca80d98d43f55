"""A codec's work on one message: done here, or aside where it takes long.

*Why.* The libraries that read and write JSON hold the interpreter while they do, and so does each
loop over the parts of a message: others would wait (docs/decisions/0008-long-json-aside.md).
*How.* A codec estimates the text of a message, which is known beforehand (``Textual``). All else
it finds out on the way: with ``LoopLimits`` it raises CostlyError instead of beginning what takes
long, and is called again in a helper (docs/decisions/0037-costly-work.md).
*Rule.* Where it is done changes nothing about what comes of it.
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
    """``codec``'s costly work. ``aside`` None: all of it is done here."""

    def __init__(self, codec: Codec[Req, Resp], limits: Limits, aside: Aside | None) -> None:
        self.codec: Final = codec
        self.limits: Final = limits if aside is None else for_loop(limits)
        self._aside: Final = aside
        self._textual: Final = codec if isinstance(codec, Textual) else None
        self._numbering: Final = codec if isinstance(codec, Numbering) else None
        self._text: Final = None if aside is None else self._textual
        self._short: Final = min(SMALL, limits.json_inline)
        self.parse_request: Final = partial(codec.parse_request, limits=self.limits)
        """One object, which is known aside once it was there."""

    def reads_here(self, wire: Req) -> bool:
        """Whether ``wire`` is read here. Asked first, so that short messages await nothing."""
        return self._text is None or self._text.text_in(wire) <= self.limits.json_inline

    def writes_here(self, answer: Answer, parsed: Parsed) -> bool:
        """Whether ``answer`` to ``parsed`` is written here."""
        return self._text is None or self._text.text_out(answer, parsed) <= self.limits.json_inline

    def writes_short(self, answer: Answer, parsed: Parsed) -> bool:
        """Whether ``answer`` has so little text that writing it needs no more thought."""
        return self._textual is None or self._textual.text_out(answer, parsed) <= self._short

    async def written(
        self, call: Call, how: Callable[[Any, Parsed], Any], answer: Answer, parsed: Parsed
    ) -> tuple[Any, int]:
        """``how(answer, parsed)``, the codec's way to write it, and how many bytes of that are
        counted. Raises OVERLOADED, and TOO_LARGE for more than ``limits.body``."""
        assert self._textual is not None
        if not isinstance(answer, InferResponse):
            if self.writes_here(answer, parsed):
                return how(answer, parsed), 0
            return await self.answered_aside(call, how, answer, parsed), 0
        least, most = self._textual.size_out(answer, parsed)
        check_answer(least, self.limits)
        writing = Writing(most, call.memory)
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
        """The same as ``aside``, of a method that makes an answer."""
        wire = await self.aside(call, how, *arguments)
        return wire if self._numbering is None else self._numbering.numbered(wire)

    async def aside(self, call: Call, how: Callable[..., T], *arguments: Any) -> T:
        """``how(*arguments)``, a method of the codec, done aside for the client of ``call``."""
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
        """Bytes that a method of the codec goes through to read or write ``message``, at most."""
        if isinstance(message, Unfinished):
            return message.text
        text, most = self._text, self.limits.body
        if text is None:
            return size(parts(message))
        if isinstance(message, Answer):
            return text.text_out(message, arguments[0])
        if isinstance(message, HttpResponse):
            return min(text.text_forwarded(message, arguments[0]), most)
        return min(max(text.text_in(message), size(parts(message))), most)

    def _allocated(self, message: Any, cost: int) -> int:
        """Bytes that a helper allocates to go through ``cost`` bytes of ``message``, beside the
        text of an answer (``Writing``)."""
        if isinstance(message, Answer | HttpResponse):
            return cost
        if not isinstance(message, HttpRequest) or self._text is None:
            return reading(cost, 0)
        json = self._text.json_in(message, self.limits.json)
        if cost > (held := size(message.body)):  # compressed
            return cost - held + JSON_TIMES * json
        return reading(cost, json)

    def forwards_here(self, answer: Resp, asked: Req) -> bool:
        """Whether ``answer`` to ``asked``, which goes on as it came, is made ready here."""
        text = self._text
        return text is None or text.text_forwarded(answer, asked) <= self.limits.json_inline

    async def finish(
        self, unfinished: Unfinished[T], model: ModelMetadata, call: Call, *, here: bool
    ) -> T:
        """``Unfinished.finish``; ``here``: the event loop made ``unfinished`` and tries to finish
        it, or raises CostlyError."""
        if self._aside is None or (here and unfinished.text <= self.limits.json_inline):
            return unfinished.finish(model)
        return await self.aside(call, _finished, unfinished, model)


def _finished(unfinished: Unfinished[T], model: ModelMetadata) -> T:
    return unfinished.finish(model)
