"""The methods of the shared memory extensions: of the system's memory, and of memory on GPUs."""

from __future__ import annotations

from typing import Any

from infergate.codecs.v2_grpc import messages as pb
from infergate.core.errors import bad_request
from infergate.core.messages import (
    Done,
    Operation,
    SharedMemoryRegion,
    SharedMemoryRegisterRequest,
    SharedMemoryStatus,
    SharedMemoryStatusRequest,
    SharedMemoryUnregisterRequest,
)


def is_cuda(operation: Operation) -> bool:
    """Whether ``operation`` is one of the CUDA extension's."""
    match operation:
        case SharedMemoryRegisterRequest():
            return operation.device is not None
        case SharedMemoryStatusRequest() | SharedMemoryUnregisterRequest():
            return operation.cuda is True
        case _:
            return False


def read_register(message: Any) -> Operation:
    """A SystemSharedMemoryRegisterRequest."""
    return SharedMemoryRegisterRequest(message.name, message.key, message.offset, message.byte_size)


def read_cuda_register(message: Any) -> Operation:
    """A CudaSharedMemoryRegisterRequest. Raises BAD_REQUEST."""
    if message.device_id < 0:
        raise bad_request(f"device_id is {message.device_id}, not 0 or more")
    return SharedMemoryRegisterRequest(
        message.name,
        size=message.byte_size,
        device=message.device_id,
        handle=message.raw_handle,
    )


def write_register(asked: SharedMemoryRegisterRequest) -> Any:
    """A SystemSharedMemoryRegisterRequest. Raises ValueError."""
    return pb.SystemSharedMemoryRegisterRequest(
        name=asked.name, key=asked.key, offset=asked.offset, byte_size=asked.size
    )


def write_cuda_register(asked: SharedMemoryRegisterRequest) -> Any:
    """A CudaSharedMemoryRegisterRequest. Raises ValueError."""
    return pb.CudaSharedMemoryRegisterRequest(
        name=asked.name, raw_handle=asked.handle, device_id=asked.device, byte_size=asked.size
    )


def read_status(message: Any) -> SharedMemoryStatus:
    """Of either extension."""
    return SharedMemoryStatus(
        tuple(
            SharedMemoryRegion(
                each.name,
                getattr(each, "key", ""),
                getattr(each, "offset", 0),
                each.byte_size,
                getattr(each, "device_id", None),
            )
            for _, each in sorted(message.regions.items())
        )
    )


def write_status(answer: SharedMemoryStatus) -> Any:
    """The system's regions."""
    message = pb.SystemSharedMemoryStatusResponse()
    for each in answer.regions:
        told = message.regions[each.name]
        told.name, told.key = each.name, each.key
        told.offset, told.byte_size = each.offset, each.size
    return message


def write_cuda_status(answer: SharedMemoryStatus) -> Any:
    """The regions on GPUs."""
    message = pb.CudaSharedMemoryStatusResponse()
    for each in answer.regions:
        told = message.regions[each.name]
        told.name, told.device_id, told.byte_size = each.name, each.device or 0, each.size
    return message


def read_done(_: Any) -> Done:
    """An answer that holds nothing."""
    return Done()
