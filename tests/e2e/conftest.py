"""A scripted backend and tritonclient as fixtures for several end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.clients import FORMS, Client, client
from e2e.running import Infergate
from faults.rpc import RpcBackend, rpc_backend


@pytest.fixture(scope="module")
def rpc() -> Iterator[RpcBackend]:
    """Run a V2 gRPC server with scripted responses."""
    with rpc_backend() as backend:
        yield backend


@pytest.fixture(params=FORMS)
def triton_client(request: pytest.FixtureRequest, gateway: Infergate) -> Iterator[Client]:
    """Each kind of tritonclient, connected to the test file's gateway."""
    with client(request.param, gateway.http, gateway.grpc) as created:
        yield created
