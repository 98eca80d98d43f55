"""The admin listener has its own connection limit. The other listeners share a limit, which is
below the limit on open files."""

from __future__ import annotations

import logging
import resource

import pytest

from infergate.core.limits import Limits
from infergate.observe.metrics import Metrics
from infergate.runtime import descriptors
from infergate.runtime.connection_gates import MAX_ADMIN_CONNECTIONS, ConnectionGates
from infergate.runtime.running import ADMIN
from infergate.transport.server.connection_gate import ConnectionGate


def count_admitted(gate: ConnectionGate) -> int:
    """Return the number of connections that ``gate`` admits before it rejects one."""
    count = 0
    while count < 1000 and gate.admit("a client"):
        count += 1
    return count


def refused_count(metrics: Metrics, listener: str) -> float:
    name = "infergate_refused_connections_total"
    labels = {"listener": listener, "reason": "connections"}
    return metrics.registry.get_sample_value(name, labels) or 0.0


def test_the_admin_listener_has_its_own_connection_limit() -> None:
    metrics = Metrics()
    gates = ConnectionGates(metrics)
    limits = Limits(connections=3)
    http, grpc, admin = (
        gates.make_gate(name, limits, None, ()) for name in ("http", "grpc", ADMIN)
    )
    assert (count_admitted(http), count_admitted(grpc)) == (3, 0), "a shared limit"
    assert count_admitted(admin) == MAX_ADMIN_CONNECTIONS == 64
    assert [refused_count(metrics, each) for each in ("http", "grpc", ADMIN)] == [1, 1, 1]


@pytest.mark.parametrize(("files", "maximum"), [(100, 75), (10, 7), (1, 1), (1000, 500)])
def test_the_limit_of_open_files_lowers_the_connection_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, files: int, maximum: int
) -> None:
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (files, files))
    gates = ConnectionGates(Metrics())
    with caplog.at_level(logging.WARNING):
        http, grpc = (
            gates.make_gate(name, Limits(connections=500), None, ()) for name in ("a", "b")
        )
    assert (count_admitted(http), count_admitted(grpc)) == (maximum, 0)
    messages = [each.getMessage() for each in caplog.records if "limits.connections" in each.msg]
    assert messages == (
        [f"limits.connections: 500 is lowered to {maximum}, because of the limit on open files"]
        if maximum < 500
        else []
    )


def test_without_a_limit_of_open_files_the_configured_limit_applies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: unlimited)
    assert (
        count_admitted(ConnectionGates(Metrics()).make_gate("a", Limits(connections=5), None, ()))
        == 5
    )
