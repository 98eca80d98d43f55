"""TLS of a grpcio listener: when it reloads its certificates."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from infergate.transport.compat import grpcio_tls
from infergate.transport.tls.server_context import ServerTlsContext
from tls_kit import Authority, of_server, put


def test_files_deleted_during_a_read_are_loaded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the old certificate would be used until the next connection."""
    renewals: list[Callable[[], Any]] = []
    monkeypatch.setattr(
        grpc,
        "dynamic_ssl_server_credentials",
        lambda first, renewed, **others: renewals.append(renewed),
    )
    authority = Authority(tmp_path / "authority")
    pair, now = authority.server(), 0.0
    certificates = ServerTlsContext("grpc", of_server(pair), (), clock=lambda: now)
    grpcio_tls._credentials(certificates)
    (renewed,) = renewals
    assert renewed() is None
    put(authority.server(), pair)
    now = 2.0
    assert certificates.reload_if_changed()
    away = pair.key.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        renewed()
    away.rename(pair.key)
    assert renewed() is not None
    assert renewed() is None
