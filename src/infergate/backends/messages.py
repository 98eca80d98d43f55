"""The codec of a backend, run on the event loop or in a helper process.

*Rule 1.* The memory of a message is charged to its request.
*Rule 2.* Work that would block the event loop for long goes to a helper process, if there are any.
``gateway.codec_offload`` does the same for messages of clients.
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
    """Writes requests and reads responses of one backend. Without ``offload``, all work is done on
    the event loop."""

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
        """Return whether writing ``operation`` would block the event loop for too long."""
        if self._aside is None or self._textual is None or not isinstance(operation, InferRequest):
            return False
        return self._textual.text_to_backend(operation, profile) > self._limits.json_inline

    def write(
        self, operation: Operation, profile: Profile, call: Call, model: ModelMetadata | None = None
    ) -> Req:
        """Run ``Codec.build_request`` on the event loop."""
        allocation = self._writing(operation, profile, call)
        if allocation is None:
            return self._codec.build_request(operation, profile, model)
        try:
            wire = self._codec.build_request(operation, profile, model)
        except BaseException:
            allocation.failed()
            raise
        allocation.done(wire)
        return wire

    async def write_aside(
        self, operation: Operation, profile: Profile, call: Call, model: ModelMetadata | None = None
    ) -> Req:
        """Run ``Codec.build_request``, in a helper process if it takes long."""
        if not self.is_long(operation, profile):
            return self.write(operation, profile, call, model)
        allocation, cost = self._writing(operation, profile, call), 0
        if self._textual is not None and isinstance(operation, InferRequest):
            cost = self._textual.text_to_backend(operation, profile)
        build = self._codec.build_request
        try:
            wire: Req = await self._do_aside(call, cost, build, operation, profile, model)
        except BaseException:
            if allocation is not None:
                allocation.failed()
            raise
        if allocation is not None:
            allocation.done(wire)
        return wire

    def _writing(self, operation: Operation, profile: Profile, call: Call) -> Writing | None:
        """Account for the memory of a request before it is written; None if it is small."""
        if self._textual is None or not isinstance(operation, InferRequest):
            return None
        max_bytes = self._textual.size_to_backend(operation, profile)
        return None if max_bytes <= SMALL else Writing(max_bytes, call.memory)

    # ---- responses

    def read(
        self, answer: Resp, operation: Operation, call: Call, model: ModelMetadata | None = None
    ) -> Answer:
        """Run ``Codec.parse_response`` on the event loop. Raises NeedsOffloadError if it would take
        too long."""
        try:
            response = self._codec.parse_response(answer, operation, self._limits, model)
        except GatewayError as error:
            raise read_wrong(error, self._name) from None
        if isinstance(response, InferResponse) and are_long(response.outputs):
            count_tensors(response.outputs, parts(answer), call.memory)
        return response

    async def read_aside(
        self, answer: Resp, operation: Operation, call: Call, model: ModelMetadata | None = None
    ) -> Answer:
        """Run ``Codec.parse_response`` in a helper process."""
        parse = self._codec.parse_response
        response = await self._read_aside(parse, answer, operation, call, model)
        if isinstance(response, InferResponse) and are_long(response.outputs):
            count_tensors(response.outputs, parts(answer), call.memory)
        return response

    async def read_either(self, answer: Resp, operation: Operation, call: Call) -> Answer:
        """Run ``Codec.parse_response``, in a helper process if it takes long."""
        try:
            return self.read(answer, operation, call)
        except CostlyError:
            return await self.read_aside(answer, operation, call)

    async def read_streamed(
        self, message: Resp, request: InferRequest, call: Call, model: ModelMetadata | None
    ) -> InferResponse | None:
        """Run ``SupportsStreaming.parse_stream_response``, in a helper process if it takes long."""
        assert isinstance(self._codec, Streaming)
        parse = self._codec.parse_stream_response
        try:
            response: InferResponse | None = parse(message, request, self._limits, model)
        except CostlyError:
            response = await self._read_aside(parse, message, request, call, model)
        except GatewayError as error:
            raise read_wrong(error, self._name) from None
        return response

    async def _read_aside(
        self,
        how: Callable[..., T],
        answer: Resp,
        operation: Operation,
        call: Call,
        model: ModelMetadata | None,
    ) -> T:
        cost = size(parts(answer))
        textual = self._textual
        json_bytes = 0 if textual is None else textual.json_in(answer, self._limits.json)
        try:
            return await self._do_aside(
                call, cost, how, answer, operation, self._limits, model, json=json_bytes
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
