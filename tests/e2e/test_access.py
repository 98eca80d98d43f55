"""Tests access control of V2, TRTIS and GraphPipe clients with both engines, and that no secret is
logged."""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from access_tokens import ISSUER, jwk, jwks, rsa_key, token
from e2e.running import LISTENERS, Infergate, started_infergate
from faults.legacy import (
    OLD,
    OLD_INFER,
    SIMPLE,
    code_name,
    grpc_outcome,
    http_outcome,
    old_message,
)
from faults.peer import Client, get, post
from faults.rpc import RpcBackend, call, channel
from faults.watch import MIB, SECONDS, limited_growth, others_unaffected, until
from http_stand_in import QuietHandler, StandInServer
from infergate.access.keys import digest_of
from infergate.codecs.base import Profile
from infergate.codecs.graphpipe import PLUGIN
from infergate.codecs.protos import SCHEMA
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, ModelMetadata, TensorMetadata
from infergate.core.tensor import tensor_from_array
from infergate.core.wire import HttpResponse, join_parts
from legacy.messages import SERVICE
from peers.support.process import free_ports

VALID_KEY, LIMITED_KEY, ADMIN_KEY, KEY_IN_FILE, OPS_KEY = (
    f"infergate_secret-of-{i}-{'x' * 20}" for i in range(5)
)
CONFIG = """
backends:
  demo: {{protocol: builtin}}
  rpc: {{protocol: v2-grpc, endpoints: ["grpc://{rpc}"], profile: triton, forward_headers: ["*"]}}
routes:
  - {{model: fwd, backend: rpc}}
  - {{model: renamed, backend: rpc, rewrite: {{inputs: {{INPUT0: X}}}}}}
  - {{model: '*', backend: demo}}
control: {{repository: true, settings: true, shared_memory: true}}
access:
  keys:
    - {{name: good, sha256: "{good}"}}
    - {{name: limited, sha256: "{limited}"}}
    - {{name: admin, sha256: "{admin}"}}
  keys_file: {file}
  jwt:
    idp: {{issuer: "{issuer}", audiences: [infergate], jwks_url: "http://127.0.0.1:{jwks}/keys"}}
  rules:
    - {{who: ["key:good", "key:filed"], models: [simple, fwd, renamed, repeat]}}
    - {{who: ["key:limited"], models: [simple]}}
    - {{who: ["jwt:idp:*"], claims: {{groups: [ml-*]}}, models: [simple]}}
    - who: ["key:admin"]
      operations: [infer, metadata, statistics, repository, settings, shared_memory]
    - {{who: [anonymous], models: [identity], operations: [infer]}}
  rates:
    - {{who: ["key:limited"], requests: 2/h, each: [identity]}}
"""
SIMPLE_INPUTS = np.arange(16, dtype="<i4"), np.ones(16, "<i4")
GRAPHPIPE = PLUGIN.create({})
ADD = ModelMetadata(
    "simple",
    inputs=tuple(TensorMetadata(f"INPUT{i}", "INT32", (-1, 16)) for i in range(2)),
    outputs=tuple(TensorMetadata(f"OUTPUT{i}", "INT32", (-1, 16)) for i in range(2)),
)


class KeySetHandler(QuietHandler):
    """Serves the JSON Web Key Set at ``url``."""

    def get(self) -> None:
        self.respond(200, jwks(jwk(rsa_key(), kid="1")))


@dataclass(frozen=True)
class Harness:
    """A gateway with access control, its backend, and its raw sockets."""

    gateway: Infergate
    rpc: RpcBackend
    channel: grpc.Channel
    file: Path
    raw: Mapping[str, int]
    engine: str


@pytest.fixture(scope="module", params=["own", "compat"])
def harness(
    request: pytest.FixtureRequest, rpc: RpcBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harness]:
    file = tmp_path_factory.mktemp("access") / "keys"
    file.write_text("")
    simple, identity = free_ports(2)
    listeners = f"""{LISTENERS}  graphpipe:
    - {{{{address: "127.0.0.1:{simple}", model: simple, framing: size-prefixed}}}}
    - {{{{address: "127.0.0.1:{identity}", model: identity, framing: size-prefixed}}}}
""".replace(
        'admin: {{address: "127.0.0.1:{0}"}}',
        f"""admin:
    address: "127.0.0.1:{{0}}"
    keys: [{{{{name: ops, sha256: "{digest_of(OPS_KEY).hex()}"}}}}]""",
    )
    with StandInServer(KeySetHandler) as keys:
        config = CONFIG.format(
            rpc=rpc.address,
            file=file,
            jwks=keys.server_port,
            issuer=ISSUER,
            good=digest_of(VALID_KEY).hex(),
            limited=digest_of(LIMITED_KEY).hex(),
            admin=digest_of(ADMIN_KEY).hex(),
        )
        with (
            started_infergate(config, listeners, request.param) as gateway,
            channel(gateway.grpc) as rpc_channel,
        ):
            yield Harness(
                gateway,
                rpc,
                rpc_channel,
                file,
                {"simple": simple, "identity": identity},
                request.param,
            )
            output = gateway.log.read_text() + gateway.metrics()
    keys_sent = (VALID_KEY, LIMITED_KEY, ADMIN_KEY, KEY_IN_FILE, OPS_KEY)
    for secret in (*keys_sent, token()[:100], "wrong-secret"):
        assert secret not in output
    assert "Traceback" not in output


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


# ---- one inference of ``simple`` over every protocol


@dataclass(frozen=True)
class Outcome:
    """A request's status code, error message and response headers."""

    code: str
    error: str
    headers: Mapping[str, str]


def v2_rest(harness: Harness, model: str, headers: Mapping[str, str]) -> Outcome:
    inputs = [
        {"name": f"INPUT{i}", "datatype": "INT32", "shape": [1, 16], "data": each.tolist()}
        for i, each in enumerate(SIMPLE_INPUTS)
    ]
    body = json.dumps({"inputs": inputs}).encode()
    response = post(harness.gateway.http, f"/v2/models/{model}/infer", body, headers)
    error = "" if response.status == 200 else response.error
    return Outcome(str(response.status), error, response.headers)


def rpc_message(model: str) -> Any:
    message = pb.ModelInferRequest(model_name=model, id="7")
    for i, each in enumerate(SIMPLE_INPUTS):
        message.inputs.add(name=f"INPUT{i}", datatype="INT32", shape=[1, 16])
        message.raw_input_contents.append(each.tobytes())
    return message


def v2_grpc(harness: Harness, model: str, headers: Mapping[str, str]) -> Outcome:
    message = rpc_message(model).SerializeToString()
    status = call(harness.channel, message, metadata=tuple(headers.items()))
    return Outcome(status.code.name, status.details, {})


def trtis_http(harness: Harness, model: str, headers: Mapping[str, str]) -> Outcome:
    body = b"".join(each.tobytes() for each in SIMPLE_INPUTS)
    with_message = {**headers, "NV-InferRequest": SIMPLE}
    response = post(harness.gateway.http, f"/api/infer/{model}", body, with_message)
    rejection = http_outcome(response)
    return Outcome(str(rejection.code), rejection.error, response.headers)


def trtis_grpc(harness: Harness, model: str, headers: Mapping[str, str]) -> Outcome:
    message = old_message(model, header=SIMPLE, raw=[each.tobytes() for each in SIMPLE_INPUTS])
    status = call(harness.channel, message, OLD_INFER, metadata=tuple(headers.items()))
    rejection = grpc_outcome(status)
    return Outcome(str(rejection.code), rejection.error, {})


def graphpipe_body() -> bytes:
    tensors = tuple(
        tensor_from_array(f"INPUT{i}", Datatype.INT32, each.reshape(1, 16))
        for i, each in enumerate(SIMPLE_INPUTS)
    )
    request = InferRequest("simple", inputs=tensors)
    return bytes(join_parts(GRAPHPIPE.build_request(request, Profile("any"), ADD).body))


def graphpipe(harness: Harness, model: str, headers: Mapping[str, str]) -> Outcome:
    response = post(harness.gateway.http, f"/graphpipe/{model}", graphpipe_body(), headers)
    return Outcome(str(response.status), response.body.decode("latin-1"), response.headers)


SEND_INFERENCE: dict[str, Callable[[Harness, str, Mapping[str, str]], Outcome]] = {
    "v2-rest": v2_rest,
    "v2-grpc": v2_grpc,
    "trtis-http": trtis_http,
    "trtis-grpc": trtis_grpc,
    "graphpipe": graphpipe,
}
OUTCOMES = {
    "v2-rest": ("200", "401", "403", "429"),
    "v2-grpc": ("OK", "UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"),
    "trtis-http": ("SUCCESS", "INVALID_ARG", "INVALID_ARG", "UNAVAILABLE"),
    "trtis-grpc": ("SUCCESS", "INVALID_ARG", "INVALID_ARG", "UNAVAILABLE"),
    "graphpipe": ("200", "401", "403", "429"),
}
over_each_protocol = pytest.mark.parametrize("protocol", SEND_INFERENCE)


@over_each_protocol
def test_a_key_and_a_token_authenticate(harness: Harness, protocol: str) -> None:
    for headers in (bearer(VALID_KEY), {"x-api-key": VALID_KEY}, bearer(token(groups=["ml-eu"]))):
        outcome = SEND_INFERENCE[protocol](harness, "simple", headers)
        assert outcome.code == OUTCOMES[protocol][0], outcome


@over_each_protocol
def test_unauthenticated_requests_are_rejected(harness: Harness, protocol: str) -> None:
    for headers in (
        {},
        bearer("wrong-secret"),
        {"x-api-key": "wrong-secret"},
        {"authorization": "Basic wrong-secret"},
        {**bearer(VALID_KEY), "x-api-key": VALID_KEY},
        bearer(token(exp=int(time.time()) - 60, groups=["ml-eu"])),
        bearer(token(rsa_key("mallory"), groups=["ml-eu"])),
        {"cookie": VALID_KEY},
    ):
        outcome = SEND_INFERENCE[protocol](harness, "simple", headers)
        assert outcome.code == OUTCOMES[protocol][1], (headers, outcome)
        assert outcome.error
        if outcome.headers:
            assert outcome.headers["www-authenticate"].startswith('Bearer realm="infergate"')


@over_each_protocol
def test_forbidden_models_are_rejected_whether_they_exist_or_not(
    harness: Harness, protocol: str
) -> None:
    for model in ("simple_string", "nosuch"):
        outcome = SEND_INFERENCE[protocol](harness, model, bearer(VALID_KEY))
        assert outcome.code == OUTCOMES[protocol][2], outcome
        assert "is not permitted for this client" in outcome.error
    # the token's client is in no group that may use the model
    outcome = SEND_INFERENCE[protocol](harness, "simple", bearer(token()))
    assert outcome.code == OUTCOMES[protocol][2], outcome


def test_exceeded_rates_are_reported_in_each_protocols_form(harness: Harness) -> None:
    codes = [v2_rest(harness, "simple", bearer(LIMITED_KEY)).code for _ in range(2)]
    assert codes == ["200", "200"]
    for protocol, send_request in SEND_INFERENCE.items():
        outcome = send_request(harness, "simple", bearer(LIMITED_KEY))
        assert outcome.code == OUTCOMES[protocol][3], outcome
        assert "rate of requests is exceeded" in outcome.error
        if outcome.headers:
            assert 1700 < int(outcome.headers["retry-after"]) <= 1800


@pytest.mark.parametrize("model", ["fwd", "renamed"])
@pytest.mark.parametrize("headers", [{}, bearer("wrong-secret"), bearer(LIMITED_KEY)])
def test_rejected_requests_never_reach_a_backend(
    harness: Harness, model: str, headers: Mapping[str, str]
) -> None:
    before = len(harness.rpc.requests)
    for protocol, send_request in SEND_INFERENCE.items():
        assert send_request(harness, model, headers).code in OUTCOMES[protocol][1:3]
    assert len(harness.rpc.requests) == before


def test_credentials_are_not_forwarded(harness: Harness) -> None:
    """``forward_headers: ["*"]`` includes neither credentials nor headers listed in Connection."""
    forwarded: list[dict[str, Any]] = []
    respond = harness.rpc.respond

    def record(message: bytes, context: grpc.ServicerContext) -> bytes:
        forwarded.append(dict(context.invocation_metadata()))
        return respond(message, context)

    harness.rpc.respond = record
    try:
        for headers in (bearer(VALID_KEY), {"x-api-key": VALID_KEY}):
            outcome = v2_grpc(harness, "fwd", {**headers, "x-team": "7"})
            assert outcome.code == "OK", outcome
        hop = {**bearer(VALID_KEY), "x-team": "7", "x-hop": "1", "connection": "keep-alive, X-Hop"}
        assert v2_rest(harness, "fwd", hop).code == "200"
    finally:
        harness.rpc.respond = respond
    assert [each["x-team"] for each in forwarded] == ["7", "7", "7"]
    assert not [e for e in forwarded if {"authorization", "x-api-key", "x-hop"} & e.keys()]


def test_a_message_with_two_model_names_is_authorized_by_the_last(
    harness: Harness,
) -> None:
    before = len(harness.rpc.requests)
    for first, second in (("simple", "simple_string"), ("simple_string", "simple")):
        message = rpc_message(first).SerializeToString()
        message += pb.ModelInferRequest(model_name=second).SerializeToString()
        status = call(harness.channel, message, metadata=tuple(bearer(VALID_KEY).items()))
        if status.code is grpc.StatusCode.OK:
            assert pb.ModelInferResponse.FromString(status.message).model_name == "simple"
    assert len(harness.rpc.requests) == before


@pytest.mark.parametrize("field", [4, 5, 6, 7])
def test_millions_of_fields_are_rejected_cheaply(harness: Harness, field: int) -> None:
    """The message, 38 KB after compression, once took 2.8 GB and blocked other clients for 8 s."""
    message = pb.ModelInferRequest(model_name="secret").SerializeToString()
    message += bytes((field << 3 | 2, 0)) * 20_000_000
    valid_message = rpc_message("simple").SerializeToString()
    latencies = [0.0]

    def infer_as_another_client() -> None:
        with channel(harness.gateway.grpc) as other:
            begin = time.monotonic()
            metadata = tuple(bearer(VALID_KEY).items())
            assert call(other, valid_message, metadata=metadata).code is grpc.StatusCode.OK
            latencies.append(time.monotonic() - begin)

    # grpcio inflates a message before the application can reject it.
    is_own = harness.engine == "own"
    before, max_growth = cpu_seconds(harness.gateway.pid), 16 * MIB if is_own else 4 * len(message)
    with (
        limited_growth(harness.gateway.pid, max_growth),
        others_unaffected(infer_as_another_client),
    ):
        status = call(harness.channel, message, compression=grpc.Compression.Gzip)
    codes = {grpc.StatusCode.UNAUTHENTICATED}
    assert status.code in (codes if is_own else {grpc.StatusCode.INVALID_ARGUMENT, *codes})
    assert max(latencies) < SECONDS / 2
    assert cpu_seconds(harness.gateway.pid) - before < 1.5


def cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


# ---- anonymous clients and raw sockets


@over_each_protocol
def test_anonymous_clients_have_the_permissions_of_their_rule(
    harness: Harness, protocol: str
) -> None:
    outcome = SEND_INFERENCE[protocol](harness, "identity", {})
    assert "credentials" not in outcome.error
    if protocol.startswith("v2"):  # the other protocols' requests may fail in the model
        assert outcome.code == OUTCOMES[protocol][0], outcome


def frame(port: int, body: bytes) -> bytes:
    with Client(f"127.0.0.1:{port}") as client:
        client.send(struct.pack("<I", len(body)) + body)
        return client.exactly(*struct.unpack("<I", client.exactly(4)))


def test_raw_socket_clients_are_anonymous(harness: Harness) -> None:
    """Raw sockets have no headers, so a client other than ``anonymous`` needs a certificate."""
    request = InferRequest("simple")
    response = HttpResponse(200, {}, [frame(harness.raw["simple"], graphpipe_body())])
    with pytest.raises(GatewayError, match="credentials are required"):
        GRAPHPIPE.parse_response(response, request, DEFAULT_LIMITS, ADD)
    response = HttpResponse(200, {}, [frame(harness.raw["identity"], graphpipe_body())])
    GRAPHPIPE.parse_response(response, request, DEFAULT_LIMITS, ADD)


# ---- operations other than inference


PATHS = [
    ("GET", "/v2", b"", "metadata"),
    ("GET", "/v2/models/simple", b"", "metadata"),
    ("GET", "/v2/models/simple/ready", b"", "metadata"),
    ("GET", "/v2/models/simple/config", b"", "metadata"),
    ("POST", "/v2/repository/index", b"{}", "metadata"),
    ("GET", "/api/status", b"", "metadata"),
    ("GET", "/v2/models/simple/stats", b"", "statistics"),
    ("GET", "/v2/models/stats", b"", "statistics"),
    ("POST", "/v2/repository/models/simple/load", b"{}", "repository"),
    ("POST", "/v2/repository/models/simple/unload", b"{}", "repository"),
    ("GET", "/v2/logging", b"", "settings"),
    ("POST", "/v2/trace/setting", b"{}", "settings"),
    ("GET", "/v2/systemsharedmemory/status", b"", "shared_memory"),
    ("POST", "/v2/systemsharedmemory/unregister", b"{}", "shared_memory"),
]


@pytest.mark.parametrize(("method", "path", "body", "operation"), PATHS, ids=[p[1] for p in PATHS])
def test_each_operation_requires_its_permission(
    harness: Harness, method: str, path: str, body: bytes, operation: str
) -> None:
    def status(headers: Mapping[str, str]) -> int:
        response = post(harness.gateway.http, path, body, headers, method)
        if path.startswith("/api"):  # the legacy API has no status codes for these errors
            text = response.headers["nv-status"]
            return 401 if "credentials" in text else 403 if "not allowed" in text else 200
        return response.status

    assert status({}) == 401
    assert status(bearer(ADMIN_KEY)) not in {401, 403}
    assert status(bearer(VALID_KEY)) == (200 if operation == "metadata" else 403)


def test_health_is_open_to_everyone(harness: Harness) -> None:
    for path in ("/v2/health/live", "/api/health/live"):
        assert get(harness.gateway.http, path).status == 200
    ready = get(harness.gateway.http, "/v2/health/ready").status
    assert ready not in {401, 403}  # the scripted backend is never ready
    check = call(harness.channel, b"", "/grpc.health.v1.Health/Check")
    assert check.code is grpc.StatusCode.OK


def test_lists_leave_out_models_without_permission(harness: Harness) -> None:
    def names(secret: str) -> set[str]:
        index = post(harness.gateway.http, "/v2/repository/index", b"{}", bearer(secret)).json
        return {each["name"] for each in index}

    assert names(VALID_KEY) == {"simple", "repeat", "fwd", "renamed"}
    assert names(ADMIN_KEY) > names(VALID_KEY)


def test_reflection_requires_credentials(harness: Harness) -> None:
    package = "grpc.reflection.v1"
    request = SCHEMA.message_class(f"{package}.ServerReflectionRequest")(list_services="")
    method = harness.channel.stream_stream(f"/{package}.ServerReflection/ServerReflectionInfo")

    def responses(headers: Mapping[str, str]) -> list[bytes]:
        messages = iter([request.SerializeToString()])
        return list(method(messages, metadata=tuple(headers.items()), timeout=SECONDS))

    assert responses(bearer(VALID_KEY))
    with pytest.raises(grpc.RpcError) as caught:
        responses({})
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_accepted_and_rejected_changes_are_audited_with_the_caller(harness: Harness) -> None:
    load = "/v2/repository/models/simple/load"
    for headers in ({}, bearer(VALID_KEY), bearer(ADMIN_KEY)):
        post(harness.gateway.http, load, b"{}", headers)

    def lines() -> list[str]:
        text = harness.gateway.log.read_text().splitlines()
        entries = [json.loads(each) for each in text if each.startswith("{")]
        return [each["message"] for each in entries if each.get("logger") == "infergate.audit"]

    def all_logged() -> bool:
        text = "\n".join(lines())
        return (
            "outcome=unauthenticated" in text
            and "outcome=forbidden identity='key:good'" in text
            and "identity='key:admin'" in text
        )

    until(all_logged, "all events are in the log")
    assert all(
        each.startswith(("model_load", "model_unload", "admin", "log", "trace", "shared"))
        for each in lines()
    )


# ---- streams


STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def stream_responses(
    harness: Harness, models: list[str], headers: Mapping[str, str], method: str = STREAM
) -> Iterator[bytes]:
    messages = iter([rpc_message(model).SerializeToString() for model in models])
    return iter(
        harness.channel.stream_stream(method)(
            messages, metadata=tuple(headers.items()), timeout=SECONDS
        )
    )


def test_each_request_of_a_stream_is_authorized(harness: Harness) -> None:
    responses = [
        pb.ModelStreamInferResponse.FromString(each)
        for each in stream_responses(
            harness, ["simple", "simple_string", "simple"], bearer(VALID_KEY)
        )
    ]
    errors = [each.error_message for each in responses]
    assert errors[0] == errors[2] == ""
    assert "is not permitted for this client" in errors[1]


@pytest.mark.parametrize("headers", [{}, bearer("wrong-secret")])
def test_a_stream_without_valid_credentials_ends(
    harness: Harness, headers: Mapping[str, str]
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(stream_responses(harness, ["simple", "simple"], headers))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("method", [STREAM, f"/{SERVICE}/StreamInfer"])
def test_an_idle_unauthenticated_stream_is_closed(harness: Harness, method: str) -> None:
    """The number of streams per process is limited, so idle streams would exclude other clients."""
    done = threading.Event()

    def messages() -> Iterator[bytes]:
        done.wait(SECONDS)
        yield from ()

    responses = harness.channel.stream_stream(method)(
        messages(), metadata=tuple(bearer("wrong-secret").items()), timeout=SECONDS
    )
    try:
        if method != STREAM:
            status = OLD.InferResponse.FromString(next(responses)).request_status
            assert code_name(status) == "INVALID_ARG"
            assert list(responses) == []
        else:
            with pytest.raises(grpc.RpcError) as caught:
                list(responses)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    finally:
        done.set()


def test_a_stream_ends_when_its_token_expires(harness: Harness) -> None:
    """The leeway of 10 s lets the gateway accept the token for about 3 s."""
    expires = int(time.time()) - 10 + 3
    headers = tuple(bearer(token(exp=expires, groups=["ml-eu"])).items())
    proceed, done = threading.Event(), threading.Event()
    message = rpc_message("simple").SerializeToString()

    def messages() -> Iterator[bytes]:
        yield message
        proceed.wait(SECONDS)
        while not done.wait(0.1):
            yield message

    later_responses: list[bytes] = []
    responses = harness.channel.stream_stream(STREAM)(messages(), metadata=headers, timeout=SECONDS)
    try:
        assert not pb.ModelStreamInferResponse.FromString(next(responses)).error_message
        proceed.set()
        with pytest.raises(grpc.RpcError) as caught:
            later_responses.extend(responses)
    finally:
        done.set()
        proceed.set()
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "expired" in str(caught.value.details())
    assert all(
        not pb.ModelStreamInferResponse.FromString(each).error_message for each in later_responses
    )


def test_a_legacy_stream_is_authorized_in_its_own_format(harness: Harness) -> None:
    raw = [each.tobytes() for each in SIMPLE_INPUTS]
    message = old_message("simple", header=SIMPLE, raw=raw)
    for headers, code in (((), "INVALID_ARG"), (tuple(bearer(VALID_KEY).items()), "SUCCESS")):
        method = harness.channel.stream_stream(f"/{SERVICE}/StreamInfer")
        (response,) = method(iter([message]), metadata=headers, timeout=SECONDS)
        status = OLD.InferResponse.FromString(response).request_status
        assert code_name(status) == code


def test_a_stream_over_rest_is_refused_before_it_begins(harness: Harness) -> None:
    body = json.dumps({"INPUT0": "x"}).encode()
    for headers, status in (({}, 401), (bearer(LIMITED_KEY), 403)):
        path = "/v2/models/repeat/generate_stream"
        assert post(harness.gateway.http, path, body, headers).status == status


# ---- the keys file, metrics and the admin listener


def test_changes_of_the_keys_file_are_applied(harness: Harness) -> None:
    def code() -> str:
        return v2_rest(harness, "simple", bearer(KEY_IN_FILE)).code

    assert code() == "401"
    new = harness.file.with_suffix(".new")
    new.write_text(f"# added\nfiled: {digest_of(KEY_IN_FILE).hex()}\n")
    new.replace(harness.file)
    until(lambda: code() == "200", "the key is accepted")
    harness.file.write_text("nonsense\n")
    until(
        lambda: 'infergate_access_failures_total{source="keys_file"}' in harness.gateway.metrics(),
        "the invalid file is counted",
    )
    assert code() == "200"
    harness.file.write_text("")
    until(lambda: code() == "401", "the key is no longer accepted")


def test_rejections_are_counted_by_reason(harness: Harness) -> None:
    v2_rest(harness, "simple", {})
    v2_rest(harness, "nosuch", bearer(VALID_KEY))
    text = harness.gateway.metrics()
    for reason in ("no_credentials", "forbidden"):
        assert f'infergate_access_refused_total{{reason="{reason}"}}' in text
    assert "key:good" not in text  # identities are never labels


def test_admin_changes_require_an_admin_key(harness: Harness) -> None:
    def status(method: str, **headers: str) -> int:
        return post(harness.gateway.admin, "/metrics", b"", headers, method).status

    assert status("GET") == 200
    assert status("POST") == 401
    # this key is valid only on the other listeners
    assert status("POST", authorization=f"Bearer {ADMIN_KEY}") == 401
    assert status("POST", authorization=f"Bearer {OPS_KEY}") == 405


def test_a_reload_enables_access_control() -> None:
    """The reload requires a key of the admin listener, and applies to open connections."""
    base = """
backends: {demo: {protocol: builtin}}
routes: [{model: '*', backend: demo}]
reload: {post: true, watch: false}
"""
    keys = f"keys: [{{{{name: ops, sha256: '{digest_of(OPS_KEY).hex()}'}}}}]"
    listeners = LISTENERS.replace('"127.0.0.1:{0}"', f'"127.0.0.1:{{0}}", {keys}')
    wire = b"GET /v2/models/simple HTTP/1.1\r\nHost: x\r\n%b\r\n"
    key = f"x-api-key: {VALID_KEY}\r\n".encode()
    with started_infergate(base, listeners) as gateway, Client(gateway.http) as client:

        def status(headers: bytes = b"") -> int:
            client.send(wire % headers)
            return client.answer().status

        assert status() == 200
        file = gateway.log.parent / "routes.yaml"
        digest = digest_of(VALID_KEY).hex()
        file.write_text(
            file.read_text() + f"access: {{keys: [{{name: good, sha256: '{digest}'}}], "
            "rules: [{who: ['key:good']}]}\n"
        )
        assert post(gateway.admin, "/reload", b"", {}).status == 401
        assert status() == 200
        assert post(gateway.admin, "/reload", b"", bearer(OPS_KEY)).status == 200
        assert [status(), status(key)] == [401, 200]
        file.write_text(file.read_text().replace("key:good", "key:god"))
        assert post(gateway.admin, "/reload", b"", bearer(OPS_KEY)).status == 500
        assert [status(), status(key)] == [401, 200]  # the active configuration stays


def test_revoking_a_key_by_reload_ends_open_streams() -> None:
    keys = {name: digest_of(name).hex() for name in (VALID_KEY, OPS_KEY)}
    base = """
backends: {demo: {protocol: builtin}}
routes: [{model: '*', backend: demo}]
reload: {post: true, watch: false}
access:
  rules: [{who: ["key:*"]}]
  keys: [{name: ops, sha256: "%s"}, {name: good, sha256: "%s"}]
""" % (keys[OPS_KEY], keys[VALID_KEY])  # noqa: UP031 - the text has braces
    proceed = threading.Event()
    message = rpc_message("simple").SerializeToString()

    def messages() -> Iterator[bytes]:
        yield message
        proceed.wait(SECONDS)
        yield message

    with started_infergate(base) as gateway, channel(gateway.grpc) as rpc_channel:
        headers = tuple(bearer(VALID_KEY).items())
        responses = rpc_channel.stream_stream(STREAM)(messages(), metadata=headers, timeout=SECONDS)
        try:
            assert not pb.ModelStreamInferResponse.FromString(next(responses)).error_message
            file = gateway.log.parent / "routes.yaml"
            file.write_text(file.read_text().replace(keys[VALID_KEY], "0" * 64))
            assert post(gateway.admin, "/reload", b"", {}).status == 200
            proceed.set()
            with pytest.raises(grpc.RpcError) as caught:
                list(responses)
        finally:
            proceed.set()
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
