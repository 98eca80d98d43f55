"""Shared gateways, and checks that apply to every test that docs/faults.md does not exempt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.running import ENGINE
from faults.low_limits import LimitedGateway, good, started_limited_gateway
from faults.scripted_backends import Harness, started_harness
from faults.watch import checks, unharmed

_DOC = (Path(__file__).parents[2] / "docs" / "faults.md").read_text(encoding="utf-8")
APART = dict(re.findall(r"^\| `(faults/[^`]+)` \| (.+) \|$", _DOC, re.MULTILINE))
"""The tests to which the common checks do not apply, with the reasons in docs/faults.md."""


def _is_apart(item: pytest.Item) -> bool:
    file = f"faults/{item.path.name}"
    name = getattr(item, "originalname", item.name)
    return not APART.keys().isdisjoint((file, f"{file}::{name}"))


@pytest.fixture(autouse=True)
def watched(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that the test watched the gateway, for example with ``unharmed``, unless docs/faults.md
    exempts the test."""
    begun = checks.begun
    yield
    if not _is_apart(request.node):
        assert checks.open or checks.begun > begun, "not watched: see faults.watch.unharmed"


@pytest.fixture(scope="module", autouse=True)
def counts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that the file's tests read a metric, unless docs/faults.md exempts them all."""
    metrics = checks.metrics
    yield
    tests = [item for item in request.session.items if item.path == request.path]
    if not all(map(_is_apart, tests)):
        assert checks.metrics > metrics, "no metric is read: see faults.watch.rises"


@pytest.fixture(scope="session")
def limited_gateway() -> Iterator[LimitedGateway]:
    with started_limited_gateway(ENGINE) as gateway:
        yield gateway


@pytest.fixture
def gateway(limited_gateway: LimitedGateway) -> Iterator[LimitedGateway]:
    """Return the gateway. Check that it serves other clients during the test and holds no more
    resources after it."""
    with unharmed(limited_gateway, lambda: good(limited_gateway)):
        yield limited_gateway


@pytest.fixture(scope="session")
def own_engine_gateway(request: pytest.FixtureRequest) -> Iterator[LimitedGateway]:
    """Return the gateway with ``engine: own``, whatever the engine of other tests."""
    if ENGINE == "own":
        yield request.getfixturevalue("limited_gateway")
    else:
        with started_limited_gateway("own") as gateway:
            yield gateway


@pytest.fixture(scope="session")
def scripted_harness() -> Iterator[Harness]:
    """Run a gateway in front of scripted backends."""
    with started_harness() as harness:
        yield harness


@pytest.fixture
def harness(scripted_harness: Harness) -> Iterator[Harness]:
    """Return the gateway, connected to its backends. Check that it serves other clients during the
    test and holds no more resources after it."""
    scripted_harness.restore()
    with unharmed(scripted_harness.gateway, scripted_harness.others):
        yield scripted_harness
