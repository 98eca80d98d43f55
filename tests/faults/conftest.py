"""One gateway of tight limits for all files of a process, and what each fault on it is held to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.running import ENGINE
from faults.behind import Harness, started_harness
from faults.tight import Tight, good, started_tight
from faults.watch import done, unharmed

_DOC = (Path(__file__).parents[2] / "docs" / "faults.md").read_text(encoding="utf-8")
APART = dict(re.findall(r"^\| `(faults/[^`]+)` \| (.+) \|$", _DOC, re.MULTILINE))
"""The tests that cannot be held to all four, and why, as docs/faults.md tells."""


def _is_apart(item: pytest.Item) -> bool:
    file = f"faults/{item.path.name}"
    name = getattr(item, "originalname", item.name)
    return not APART.keys().isdisjoint((file, f"{file}::{name}"))


@pytest.fixture(autouse=True)
def watched(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each fault is tried while others are served and memory and descriptors are watched, or
    docs/faults.md says why not."""
    begun = done.begun
    yield
    if not _is_apart(request.node):
        assert done.open or done.begun > begun, "nobody watches: see faults.watch.unharmed"


@pytest.fixture(scope="module", autouse=True)
def counts(request: pytest.FixtureRequest) -> Iterator[None]:
    """In each file some metric is looked at, unless only tests run that docs/faults.md exempts."""
    metrics = done.metrics
    yield
    tests = [item for item in request.session.items if item.path == request.path]
    if not all(map(_is_apart, tests)):
        assert done.metrics > metrics, "no metric is looked at: see faults.watch.rises"


@pytest.fixture(scope="session")
def tight() -> Iterator[Tight]:
    """The engine that the tests run with."""
    with started_tight(ENGINE) as gateway:
        yield gateway


@pytest.fixture
def gateway(tight: Tight) -> Iterator[Tight]:
    """Whatever a test does to it, others are served meanwhile; afterwards it has what it had."""
    with unharmed(tight, lambda: good(tight)):
        yield tight


@pytest.fixture(scope="session")
def own(request: pytest.FixtureRequest) -> Iterator[Tight]:
    """The same of ``engine: own``, whatever the others run with."""
    if ENGINE == "own":
        yield request.getfixturevalue("tight")
    else:
        with started_tight("own") as gateway:
            yield gateway


@pytest.fixture(scope="session")
def behind() -> Iterator[Harness]:
    """A gateway before backends that do what a script says."""
    with started_harness() as harness:
        yield harness


@pytest.fixture
def harness(behind: Harness) -> Iterator[Harness]:
    """Whatever its backends do, clients of others are served meanwhile; afterwards it has what it
    had, of which one is a connection to each of them."""
    behind.restored()
    with unharmed(behind.gateway, behind.others):
        yield behind
