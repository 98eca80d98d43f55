"""Encoded images for tests."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from infergate.core.datatypes import Datatype
from infergate.core.tensor import Tensor, pack_bytes


def photo(height: int = 20, width: int = 30, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Return smooth random RGB pixels."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def encoded(image: Image.Image | npt.NDArray[Any], kind: str = "PNG", **options: Any) -> bytes:
    """Return ``image`` as a file of the format ``kind``."""
    file = io.BytesIO()
    source = image if isinstance(image, Image.Image) else Image.fromarray(image)
    source.save(file, kind, **options)
    return file.getvalue()


def images_tensor(*images: bytes, shape: tuple[int, ...] | None = None) -> Tensor:
    """Return a BYTES tensor named ``image`` with an element for each of ``images``."""
    return Tensor("image", Datatype.BYTES, shape or (len(images),), pack_bytes(images))


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_bomb(width: int, height: int, *extra: bytes) -> bytes:
    """Return a small PNG of ``width`` times ``height`` black pixels, with ``extra`` chunks."""
    packer = zlib.compressobj(9)
    row, parts = bytes(1 + (width + 7) // 8), []
    block = row * min(height, max(1, (1 << 20) // len(row)))
    remaining = height * len(row)
    while remaining > 0:
        parts.append(packer.compress(block[:remaining]))
        remaining -= len(block)
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    pixels = b"".join(parts) + packer.flush()
    chunks = chunk(b"IHDR", header), *extra, chunk(b"IDAT", pixels), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
