"""Converts between canonical operations and the messages of Triton's extensions for system shared
memory and CUDA shared memory."""

from __future__ import annotations

from typing import Any

from infergate.codecs.v2_grpc import messages as pb
from infergate.core.errors import bad_request
from infergate.core.messages import (
    Operation,
    SharedMemoryRegion,
    SharedMemoryRegisterRequest,
    SharedMemoryStatus,
    SharedMemoryStatusRequest,
    SharedMemoryUnregisterRequest,
)


def is_cuda(operation: Operation) -> bool:
    """Return whether `operation` belongs to the CUDA extension."""
    match operation:
        case SharedMemoryRegisterRequest():
            return operation.device is not None
        case SharedMemoryStatusRequest() | SharedMemoryUnregisterRequest():
            return operation.cuda is True
        case _:
            return False


def read_register(message: Any) -> Operation:
    """Read a register request of either extension. Raises BAD_REQUEST."""
    device = getattr(message, "device_id", None)
    if device is not None and device < 0:
        raise bad_request(f"device_id is {device}; it must be at least 0")
    return SharedMemoryRegisterRequest(
        message.name,
        getattr(message, "key", ""),
        getattr(message, "offset", 0),
        message.byte_size,
        device,
        getattr(message, "raw_handle", b""),
    )


def write_register(operation: SharedMemoryRegisterRequest) -> Any:
    """Build a register request. Raises ValueError for a value that does not fit the message."""
    name, size, device = operation.name, operation.size, operation.device
    if device is None:
        return pb.SystemSharedMemoryRegisterRequest(
            name=name, key=operation.key, offset=operation.offset, byte_size=size
        )
    return pb.CudaSharedMemoryRegisterRequest(
        name=name, raw_handle=operation.handle, device_id=device, byte_size=size
    )


def read_status(message: Any) -> SharedMemoryStatus:
    """Read the status response of either extension."""
    return SharedMemoryStatus(
        tuple(
            SharedMemoryRegion(
                region.name,
                getattr(region, "key", ""),
                getattr(region, "offset", 0),
                region.byte_size,
                getattr(region, "device_id", None),
            )
            for _, region in sorted(message.regions.items())
        )
    )


def write_status(status: SharedMemoryStatus, message: Any) -> Any:
    """Fill `message`, the status response of either extension, and return it."""
    for region in status.regions:
        entry = message.regions[region.name]
        entry.name, entry.byte_size = region.name, region.size
        if hasattr(entry, "key"):
            entry.key, entry.offset = region.key, region.offset
        else:
            entry.device_id = region.device or 0
    return message
