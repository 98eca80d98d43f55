"""A headless browser, driven over its DevTools protocol.

The browser is Debian's ``chromium`` (``apt-get install chromium``), or the program that
the environment variable CHROMIUM names. The tests do not install a browser because of its size.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT = 60.0
"""Seconds to wait for actions that take one second on an idle machine."""
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--hide-scrollbars", "--mute-audio", "--force-color-profile=srgb",
    "--remote-debugging-port=0", "--remote-debugging-address=127.0.0.1",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)  # fmt: skip


def chromium() -> str:
    """Return the path or name of the browser. Raises RuntimeError if no browser is found."""
    configured = os.environ.get("CHROMIUM")
    program = configured or next(filter(None, map(shutil.which, NAMES)), None)
    if not program:
        raise RuntimeError(
            "no Chromium found: apt-get install chromium, or set CHROMIUM to its path"
        )
    return program


class Page:
    """A browser tab. ``console_errors`` has errors and warnings of the console, uncaught
    exceptions and failed responses; ``requests`` has all requested URLs."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session = ""
        self.console_errors: list[str] = []
        self.requests: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def begin(self) -> None:
        target = await self._send("Target.createTarget", url="about:blank")
        response = await self._send(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        self._session = response["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self._send(f"{domain}.enable")

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _send(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        pending = self._pending[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json(message)
        async with asyncio.timeout(TIMEOUT):
            response = await pending
        assert "error" not in response, (method, response["error"])
        result: dict[str, Any] = response["result"]
        return result

    async def _read(self) -> None:
        async for message in self._socket:
            document = json.loads(message.data)
            if "id" in document:
                self._pending.pop(document["id"]).set_result(document)
            else:
                self._handle_event(document["method"], document["params"])

    def _handle_event(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Runtime.consoleAPICalled" if params["type"] in {"error", "warning", "assert"}:
                self.console_errors.append(f"console: {params['args']}")
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                thrown = details.get("exception", {}).get("description", details["text"])
                self.console_errors.append(f"exception: {thrown}")
            case "Log.entryAdded" if params["entry"]["level"] in {"error", "warning"}:
                self.console_errors.append(
                    f"log: {params['entry']['text']} {params['entry'].get('url')}"
                )
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    # ---- actions for tests

    async def open(self, url: str) -> None:
        await self._send("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def eval(self, expression: str) -> Any:
        """Return the awaited value of ``expression``. Raises AssertionError with its error."""
        response = await self._send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in response, response["exceptionDetails"]
        return response["result"].get("value")

    async def until(self, expression: str, description: str = "") -> None:
        """Wait until ``expression`` is truthy."""
        deadline = time.monotonic() + TIMEOUT
        while not await self.eval(f"Boolean({expression})"):
            assert time.monotonic() < deadline, (
                f"not within {TIMEOUT:g} s: {description or expression}"
            )
            await asyncio.sleep(0.05)

    async def press(self, key: str, code: int, text: str = "", modifiers: int = 0) -> None:
        """Press a key; ``code`` is its virtual key code."""
        event = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        down = {**event, "text": text} if text else event
        await self._send("Input.dispatchKeyEvent", type="keyDown", **down)
        await self._send("Input.dispatchKeyEvent", type="keyUp", **event)

    async def emulate(self, width: int, height: int, scheme: str = "light") -> None:
        """Set the window's size and the preferred color ``scheme`` (light or dark)."""
        await self._send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self._send("Emulation.setEmulatedMedia", features=features)

    async def screenshot(self, file: Path, *, whole: bool = False) -> None:
        """Take a screenshot of the window, or of the ``whole`` page, as PNG or WebP."""
        kind = {"format": "webp", "quality": 85} if file.suffix == ".webp" else {"format": "png"}
        response = await self._send("Page.captureScreenshot", captureBeyondViewport=whole, **kind)
        await asyncio.to_thread(file.write_bytes, base64.b64decode(response["data"]))


@asynccontextmanager
async def opened_page() -> AsyncIterator[Page]:
    """Open a tab in a new browser."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(  # noqa: ASYNC220 - Popen returns without waiting
            [chromium(), *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            port_file = Path(folder) / "DevToolsActivePort"
            await _until(
                lambda: process.poll() is not None or _lines(port_file) >= 2,
                "the browser opens its port",
            )
            assert process.poll() is None, f"the browser exited with status {process.returncode}"
            port, path = port_file.read_text().splitlines()[:2]
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(
                    f"ws://127.0.0.1:{port}{path}",
                    max_msg_size=0,
                    timeout=aiohttp.ClientWSTimeout(),
                ) as socket,
            ):
                page = Page(socket)
                await page.begin()
                yield page
                await page.close()
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # start_new_session made a new group
            process.wait()


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


async def _until(condition: Callable[[], bool], description: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT:g} s: {description}"
        await asyncio.sleep(0.05)
