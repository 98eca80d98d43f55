"""Runs ``infergate probe``, the requests that it prints, and the configuration that it writes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import yaml

from infergate.cli import main
from peers.support.process import Launch, started

_SECONDS = 30


def probe(*argv: str) -> dict[str, Any]:
    """Return the JSON that ``infergate probe`` prints."""
    output = io.StringIO()
    with redirect_stdout(output):
        code = main(["probe", *argv, "--json"])
    document: dict[str, Any] = json.loads(output.getvalue())
    failed = any(item["problem"] for item in document["addresses"])
    assert code == int(failed)
    return document


def protocols_of(document: dict[str, Any]) -> dict[str, set[str]]:
    """Return the protocols found at each address."""
    return {item["address"]: set(item["protocols"]) for item in document["addresses"]}


def models_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the models of all servers, keyed by name."""
    return {m["name"]: m for server in document["servers"] for m in server["models"]}


def run_requests(model: dict[str, Any]) -> list[Any]:
    """Run the curl command and the Python program for ``model``, and return their responses."""
    texts = [
        subprocess.run(
            argv, capture_output=True, text=True, check=True, timeout=_SECONDS, env=_environment()
        ).stdout
        for argv in (["sh", "-c", model["curl"]], [sys.executable, "-c", model["python"]])
    ]
    return [json.loads(text) for text in texts]


def _environment() -> dict[str, str]:
    return {**os.environ, "NO_PROXY": "*", "no_proxy": "*"}


@contextmanager
def serve_config(file: Path) -> Iterator[dict[str, Any]]:
    """Check and serve the configuration that a probe wrote, and yield it."""
    assert main(["--config", str(file), "--check"]) == 0
    document: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    listeners = document["listeners"]
    ports = [int(listeners[name]["address"].split(":")[1]) for name in ("admin", "http", "grpc")]
    argv = [sys.executable, "-m", "infergate", "--config", str(file), "--log-format", "json"]

    def prepare(_folder: Path) -> Launch:
        return Launch("infergate", argv, dict(os.environ), ports, ready="/healthz")

    with started(prepare):
        yield document
