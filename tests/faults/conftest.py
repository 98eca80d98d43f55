"""One gateway of tight limits for all files of a process, and what each fault on it is held to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.running import ENGINE
from faults.behind import Site, started_site
from faults.tight import Tight, good, started_tight
from faults.watch import unharmed


@pytest.fixture(scope="session")
def tight() -> Iterator[Tight]:
    """Of the engine that the tests run with."""
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
def behind() -> Iterator[Site]:
    """A gateway before backends that do what a script says."""
    with started_site() as site:
        yield site


@pytest.fixture
def site(behind: Site) -> Iterator[Site]:
    """Whatever its backends do, clients of others are served meanwhile; afterwards it has what it
    had, of which one is a connection to each of them."""
    behind.restored()
    with unharmed(behind.gateway, behind.others):
        yield behind
