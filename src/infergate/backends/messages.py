"""A codec's work towards a backend: requests are written and answers read, here or in a helper.

*Rule 1.* What a message takes in memory is counted for the request that it belongs to.
*Rule 2.* What would take the event loop long is done by a helper, if there are any: see
``gateway.labour``, which does the same towards clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from infergate.backends.base import read_wrong
from infergate.codecs.base import Codec, Profile, Streaming, Textual
from infergate.core.accounting import Writing, are_long, count_tensors, parts, reading
from infergate.core.aside import Aside, client_of
from infergate.core.call import Call
from infergate.core.errors import GatewayError
from infergate.core.limits import CostlyError, Limits, for_loop
from infergate.core.memory import SMALL
from infergate.core.messages import (
    Answer,
    InferRequest,
    InferResponse,
    ModelMetadata,
    Operation,
)
from infergate.core.wire import size

Req = TypeVar("Req")
Resp = TypeVar("Resp")
T = TypeVar("T")


class Messages(Generic[Req, Resp]):
    """Of the backend ``name``, which speaks ``codec``. ``aside`` None: all is done here."""

    def __init__(
        self, name: str, codec: Codec[Req, Resp], limits: Limits, aside: Aside | None
    ) -> None:
        self._name: Final = name
        self._codec: Final = codec
        self._limits: Final = limits if aside is None else for_loop(limits)
        self._aside: Final = aside
        self._textual: Final = codec if isinstance(codec, Textual) else None

    # ---- requests

    def is_long(self, operation: Operation, profile: Profile) -> bool:
        """Whether ``operation`` takes too long to write here."""
        if self._aside is None or self._textual is None or not isinstance(operation, InferRequest):
            return False
        return self._textual.text_to_backend(operation, profile) > self._limits.json_inline

    def write(
        self, operation: Operation, profile: Profile, call: Call, model: ModelMetadata | None = None
    ) -> Req:
        """``Codec.build_request``, here."""
        writing = self._writing(operation, profile, call)
        if writing is None:
            return self._codec.build_request(operation, profile, model)
        try:
            wire = self._codec.build_request(operation, profile, model)
        except BaseException:
            writing.failed()
            raise
        writing.done(wire)
        return wire

    async def write_aside(
        self, operation: Operation, profile: Profile, call: Call, model: ModelMetadata | None = None
    ) -> Req:
        """The same in a helper, where it takes long."""
        if not self.is_long(operation, profile):
            return self.write(operation, profile, call, model)
        writing, cost = self._writing(operation, profile, call), 0
        if self._textual is not None and isinstance(operation, InferRequest):
            cost = self._textual.text_to_backend(operation, profile)
        how = self._codec.build_request
        try:
            wire: Req = await self._do_aside(call, cost, how, operation, profile, model)
        except BaseException:
            if writing is not None:
                writing.failed()
            raise
        if writing is not None:
            writing.done(wire)
        return wire

    def _writing(self, operation: Operation, profile: Profile, call: Call) -> Writing | None:
        """Rule 1; None for what is short."""
        if self._textual is None or not isinstance(operation, InferRequest):
            return None
        most = self._textual.size_to_backend(operation, profile)
        return None if most <= SMALL else Writing(most, call.memory)

    # ---- answers

    def read(
        self, answer: Resp, operation: Operation, call: Call, model: ModelMetadata | None = None
    ) -> Answer:
        """``Codec.parse_response``, here. Raises CostlyError for what takes long."""
        try:
            read = self._codec.parse_response(answer, operation, self._limits, model)
        except GatewayError as error:
            raise read_wrong(error, self._name) from None
        if isinstance(read, InferResponse) and are_long(read.outputs):
            count_tensors(read.outputs, parts(answer), call.memory)
        return read

    async def read_aside(
        self, answer: Resp, operation: Operation, call: Call, model: ModelMetadata | None = None
    ) -> Answer:
        """The same in a helper."""
        how = self._codec.parse_response
        read = await self._read_aside(how, answer, operation, call, model)
        if isinstance(read, InferResponse) and are_long(read.outputs):
            count_tensors(read.outputs, parts(answer), call.memory)
        return read

    async def read_either(self, answer: Resp, operation: Operation, call: Call) -> Answer:
        """The same here or, where it takes long, in a helper."""
        try:
            return self.read(answer, operation, call)
        except CostlyError:
            return await self.read_aside(answer, operation, call)

    async def read_streamed(
        self, message: Resp, request: InferRequest, call: Call, model: ModelMetadata | None
    ) -> InferResponse | None:
        """``Streaming.parse_stream_response``, here or in a helper."""
        assert isinstance(self._codec, Streaming)
        how = self._codec.parse_stream_response
        try:
            found: InferResponse | None = how(message, request, self._limits, model)
        except CostlyError:
            found = await self._read_aside(how, message, request, call, model)
        except GatewayError as error:
            raise read_wrong(error, self._name) from None
        return found

    async def _read_aside(
        self,
        how: Callable[..., T],
        answer: Resp,
        operation: Operation,
        call: Call,
        model: ModelMetadata | None,
    ) -> T:
        cost = size(parts(answer))
        text = self._textual
        json = 0 if text is None else text.json_in(answer, self._limits.json)
        try:
            return await self._do_aside(
                call, cost, how, answer, operation, self._limits, model, json=json
            )
        except GatewayError as error:
            raise read_wrong(error, self._name) from None

    async def _do_aside(
        self, call: Call, cost: int, how: Callable[..., T], *arguments: Any, json: int = 0
    ) -> T:
        assert self._aside is not None
        return await self._aside.run(
            call.deadline,
            how,
            *arguments,
            client=client_of(call),
            cost=cost,
            memory=call.memory,
            size=reading(cost, json),
        )
