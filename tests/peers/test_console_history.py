"""Tests of the console's history in a real browser, after an incident: requests, events, links,
rates and accessibility.

INFERGATE_SHOTS names a folder for screenshots.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import pytest_asyncio

from peers.incident_site import Incident, run_incident
from peers.page_checks import LOW_CONTRASTS, NARROW, OVERFLOW, UNLABELED, WIDE
from peers.support.axe import axe_violations
from peers.support.chromium import Page

pytestmark = [pytest.mark.peers, pytest.mark.asyncio(loop_scope="module")]

TEXT = "document.getElementById('{}').textContent"
PHONE = (400, 860)
BLANK = "data:text/html,next"


@pytest.fixture(scope="module")
def incident(browser: None) -> Iterator[Incident]:
    """A gateway after this incident: one backend became slow, one failed, an endpoint was ejected,
    and one of two reloads was rejected."""
    with run_incident() as incident:
        incident.history()  # the counters start here
        perform_incident(incident)
        yield incident


def perform_incident(incident: Incident) -> None:
    servers = incident.servers
    servers["slow"].delay = 0.3
    servers["failing"].is_broken = True
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(incident.infer, ["good"] * 30)) == {200}
        assert set(pool.map(incident.infer, ["slow"] * 4)) == {200}
        assert set(pool.map(incident.infer, ["failing"] * 6)) == {502}
        assert set(pool.map(incident.infer, ["good"] * 5, [b"{"] * 5)) == {400}
    servers["flapping"].close()
    assert {incident.infer("flapping") for _ in range(12)} == {200}, "failed attempts are retried"
    text = incident.file.read_text()
    incident.file.write_text(text.replace("timeout: 3s", "timeout: 4s"))
    incident.reload()
    incident.file.write_text(text.replace("timeout: 3s", "timeout: soon"))
    incident.reload()
    incident.file.write_text(text)
    assert sum(incident.history()["counts"]["requests"]) == 57, "each request is counted once"


@pytest_asyncio.fixture(loop_scope="module")
async def page(tab: Page, incident: Incident) -> AsyncIterator[Page]:
    await tab.emulate(*WIDE)
    await show(tab, incident)
    yield tab
    assert tab.console_errors == []
    origin = f"http://{incident.gateway.admin}/"
    others = [each for each in tab.requests if not each.startswith((origin, BLANK))]
    assert others == []


async def show(page: Page, incident: Incident, subject: str = "") -> None:
    """Open the history of ``subject``, such as ``route=good``."""
    await page.open(BLANK)
    await page.open(f"{incident.url}#history?{subject}")
    await page.until(f"{TEXT.format('history-summary')}.includes('last 15 minutes')")


async def test_failed_attempts_of_an_endpoint_are_its_backends_retries(incident: Incident) -> None:
    flapping = incident.history("backend=flapping")
    endpoint = f"http://{incident.servers['flapping'].address}"
    attempts = incident.history(f"backend=flapping&endpoint={endpoint}")["counts"]
    assert sum(attempts["failures"]) == sum(flapping["counts"]["retries"]) == 2


async def test_all_events_are_in_one_list_and_a_reload_shows_its_diff(page: Page) -> None:
    events = "[...document.querySelectorAll('#history-events b')].map((e) => e.textContent)"
    kinds = await page.eval(events)
    assert sorted(kinds) == ["Ejection", "Rejected reload", "Reload", "Start"]
    assert kinds.index("Rejected reload") < kinds.index("Reload"), "the newest event is first"
    text = await page.eval(TEXT.format("history-events"))
    assert "timeout" in text
    assert "flapping was ejected" in text
    await page.eval("document.querySelector('#history-events summary').click()")
    lines = "[...document.querySelectorAll('#history-events .diff .line')].map((e) => e.innerText)"
    assert [each.strip()[0] for each in await page.eval(lines) if "timeout" in each] == ["-", "+"]
    marks = "document.querySelectorAll('.chart svg .mark[visibility=visible]').length"
    assert await page.eval(marks) >= 9, "each of the three charts marks at least three events"


async def test_a_card_leads_to_its_history(page: Page) -> None:
    await page.eval("location.hash = '#live'")
    card = "document.querySelector('[data-key=\"{}\"] a')"
    for key, title in (("route:failing", "failing"), ("back:slow", "slow")):
        await page.until(card.format(key))
        await page.eval(f"{card.format(key)}.click()")
        await page.until("!document.getElementById('history').hidden")
        selected = "document.getElementById('history-subject').selectedOptions[0].textContent"
        await page.until(f"{selected} === '{title}'")
        await page.eval("window.history.back()")
        await page.until("document.getElementById('history').hidden")


async def test_failures_and_client_errors_are_shown_separately(
    page: Page, incident: Incident
) -> None:
    await show(page, incident, "route=good")
    summary = TEXT.format("history-summary")
    await page.until(f"{summary}.startsWith('35 requests')")
    assert "5 (14%) client errors (4xx) · no failures (5xx)" in await page.eval(summary)
    await show(page, incident, "route=failing")
    await page.until(f"{summary}.startsWith('6 requests')")
    assert "no client errors (4xx) · 6 (100%) failures (5xx)" in await page.eval(summary)


async def test_requests_show_their_timeline_and_inputs(page: Page, incident: Incident) -> None:
    await show(page, incident, "route=slow")
    first = "document.querySelector('#history-slowest .request')"
    await page.until(first)
    await page.eval(f"{first}.querySelector('summary').click()")
    text = await page.eval(f"{first}.innerText")
    assert "pixels FP32 [2, 2]" in text
    assert "\nbackend 3" in text, "the backend takes at least 300 ms"
    widths = f"[...{first}.querySelectorAll('.phase.backend')].map((e) => e.offsetWidth)"
    [backend_width] = await page.eval(widths)
    assert backend_width > 0.8 * await page.eval(f"{first}.querySelector('.phases').offsetWidth")
    await show(page, incident, "backend=failing")
    failed = "document.querySelector('#history-failed .request')"
    await page.until(f"{failed}?.textContent.includes('backend_garbage')")
    assert "What to do" in await page.eval(f"{failed}.textContent")
    assert await page.eval("document.querySelectorAll('#history-failed .request').length") == 6


async def test_a_link_reopens_the_same_view(page: Page, incident: Incident) -> None:
    await show(page, incident, "route=good")
    await page.eval("document.querySelector('input[name=period][value=\"60\"]').click()")
    await page.until(f"{TEXT.format('history-summary')}.includes('last 60 minutes')")
    await page.eval("document.getElementById('history-charts').focus()")
    await page.press("End", 35)
    cursor = TEXT.format("history-cursor")
    await page.until(f"{cursor}.includes('/s')")
    await page.press("ArrowLeft", 37)
    url, described = await page.eval("location.href"), await page.eval(cursor)
    assert "route=good&minutes=60&at=" in url
    await page.open(BLANK)
    await page.open(url)
    await page.until(f"{cursor} === {described!r}", described)
    selected = "document.getElementById('history-subject').selectedOptions[0].textContent"
    assert await page.eval(selected) == "good"
    period = "document.querySelector('input[name=period]:checked').value"
    assert await page.eval(period) == "60"


async def test_a_damaged_link_opens_its_valid_parts(page: Page, incident: Incident) -> None:
    summary = TEXT.format("history-summary")
    for link, requests in (
        ("route=good&backend=slow&minutes=15&at=x", 35),
        ("endpoint=http://h&minutes=15", 57),
        ("route=%E0&minutes=x", 0),
    ):
        await show(page, incident, link)
        await page.until(f"{summary}.startsWith('{requests} requests')")
        assert await page.eval("document.getElementById('trouble').hidden")


async def test_the_history_follows_new_requests(page: Page, incident: Incident) -> None:
    await show(page, incident, "backend=slow")
    summary = TEXT.format("history-summary")
    await page.until(f"{summary}.startsWith('4 requests')")
    await asyncio.to_thread(incident.infer, "slow")
    await page.until(f"{summary}.startsWith('5 requests')")


async def test_an_endpoint_names_the_owner_of_its_requests(page: Page, incident: Incident) -> None:
    owner = TEXT.format("history-owner")
    endpoint = f"http://{incident.servers['slow'].address}"
    await show(page, incident, f"backend=slow&endpoint={endpoint}")
    await page.until(f"{owner} === 'These are the requests to all endpoints of slow.'")
    await show(page, incident, "backend=slow")
    await page.until(f"{owner} === ''")


WORKER_HANGS = """
(() => {
  const real = window.fetch;
  window.fetch = async (url, ...options) => {
    const response = await real(url, ...options);
    if (!String(url).includes("history")) return response;
    const missing = [{ worker: 1, since: 1700000000 }];
    return Response.json({ ...await response.json(), missing });
  };
})()
"""


async def test_a_worker_that_does_not_respond_is_named(page: Page) -> None:
    missing = TEXT.format("history-missing")
    assert await page.eval(missing) == ""
    await page.eval(WORKER_HANGS)
    await page.until(f"{missing}.startsWith('Worker 1 does not respond')", "the worker is named")
    assert await page.eval(LOW_CONTRASTS) == []


RATE_OF_STATES = """
(async () => {{
  const {{ History, recent }} = await import("./statistics.js");
  const history = new History();
  for (const [time, ok, listed_since, serving, reporting] of {states}) {{
    const flow = {{ route: "m", outcomes: {{ ok }}, seconds: {{ buckets: [] }}, listed_since }};
    const workers = {{ serving, reporting }};
    history.add({{ time, flows: ok ? [flow] : [], endpoints: [], workers }});
  }}
  return recent(history, () => true).rate;
}})()
"""


@pytest.mark.parametrize(
    ("states", "rate"),
    [
        ([(1, 100, 0, 2, 2), (2, 110, 0, 2, 2)], 10),
        ([(1, 0, 0, 2, 2), (2, 10, 0, 2, 2)], 10),
        ([(1, 0, 0, 2, 2), (2, 900, 2, 2, 2)], 0),
        ([(1, 5, 0, 2, 2), (2, 900, 2, 2, 2), (3, 903, 2, 2, 2)], 0),
        ([(1, 900, 2, 2, 2), (2, 905, 2, 2, 2)], 5),
        ([(1, 5, 0, 2, 1), (2, 900, 0, 2, 2)], 0),
        ([(1, 900, 0, 2, 2), (2, 5, 0, 2, 1), (3, 9, 0, 2, 1)], 4),
        ([(1, 5, 0, 2, 1), (2, 900, 0, 2, 2), (3, 903, 0, 2, 2)], 3),
        ([(100, 5, 0, 2, 2), (10, 9, 0, 2, 2), (11, 13, 0, 2, 2)], 4),
    ],
    ids=["a listed flow", "a new flow", "listed late", "listed again", "an earlier late listing",
         "a worker responds again", "a worker hangs", "after it responds", "the clock is set back"],
)  # fmt: skip
async def test_rates_do_not_jump(page: Page, states: list[tuple[int, ...]], rate: float) -> None:
    text = json.dumps(states)
    assert await page.eval(RATE_OF_STATES.format(states=text)) == pytest.approx(rate)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_history_is_accessible_in_each_scheme_and_size(
    page: Page, incident: Incident, screenshots: Path, scheme: str
) -> None:
    for size in (WIDE, NARROW, PHONE):
        await page.emulate(*size, scheme)
        await show(page, incident, "route=failing")
        await page.until("document.querySelector('#history-failed .request')")
        await page.eval(
            "document.querySelectorAll('#history summary').forEach((each) => each.click())"
        )
        await page.eval("document.getElementById('history-charts').focus()")
        await page.press("End", 35)
        await page.screenshot(
            screenshots / f"history-{scheme}-{size[0]}.png", whole=size is not WIDE
        )
        assert await page.eval(LOW_CONTRASTS) == []
        assert await page.eval(UNLABELED) == []
        assert await page.eval(OVERFLOW) <= 0
        assert await axe_violations(page) == []
