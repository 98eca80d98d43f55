"""Tests that ``infergate report`` reads a running gateway's comparisons and stored mismatches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.running import Infergate, started_infergate
from e2e.test_replay import send, simple
from faults.watch import until
from infergate.cli import main

CONFIG = """
backends: {{b: {{protocol: builtin}}, c: {{protocol: builtin}}}}
routes:
  - model: simple
    backend: b
    mirror:
      backend: c
      rewrite: {{outputs: {{OUTPUT0: OUTPUT1, OUTPUT1: OUTPUT0}}}}
      compare: {{keep: {{path: {path}}}}}
"""
REQUESTS = 3


def report(gateway: Infergate, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    """Return the exit code and the JSON of the report on ``gateway``."""
    code = main(["report", "--admin", f"http://{gateway.admin}", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_report_shows_the_comparisons_and_the_stored_mismatches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, page = tmp_path / "mismatches", tmp_path / "page.html"
    with started_infergate(CONFIG.format(path=json.dumps(str(folder)))) as gateway:
        assert report(gateway, capsys)[1]["models"] == []
        for number in range(REQUESTS):
            send(gateway, "v2-rest", simple(number))

        def compared_count() -> int:
            models = report(gateway, capsys)[1]["models"]
            return sum(model["compared"] for model in models)

        until(lambda: compared_count() == REQUESTS, "all requests are compared")
        code, document = report(gateway, capsys)
        assert (code, document["verdict"]) == (1, "different")
        argv = ["report", "--admin", f"http://{gateway.admin}", "--html", str(page)]
        assert main(argv) == 1
        assert "OUTPUT1" in page.read_text()
        until(lambda: len(list(folder.glob("*.igrec"))) == REQUESTS, "all mismatches are stored")
        files = [str(file) for file in folder.glob("*.igrec")]
        assert main(["report", "--mismatches", str(folder)]) == 1
        assert f"0 % of {REQUESTS} responses equal" in capsys.readouterr().out
        # The stored responses came from the old server, which returns the same responses again.
        target = ["--to", f"http://{gateway.http}", "--fast"]
        assert main(["replay", *files, *target, "--compare", "exact"]) == 0
