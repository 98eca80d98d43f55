"""gRPC server reflection, v1 and v1alpha: lets grpcurl and its like find services and messages.

https://github.com/grpc/grpc/blob/master/doc/server-reflection.md. Each request is answered by one
response, in order; what cannot be answered is an error response and the stream goes on. proto3
schemas have no extensions, so requests about those are answered UNIMPLEMENTED.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Protocol

from google.protobuf.message import DecodeError

from infergate.core.call import Call
from infergate.core.limits import KIB
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcResponse

_INVALID_ARGUMENT: Final = 3
_NOT_FOUND: Final = 5
_UNIMPLEMENTED: Final = 12
_LONGEST: Final = 64 * KIB
"""Bytes of a request, which holds one name and comes back in the answer."""


class Schema(Protocol):
    """Protobuf message classes by full name, and the files that declare them, serialized."""

    def message(self, full_name: str) -> Any:
        """The message class. Raises KeyError."""
        ...

    def files_named(self, filename: str) -> tuple[bytes, ...]:
        """A file and all that it imports. Raises KeyError."""
        ...

    def files_declaring(self, symbol: str) -> tuple[bytes, ...]:
        """The file that declares ``symbol`` and all that it imports. Raises KeyError."""
        ...


class Reflection:
    """One version of the service: ``package`` is ``grpc.reflection.v1`` or ``….v1alpha``."""

    def __init__(self, schema: Schema, package: str, services: Sequence[str]) -> None:
        self._request: Final = schema.message(f"{package}.ServerReflectionRequest")
        self._response: Final = schema.message(f"{package}.ServerReflectionResponse")
        self._services: Final = tuple(sorted(services))
        self._find: Final[dict[str, Callable[[str], tuple[bytes, ...]]]] = {
            "file_by_filename": schema.files_named,
            "file_containing_symbol": schema.files_declaring,
        }

    async def info(self, messages: AsyncIterator[Buffer], call: Call) -> AsyncIterator[RpcResponse]:
        """ServerReflectionInfo."""
        del call
        async for message in messages:
            try:
                asked = self._read(message)
            except DecodeError:
                yield RpcResponse(
                    code=_INVALID_ARGUMENT, details="the ServerReflectionRequest cannot be read"
                )
                return
            yield RpcResponse((self._answer(asked).SerializeToString(deterministic=True),))

    def _read(self, message: Buffer) -> Any:
        if len(message) > _LONGEST:
            raise DecodeError
        return self._request.FromString(message)

    def _answer(self, asked: Any) -> Any:
        answer = self._response(valid_host=asked.host, original_request=asked)
        kind = asked.WhichOneof("message_request")
        if kind == "list_services":
            for name in self._services:
                answer.list_services_response.service.add(name=name)
        elif kind in self._find:
            name = getattr(asked, kind)
            try:
                answer.file_descriptor_response.file_descriptor_proto.extend(self._find[kind](name))
            except KeyError:
                _refuse(answer, _NOT_FOUND, f"{kind}: '{name}' is not known")
        else:
            _refuse(answer, _UNIMPLEMENTED, f"{kind or 'an empty request'} is not supported")
        return answer


def _refuse(answer: Any, code: int, text: str) -> None:
    answer.error_response.error_code = code
    answer.error_response.error_message = text
