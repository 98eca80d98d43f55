"""Reloading of the certificates of a grpcio listener."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from infergate.transport.compat import grpcio_tls
from infergate.transport.tls.server_context import ServerTlsContext
from tls_kit import Authority, replace_files, server_tls


def test_files_missing_during_a_reload_are_loaded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another attempt, the old certificate would stay in use."""
    reload_callbacks: list[Callable[[], Any]] = []
    monkeypatch.setattr(
        grpc,
        "dynamic_ssl_server_credentials",
        lambda first, reload, **others: reload_callbacks.append(reload),
    )
    authority = Authority(tmp_path / "authority")
    pair, now = authority.server(), 0.0
    certificates = ServerTlsContext("grpc", server_tls(pair), (), clock=lambda: now)
    grpcio_tls._credentials(certificates)
    (reload,) = reload_callbacks
    assert reload() is None
    replace_files(authority.server(), pair)
    now = 2.0
    certificates.reload_if_changed()
    assert certificates.generation == 1
    moved = pair.key.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        reload()
    moved.rename(pair.key)
    assert reload() is not None
    assert reload() is None
