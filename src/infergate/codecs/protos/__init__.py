"""The protobuf schema of the gRPC services, kept apart from everybody else's.

*Rule 1.* The descriptors live in a private pool. A process may already hold tritonclient's or
MLServer's package ``inference`` in the default pool, under other files and with other fields; ours
never meets them, in either order of import.
*Rule 2.* ``schema.binpb`` is what ``proto/generate.py`` makes of ``proto/*.proto``.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool


class Schema:
    """A descriptor set in a pool of its own: message classes, and files for server reflection."""

    def __init__(self, descriptor_set: bytes) -> None:
        self._pool = DescriptorPool()
        self._files: dict[str, bytes] = {}
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file:
            self._files[file.name] = file.SerializeToString(deterministic=True)
            self._pool.AddSerializedFile(self._files[file.name])

    def message(self, full_name: str) -> Any:
        """The message class. Raises KeyError for a name the schema does not hold."""
        descriptor = self._pool.FindMessageTypeByName(full_name)
        return message_factory.GetMessageClass(descriptor)

    def messages_of(self, method: str) -> tuple[Any, Any]:
        """The classes of the request and the answer of ``method``, ``/package.Service/Method``.
        Raises KeyError for one that the schema does not hold."""
        found = self._pool.FindMethodByName(method[1:].replace("/", "."))
        made = message_factory.GetMessageClass
        return made(found.input_type), made(found.output_type)

    def files_named(self, filename: str) -> tuple[bytes, ...]:
        """The serialized file of this name and all that it imports. Raises KeyError."""
        found: dict[str, bytes] = {}
        wanted = [filename]
        while wanted:
            name = wanted.pop()
            if name not in found:
                found[name] = self._files[name]
                wanted += [d.name for d in self._pool.FindFileByName(name).dependencies]
        return tuple(found.values())

    def files_declaring(self, symbol: str) -> tuple[bytes, ...]:
        """The file that declares ``symbol`` and all that it imports. Raises KeyError."""
        try:
            file = self._pool.FindFileContainingSymbol(symbol)
        except KeyError:  # the pool's C implementation finds no methods this way
            file = self._pool.FindMethodByName(symbol).containing_service.file
        return self.files_named(file.name)


SCHEMA: Final = Schema(files(__name__).joinpath("schema.binpb").read_bytes())
"""The V2 and the legacy inference service, grpc.health.v1, grpc.reflection.v1 and v1alpha."""
