"""The authorizer that a configuration's ``access`` produces, and the admin listener's keys."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from access_tokens import ISSUER, jwk, jwks, rsa_key, token
from gateway_errors import raises_kind
from infergate.access.keys import digest_of
from infergate.access.rate_limits import LocalBuckets
from infergate.codecs.base import RequestSummary
from infergate.config import Config
from infergate.config.load import load
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.observe.metrics import Metrics
from infergate.runtime.access import authorize_admin, make_authorizer
from infergate.runtime.running import GatewayParts
from infergate.runtime.worker_group import WorkerGroup
from infergate.transport.base import HttpApp

SECRET = "infergate_admin-key"
SUMMARY = RequestSummary(InferRequest, "m")
HASH = digest_of(SECRET).hex()
BASE = "backends: {d: {protocol: builtin}}\nroutes: [{model: '*', backend: d}]\n"


def load_config(folder: Path, text: str) -> Config:
    (folder / "routes.yaml").write_text(BASE + text)
    return load(folder / "routes.yaml", {})


def request_with(**headers: str) -> RequestContext:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return RequestContext("peer", headers=fields)


async def identity_of(
    config: Config, request: RequestContext, metrics: Metrics | None = None
) -> str:
    group = WorkerGroup(metrics=metrics or Metrics())
    authorizer = make_authorizer(config, lambda *_: "*", DEFAULT_LIMITS, group)
    await authorizer.authorize(SUMMARY, request)
    await authorizer.close()
    return request.identity


async def test_the_keys_file_is_read_when_an_authorizer_is_made(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"one: {HASH}\n")
    config = load_config(tmp_path, "access: {keys_file: keys, rules: [{who: ['key:*']}]}\n")
    file.write_text(f"two: {HASH}\n")
    assert await identity_of(config, request_with(x_api_key=SECRET)) == "key:two"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("keys_file: file, rules: [{who: ['key:*']}]", "access.keys_file: the file '.*/file': "),
        (
            "jwt: {idp: {issuer: i, audiences: [a], jwks_file: file}}, rules: [{who: ['jwt:*']}]",
            "access.jwt.idp.jwks_file: the file '.*/file': the document is not JSON",
        ),
    ],
)
async def test_a_file_that_became_invalid_is_reported(
    tmp_path: Path, text: str, expected: str
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    config = load_config(tmp_path, f"access: {{{text}}}\n")
    file.write_text("invalid")
    with pytest.raises(OSError, match=expected):
        await identity_of(config, request_with())


def jwt_access(keys: str) -> str:
    return (
        "access:\n  rules: [{who: ['jwt:idp:*']}]\n"
        f"  jwt: {{idp: {{issuer: '{ISSUER}', audiences: [infergate], {keys}}}}}\n"
    )


async def test_tokens_are_verified_with_keys_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_bytes(jwks(jwk(rsa_key(), kid="1")))
    config = load_config(tmp_path, jwt_access("jwks_file: jwks.json"))
    bearer = request_with(authorization=f"Bearer {token()}")
    assert await identity_of(config, bearer) == "jwt:idp:alice"


async def test_failed_key_fetches_are_counted(tmp_path: Path, unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}/keys"
    config = load_config(tmp_path, jwt_access(f"jwks_url: '{url}'"))
    metrics = Metrics()
    with raises_kind(Kind.OVERLOADED):
        await identity_of(config, request_with(authorization=f"Bearer {token()}"), metrics)
    text = metrics.text().decode()
    assert 'infergate_access_failures_total{source="jwks"} 1.0' in text
    assert 'infergate_access_refused_total{reason="keys_away"} 1.0' in text


RATES = f"  keys: [{{name: a, sha256: '{HASH}'}}]\n  rates: [{{requests: 1/h, each: []}}]\n"


def gateway_parts(config: Config, access: Any) -> GatewayParts:
    unused: Any = None
    return GatewayParts(config, DEFAULT_LIMITS, unused, {}, None, None, access)


def authorizer_of(config: Config, previous: GatewayParts | None = None, *, label: str = "") -> Any:
    return make_authorizer(config, lambda *_: label, DEFAULT_LIMITS, WorkerGroup(), previous)


async def test_an_authorizer_is_reused_if_access_is_unchanged(tmp_path: Path) -> None:
    config = load_config(tmp_path, f"access:\n  rules: [{{who: ['*']}}]\n{RATES}")
    first = authorizer_of(config, label="old")
    reused = authorizer_of(config, gateway_parts(config, first), label="new")
    assert reused is first
    assert reused.route_label("m", "", {}) == "old", "the old configuration still serves"


async def test_rate_buckets_are_kept_if_the_rates_are_unchanged(tmp_path: Path) -> None:
    config = load_config(tmp_path, f"access:\n  rules: [{{who: ['*']}}]\n{RATES}")
    other = load_config(tmp_path, f"access:\n  rules: [{{who: ['key:*']}}]\n{RATES}")
    third = load_config(
        tmp_path, "access:\n  rules: [{who: ['*']}]\n" + RATES.replace("1/h", "2/h")
    )
    authorizer = authorizer_of(config)
    await authorizer.authorize(SUMMARY, request_with(x_api_key=SECRET))
    for changed, is_counted in ((other, True), (third, False)):
        later = authorizer_of(changed, gateway_parts(config, authorizer))
        assert later is not authorizer
        with pytest.raises(GatewayError, match="rate of") if is_counted else nullcontext():
            await later.authorize(SUMMARY, request_with(x_api_key=SECRET))


async def test_the_worker_group_selects_the_memory_of_rate_buckets(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    """All workers count in the group's memory, even while Redis is unavailable."""
    buckets: dict[bytes, LocalBuckets] = {}
    group = WorkerGroup(rate_buckets=lambda rates: buckets.setdefault(rates, LocalBuckets()))
    redis = f"  redis: {{url: 'redis://127.0.0.1:{unused_tcp_port}', timeout: 5s}}\n"
    for number, options in enumerate(("", redis)):
        rates = RATES.replace("1/h", f"{number + 1}/h")
        config = load_config(tmp_path, f"access:\n  rules: [{{who: ['*']}}]\n{rates}{options}")
        authorizer = make_authorizer(config, lambda *_: "", DEFAULT_LIMITS, group)
        await authorizer.authorize(SUMMARY, request_with(x_api_key=SECRET))
        await authorizer.close()
    assert [len(each) for each in buckets.values()] == [1, 1]


class RecordingApp:
    def __init__(self) -> None:
        self.requests: list[str] = []

    async def respond(self, wire: HttpRequest, context: RequestContext) -> HttpResponse:
        self.requests.append(f"{wire.method} {context.identity}")
        return HttpResponse(200)

    def refuse(
        self, error: GatewayError, wire: HttpRequest, context: RequestContext
    ) -> HttpResponse:
        return HttpResponse(400)


def admin(folder: Path, inner: RecordingApp, keys: bool = True) -> tuple[HttpApp, Metrics]:
    listener = f"keys: [{{name: ops, sha256: '{HASH}'}}]" if keys else ""
    config = load_config(folder, f"listeners: {{admin: {{{listener}}}}}\n")
    metrics = Metrics()
    return authorize_admin(inner, config, metrics), metrics


async def test_without_keys_the_admin_app_is_not_wrapped(tmp_path: Path) -> None:
    inner = RecordingApp()
    assert admin(tmp_path, inner, keys=False)[0] is inner


async def test_admin_actions_need_a_key_and_reading_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "infergate.audit")
    inner = RecordingApp()
    app, metrics = admin(tmp_path, inner)
    assert (await app.respond(HttpRequest("GET", "/metrics"), request_with())).status == 200
    assert caplog.records == []
    wire = HttpRequest("POST", "/reload\nforged")
    credentials: list[dict[str, Any]] = [{}, {"x_api_key": "x"}, {"authorization": "Basic x"}]
    for headers in credentials:
        response = await app.respond(wire, request_with(**headers))
        assert response.status == 401
        assert response.headers["www-authenticate"].startswith("Bearer ")
    assert (await app.respond(wire, request_with(authorization=f"Bearer {SECRET}"))).status == 200
    assert inner.requests == ["GET ", "POST key:ops"]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 4
    assert messages[0] == r"admin POST '/reload\nforged' peer=peer status=401 identity=''"
    assert messages[3] == r"admin POST '/reload\nforged' peer=peer status=200 identity='key:ops'"
    assert SECRET not in caplog.text
    text = metrics.text().decode()
    for reason in ("no_credentials", "unknown_key", "malformed"):
        assert f'infergate_access_refused_total{{reason="{reason}"}} 1.0' in text
    assert app.refuse(GatewayError(Kind.TOO_LARGE, "x"), wire, request_with()).status == 400
