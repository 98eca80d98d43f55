"""Caches the JSON of binary requests and responses.

The head of a binary message is its JSON without the ``id``. The head contains the size of each
tensor. For a message with a cached head, only the total size of the binary data and the elements of
BYTES tensors must be checked. Heads with data in the JSON or with tensors in shared memory are not
cached.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from infergate.codecs.message_heads import (
    MAX_CACHED_HEAD,
    MessageHeadCache,
    RawEntry,
    TensorLayout,
)
from infergate.codecs.v2_rest.tensors import MessageBody
from infergate.core.limits import Limits
from infergate.core.tensor import Tensor

T = TypeVar("T")

BYTE_WEIGHT: Final = 36
"""The maximum memory in bytes that a cached head takes per byte of JSON. For example, ``{"":0}``
becomes a dictionary."""
_ID: Final = re.compile(
    rb'\s*+\{(?:\s*+"model_(?:name|version)"\s*+:\s*+"[^"\\]*+"\s*+,)*+'
    rb'\s*+"id"\s*+:\s*+"([ !#-\[\]-~]*+)"'
)
"""Matches the start of an object in which only the model's name and version may precede the ``id``,
as in the messages of most clients and servers. The id has no characters with a special meaning in
JSON, so the JSON stays valid if another such id replaces it."""


class SplitJson(NamedTuple):
    """The JSON of a message without the text of its ``id``. If the id was not found, ``id`` is None
    and ``head`` is the whole JSON."""

    head: bytes
    id: str | None


def split_json(text: bytes) -> SplitJson:
    """Split ``text`` at its ``id``."""
    match = _ID.match(text)
    if match is None:
        return SplitJson(text, None)
    start, end = match.span(1)
    return SplitJson(text[:start] + text[end:], str(match[1], "ascii"))


class JsonHead(Generic[T]):
    """A cached head, which is valid only for ``limits``. ``fields`` are the fields of the message
    without the tensors. ``id`` is the message's id if the head contains the id, or else empty."""

    __slots__ = ("_layout", "_raw", "_size", "fields", "id", "limits")

    def __init__(self, fields: T, id_: str, tensors: Sequence[Tensor], limits: Limits) -> None:
        self.fields: Final = fields
        self.id: Final = id_
        self.limits: Final = limits
        raw: list[RawEntry] = []
        position = 0
        for tensor in tensors:
            start, position = position, position + len(tensor.data)
            raw.append((start, start, position))
        self._raw: Final = raw
        self._size: Final = position
        self._layout: Final = TensorLayout(tensors)

    def fits(self, binary: memoryview, limits: Limits) -> bool:
        """Return whether a message with this head and the binary data ``binary`` passes the full
        check."""
        return (
            limits is self.limits
            and len(binary) == self._size
            and (not self._layout.has_bytes_tensors or self._layout.fits(self._raw, binary))
        )

    def read(self, binary: memoryview) -> tuple[Tensor, ...]:
        """Return the tensors in ``binary``, for which ``fits`` must be true."""
        return self._layout.read(self._raw, binary)


class JsonHeadCache(Generic[T]):
    """A cache of the heads of binary messages that passed the full check."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: Final = MessageHeadCache[JsonHead[T]](BYTE_WEIGHT)

    def find(
        self, body: MessageBody, limits: Limits
    ) -> tuple[SplitJson | None, JsonHead[T] | None]:
        """Return the split JSON of ``body``, or None if it cannot be cached. Also return the cached
        head, or None if ``body`` needs the full check."""
        binary = body.binary
        if binary is None or len(body.json) > MAX_CACHED_HEAD:
            return None, None
        split = split_json(body.json)
        head = self._heads.get(split.head)
        return split, head if head is not None and head.fits(binary, limits) else None

    def store(  # noqa: PLR0913, PLR0917 - a message
        self,
        split: SplitJson | None,
        fields: T,
        id_: str,
        tensors: Sequence[Tensor],
        binary_count: int,
        limits: Limits,
    ) -> None:
        """Cache the head of a message that passed the full check, if the head has occurred recently
        and all ``tensors`` are binary data. ``binary_count`` is the number of ``tensors`` that are
        binary data."""
        if split is None or binary_count != len(tensors):
            return
        if self._heads.has_recurred(split.head):
            head_id = id_ if split.id is None else ""
            self._heads.store(split.head, JsonHead(fields, head_id, tensors, limits))
