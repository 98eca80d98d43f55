"""Backends shared by several end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.rpc import RpcBackend, rpc_backend


@pytest.fixture(scope="module")
def rpc() -> Iterator[RpcBackend]:
    """Run a V2 gRPC server with scripted responses."""
    with rpc_backend() as backend:
        yield backend
