"""A codec's work on one message: done here, or aside where the message holds much text.

*Why.* The libraries that read and write JSON hold the interpreter while they do, so a long document
would keep every other request waiting (docs/decisions/0008-long-json-aside.md).
*Rule.* Where it is done changes nothing about what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from infergate.codecs.base import Codec, Parsed, Textual, Unfinished
from infergate.core.accounting import Writing, check_answer
from infergate.core.call import ANONYMOUS, Call
from infergate.core.limits import Limits
from infergate.core.memory import SMALL, MemoryShare
from infergate.core.messages import Answer, InferResponse, ModelMetadata
from infergate.core.wire import HttpRequest, HttpResponse, size

Req = TypeVar("Req")
Resp = TypeVar("Resp")
T = TypeVar("T")


class Aside(Protocol):
    """Runs functions in other processes."""

    async def run(
        self,
        deadline: float | None,
        function: Callable[..., T],
        *arguments: Any,
        client: tuple[str, str],
        cost: int,
        begin: Callable[[], None] | None = None,
    ) -> T:
        """``function(*arguments)`` done before ``deadline``, all of it pickled; the function, which
        holds nothing of one request, only now and then. ``client`` is an identity or address, and a
        connection, which processes are shared fairly between by the ``cost`` of their jobs: bytes
        that are gone through; ``begin`` is called, and may raise, when its turn has come. Raises
        GatewayError: the function's own, TIMEOUT, OVERLOADED, or
        INTERNAL."""
        ...


class Labour(Generic[Req, Resp]):
    """``codec``'s costly work. ``aside`` None: all of it is done here."""

    def __init__(self, codec: Codec[Req, Resp], limits: Limits, aside: Aside | None) -> None:
        self.codec: Final = codec
        self.limits: Final = limits
        self._aside: Final = aside
        self._textual: Final = codec if isinstance(codec, Textual) else None
        self._text: Final = None if aside is None else self._textual
        self._short: Final = min(SMALL, limits.json_inline)
        self.parse_request: Final = partial(codec.parse_request, limits=limits)
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
            return how(answer, parsed), 0
        least, most = self._textual.size_out(answer, parsed)
        check_answer(least, self.limits)
        writing = Writing(most, call.memory)
        try:
            if self.writes_here(answer, parsed):
                wire = how(answer, parsed)
            else:
                wire = await self.aside(call, how, answer, parsed)
        except BaseException:
            writing.failed()
            raise
        length = writing.done(wire)
        check_answer(length, self.limits)
        return wire, length

    async def aside(self, call: Call, how: Callable[..., T], *arguments: Any) -> T:
        """``how(*arguments)``, a method of the codec, done aside for the client of ``call``."""
        assert self._aside is not None
        client, cost = _client(call), self._cost(*arguments)
        inflated = _inflated(arguments[0], cost)
        if not inflated:
            return await self._aside.run(call.deadline, how, *arguments, client=client, cost=cost)
        reserved = _Reserved(call.memory, inflated)
        try:
            return await self._aside.run(
                call.deadline, how, *arguments, client=client, cost=cost, begin=reserved.begin
            )
        finally:
            reserved.end()

    def _cost(self, message: Any, *arguments: Any) -> int:
        """Bytes that a method of the codec goes through to read or write ``message``, at most."""
        if isinstance(message, Unfinished):
            return message.text
        text, most = self._text, self.limits.body
        if text is None:
            return 0
        if isinstance(message, Answer):
            return text.text_out(message, arguments[0])
        if isinstance(message, HttpResponse):
            return min(text.text_forwarded(message, arguments[0]), most)
        return min(text.text_in(message), most)

    def forwards_here(self, answer: Resp, asked: Req) -> bool:
        """Whether ``answer`` to ``asked``, which goes on as it came, is made ready here."""
        text = self._text
        return text is None or text.text_forwarded(answer, asked) <= self.limits.json_inline

    async def finish(self, unfinished: Unfinished[T], model: ModelMetadata, call: Call) -> T:
        """``Unfinished.finish``."""
        if self._aside is None or unfinished.text <= self.limits.json_inline:
            return unfinished.finish(model)
        return await self.aside(call, _finished, unfinished, model)


class _Reserved:
    """Memory for what a helper inflates, ``size`` bytes at most, from ``begin`` to ``end``: what
    has come of it by then is counted by who has it."""

    def __init__(self, memory: MemoryShare, size: int) -> None:
        self._memory: Final = memory
        self._size: Final = size
        self._has_begun = False

    def begin(self) -> None:
        """Raises OVERLOADED."""
        self._memory.grow(self._size)
        self._has_begun = True

    def end(self) -> None:
        """Give it back, if it was had."""
        if self._has_begun:
            self._memory.shrink(self._size)


def _inflated(message: Any, cost: int) -> int:
    """How much longer a ``message`` that ``cost`` bytes are gone through for is inflated than it is
    now; 0 where it is not compressed."""
    if isinstance(message, HttpRequest | HttpResponse):
        return max(0, cost - size(message.body))
    return 0


def _client(call: Call) -> tuple[str, str]:
    """Who shares helpers with others: an identity, where it tells clients apart, else an address;
    and the connection."""
    peer, identity = call.peer, call.identity
    known = identity and identity != ANONYMOUS
    return identity if known else peer.rpartition(":")[0], peer


def _finished(unfinished: Unfinished[T], model: ModelMetadata) -> T:
    return unfinished.finish(model)
