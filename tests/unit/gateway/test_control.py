"""A gateway without models or shared memory of its own, asked to change them."""

from __future__ import annotations

import pytest
from fakes import Memory, call

from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import (
    Done,
    ModelLoadRequest,
    ModelUnloadRequest,
    Operation,
    SharedMemoryRegisterRequest,
    SharedMemoryStatus,
    SharedMemoryStatusRequest,
    SharedMemoryUnregisterRequest,
)
from infergate.gateway.gateway import Gateway
from infergate.routing.table import Route, RouteTable


def gateway() -> Gateway:
    return Gateway(RouteTable([Route("*", "b")]), {"b": Memory("b")}, {})


@pytest.mark.parametrize("operation", [ModelLoadRequest("m"), ModelUnloadRequest("m")])
async def test_models_are_not_loaded_here(operation: Operation) -> None:
    with pytest.raises(GatewayError) as caught:
        await gateway().perform(operation, call())
    assert caught.value.kind is Kind.NO_BACKEND
    assert (
        caught.value.public == "explicit model load / unload is not allowed if polling is enabled"
    )


async def test_there_is_no_shared_memory() -> None:
    made = gateway()
    for name in ("", "r"):
        told = await made.perform(SharedMemoryStatusRequest(name), call())
        assert told == SharedMemoryStatus(())
        assert await made.perform(SharedMemoryUnregisterRequest(name), call()) == Done()
    with pytest.raises(GatewayError, match="region 'r': shared memory is not supp") as caught:
        await made.perform(SharedMemoryRegisterRequest("r", "/k", 0, 64), call())
    assert caught.value.kind is Kind.UNSUPPORTED
