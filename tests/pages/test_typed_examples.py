"""Tests that mypy accepts the Python examples of docs/library.md and docs/testing-clients.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pages.blocks import blocks_of
from peers.support.installed import PROJECT

PAGES = ("library.md", "testing-clients.md")


def test_mypy_accepts_the_examples_with_its_strict_options(tmp_path: Path) -> None:
    """``make test`` fills mypy's cache first. Without the cache, this test takes a minute."""
    files = []
    for page in PAGES:
        for block in blocks_of(PROJECT / "docs" / page):
            if block.language == "python":
                name = block.file or f"line_{block.line}_of_{Path(page).stem}.py".replace("-", "_")
                (tmp_path / name).write_text(block.text)
                files.append(str(tmp_path / name))
    assert len(files) >= 6
    argv = [sys.executable, "-m", "mypy", "--strict", *files]
    environment = {**os.environ, "MYPYPATH": str(tmp_path), "PYTHONPATH": ""}
    result = subprocess.run(
        argv, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
