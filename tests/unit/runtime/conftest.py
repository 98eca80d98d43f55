"""Fixtures for tests of the runtime."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from running_gateways import WatchedConstructor


@pytest.fixture
def constructor(monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedConstructor]:
    constructor = WatchedConstructor(monkeypatch)
    yield constructor
    constructor.release.set()
