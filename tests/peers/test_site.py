"""Tests of the documentation site, as ``make docs`` builds it, in a real browser."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from http.server import SimpleHTTPRequestHandler
from typing import Any

import pytest
import pytest_asyncio

from http_stand_in import StandInServer
from peers.support.chromium import Page, opened_page
from peers.support.installed import PROJECT

pytestmark = pytest.mark.peers

SITE = PROJECT / "site"
NARROW = (400, 860)
WIDE_TABLES = ("metrics", "errors", "cli", "limits")
RESULTS = "[...document.querySelectorAll('.md-search-result__link')].map((each) => each.href)"
UNREADABLE = """
(() => {
  const problems = [];
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (wide > 0) problems.push(`the page is ${wide} px too wide`);
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    for (const cell of table.querySelectorAll("th, td")) {
      const text = cell.textContent.trim();
      const width = cell.clientWidth;
      if (text.length > 60 && width < 150) problems.push(`${width} px for: ${text.slice(0, 60)}`);
      if (cell.scrollWidth > width + 1) problems.push(`cut off: ${text.slice(0, 60)}`);
    }
  }
  return problems.slice(0, 5);
})()
"""


@pytest.fixture(scope="module")
def address(browser: None) -> Iterator[str]:
    if not (SITE / "index.html").exists():
        pytest.skip("needs the site: make docs")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None: ...

    with StandInServer(functools.partial(Quiet, directory=SITE)) as server:
        yield f"http://{server.address}"


@pytest_asyncio.fixture
async def page() -> AsyncIterator[Page]:
    async with opened_page() as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["http", "file"])
async def test_search_finds_rate_limiting(page: Page, address: str, scheme: str) -> None:
    await page.open(f"{address if scheme == 'http' else SITE.as_uri()}/index.html")
    await page.eval("document.querySelector('[data-md-toggle=search]').click()")
    for letter in "rate limiting":
        await page.eval("document.querySelector('.md-search__input').focus()")
        await page.press(letter, ord(letter.upper()), letter)
    await page.until(f"{RESULTS}.length", "the search has results")
    urls: Any = await page.eval(RESULTS)
    assert "/access.html" in urls[0], urls[:5]


async def test_tables_are_readable_on_a_phone(page: Page, address: str) -> None:
    await page.emulate(*NARROW)
    problems = {}
    for name in WIDE_TABLES:
        await page.open(f"{address}/{name}.html")
        await page.until(f"location.pathname.endsWith('{name}.html')")
        if messages := await page.eval(UNREADABLE):
            problems[name] = messages
    assert problems == {}
