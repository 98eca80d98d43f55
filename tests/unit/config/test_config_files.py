"""The files that a configuration was read from."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from infergate.config.load import load
from infergate.config.mistakes import ConfigError
from infergate.config.tracked_files import TrackedFiles

TEXT = """
backends: {ours: {protocol: builtin}}
routes: [{model: m, backend: ours, labels: {OUT: labels.txt}}]
"""


def test_one_file_has_the_hash_that_sha256sum_prints(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"text")
    files = TrackedFiles()
    assert files.read(file) == b"text"
    assert files.sha256 == hashlib.sha256(b"text").hexdigest()
    assert not files.have_changed()
    file.write_bytes(b"other")
    assert files.have_changed()


def test_referenced_files_are_tracked(tmp_path: Path) -> None:
    file, labels = tmp_path / "routes.yaml", tmp_path / "labels.txt"
    file.write_text(TEXT)
    missing = TrackedFiles()
    with pytest.raises(ConfigError, match=r"the file 'labels\.txt' cannot be read"):
        load(file, {}, missing)
    assert missing.paths == (file, labels)
    assert not missing.have_changed()
    labels.write_bytes(b"cat\r\ndog\n")
    assert missing.have_changed()
    files = TrackedFiles()
    config = load(file, {}, files)
    assert config.routes[0].labels == {"OUT": ("cat", "dog")}
    assert files.paths == (file, labels)
    assert files.sha256 != hashlib.sha256(file.read_bytes()).hexdigest()
    labels.unlink()
    assert files.have_changed()
