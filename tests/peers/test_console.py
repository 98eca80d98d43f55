"""Tests of the console in a real browser: its parts, live updates, actions and their protection,
keyboard navigation, accessibility, and that it sends no request to other hosts.

INFERGATE_SHOTS names a folder for screenshots.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from e2e.running import started_infergate
from infergate.codecs.registry import plugins
from peers.console_site import DEMO, LISTENERS, Harness, started_harness, traffic
from peers.page_checks import LOW_CONTRASTS, NARROW, OVERFLOW, UNLABELED, WIDE
from peers.support.axe import axe_violations
from peers.support.chromium import Page, opened_page

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("browser")]

HASH = hashlib.sha256(b"opensesame").hexdigest()
KEYS = f"actions: true, keys: [{{{{name: ops, sha256: {HASH}}}}}]"
PARTS = ("live", "history", "translation", "errors", "try", "config")


@pytest.fixture(scope="module")
def harness(browser: None) -> Iterator[Harness]:
    with started_harness() as running, traffic(running):
        yield running


@pytest_asyncio.fixture
async def page(harness: Harness) -> AsyncIterator[Page]:
    async with opened_page() as opened:
        await opened.emulate(*WIDE)
        await opened.open(harness.url)
        await opened.until(
            "document.querySelectorAll('#column-routes .node').length > 3", "the routes are drawn"
        )
        yield opened
        assert opened.console_errors == []
        origin = f"http://{harness.gateway.admin}/"
        assert [each for each in opened.requests if not each.startswith(origin)] == []


async def open_part(page: Page, part: str) -> None:
    await page.eval(f"location.hash = '#{part}'")
    await page.until(f"!document.getElementById('{part}').hidden")


async def test_live_traffic_is_shown_and_updated(page: Page) -> None:
    nodes = "document.querySelectorAll('#column-{} .node[data-busy=true] .name code')"
    busy = f"[...{nodes}].map((each) => each.textContent)"
    await page.until(f"{busy.format('routes')}.includes('bert-base')", "a route has traffic")
    await page.until(f"{busy.format('backends')}.includes('triton-fleet')")
    await page.until(f"{busy.format('endpoints')}.length > 2")
    await page.until("document.querySelectorAll('#wires .flow[visibility=visible]').length > 8")
    await page.until(
        "document.querySelector('.node[data-health=down] code')?.textContent === 'grpc://127.0.0.1:9'",
        "the unreachable endpoint is shown as down",
    )
    requests = "document.querySelector('#tiles b').textContent"
    assert (await page.eval(requests)).endswith("/s")
    points = "document.querySelector('#tiles polyline').getAttribute('points').split(' ').length"
    before = await page.eval(points)
    await page.until(f"{points} > {before} + 1", "the lines grow")


async def test_search_finds_matching_rows(page: Page) -> None:
    names = "[...document.querySelectorAll('#column-routes .name code')].map((e) => e.textContent)"
    await page.eval(
        "(() => { const f = document.getElementById('find'); f.value = 'graphpipe';"
        " f.dispatchEvent(new Event('input')); })()"
    )
    await page.until(f"JSON.stringify({names}) === '[\"camera-7\"]'")


DETACHED = """
[...document.querySelectorAll("#wires g")].filter((edge) => {
  const card = (key) =>
    document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.getBoundingClientRect();
  const origin = document.getElementById("wires").getBoundingClientRect();
  const points = edge.querySelector("path").getAttribute("d").match(/-?[\\d.]+/g).map(Number);
  return [[edge.dataset.from, points[1]], [edge.dataset.to, points.at(-1)]].some(([key, y]) => {
    const rect = card(key);
    return rect && (y + origin.top < rect.top || y + origin.top > rect.bottom);
  });
}).length
"""


async def test_failing_routes_come_first_and_edges_stay_attached_to_their_cards() -> None:
    backends = "".join(f"  b{i}: {{protocol: builtin}}\n" for i in range(49))
    backends += "  b49: {protocol: v2-rest, endpoints: ['http://127.0.0.1:9']}\n"
    routes = "".join(f"  - {{model: m{i}, backend: b{i % 49}}}\n" for i in range(199))
    config = f"backends:\n{backends}routes:\n{routes}  - {{model: broken, backend: b49}}\n"
    first = "document.querySelector('#column-{} .node')?.dataset.key"
    with started_infergate(config, LISTENERS) as running:
        async with opened_page() as page:
            await page.emulate(*WIDE)
            await page.open(f"http://{running.admin}/console/")
            await page.until(f"{first.format('routes')} === 'route:m0'", "the first route is m0")
            url = f"http://{running.http}/v2/models/broken"
            with pytest.raises(urllib.error.HTTPError):
                await asyncio.to_thread(urllib.request.urlopen, url)
            await page.until(f"{first.format('routes')} === 'route:broken'")
            await page.until(f"{first.format('backends')} === 'back:b49'")
            assert await page.eval("document.querySelectorAll('#wires g').length") > 10
            await page.until(f"{DETACHED} === 0", "every edge ends at its card")
            await page.eval("document.querySelector('.port').style.marginTop = '90px'")
            await page.until(f"{DETACHED} === 0", "the ports below a taller port keep their edges")


COMPARISON_CONFIG = """
backends: {old: {protocol: builtin}, new: {protocol: builtin}}
routes:
  - model: simple
    backend: old
    mirror:
      backend: new
      rewrite: {outputs: {OUTPUT0: OUTPUT1, OUTPUT1: OUTPUT0}}
      compare: {}
  - {model: "*", backend: old, mirror: {backend: new, compare: {}}}
"""


async def test_comparisons_of_mirrors_are_shown_live(screenshots: Path) -> None:
    with started_infergate(COMPARISON_CONFIG, LISTENERS) as running:
        tensor = {"shape": [1, 16], "datatype": "INT32", "data": list(range(16))}
        body = json.dumps({"inputs": [{**tensor, "name": f"INPUT{i}"} for i in range(2)]}).encode()
        url = f"http://{running.http}/v2/models/simple/infer"
        async with opened_page() as page:
            await page.emulate(*WIDE)
            await page.open(f"http://{running.admin}/console/#comparison")
            headline = "document.getElementById('comparison-headline').textContent"
            await page.until(f"{headline} === 'No responses have been compared'")
            assert await page.eval("!document.getElementById('comparison-link').hidden")
            for _ in range(3):
                await asyncio.to_thread(urllib.request.urlopen, url, body)
            await page.until(
                f"{headline}.startsWith('0 % of 3 responses')", "the comparison is updated"
            )
            rows = "[...document.querySelectorAll('#comparison-table tbody tr')]"
            texts = await page.eval(f"{rows}.map((row) => row.innerText)")
            assert [text.split()[:2] for text in texts] == [
                ["simple", "different"], ["OUTPUT0", "different"], ["OUTPUT1", "different"],
            ]  # fmt: skip
            await page.screenshot(screenshots / "comparison.png")
            await page.open(f"http://{running.admin}/comparisons?format=html")
            await page.until("document.body.textContent.includes('0 % of 3 responses')")
            assert page.console_errors == []


async def test_client_errors_do_not_mark_a_backend_as_failing(page: Page, harness: Harness) -> None:
    request = urllib.request.Request(
        f"http://{harness.gateway.http}/v2/models/resnet50/infer", b'{"inputs": 1}'
    )
    for _ in range(20):
        with pytest.raises(urllib.error.HTTPError):
            await asyncio.to_thread(urllib.request.urlopen, request)
    card = "document.querySelector('[data-key=\"route:resnet50\"]')"
    await page.until(f"{card}.textContent.includes('client errors')")
    assert await page.eval(f"{card}.dataset.health") == "up"


async def test_the_translation_table_shows_both_pipelines(page: Page) -> None:
    await open_part(page, "translation")
    await page.until(
        "document.querySelectorAll('#matrix .pipeline[data-pipeline=translate]').length > 6"
    )
    await page.until(
        "document.querySelectorAll('#matrix .pipeline[data-pipeline=forward]').length > 0"
    )
    assert await page.eval("document.querySelectorAll('#matrix tbody tr').length") == 8


async def test_errors_are_explained_and_escaped(page: Page, harness: Harness) -> None:
    model = urllib.parse.quote("<img src=x onerror=window.bad=1>", safe="")
    with pytest.raises(urllib.error.HTTPError):
        await asyncio.to_thread(
            urllib.request.urlopen, f"http://{harness.gateway.http}/v2/models/{model}/ready"
        )
    await open_part(page, "errors")
    await page.until("document.getElementById('failures').textContent.includes('<img src=x')")
    assert await page.eval("!document.querySelector('#failures img') && window.bad === undefined")
    await page.until(
        "[...document.querySelectorAll('.failure')].some((e) => e.textContent.includes('old-model')"
        " && e.textContent.includes('connect') && e.textContent.includes('What to do'))"
    )
    await page.eval("document.querySelector('.failure summary').click()")
    await page.until("document.querySelector('.failure details[open] td')")


async def test_the_configuration_is_shown_compared_and_reloaded(
    page: Page, harness: Harness
) -> None:
    await open_part(page, "config")
    await page.until("document.getElementById('loaded').textContent.includes('triton-fleet')")
    await page.until("document.querySelector('#diff .same')")
    text = harness.file.read_text()
    harness.file.write_text(text.replace("percent: 10", "percent: 25"))
    await page.eval("document.getElementById('look').click()")
    await page.until("document.querySelector('#diff .plus')?.textContent.includes('25')")
    await page.eval("document.getElementById('reload').click()")
    await page.until("document.getElementById('reload-note').textContent === 'Reloaded.'")
    await page.until("document.querySelector('#diff .same')")
    await page.until("document.getElementById('config-facts').textContent.includes('POST /reload')")
    harness.file.write_text(text.replace("percent: 10", "percent: many"))
    await page.eval("document.getElementById('look').click()")
    await page.until("document.querySelector('#diff pre')?.textContent.includes('percent')")
    await page.eval("document.getElementById('reload').click()")
    await page.until("document.getElementById('reload-note').textContent.startsWith('Rejected')")
    page.console_errors.clear()  # the browser's own message for a status 500
    harness.file.write_text(text)


FIRST_COMPARISON_WAITS = """
(() => {
  const send = window.fetch;
  let count = 0;
  window.fetch = async (path, options) => {
    const response = await send(path, options);
    if (path === "config" && ++count === 1)
      await new Promise((resolve) => { window.deliverFirst = resolve; });
    return response;
  };
})()
"""


async def test_an_older_comparison_does_not_replace_a_newer_one(
    page: Page, harness: Harness
) -> None:
    await open_part(page, "config")
    await page.until("document.querySelector('#diff').children.length")
    await page.eval(FIRST_COMPARISON_WAITS)
    await page.eval("document.getElementById('look').click()")
    await page.until("window.deliverFirst", "the first response has arrived")
    text = harness.file.read_text()
    harness.file.write_text(text.replace("percent: 10", "percent: 33"))
    await page.eval("document.getElementById('look').click()")
    newer = "Boolean(document.querySelector('#diff .plus')?.textContent.includes('33'))"
    await page.until(newer)
    await page.eval("window.deliverFirst()")
    await page.eval("new Promise((resolve) => setTimeout(resolve))")
    assert await page.eval(newer)
    harness.file.write_text(text)


async def test_a_test_request_of_any_protocol_shows_both_sides(
    page: Page, screenshots: Path
) -> None:
    await open_part(page, "try")
    protocols = sorted(plugins())
    options = "[...document.querySelectorAll('#try-protocol option')].map((e) => e.value)"
    await page.until(f"{options}.length === {len(protocols)}")
    assert sorted(await page.eval(options)) == protocols
    note = "document.getElementById('try-note').textContent"
    for protocol in protocols:
        await page.eval(
            f"document.getElementById('try-protocol').value = '{protocol}';"
            "document.getElementById('try-model').value = 'speech-2019';"
            "document.getElementById('outcome').hidden = true;"
            "document.getElementById('example').click()"
        )
        await page.until(f"{note}.includes('match')")
        await page.eval("document.getElementById('send').click()")
        await page.until("!document.getElementById('outcome').hidden")
        formats = "[...document.querySelectorAll('#sides .wire')].map((e) => e.dataset.protocol)"
        assert await page.eval(formats) == [protocol] * 2 + ["trtis-grpc"] * 2
        sides = await page.eval("document.getElementById('sides').textContent")
        assert 'model_name: "identity"' in sides
        assert await page.eval("document.querySelector('#try-summary .pill').textContent") == "ok"
        assert '"data": [0.0, 1.0' in await page.eval(
            "document.getElementById('try-result').textContent"
        )
    for scheme, size in (("light", WIDE), ("dark", WIDE), ("dark", NARROW)):
        await page.emulate(*size, scheme)
        assert await page.eval(LOW_CONTRASTS) == []
        assert await page.eval(UNLABELED) == []
        assert await page.eval(OVERFLOW) <= 0
        await page.screenshot(screenshots / f"tried-{scheme}-{size[0]}.png", whole=True)
    visible = "document.querySelector('#sides pre.{}').checkVisibility()"
    assert await page.eval(visible.format("decoded"))
    await page.eval("document.querySelector('input[value=bytes]').click()")
    assert await page.eval(f"{visible.format('bytes')} && !{visible.format('decoded')}")
    await page.eval(
        "document.getElementById('try-inputs').value = '[';document.getElementById('send').click()"
    )
    await page.until(f"{note}.startsWith('Not sent')")


async def test_actions_require_a_key_if_keys_are_configured() -> None:
    listeners = LISTENERS.replace("actions: true", KEYS)
    with started_infergate(DEMO, listeners) as gateway:
        async with opened_page() as page:
            await page.open(f"http://{gateway.admin}/console/#try")
            await page.until("document.getElementById('key').checkVisibility()")
            await page.until("document.querySelector('#try-protocol option')")
            await page.eval("document.getElementById('try-model').value = 'digits'")
            await page.eval("document.getElementById('send').click()")
            note = "document.getElementById('try-note').textContent"
            await page.until(f"{note}.startsWith('Not sent')")
            await page.eval("document.getElementById('key').value = 'opensesame'")
            await page.eval("document.getElementById('send').click()")
            await page.until("document.querySelector('#try-summary .pill')?.textContent === 'ok'")
            assert not any("opensesame" in each for each in page.requests)
            page.console_errors.clear()  # the browser's own message for a status 401


async def test_pages_of_other_origins_cannot_act(page: Page, harness: Harness) -> None:
    """The requests are sent from a page on the gateway's HTTP port, so their origin differs."""
    other = f"http://{harness.gateway.http}"
    await page.open(f"{other}/v2")
    url = f"http://{harness.gateway.admin}/reload"
    before = generation(harness)
    for options in (
        "{method: 'POST', mode: 'no-cors'}",
        "{method: 'POST', mode: 'no-cors', headers: {'content-type': 'text/plain'}, body: '{}'}",
        "{method: 'POST', headers: {'x-infergate-console': '1'}}",
    ):
        await page.eval(f"fetch('{url}', {options}).then(() => 'sent', () => 'refused')")
    assert generation(harness) == before
    page.console_errors.clear()  # the browser reports a violation of the policy
    page.requests.clear()


def generation(harness: Harness) -> Any:
    with urllib.request.urlopen(f"http://{harness.gateway.admin}/config") as response:
        return response.read()


async def test_only_the_consoles_own_scripts_run(page: Page) -> None:
    await page.eval(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.bad = 1';"
        " document.body.append(s);"
        " const i = document.createElement('img'); i.src = 'http://127.0.0.1:9/x';"
        " document.body.append(i);"
        " return new Promise((done) => { i.onerror = () => setTimeout(done, 100); }); })()"
    )
    assert await page.eval("window.bad === undefined")
    blocked = [each for each in page.console_errors if "Content Security Policy" in each]
    assert len(blocked) == len(page.console_errors) == 2
    page.console_errors.clear()
    page.requests[:] = [
        each for each in page.requests if not each.startswith("http://127.0.0.1:9/")
    ]


async def test_the_keyboard_reaches_and_operates_the_controls(page: Page) -> None:
    focused = "document.activeElement.textContent.trim() || document.activeElement.id"
    names = []
    for _ in range(12):
        await page.press("Tab", 9)
        names.append(await page.eval(focused))
    assert names[0] == "Skip to content"
    assert [each.split()[0].lower() for each in names[1:7]] == list(PARTS)
    assert "find" in names
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert await page.eval(outline) != "none"
    await page.eval("document.querySelector('nav a[href=\"#config\"]').focus()")
    await page.press("Enter", 13, "\r")
    await page.until("!document.getElementById('config').hidden")
    assert await page.eval("document.querySelector('nav [aria-current=page]').hash") == "#config"
    await page.eval("document.getElementById('theme').focus()")
    await page.press(" ", 32, " ")
    await page.until("document.documentElement.dataset.theme === 'light'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_parts_are_accessible(page: Page, screenshots: Path, scheme: str) -> None:
    await page.until("document.querySelectorAll('#wires .flow[visibility=visible]').length > 8")
    for size in (WIDE, NARROW):
        await page.emulate(*size, scheme)
        for part in PARTS:
            await open_part(page, part)
            await page.eval(
                "new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))"
            )
            await page.screenshot(
                screenshots / f"{part}-{scheme}-{size[0]}.png", whole=size is NARROW
            )
            assert await page.eval(LOW_CONTRASTS) == [], part
            assert await page.eval(UNLABELED) == [], part
            assert await page.eval(OVERFLOW) <= 0, f"{part} is wider than the window"
            assert await axe_violations(page) == [], part


async def test_flows_do_not_move_with_reduced_motion(page: Page) -> None:
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    await page._send("Emulation.setEmulatedMedia", features=features)
    await page.until("document.querySelector('#wires .flow')")
    moving = "getComputedStyle(document.querySelector('#wires .flow')).animationName"
    assert await page.eval(moving) == "none"
