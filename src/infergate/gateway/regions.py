"""Memory that clients on the same host share with the gateway: regions, read and written by copy.

A region is a POSIX shared memory object, held open by its file descriptor and never mapped:
``pread`` and ``pwrite`` report that a client truncated the object meanwhile, while access to a
mapping would end the process with SIGBUS. See docs/decisions/0010-shared-memory-by-copy.md.

- Data that is read is copied first and then checked, so a client cannot change it afterwards.
- A region is compared with the size of its file when it is registered and again at each use.
- A region stays open while a request uses it, even if it is unregistered meanwhile.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import Final

from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.messages import SharedMemoryRegion, SharedMemoryRegisterRequest
from infergate.core.places import Place
from infergate.core.tensor import Buffer

_FOLDER: Final = "/dev/shm"  # noqa: S108 - where shm_open keeps its objects on Linux
_KEY: Final = re.compile(r"/?([^/\0]{1,255})")
_FOREIGN: Final = ("sem.", "triton_python_backend_shm_region_")
"""Prefixes of names that clients may not use: semaphores, and the memory that Triton shares with
its Python models."""
LONGEST_NAME: Final = 256
_LARGEST: Final = 2**64 - 1
_LARGEST_DEVICE: Final = 2**31 - 1
_SHOWN: Final = 200
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_AT_ONCE: Final = 1 << 30
"""Bytes per system call, which moves at most 2 GiB."""


@dataclass(slots=True)
class Region:
    """A registered region. Its file is closed when the last reference to it is gone."""

    told: SharedMemoryRegion
    _file: int = -1

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def check(self, place: Place) -> None:
        """Check like ``check_bounds``; also raises UNSUPPORTED for memory on a GPU."""
        if self._file < 0:
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"shared memory region '{place.region}' is on a GPU: only a backend that reads "
                "regions itself can be given it",
            )
        self.check_bounds(place)

    def check_bounds(self, place: Place) -> None:
        """Raise BAD_REQUEST if ``ref`` is not within the region, or no longer within its file."""
        if place.offset + place.size > self.told.size:
            raise bad_request(
                f"Invalid offset + byte size for shared memory region: '{place.region}': "
                f"{place.offset} + {place.size} bytes, it has {self.told.size}"
            )
        end = self.told.offset + place.offset + place.size
        if self._file >= 0 and end > os.fstat(self._file).st_size:
            raise _cut(place)

    def span(self, place: Place) -> tuple[tuple[int, int], int, int]:
        """Return the identity of the file and the range of ``ref`` in it: two regions with
        different names may overlap in memory."""
        status = os.fstat(self._file)
        begin = self.told.offset + place.offset
        return (status.st_dev, status.st_ino), begin, begin + place.size

    def read(self, place: Place) -> Buffer:
        """Return a copy of the bytes at ``ref``. Raises like ``check``."""
        self.check(place)
        begin = self.told.offset + place.offset
        parts: list[bytes] = []
        remaining = place.size
        while remaining:
            part = os.pread(self._file, min(remaining, _AT_ONCE), begin + place.size - remaining)
            if not part:
                raise _cut(place)
            parts.append(part)
            remaining -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, place: Place, data: Buffer) -> None:
        """Write ``data``, which fits into ``ref``, to the region. Raises like ``check``."""
        self.check(place)
        begin = self.told.offset + place.offset
        view = memoryview(data).cast("B")
        written = 0
        while written < len(view):
            written += os.pwrite(self._file, view[written : written + _AT_ONCE], begin + written)


def opened(asked: SharedMemoryRegisterRequest) -> Region:
    """Open the region that ``request`` describes. Raises BAD_REQUEST in the words of the real
    servers."""
    description = SharedMemoryRegion(asked.name, asked.key, asked.offset, asked.size, asked.device)
    if asked.device is not None:
        return Region(description)
    match = _KEY.fullmatch(asked.key)
    name = match[1] if match else ""
    if name in ("", ".", "..") or name.startswith(_FOREIGN):
        raise _unopened(asked.key)
    try:
        region = Region(description, os.open(f"{_FOLDER}/{name}", _FLAGS))
    except (OSError, ValueError):  # ValueError: text that is not UTF-8
        raise _unopened(asked.key) from None
    status = os.fstat(region._file)  # noqa: SLF001 - same module
    if not stat.S_ISREG(status.st_mode):
        raise _unopened(asked.key)
    if asked.size < 1 or asked.offset + asked.size > status.st_size:
        raise bad_request(
            f"Invalid shared memory region: '{asked.key[:_SHOWN]}': {asked.size} bytes from "
            f"{asked.offset}, it has {status.st_size}"
        )
    return region


def check_registration(asked: SharedMemoryRegisterRequest) -> None:
    """Raise BAD_REQUEST for a name that no region can have, and for numbers that some protocol
    cannot carry."""
    name = asked.name
    for field, number, maximum in (
        ("offset", asked.offset, _LARGEST),
        ("byte size", asked.size, _LARGEST),
        ("device", asked.device or 0, _LARGEST_DEVICE),
    ):
        if not 0 <= number <= maximum:
            raise bad_request(f"the {field} of a shared memory region must be from 0 to {maximum}")
    if not name:
        raise bad_request("the name of a shared memory region is empty")
    if len(name) > LONGEST_NAME:
        raise bad_request(
            f"the name of a shared memory region has {len(name)} characters, the limit is "
            f"{LONGEST_NAME}"
        )


def _unopened(key: str) -> GatewayError:
    return bad_request(f"Unable to open shared memory region: '{key[:_SHOWN]}'")


def _cut(place: Place) -> GatewayError:
    return bad_request(
        f"shared memory region '{place.region}' has become shorter than {place.offset} + "
        f"{place.size} bytes"
    )
