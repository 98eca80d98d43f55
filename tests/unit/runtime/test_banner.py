from __future__ import annotations

import shlex
from pathlib import Path

from infergate.config import Config
from infergate.runtime.banner import banner
from infergate.transport.base import Address


class Listening:
    def __init__(self, port: int) -> None:
        self.address = Address("127.0.0.1", port)

    async def start(self) -> None: ...

    async def stop(self, grace: float) -> None: ...


LISTENERS = {"http": Listening(8000), "grpc": Listening(8001), "admin": Listening(8002)}


def test_the_demo_tells_addresses_and_three_lines_to_paste() -> None:
    text = banner(Config.default(), LISTENERS, None)
    for address in ("127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8002"):
        assert address in text
    pasted = [line.strip() for line in text.splitlines() if line.startswith("  ") and "http" in line
              and ("curl" in line or "tritonclient" in line)]  # fmt: skip
    assert len(pasted) == 3
    for line in pasted:
        assert shlex.split(line, comments=True)  # what a shell can read


def test_a_file_tells_its_routes() -> None:
    text = banner(Config.default(), LISTENERS, Path("routes.yaml"))
    assert "routes.yaml" in text
    assert "* -> demo" in text
    assert "curl" not in text
