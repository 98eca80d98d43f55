"""Fixtures for the browser tests. INFERGATE_SHOTS names a folder for screenshots."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from peers.support.chromium import Page, chromium, opened_page


@pytest.fixture(scope="session")
def browser() -> None:
    """Skip the tests if there is no browser."""
    try:
        chromium()
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tab(browser: None) -> AsyncIterator[Page]:
    async with opened_page() as opened:
        yield opened


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("INFERGATE_SHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
