"""What is asked of a server's state: answered as by one that has nothing to change."""

from __future__ import annotations

from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import (
    Answer,
    ControlOperation,
    Done,
    ModelLoadRequest,
    ModelUnloadRequest,
    SharedMemoryRegisterRequest,
    SharedMemoryStatus,
    SharedMemoryStatusRequest,
    SharedMemoryUnregisterRequest,
)


def control(operation: ControlOperation) -> Answer:
    """Models are loaded by their own servers, and regions of shared memory belong to a host: there
    are none here. Raises NO_BACKEND (as a Triton that polls its repository), UNSUPPORTED."""
    match operation:
        case ModelLoadRequest() | ModelUnloadRequest():
            raise GatewayError(
                Kind.NO_BACKEND,
                "explicit model load / unload is not allowed if polling is enabled",
            )
        case SharedMemoryStatusRequest():
            return SharedMemoryStatus()
        case SharedMemoryRegisterRequest(name):
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"failed to register shared memory region '{name}': shared memory is not supported",
            )
        case SharedMemoryUnregisterRequest():
            return Done()
