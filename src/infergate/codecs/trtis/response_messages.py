"""Builds the messages of responses about the model index and shared memory."""

from __future__ import annotations

from typing import Any

from infergate.codecs.trtis.messages import ModelRepositoryIndex
from infergate.core.messages import ModelIndex, SharedMemoryStatus


def index_message(response: ModelIndex) -> Any:
    """Return a ModelRepositoryIndex message, which lists each model's name once and sorted."""
    message = ModelRepositoryIndex()
    for name in sorted({entry.name for entry in response.models}):
        message.models.add(name=name)
    return message


def add_regions(regions: Any, response: SharedMemoryStatus) -> None:
    """Append the regions in ``response`` to a list of SharedMemoryRegion messages."""
    for entry in response.regions:
        region = regions.add(name=entry.name, byte_size=entry.size)
        if entry.device is None:
            region.system_shared_memory.shared_memory_key = entry.key
            region.system_shared_memory.offset = entry.offset
        else:
            region.cuda_shared_memory.device_id = entry.device
            region.cuda_shared_memory.SetInParent()
