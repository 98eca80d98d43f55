"""The methods of the shared memory extensions, for system memory and for GPU memory."""

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
    """Read a SystemSharedMemoryRegisterRequest."""
    return SharedMemoryRegisterRequest(message.name, message.key, message.offset, message.byte_size)


def read_cuda_register(message: Any) -> Operation:
    """Read a CudaSharedMemoryRegisterRequest. Raises BAD_REQUEST."""
    if message.device_id < 0:
        raise bad_request(f"device_id is {message.device_id}, not 0 or more")
    return SharedMemoryRegisterRequest(
        message.name, size=message.byte_size, device=message.device_id, handle=message.raw_handle
    )


def write_register(operation: SharedMemoryRegisterRequest) -> Any:
    """Build a SystemSharedMemoryRegisterRequest. Raises ValueError."""
    return pb.SystemSharedMemoryRegisterRequest(
        name=operation.name, key=operation.key, offset=operation.offset, byte_size=operation.size
    )


def write_cuda_register(operation: SharedMemoryRegisterRequest) -> Any:
    """Build a CudaSharedMemoryRegisterRequest. Raises ValueError."""
    return pb.CudaSharedMemoryRegisterRequest(
        name=operation.name,
        raw_handle=operation.handle,
        device_id=operation.device,
        byte_size=operation.size,
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


def write_status(response: SharedMemoryStatus) -> Any:
    """Build a SystemSharedMemoryStatusResponse."""
    message = pb.SystemSharedMemoryStatusResponse()
    for region in response.regions:
        entry = message.regions[region.name]
        entry.name, entry.key = region.name, region.key
        entry.offset, entry.byte_size = region.offset, region.size
    return message


def write_cuda_status(response: SharedMemoryStatus) -> Any:
    """Build a CudaSharedMemoryStatusResponse."""
    message = pb.CudaSharedMemoryStatusResponse()
    for region in response.regions:
        entry = message.regions[region.name]
        entry.name, entry.device_id, entry.byte_size = region.name, region.device or 0, region.size
    return message
