"""Shared memory regions: memory that clients on the same host share with the gateway. The gateway
copies data to and from regions.

A region in main memory is a POSIX shared memory object, which the gateway opens but never maps. If
a client truncates the object, ``pread`` returns less data, whereas access to a mapping would end
the process with SIGBUS (docs/decisions/0010-shared-memory-by-copy.md).

- Data is first copied and then checked, so that a client cannot change the data after the check.
- The size of the file is checked when a region is registered, and again at each use of the region.
- A region stays open while a request uses it, even if a client unregisters the region.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import Final

from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.messages import SharedMemoryRegion, SharedMemoryRegisterRequest
from infergate.core.region_ref import RegionRef
from infergate.core.tensor import Buffer

_DIRECTORY: Final = "/dev/shm"  # noqa: S108 - shm_open creates objects here on Linux
_KEY: Final = re.compile(r"/?([^/\0]{1,255})")
_RESERVED_PREFIXES: Final = ("sem.", "triton_python_backend_shm_region_")
"""Reserved prefixes: names of semaphores, and of memory that Triton shares with Python models."""
MAX_NAME_CHARS: Final = 256
_MAX_UINT64: Final = 2**64 - 1
_MAX_DEVICE: Final = 2**31 - 1
_MAX_SHOWN_CHARS: Final = 200
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_CHUNK_BYTES: Final = 1 << 30
"""Maximum number of bytes per system call. Linux copies less than 2 GiB per call."""


@dataclass(slots=True)
class RegisteredRegion:
    """A registered region, whose file is closed when no reference to the region is left."""

    description: SharedMemoryRegion
    _fd: int = -1

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def check(self, ref: RegionRef) -> None:
        """Check that the gateway can access ``ref``. Raises UNSUPPORTED if the region is on a GPU,
        and the errors of ``check_bounds``."""
        if self._fd < 0:
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"shared memory region '{ref.region}' is on a GPU: only backends with "
                "'shared_memory: forward' can use it",
            )
        self.check_bounds(ref)

    def check_bounds(self, ref: RegionRef) -> None:
        """Raise BAD_REQUEST if ``ref`` is not within the region, or if the file is now too
        short."""
        if ref.offset + ref.size > self.description.size:
            raise bad_request(
                f"Invalid offset + byte size for shared memory region: '{ref.region}': "
                f"{ref.offset} + {ref.size} bytes exceed its size of {self.description.size}"
            )
        end = self.description.offset + ref.offset + ref.size
        if self._fd >= 0 and end > os.fstat(self._fd).st_size:
            raise _truncated(ref)

    def span(self, ref: RegionRef) -> tuple[tuple[int, int], int, int]:
        """Return the device and inode of the file, and the byte offsets of the start and end of
        ``ref`` in the file. Regions with different names may overlap."""
        status = os.fstat(self._fd)
        begin = self.description.offset + ref.offset
        return (status.st_dev, status.st_ino), begin, begin + ref.size

    def read(self, ref: RegionRef) -> Buffer:
        """Return a copy of the bytes at ``ref``. Raises the errors of ``check``."""
        self.check(ref)
        begin = self.description.offset + ref.offset
        parts: list[bytes] = []
        remaining = ref.size
        while remaining:
            part = os.pread(
                self._fd, min(remaining, _MAX_CHUNK_BYTES), begin + ref.size - remaining
            )
            if not part:
                raise _truncated(ref)
            parts.append(part)
            remaining -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, ref: RegionRef, data: Buffer) -> None:
        """Write ``data`` to ``ref``, which must be large enough. Raises the errors of ``check``."""
        self.check(ref)
        begin = self.description.offset + ref.offset
        view = memoryview(data).cast("B")
        written = 0
        while written < len(view):
            written += os.pwrite(
                self._fd, view[written : written + _MAX_CHUNK_BYTES], begin + written
            )


def open_region(request: SharedMemoryRegisterRequest) -> RegisteredRegion:
    """Open the region of ``request``. Raises BAD_REQUEST with the error text of Triton."""
    description = SharedMemoryRegion(
        request.name, request.key, request.offset, request.size, request.device
    )
    if request.device is not None:
        return RegisteredRegion(description)
    match = _KEY.fullmatch(request.key)
    name = match[1] if match else ""
    if name in ("", ".", "..") or name.startswith(_RESERVED_PREFIXES):
        raise _cannot_open(request.key)
    try:
        region = RegisteredRegion(description, os.open(f"{_DIRECTORY}/{name}", _FLAGS))
    except (OSError, ValueError):  # ValueError: the name is not valid UTF-8
        raise _cannot_open(request.key) from None
    status = os.fstat(region._fd)  # noqa: SLF001 - same module
    if not stat.S_ISREG(status.st_mode):
        raise _cannot_open(request.key)
    if request.size < 1 or request.offset + request.size > status.st_size:
        raise bad_request(
            f"Invalid shared memory region: '{request.key[:_MAX_SHOWN_CHARS]}': "
            f"{request.size} bytes from {request.offset} exceed its size of {status.st_size}"
        )
    return region


def check_registration(request: SharedMemoryRegisterRequest) -> None:
    """Raise BAD_REQUEST if the region's name is invalid, or if a number exceeds the range of a
    protocol's field."""
    name = request.name
    for field, number, maximum in (
        ("offset", request.offset, _MAX_UINT64),
        ("byte size", request.size, _MAX_UINT64),
        ("device", request.device or 0, _MAX_DEVICE),
    ):
        if not 0 <= number <= maximum:
            raise bad_request(f"the {field} of a shared memory region must be from 0 to {maximum}")
    if not name:
        raise bad_request("the name of a shared memory region is empty")
    if len(name) > MAX_NAME_CHARS:
        raise bad_request(
            f"the name of a shared memory region has {len(name)} characters; the limit is "
            f"{MAX_NAME_CHARS}"
        )


def _cannot_open(key: str) -> GatewayError:
    return bad_request(f"Unable to open shared memory region: '{key[:_MAX_SHOWN_CHARS]}'")


def _truncated(ref: RegionRef) -> GatewayError:
    return bad_request(
        f"shared memory region '{ref.region}' has become shorter than {ref.offset} + "
        f"{ref.size} bytes"
    )
