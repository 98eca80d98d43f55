"""Tests of the console's demo in a real browser: draw a digit, send it in every protocol, copy it
as code, generate traffic, and break a server.

INFERGATE_SHOTS names a folder for screenshots, and INFERGATE_PICTURES a folder for the pictures of
the README: ``INFERGATE_PICTURES=docs/pictures pytest tests/peers/test_console_demo.py -k life``.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from e2e.running import Infergate, started_infergate
from peers.console_site import DEMO, LISTENERS
from peers.page_checks import LOW_CONTRASTS, NARROW, OVERFLOW, UNLABELED, WIDE
from peers.support.axe import axe_violations
from peers.support.chromium import Page

pytestmark = [pytest.mark.peers, pytest.mark.asyncio(loop_scope="module")]

CLICK = "document.getElementById('{}').click()"
TEXT = "document.getElementById('{}').textContent"


@pytest.fixture(scope="module")
def demo(browser: None) -> Iterator[Infergate]:
    with started_infergate(DEMO, LISTENERS) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def page(tab: Page, demo: Infergate) -> AsyncIterator[Page]:
    await tab.emulate(*WIDE)
    await tab.open("data:text/html,next")
    tab.requests.clear()
    await tab.open(f"http://{demo.admin}/console/#try")
    await tab.until("document.querySelector('#try-protocol option')")
    yield tab
    assert tab.console_errors == []
    origin = f"http://{demo.admin}/"
    assert [each for each in tab.requests if not each.startswith(origin)] == []


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return Path(os.environ.get("INFERGATE_PICTURES", tmp_path))


BEST = "document.querySelector('#try-views .score.best span').textContent"


async def test_a_drawn_digit_is_recognized(page: Page, screenshots: Path) -> None:
    assert await page.eval("document.getElementById('try-demo').checkVisibility()")
    await page.eval(CLICK.format("pad-seven"))
    await page.eval(CLICK.format("send"))
    await page.until(f"document.querySelector('#try-views .score.best') && {BEST} === 'seven'")
    assert await page.eval("document.querySelectorAll('#try-views canvas.tensor').length") == 1
    assert await page.eval("document.querySelectorAll('#try-views .score').length") == 10
    await page.eval(CLICK.format("pad-clear"))
    await page.eval("document.querySelectorAll('.pixel')[3].focus()")
    for _ in range(7):  # a vertical line, drawn with the keyboard
        await page.press(" ", 32, " ")
        await page.press("ArrowDown", 40)
    await page.press(" ", 32, " ")
    inked = "document.querySelectorAll('.pixel[aria-pressed=true]').length"
    assert await page.eval(inked) == 8
    await page.eval(CLICK.format("send"))
    await page.until(f"{BEST} === 'one'", "the line is recognized as a one")
    await page.screenshot(screenshots / "demo-digit.png", whole=True)


async def test_the_pointer_draws_on_the_pad(page: Page) -> None:
    await page.eval(CLICK.format("pad-clear"))
    box = "JSON.stringify(document.querySelectorAll('.pixel')[{}].getBoundingClientRect())"
    for name, cell in (("mousePressed", 10), ("mouseMoved", 18), ("mouseReleased", 18)):
        x, y = await page.eval(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
            f"(JSON.parse({box.format(cell)}))"
        )
        await page._send(
            "Input.dispatchMouseEvent",
            type=name, x=x, y=y, button="left", buttons=1, clickCount=1,
        )  # fmt: skip
    values = "JSON.parse(document.getElementById('try-inputs').value)[0].data"
    data = await page.eval(values)
    assert (data[10], data[18], data[2], data[63]) == (16, 16, 4, 0)


async def test_the_pad_draws_a_small_image_of_any_model(page: Page, screenshots: Path) -> None:
    """The input has the shape [1, 1, 28, 28], as in models for handwriting."""
    enter = (
        "for (const [id, value] of Object.entries({}))"
        "{{ const field = document.getElementById(id); field.value = value;"
        " field.dispatchEvent(new Event('input')); }}"
    )
    image = {"name": "INPUT0", "datatype": "UINT8", "shape": [1, 1, 28, 28], "data": [0]}
    await page.eval(
        enter.format(json.dumps({"try-model": "identity", "try-inputs": json.dumps([image])}))
    )
    assert await page.eval("document.getElementById('pad').checkVisibility()")
    assert await page.eval("document.querySelectorAll('.pixel').length") == 28 * 28
    assert not await page.eval("document.getElementById('pad-seven').checkVisibility()")
    assert "from 0 to 255" in await page.eval(TEXT.format("pad-title"))
    await page.eval("document.querySelectorAll('.pixel')[14 * 28 + 14].focus()")
    await page.press(" ", 32, " ")
    (drawn,) = json.loads(await page.eval("document.getElementById('try-inputs').value"))
    assert (drawn["shape"], len(drawn["data"])) == (image["shape"], 28 * 28)
    assert drawn["data"].count(255) == 9, "the pen is three pixels wide"
    for size in (NARROW, WIDE):
        await page.emulate(*size)
        assert await page.eval(OVERFLOW) <= 0
        await page.screenshot(screenshots / f"pad-28-{size[0]}.png")
    await page.eval(CLICK.format("send"))
    await page.until("document.querySelector('#try-views canvas[aria-label^=INPUT0]')")
    assert await page.eval("document.querySelector('#try-summary .pill').textContent") == "ok"
    vector = json.dumps([image | {"shape": [28]}])
    await page.eval(enter.format(json.dumps({"try-inputs": vector})))
    assert not await page.eval("document.getElementById('pad').checkVisibility()")


async def test_the_same_request_is_sent_in_every_protocol(page: Page, screenshots: Path) -> None:
    await page.eval(CLICK.format("pad-seven"))
    options = "[...document.querySelectorAll('#try-protocol option')].map((e) => e.value)"
    protocols = await page.eval(options)
    assert {"graphpipe", "trtis-http", "trtis-grpc", "v2-rest", "v2-grpc"} <= set(protocols)
    await page.eval(CLICK.format("send-all"))
    items = "document.querySelectorAll('#all-protocols > li')"
    await page.until(f"{items}.length === {len(protocols)}")
    outcomes = f"[...{items}].map((e) => e.querySelector('.pill').textContent)"
    assert set(await page.eval(outcomes)) == {"ok"}
    await page.eval("document.querySelectorAll('#all-protocols summary').forEach((e) => e.click())")
    decoded = await page.eval(
        f"[...{items}].map((e) => e.querySelector('pre.decoded').textContent)"
    )
    by_protocol = dict(zip(protocols, decoded, strict=True))
    assert "IMAGE" in by_protocol["trtis-grpc"] + by_protocol["trtis-http"]
    assert '"type": "10 (FP32)"' in by_protocol["graphpipe"]
    responses = f"[...{items}].map((e) => e.querySelectorAll('pre.decoded')[1].textContent)"
    decoded_responses = dict(zip(protocols, await page.eval(responses), strict=True))
    assert '"output_tensors"' in decoded_responses["graphpipe"]
    assert not any("cannot be decoded" in text for text in (*decoded, *decoded_responses.values()))
    await page.eval("document.querySelector('input[name=how-all][value=bytes]').click()")
    assert await page.eval(f"{items}[0].querySelector('pre.bytes').checkVisibility()")
    await page.screenshot(screenshots / "demo-protocols.png", whole=True)


async def test_the_request_is_copied_as_code(page: Page) -> None:
    await page.eval(CLICK.format("pad-seven"))
    await page.eval(CLICK.format("write-code"))
    await page.until("!document.getElementById('code-outcome').hidden")
    for client, text in (
        ("curl", "curl http://127.0.0.1:"),
        ("tritonclient", "import tritonclient.http"),
        ("kserve", "from kserve import"),
        ("tensorflow-serving-api", "predict_pb2"),
        ("graphpipe", "remote.execute_multi"),
    ):
        await page.eval(
            f"document.getElementById('code-client').value = '{client}';"
            "document.getElementById('code-client').dispatchEvent(new Event('change'))"
        )
        assert text in await page.eval(TEXT.format("code-text")), client
    await page.eval(CLICK.format("code-copy"))
    await page.until(f"/Copied|Selected/.test({TEXT.format('code-note')})")


async def test_traffic_and_a_broken_server_bring_the_diagram_to_life(
    page: Page, screenshots: Path, pictures: Path
) -> None:
    await page.eval("location.hash = '#live'")
    await page.until("document.getElementById('demo').checkVisibility()")
    await page.eval(CLICK.format("demo-start"))
    busy = "document.querySelectorAll('#column-{} .node[data-busy=true]').length"
    await page.until(f"{busy.format('backends')} >= 5", "every backend has traffic")
    await page.until(f"{busy.format('endpoints')} >= 4")
    await show_a_translated_request(page)
    for scheme in ("light", "dark"):
        await page.emulate(*WIDE, scheme)
        await page.screenshot(pictures / f"request-{scheme}.webp")
    await page.eval("location.hash = '#live'")
    await page.eval(CLICK.format("demo-break"))
    await page.until(f"{TEXT.format('demo-break')} === 'Repair the server'")
    failing = "document.querySelector('[data-key=\"back:tf-serving\"]')?.dataset.health"
    await page.until(f"['down', 'failing'].includes({failing})", "tf-serving is broken")
    for size, scheme in ((WIDE, "light"), (WIDE, "dark"), (NARROW, "dark")):
        await page.emulate(*size, scheme)
        assert await page.eval(LOW_CONTRASTS) == []
        assert await page.eval(UNLABELED) == []
        assert await page.eval(OVERFLOW) <= 0
        await page.screenshot(
            screenshots / f"demo-live-{scheme}-{size[0]}.png", whole=size is NARROW
        )
        if size is WIDE:
            await page.screenshot(pictures / f"console-{scheme}.webp")
    assert await axe_violations(page) == []
    await page.eval(CLICK.format("demo-break"))
    await page.until(f"{TEXT.format('demo-break')} === 'Break a server'")
    await page.eval("location.hash = '#history'")
    events = TEXT.format("history-events")
    await page.until(f"{events}.includes('a new configuration is active (demo)')")
    await page.eval("location.hash = '#live'")
    await page.eval(CLICK.format("demo-stop"))
    await page.until("document.getElementById('demo-stop').disabled")
    names = "[...document.querySelectorAll('#column-backends .name code')].map((e) => e.innerText)"
    await page.until(f"JSON.stringify({names}) === '[\"demo\"]'", "the configuration is restored")


async def show_a_translated_request(page: Page) -> None:
    """Send a drawn seven in V2 REST to the legacy server, and scroll to both sides."""
    await page.eval("location.hash = '#try'")
    await page.eval("document.getElementById('try-model').value = 'digits-legacy'")
    await page.eval(CLICK.format("pad-seven"))
    await page.eval(CLICK.format("send"))
    await page.until("document.querySelectorAll('#sides .wire').length === 4")
    await page.until(f"{BEST} === 'seven'")
    await page.eval("document.getElementById('outcome').scrollIntoView()")
    await page.eval("window.scrollBy(0, -80)")  # the page's header covers the top
