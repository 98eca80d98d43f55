"""The protocols, servers and models that a probe finds, and the problems that it reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from probe_kit import FREE_PORT, embedded_models, http_response, probe, scripted_server, server

from infergate.access.keys import digest_of, new_key
from infergate.core.datatypes import Datatype
from infergate.core.messages import ModelIndex, ModelIndexEntry
from infergate.migration.probe import prober
from infergate.migration.probe.findings import ProbeFindings, group_servers
from infergate.migration.probe.options import ProbeOptions
from infergate.migration.probe.pairing import Pairing
from infergate.migration.probe.prober import Prober, states_of
from infergate.migration.probe.targets import PortProblem, parse_target
from tls_kit import Authority

ALL = frozenset(Datatype)
KEY = new_key()


def detected_protocols(findings: ProbeFindings) -> list[set[str]]:
    return [{item.protocol for item in target.detected} for target in findings.targets]


def only_additional(protocol: str) -> dict[str, Any]:
    """Return listeners of which only ``additional.one`` is enabled."""
    listener = {**FREE_PORT, "protocols": (protocol,)}
    return {"http": None, "grpc": None, "admin": None, "additional": {"one": listener}}


def problem_of(findings: ProbeFindings) -> PortProblem:
    problem = findings.targets[0].problem
    assert problem is not None
    return problem


async def test_every_protocol_is_detected_without_a_scheme() -> None:
    async with embedded_models() as addresses:
        findings = await probe(*addresses.values())
    expected = {
        "http": {"v2-rest", "tfs-rest", "trtis-http"},
        "grpc": {"v2-grpc", "tfs-grpc", "trtis-grpc"},
        "admin": set(),
        "graphpipe[0]": {"graphpipe"},
        "graphpipe[1]": {"graphpipe"},
        "additional.v1": {"kserve-v1"},
    }
    assert dict(zip(addresses, detected_protocols(findings), strict=True)) == expected
    urls = [str(item.url) for target in findings.targets for item in target.detected]
    assert f"tcp://{addresses['graphpipe[1]']}" in urls
    assert f"http://{addresses['graphpipe[0]']}" in urls


async def test_the_ports_of_a_server_are_reported_together() -> None:
    async with embedded_models() as addresses:
        findings = await probe(addresses["http"], addresses["grpc"])
    [probed] = findings.servers
    assert probed.best.protocol == "v2-grpc"
    assert probed.title.startswith("infergate ")
    metadata = {item.name: item.metadata for item in probed.models}
    digits = metadata["digits"]
    assert digits is not None
    assert digits.max_batch_size == 64
    assert [(t.name, t.datatype, t.shape) for t in digits.inputs] == [("IMAGE", "FP32", (-1, 8, 8))]
    assert {item.source for item in probed.models} == {"v2-grpc"}


async def test_a_wrong_scheme_is_corrected() -> None:
    async with embedded_models() as addresses:
        findings = await probe(f"http://{addresses['grpc']}", f"tcp://{addresses['http']}")
    assert detected_protocols(findings) == [
        {"v2-grpc", "tfs-grpc", "trtis-grpc"},
        {"v2-rest", "tfs-rest", "trtis-http"},
    ]


async def test_a_server_that_cannot_list_its_models_needs_their_names() -> None:
    route = ({"model": "digits", "backend": "demo"},)
    async with embedded_models(routes=route, listeners=only_additional("tfs-grpc")) as addresses:
        address = addresses["additional.one"]
        [without_names] = (await probe(address)).servers
        [with_names] = (await probe(address, models=("digits", "other"))).servers
    assert not without_names.models
    assert not without_names.lists_models
    digits, other = with_names.models
    assert digits.metadata is not None
    assert (other.metadata, other.problem.partition(";")[0]) == (None, other.problem)
    assert "other" in other.problem


OTHER_SERVERS = {
    "an empty object": lambda _: http_response(200, b"{}"),
    "a status object": lambda _: http_response(200, b'{"status": "ok", "name": ""}'),
    "a banner for every path": lambda _: http_response(200, b'{"name": "app", "version": "1"}'),
    "models without names": lambda _: http_response(200, b'{"models": [{"id": 1}]}'),
    "tensors without types": lambda _: http_response(200, b'{"Inputs": [{}], "Outputs": [{}]}'),
    "other types": lambda _: http_response(200, b'{"name": 1, "models": 2, "Inputs": 3}'),
    "deep JSON": lambda _: http_response(200, b"[" * 100_000),
    "a body that ends early": lambda _: http_response(200, b'{"name": "triton"}')[:-5],
    "a list": lambda _: http_response(200, b"[]"),
    "a page": lambda _: http_response(200, b"<html>", "text/html"),
    "not found": lambda _: http_response(404, b'{"detail": "Not Found"}'),
    "an error": lambda _: http_response(500, b'{"error": "internal"}'),
    "OpenAI's models": lambda _: http_response(200, b'{"object": "list", "data": [{"id": "m"}]}'),
    "a model status for every path": lambda _: http_response(200, b'{"model_version_status": []}'),
    "an empty body": lambda _: http_response(200, b""),
    "a Redis server": lambda _: b"-ERR unknown command\r\n",
    "a mail server": lambda _: b"220 mail ESMTP\r\n",
    "a closed connection": lambda _: b"",
}


@pytest.mark.parametrize("respond", OTHER_SERVERS.values(), ids=OTHER_SERVERS)
async def test_other_servers_speak_no_protocol(respond: Any) -> None:
    async with scripted_server(respond) as address:
        findings = await probe(address)
    assert detected_protocols(findings) == [set()]
    assert "speaks no protocol" in problem_of(findings).reason
    assert findings.targets[0].attempts.keys() >= {"v2-rest", "v2-grpc", "graphpipe"}


async def test_the_probe_of_a_silent_server_ends_at_the_timeout() -> None:
    async with scripted_server(lambda _: None) as address:
        findings = await probe(f"http://{address}", timeout=0.2)
    assert detected_protocols(findings) == [set()]


@pytest.mark.parametrize(
    ("status", "reason"),
    [(401, "the server requires credentials"), (403, "the server rejects these credentials")],
)
async def test_rejected_credentials_are_reported(status: int, reason: str) -> None:
    async with scripted_server(lambda _: http_response(status, b"{}")) as address:
        findings = await probe(f"http://{address}")
    assert problem_of(findings).reason == reason
    assert "--header" in problem_of(findings).advice


async def test_headers_are_sent_with_every_request() -> None:
    operations = ("metadata", "statistics", "health")
    rule = {"who": ("key:me",), "models": ("*",), "operations": operations}
    access = {"keys": ({"name": "me", "sha256": digest_of(KEY).hex()},), "rules": (rule,)}
    async with embedded_models(access=access) as addresses:
        rejected = await probe(addresses["http"], addresses["grpc"])
        headers = {"authorization": f"Bearer {KEY}"}
        accepted = await probe(addresses["http"], addresses["grpc"], headers=headers)
    assert detected_protocols(rejected) == [set(), set()]
    assert all(item.problem and "credentials" in item.problem.reason for item in rejected.targets)
    assert accepted.servers, accepted.targets
    [probed] = accepted.servers
    assert {item.protocol for item in probed.protocols} >= {"v2-rest", "v2-grpc", "trtis-grpc"}
    assert all(item.metadata for item in probed.models)


async def test_a_tls_port_is_detected_or_reported(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server()
    tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
    listener = {**FREE_PORT, "tls": tls}
    listeners = {"http": listener, "grpc": listener, "admin": None}
    async with embedded_models(listeners=listeners) as addresses:
        plain = await probe(f"http://{addresses['http']}")
        unknown = await probe(addresses["http"])
        trusted = await probe(addresses["http"], addresses["grpc"], ca=authority.file)
        insecure = await probe(f"https://{addresses['http']}", verify=False)
    assert problem_of(plain) == PortProblem(
        "the port expects TLS",
        f"use https://{addresses['http']} or grpcs://{addresses['http']}",
    )
    assert "certificate is not trusted" in problem_of(unknown).reason
    for findings in (plain, unknown):
        assert findings.targets[0].attempts.keys() >= {"v2-rest", "v2-grpc", "graphpipe"}
    [probed] = trusted.servers
    assert str(probed.best.url) == f"grpcs://{addresses['grpc']}"
    assert all(item.metadata for item in probed.models)
    assert detected_protocols(insecure) == [{"v2-rest", "tfs-rest", "trtis-http"}]


def v2_server(models: int) -> Any:
    """Return the script of a V2 server that describes none of its ``models``."""

    def respond(line: str) -> bytes | None:
        match line.split():
            case ["GET", "/v2", _]:
                return http_response(200, b'{"name": "triton", "version": "1", "extensions": []}')
            case ["POST", "/v2/repository/index", _]:
                index = [{"name": f"m{n}", "state": "READY"} for n in range(models)]
                return http_response(200, json.dumps(index).encode())
        return None if "/v2/models/m" in line else http_response(404, b"{}")

    return respond


async def test_a_server_that_does_not_respond_gets_few_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prober, "MAX_CONCURRENT", 4)
    options = ProbeOptions(timeout=60)

    def respond(line: str) -> bytes | None:
        if line.startswith("POST /v2/repository/index "):
            object.__setattr__(options, "timeout", 0.2)  # for all later attempts
        return v2_server(50)(line)

    async with scripted_server(respond) as address:
        findings = await Prober(options).probe([parse_target(f"http://{address}")])
    [probed] = findings.servers
    problems = [item.problem for item in probed.models]
    assert len(problems) == 50
    assert problems.count("not requested: the server does not respond") >= 40


async def test_models_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prober, "MAX_MODELS", 2)
    async with embedded_models() as addresses:
        [probed] = (await probe(addresses["grpc"])).servers
    assert (len(probed.models), probed.omitted) == (2, 5)


async def test_a_model_that_is_not_ready_is_not_described() -> None:
    def respond(line: str) -> bytes | None:
        if line.startswith("POST /v2/repository/index "):
            return http_response(200, b'[{"name": "m", "state": "UNAVAILABLE"}]')
        return v2_server(0)(line)

    async with scripted_server(respond) as address:
        [probed] = (await probe(f"http://{address}")).servers
    [item] = probed.models
    assert (item.metadata, item.problem) == (None, "the model is UNAVAILABLE")


def test_a_model_is_ready_if_one_of_its_versions_is() -> None:
    entries = [
        ModelIndexEntry("a", "1", "UNAVAILABLE"),
        ModelIndexEntry("a", "2", "READY"),
        ModelIndexEntry("a", "3", "LOADING"),
        ModelIndexEntry("b", "1", "UNAVAILABLE"),
    ]
    assert states_of(ModelIndex(tuple(entries))) == {"a": "READY", "b": "UNAVAILABLE"}


def test_two_servers_on_one_host_stay_apart() -> None:
    ports = [
        server(protocol="v2-rest", url="http://a:1"),
        server(protocol="v2-grpc", url="grpc://a:2"),
        server(protocol="v2-rest", url="http://a:3"),
        server(protocol="v2-grpc", url="grpc://a:4"),
        server(protocol="v2-grpc", url="grpc://b:2"),
        server(protocol="graphpipe", url="http://a:5", name="other"),
    ]
    groups = group_servers([item.best for item in ports])
    assert [[str(item.url) for item in group] for group in groups] == [
        ["grpc://a:2", "http://a:1"],
        ["grpc://a:4", "http://a:3"],
        ["grpc://b:2"],
        ["http://a:5"],
    ]


MODEL_NAMES = ("simple", "digits", "identity", "embed", "accumulate")


@pytest.mark.parametrize(
    "protocol", ["trtis-http", "trtis-grpc", "tfs-rest", "tfs-grpc", "v2-rest"]
)
async def test_a_model_pairs_with_itself_in_another_protocol(protocol: str) -> None:
    """Each protocol has its own rules for the batch dimension."""
    listeners = only_additional(protocol) | {"grpc": FREE_PORT}
    async with embedded_models(listeners=listeners) as addresses:
        [old] = (await probe(addresses["additional.one"], models=MODEL_NAMES)).servers
        [new] = (await probe(addresses["grpc"])).servers
    assert [item.protocol for item in old.protocols] == [protocol]
    pairs = {pair.old.name: pair for pair in Pairing(ALL, ALL).pair_models(old.models, new.models)}
    for name in MODEL_NAMES:
        assert pairs[name].can_mirror, pairs[name]
        assert all(item.is_certain and not item.is_renamed for item in pairs[name].outputs)


async def test_a_graphpipe_model_pairs_with_itself_in_v2() -> None:
    async with embedded_models() as addresses:
        [old] = (await probe(addresses["graphpipe[0]"])).servers
        [new] = (await probe(addresses["grpc"])).servers
    [pair] = Pairing(ALL, ALL).pair_models(old.models, new.models)
    assert pair.new is not None
    assert (pair.new.name, pair.can_mirror) == ("identity", True)
