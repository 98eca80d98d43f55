"""Answers other than inferences as messages of the API."""

from __future__ import annotations

from typing import Any

from infergate.codecs.trtis.messages import ModelRepositoryIndex
from infergate.codecs.trtis.status import write_status
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import ModelIndex, ServerStatus, SharedMemoryStatus


def status(answer: ServerStatus, server_id: str) -> Any:
    """A ServerStatus. Raises UNSUPPORTED for what it cannot hold."""
    try:
        return write_status(answer, server_id)
    except ValueError as error:
        raise GatewayError(Kind.UNSUPPORTED, f"the status cannot be told: {error}") from None


def index(answer: ModelIndex) -> Any:
    """A ModelRepositoryIndex: the names, each once, in order."""
    message = ModelRepositoryIndex()
    for name in sorted({entry.name for entry in answer.models}):
        message.models.add(name=name)
    return message


def add_regions(regions: Any, answer: SharedMemoryStatus) -> None:
    """Fill a list of SharedMemoryRegion."""
    for each in answer.regions:
        region = regions.add(name=each.name, byte_size=each.size)
        if each.device is None:
            region.system_shared_memory.shared_memory_key = each.key
            region.system_shared_memory.offset = each.offset
        else:
            region.cuda_shared_memory.device_id = each.device
            region.cuda_shared_memory.SetInParent()
