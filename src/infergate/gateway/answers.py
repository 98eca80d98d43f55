"""The responses to one inference as the body of one HTTP response, or the single one of them.

- An error before the first response is answered like that of any other request; a later one becomes
  the last element of the body.
- Each response is computed when it is pulled. Closing the body cancels the rest.
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
    binding = gateway.bind(request.model, request.version, call)
    call.renew()
    return gateway.stream(request, binding, call)


async def only(gateway: Gateway, parsed: Parsed, call: Call) -> InferResponse:
    """Return the single response to ``parsed``. Raises UNSUPPORTED, with the text of
    ``parsed.single_response_error``, if there are several responses or none."""
    async with aclosing(_asked(gateway, parsed, call)) as responses:
        first = await anext(responses, None)
        if first is None or not (first.last or await anext(responses, None) is None):
            raise GatewayError(Kind.UNSUPPORTED, parsed.only)
    return first


async def opened(
    gateway: Gateway, labour: Labour[Any, Any], parsed: Parsed, wire: Any, call: Call
) -> Any:
    """Return the HTTP response to ``wire``, parsed as ``parsed``: the first response as its body,
    the others as its ``rest``. Raises the error that comes instead of the first response."""
    call.operation = STREAMED
    call.messages = 0
    responses = _asked(gateway, parsed, call)
    body = _Body(responses, labour, parsed, wire, call)
    try:
        response = await body.pull()
        if response is None:
            response = body.end()
    except BaseException:
        await responses.aclose()
        raise
    response.rest = body
    return response


class _Body:
    """Implements ``BodyStream``."""

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
        self._counted = 0  # bytes of the latest response that are counted as memory

    async def pull(self) -> Any:
        """Return the next response in this protocol; None after the last. Raises GatewayError."""
        result = await anext(self._answers, None)
        if result is None:
            self._is_over = True
            return None
        assert self._call.messages is not None
        build, offload, call = self._codec.build_stream_response, self._labour, self._call
        call.memory.shrink(self._counted)  # the previous response has been sent
        self._counted = 0
        if offload.writes_short(result, self._parsed):
            response = build(result, self._parsed)
        else:
            response, self._counted = await offload.written(call, build, result, self._parsed)
        self._call.messages += 1
        return response

    def end(self) -> Any:
        """Return the message that says that there is no response at all."""
        return self._codec.build_stream_end(self._parsed)

    async def next(self) -> Sequence[Buffer] | None:
        """Return the next part of the body, or None at its end."""
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
        except Exception:  # noqa: BLE001 - logged; costs one request only
            _log.exception(
                "internal error while serving a stream of %s", self._call.protocol, extra=BUG
            )
            return self._failed(GatewayError(Kind.INTERNAL, "internal error"))
        body: Sequence[Buffer] | None = None if response is None else response.body
        return body

    def _failed(self, error: GatewayError) -> Sequence[Buffer]:
        self._is_over = True
        self._call.fail(error)
        body: Sequence[Buffer] = self._codec.build_stream_error(error, self._wire).body
        return body

    async def close(self) -> None:
        """Cancel the inference if the body has not been read to its end."""
        if not self._is_over:  # the client disconnected
            self._call.outcome = Kind.CANCELLED.value
        await self._answers.aclose()
