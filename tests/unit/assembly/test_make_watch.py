"""Tests of the watch of a Kubernetes service, made from a backend's configuration."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from infergate.assembly import endpoint_slice_watch
from infergate.assembly.endpoint_slice_watch import make_watch
from infergate.backends.endpoint_slice_watch import EndpointSliceWatch, WatchedService
from infergate.config.schema import BackendConfig
from infergate.core.limits import DEFAULT_LIMITS
from infergate.transport.base import Endpoint
from infergate.transport.tls import file_watch
from kubernetes_api import ApiServer, ready_slice
from tls_kit import Authority


def watch_of(url: str, **keys: Any) -> EndpointSliceWatch:
    config = BackendConfig.model_validate(
        {"protocol": "v2-grpc", "endpoints": (url,), "kubernetes": keys}
    )
    watch = make_watch("b", config, DEFAULT_LIMITS)
    assert watch is not None
    return watch


def service(url: str = "grpc://triton:8001", **keys: Any) -> WatchedService:
    return watch_of(url, **keys).service


def watch_on_port(port: int) -> EndpointSliceWatch:
    return watch_of(f"grpc://triton.models:{port}")


def server_context(authority: Authority) -> ssl.SSLContext:
    pair = authority.server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a pod's service account."""
    monkeypatch.setattr(endpoint_slice_watch, "_SERVICE_ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT_HTTPS", raising=False)
    (tmp_path / "namespace").write_text("own")
    Authority(tmp_path).file.rename(tmp_path / "ca.crt")
    return tmp_path


def test_a_backend_without_a_kubernetes_section_has_no_watch() -> None:
    config = BackendConfig.model_validate(
        {"protocol": "v2-grpc", "endpoints": ("grpc://triton:8001",)}
    )
    assert make_watch("b", config, DEFAULT_LIMITS) is None


@pytest.mark.parametrize(
    ("url", "keys", "expected"),
    [
        ("grpc://triton:8001", {}, "own/triton"),
        ("grpc://triton.models:8001", {}, "models/triton"),
        ("grpc://triton.models.svc.cluster.local:8001", {}, "models/triton"),
        ("grpc://triton:8001", {"namespace": "other"}, "other/triton"),
        ("grpc://x.example:8001", {"service": "s", "namespace": "n"}, "n/s"),
    ],
)
def test_the_service_is_named_by_the_url_or_the_section(
    account: Path, url: str, keys: dict[str, str], expected: str
) -> None:
    assert str(service(url, **keys)) == f"service {expected}"


def test_a_reloaded_configuration_continues_the_watch_of_the_same_service(account: Path) -> None:
    active, other = watch_on_port(8001), watch_on_port(9001)
    assert (active.known_addresses(), other.known_addresses()) == (None, None)
    active.has_listed = True
    assert watch_on_port(9001).known_addresses() is None, "the other configuration has another port"
    assert watch_on_port(8001).known_addresses() == []


def test_a_rejected_configuration_does_not_interrupt_the_watch(account: Path) -> None:
    active = watch_on_port(8001)
    active.known_addresses()
    active.has_listed = True
    rejected = watch_on_port(8001)
    following = watch_on_port(8001)
    assert following.known_addresses() == [], "the next configuration continues the active watch"
    del rejected
    assert watch_on_port(8001).known_addresses() == []


def test_in_a_cluster_the_service_account_is_used(
    account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = service()
    assert watched.api == Endpoint("kubernetes.default.svc", 443, tls=True)
    assert watched.token_file == account / "token"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT_HTTPS", "6443")
    assert service().api == Endpoint("fd00::1", 6443, tls=True)


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_the_api_server_must_have_a_certificate_of_the_configured_authority(
    tmp_path: Path, is_trusted: bool
) -> None:
    authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    token = tmp_path / "token"
    token.write_text("secret")
    async with ApiServer(server_context(authority)).running() as api:
        api.token = "secret"
        api.put(ready_slice("a", "10.0.0.1"))
        watch = watch_of(
            "grpc://triton.models:1",
            api=f"https://localhost:{api.port}",
            ca=str((authority if is_trusted else other).file),
            token_file=str(token),
        )
        addresses: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        is_current: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(
            watch.run(
                addresses.set_result,
                lambda state: None if is_current.done() else is_current.set_result(state),
            )
        )
        async with asyncio.timeout(20):
            assert await is_current is is_trusted
            if is_trusted:
                assert await addresses == [("10.0.0.1", 8001)]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert bool(api.requests) is is_trusted, "only a trusted API server gets requests"


async def test_a_replaced_authority_of_the_cluster_is_read_for_the_next_connection(
    account: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "_CHECK_INTERVAL", 0.0)
    authority = Authority(tmp_path_factory.mktemp("new"))
    (account / "token").write_text("secret")
    async with ApiServer(server_context(authority)).running() as api:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "localhost")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT_HTTPS", str(api.port))
        states: asyncio.Queue[bool] = asyncio.Queue()
        task = asyncio.create_task(watch_on_port(8001).run(lambda _: None, states.put_nowait))
        async with asyncio.timeout(20):
            assert not await states.get(), "the service account has the previous authority"
            authority.file.replace(account / "ca.crt")
            while not await states.get():
                pass
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_outside_of_a_cluster_the_namespace_is_default(account: Path) -> None:
    for file in account.iterdir():
        file.unlink()
    assert service().namespace == "default"


def test_the_token_of_the_service_account_is_not_sent_to_another_server(account: Path) -> None:
    watched = service(api="https://api.example:6443")
    assert (watched.api, watched.token_file) == (Endpoint("api.example", 6443, tls=True), None)
    token = account / "token"
    assert service(api="https://api.example", token_file=str(token)).token_file == token
