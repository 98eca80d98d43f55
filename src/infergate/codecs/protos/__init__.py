"""The protobuf schema of the gRPC services, and helpers to read and write its messages.

The schema is in a private descriptor pool, because the default pool may already contain the package
``inference`` of tritonclient or MLServer, which has other fields. ``proto/generate.py`` generates
``schema.binpb`` from ``proto/*.proto``.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool


class ProtoSchema:
    """A descriptor set in a private pool: message classes, and files for server reflection."""

    def __init__(self, descriptor_set: bytes) -> None:
        self._pool = DescriptorPool()
        self._files: dict[str, bytes] = {}
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file:
            self._files[file.name] = file.SerializeToString(deterministic=True)
            self._pool.AddSerializedFile(self._files[file.name])

    def message_class(self, full_name: str) -> Any:
        """Return a message class. Raises KeyError if the message is not in the schema."""
        descriptor = self._pool.FindMessageTypeByName(full_name)
        return message_factory.GetMessageClass(descriptor)

    def attribute(self, module: str, full_name: str) -> Any:
        """Return a message class for the ``__getattr__`` of ``module``, and set the class as an
        attribute of ``module``. Raises AttributeError."""
        try:
            found = self.message_class(full_name)
        except KeyError:
            raise AttributeError(f"the schema has no message {full_name}") from None
        setattr(sys.modules[module], full_name.rpartition(".")[2], found)
        return found

    def method_classes(self, method: str) -> tuple[Any, Any]:
        """Return the request and response classes of ``method`` (``/package.Service/Method``).
        Raises KeyError if the method is not in the schema."""
        descriptor = self._pool.FindMethodByName(method[1:].replace("/", "."))
        message_class = message_factory.GetMessageClass
        return message_class(descriptor.input_type), message_class(descriptor.output_type)

    def files_by_name(self, filename: str) -> tuple[bytes, ...]:
        """Return the serialized file ``filename`` and all its imports. Raises KeyError."""
        found: dict[str, bytes] = {}
        pending = [filename]
        while pending:
            name = pending.pop()
            if name not in found:
                found[name] = self._files[name]
                pending += [d.name for d in self._pool.FindFileByName(name).dependencies]
        return tuple(found.values())

    def files_by_symbol(self, symbol: str) -> tuple[bytes, ...]:
        """Return the file that declares ``symbol`` and all its imports. Raises KeyError."""
        try:
            file = self._pool.FindFileContainingSymbol(symbol)
        except KeyError:  # the pool's C implementation does not find methods by symbol
            file = self._pool.FindMethodByName(symbol).containing_service.file
        return self.files_by_name(file.name)


SCHEMA: Final = ProtoSchema(files(__name__).joinpath("schema.binpb").read_bytes())
"""The schema of the V2, legacy and TensorFlow Serving services, grpc.health.v1, grpc.reflection.v1
and v1alpha, and of recordings."""
