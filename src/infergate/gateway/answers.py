"""All answers to one inference as the body of one answer over HTTP, or the only one of them.

*Rule 1.* Until there is a first answer an error is told as that of any other request. After it, in
the body, as the last that is told there.
*Rule 2.* An answer is made when it is pulled. Closing the body gives up the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

from infergate.codecs.base import Parsed, Streaming
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import STREAMED, InferRequest, InferResponse
from infergate.core.tensor import Buffer
from infergate.core.vocabulary import BUG
from infergate.gateway.gateway import Gateway
from infergate.gateway.labour import Labour

_log = logging.getLogger(__name__)


def _asked(gateway: Gateway, parsed: Parsed, call: Call) -> AsyncGenerator[InferResponse, None]:
    request = parsed.operation
    assert isinstance(request, InferRequest)
    bound = gateway.bind(request.model, request.version, call)
    call.renew()
    return gateway.stream(request, bound, call)


async def only(gateway: Gateway, parsed: Parsed, call: Call) -> InferResponse:
    """The one answer to ``parsed``. Raises what it tells where there are more, or none."""
    async with aclosing(_asked(gateway, parsed, call)) as answers:
        first = await anext(answers, None)
        if first is None or not (first.last or await anext(answers, None) is None):
            raise GatewayError(Kind.UNSUPPORTED, parsed.only)
    return first


async def opened(
    gateway: Gateway, labour: Labour[Any, Any], parsed: Parsed, wire: Any, call: Call
) -> Any:
    """The answer over HTTP to ``parsed``, which is ``wire``: the first of all answers, and the
    others as its rest. Raises what comes instead of the first."""
    call.operation = STREAMED
    call.messages = 0
    answers = _asked(gateway, parsed, call)
    body = _Body(answers, labour, parsed, wire, call)
    try:
        response = await body.pull()
        if response is None:
            response = body.end()
    except BaseException:
        await answers.aclose()
        raise
    response.rest = body
    return response


class _Body:
    """Implements :class:`infergate.core.wire.Rest`."""

    def __init__(
        self,
        answers: AsyncGenerator[InferResponse, None],
        labour: Labour[Any, Any],
        parsed: Parsed,
        wire: Any,
        call: Call,
    ) -> None:
        assert isinstance(labour.codec, Streaming)
        self._codec: Final[Streaming[Any, Any]] = labour.codec
        self._answers: Final = answers
        self._labour: Final = labour
        self._parsed: Final = parsed
        self._wire: Final = wire
        self._call: Final = call
        self._is_over = False
        self._counted = 0  # bytes of the latest answer that are counted

    async def pull(self) -> Any:
        """The next answer in this protocol; None after the last. Raises GatewayError."""
        answer = await anext(self._answers, None)
        if answer is None:
            self._is_over = True
            return None
        assert self._call.messages is not None
        how, labour, call = self._codec.build_stream_response, self._labour, self._call
        call.memory.shrink(self._counted)  # the one before is sent
        self._counted = 0
        if labour.writes_short(answer, self._parsed):
            response = how(answer, self._parsed)
        else:
            response, self._counted = await labour.written(call, how, answer, self._parsed)
        self._call.messages += 1
        return response

    def end(self) -> Any:
        """What is told where there is no answer at all."""
        return self._codec.build_stream_end(self._parsed)

    async def next(self) -> Sequence[Buffer] | None:
        """See Rest."""
        if self._is_over:
            return None
        try:
            response = await self.pull()
        except GatewayError as error:
            return self._failed(error)
        except asyncio.CancelledError:
            if self._call.cut is None:
                raise
            return self._failed(self._call.cut)
        except Exception:  # noqa: BLE001 - it is logged, and costs one request
            _log.exception("a bug while serving a stream of %s", self._call.protocol, extra=BUG)
            return self._failed(GatewayError(Kind.INTERNAL, "internal error"))
        body: Sequence[Buffer] | None = None if response is None else response.body
        return body

    def _failed(self, error: GatewayError) -> Sequence[Buffer]:
        self._is_over = True
        self._call.fail(error)
        body: Sequence[Buffer] = self._codec.build_stream_error(error, self._wire).body
        return body

    async def close(self) -> None:
        """See Rest."""
        if not self._is_over:  # the client went away
            self._call.outcome = Kind.CANCELLED.value
        await self._answers.aclose()
