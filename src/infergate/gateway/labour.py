"""A codec's work on one message: done here, or aside where the message holds much text.

*Why.* The libraries that read and write JSON hold the interpreter while they do, so a long document
would keep every other request waiting (docs/decisions/0008-long-json-aside.md).
*Rule.* Where it is done changes nothing about what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from infergate.codecs.base import Codec, Parsed, Textual, Unfinished
from infergate.core.call import Call
from infergate.core.limits import Limits
from infergate.core.messages import Answer, ModelMetadata

Req = TypeVar("Req")
Resp = TypeVar("Resp")
T = TypeVar("T")


class Aside(Protocol):
    """Runs functions in other processes."""

    async def run(self, deadline: float | None, function: Callable[..., T], *arguments: Any) -> T:
        """``function(*arguments)`` done before ``deadline``, all of it pickled. Raises
        GatewayError: the function's own, TIMEOUT, or INTERNAL."""
        ...


class Labour(Generic[Req, Resp]):
    """``codec``'s costly work. ``aside`` None: all of it is done here."""

    def __init__(self, codec: Codec[Req, Resp], limits: Limits, aside: Aside | None) -> None:
        self.codec: Final = codec
        self.limits: Final = limits
        self._aside: Final = aside
        self._text: Final = codec if aside is not None and isinstance(codec, Textual) else None

    async def parse(self, wire: Req, call: Call) -> Parsed | Unfinished:
        """``Codec.parse_request``."""
        return await self.read(self.codec.parse_request, wire, call)

    async def read(self, how: Callable[[Req, Limits], T], wire: Req, call: Call) -> T:
        """``how``: a method of the codec that reads all of ``wire``."""
        if self._text is None or self._text.text_in(wire) <= self.limits.json_inline:
            return how(wire, self.limits)
        assert self._aside is not None
        return await self._aside.run(call.deadline, how, wire, self.limits)

    async def finish(self, unfinished: Unfinished, model: ModelMetadata, call: Call) -> Parsed:
        """``Unfinished.finish``."""
        if self._aside is None or unfinished.text <= self.limits.json_inline:
            return unfinished.finish(model)
        return await self._aside.run(call.deadline, unfinished.finish, model)

    async def build(self, answer: Answer, parsed: Parsed, call: Call) -> Resp:
        """``Codec.build_response``."""
        return await self.write(self.codec.build_response, answer, parsed, call)

    async def write(
        self, how: Callable[[Any, Parsed], Resp], answer: Answer, parsed: Parsed, call: Call
    ) -> Resp:
        """``how``: a method of the codec that writes ``answer`` to ``parsed``."""
        if self._text is None or self._text.text_out(answer, parsed) <= self.limits.json_inline:
            return how(answer, parsed)
        assert self._aside is not None
        return await self._aside.run(call.deadline, how, answer, parsed)
