"""gRPC server reflection, v1 and v1alpha, with which grpcurl and similar tools list services and
messages.

The specification is https://github.com/grpc/grpc/blob/master/doc/server-reflection.md. Each request
gets one response, in order. The response to an unknown name is an error, after which the stream
continues. Requests about extensions, which proto3 schemas do not have, get UNIMPLEMENTED."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Protocol

from google.protobuf.message import DecodeError

from infergate.core.limits import KIB
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcResponse

_INVALID_ARGUMENT: Final = 3
_NOT_FOUND: Final = 5
_UNIMPLEMENTED: Final = 12
_MAX_REQUEST_BYTES: Final = 64 * KIB
"""Maximum bytes of a request, which contains one name and is repeated in the response."""


class ReflectionSchema(Protocol):
    """Message classes by full name, and the serialized ``.proto`` files that declare them."""

    def message_class(self, full_name: str) -> Any:
        """Return the class of the message ``full_name``. Raises KeyError."""
        ...

    def files_by_name(self, filename: str) -> tuple[bytes, ...]:
        """Return the file ``filename`` and all files that it imports. Raises KeyError."""
        ...

    def files_by_symbol(self, symbol: str) -> tuple[bytes, ...]:
        """Return the file that declares ``symbol`` and all files that it imports. Raises
        KeyError."""
        ...


class ReflectionService:
    """One version of the service. ``package`` is ``grpc.reflection.v1`` or
    ``grpc.reflection.v1alpha``."""

    def __init__(self, schema: ReflectionSchema, package: str, services: Sequence[str]) -> None:
        self._request_type: Final = schema.message_class(f"{package}.ServerReflectionRequest")
        self._response_type: Final = schema.message_class(f"{package}.ServerReflectionResponse")
        self._services: Final = tuple(sorted(services))
        self._lookups: Final[dict[str, Callable[[str], tuple[bytes, ...]]]] = {
            "file_by_filename": schema.files_by_name,
            "file_containing_symbol": schema.files_by_symbol,
        }

    async def info(
        self, messages: AsyncIterator[Buffer], context: RequestContext
    ) -> AsyncIterator[RpcResponse]:
        """Serve ServerReflectionInfo."""
        del context
        async for message in messages:
            try:
                request = self._parse(message)
            except DecodeError:
                yield RpcResponse(
                    code=_INVALID_ARGUMENT,
                    details="the ServerReflectionRequest is malformed or longer than 64 KiB",
                )
                return
            yield RpcResponse((self._respond(request).SerializeToString(deterministic=True),))

    def _parse(self, message: Buffer) -> Any:
        if len(message) > _MAX_REQUEST_BYTES:
            raise DecodeError
        return self._request_type.FromString(message)

    def _respond(self, request: Any) -> Any:
        response = self._response_type(valid_host=request.host, original_request=request)
        kind = request.WhichOneof("message_request")
        if kind == "list_services":
            for name in self._services:
                response.list_services_response.service.add(name=name)
        elif kind in self._lookups:
            name = getattr(request, kind)
            try:
                response.file_descriptor_response.file_descriptor_proto.extend(
                    self._lookups[kind](name)
                )
            except KeyError:
                _set_error(response, _NOT_FOUND, f"{kind}: '{name}' is not known")
        else:
            _set_error(response, _UNIMPLEMENTED, f"{kind or 'an empty request'} is not supported")
        return response


def _set_error(response: Any, code: int, text: str) -> None:
    response.error_response.error_code = code
    response.error_response.error_message = text
