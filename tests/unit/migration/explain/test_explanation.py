from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infergate.backends.builtin import BuiltinBackend as Backend
from infergate.cli import main
from infergate.codecs.profiles import GENERIC
from infergate.codecs.registry import plugins
from infergate.config import compile as compiled
from infergate.config.load import parse
from infergate.config.schema import Config
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError
from infergate.core.messages import (
    InferRequest,
    ModelMetadata,
    Operation,
    RequestedOutput,
    TensorMetadata,
)
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor, tensor_from_array
from infergate.core.wire import HttpRequest, RpcRequest
from infergate.gateway.dispatch import assign_request_id
from infergate.gateway.gateway import RoutingGateway
from infergate.migration.explain.client_request import ClientRequest, RequestError
from infergate.migration.explain.explanation import ExplainOptions, Explanation, explain
from infergate.migration.explain.explanation_text import as_json, as_text
from infergate.migration.explain.route_checks import check_routes
from infergate.routing.table import Route

SPLIT = """
backends:
  old: {protocol: trtis-http, endpoints: ["http://old.test:8000"]}
  new: {protocol: v2-grpc, endpoints: ["grpc://new.test:8001"]}
  rest: {protocol: v2-rest, profile: triton, endpoints: ["http://a.test:8000/base", "http://b.test"]}
  gp: {protocol: graphpipe, endpoints: ["tcp://gp.test:9000"]}
  tf: {protocol: tfs-rest, endpoints: ["http://tf.test:8501"]}
  ours: {protocol: builtin}
routes:
  - {model: other, backend: new}
  - {model: digits, version: "3", backend: new}
  - {model: digits, headers: {x-user: "b*"}, backend: new}
  - model: digits
    backend: old
    rewrite: {model: digits_v1, inputs: {x: INPUT0}, outputs: {y: OUTPUT0}}
    split:
      - {backend: new, percent: 10, rewrite: {model: digits_v2}}
      - {backend: gp, percent: 5}
      - {backend: ours, percent: 2.5}
    fallback: rest
    mirror: {backend: tf, percent: 50}
models:
  digits:
    inputs: [{name: x, datatype: FP32, shape: [-1, 2]}]
    outputs: [{name: y, datatype: FP32, shape: [-1, 2]}]
"""
REST_SERVERS = ("http://a.test:8000/base", "http://b.test:80")
X = tensor_from_array("x", Datatype.FP32, np.array([[1.5, -2]], np.float32))
DIGITS = InferRequest("digits", id="7", inputs=(X,), outputs=(RequestedOutput("y"),))


def parse_config(text: str) -> Config:
    return parse(text, "routes.yaml", {})


def encode(
    operation: Operation,
    protocol: str = "v2-rest",
    model: ModelMetadata | None = None,
    **changes: Any,
) -> ClientRequest:
    """Return a client's request over ``protocol``, with ``changes`` to the fields of the
    message."""
    wire = plugins()[protocol].create({}).build_request(operation, GENERIC, model)
    return ClientRequest(replace(wire, **changes))


async def explain_yaml(
    config: str, request: ClientRequest, options: ExplainOptions | None = None
) -> Explanation:
    return await explain(parse_config(config), request, options or ExplainOptions())


def yaml_of(route: str, backend: str, more: str = "") -> str:
    return f"backends: {{b: {{{backend}}}}}\nroutes: [{{model: m, backend: b{route}}}]\n{more}"


V2 = 'protocol: v2-grpc, endpoints: ["grpc://b.test:1"]'
REST = 'protocol: v2-rest, endpoints: ["http://b.test:1"]'
DECLARED = """
models:
  m:
    inputs: [{name: x, datatype: FP32, shape: [-1, 2]}]
    outputs: [{name: y, datatype: FP32, shape: [-1, 2]}]
"""
M = InferRequest("m", inputs=(X,))


async def test_earlier_routes_have_the_reason_why_they_do_not_match() -> None:
    result = await explain_yaml(SPLIT, encode(DIGITS))
    assert [check.mismatch for check in result.routes] == [
        "the model is 'digits', not 'other'",
        "the request has no version; the route is for version '3'",
        "the request has no header 'x-user' (expected 'b*')",
        "",
    ]
    assert [check.number for check in result.routes] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("route", "version", "headers", "mismatch"),
    [
        (Route("a-*", "b"), "", {}, "the model 'm' does not match the pattern a-*"),
        (Route("/n.*/", "b"), "", {}, "the model 'm' does not match the pattern /n.*/"),
        (Route("m", "b", "2"), "1", {},
         "the request has version '1'; the route is for version '2'"),
        (Route("m", "b", headers={"h": "1"}), "", {"h": "2"}, "the header 'h' does not match '1'"),
        (Route("*", "b", "2", headers={"h": "1*"}), "2", {"h": "12"}, ""),
    ],
)  # fmt: skip
def test_a_route_is_checked_like_the_routing_table(
    route: Route, version: str, headers: dict[str, str], mismatch: str
) -> None:
    checks, match = check_routes([route], "m", version, headers)
    assert [check.mismatch for check in checks] == [mismatch]
    assert match is (None if mismatch else route)


async def test_every_target_of_a_route_is_explained_with_its_share() -> None:
    result = await explain_yaml(SPLIT, encode(DIGITS))
    assert [(t.role, t.backend, t.protocol, t.when.split(";")[0]) for t in result.targets] == [
        ("backend", "old", "trtis-http", "82.5% of requests"),
        ("split", "new", "v2-grpc", "10% of requests"),
        ("split", "gp", "graphpipe", "5% of requests"),
        ("split", "ours", "builtin", "2.5% of requests"),
        ("fallback", "rest", "v2-rest",
         "requests whose backend cannot be reached, except requests of a sequence"),
        ("mirror", "tf", "tfs-rest", "a copy of 50% of requests"),
    ]  # fmt: skip
    assert {target.pipeline for target in result.targets} == {"translate"}
    assert not any(target.error for target in result.targets)


async def test_each_backend_receives_its_own_wire_form() -> None:
    old, new, gp, ours, rest, tf = (await explain_yaml(SPLIT, encode(DIGITS))).targets
    assert old.url == "http://old.test:8000/api/infer/digits_v1?format=binary"
    assert 'name: "INPUT0" dims: 1 dims: 2' in dict(old.message["headers"])["nv-inferrequest"]
    assert old.layout == ("bytes 0-7: 'INPUT0', FP32 [1, 2], 8 bytes",)
    assert new.url == "grpc://new.test:8001/inference.GRPCInferenceService/ModelInfer"
    assert 'model_name: "digits_v2"' in new.message["decoded"]
    assert gp.url == "tcp://gp.test:9000"
    assert "'INPUT0', FP32 [1, 2], 8 bytes" in gp.layout[1]
    assert ours.url == ""
    assert ours.layout == ("input 'INPUT0': FP32 [1, 2], 8 bytes",)
    assert rest.url in {f"{server}/v2/models/digits_v1/infer" for server in REST_SERVERS}
    assert rest.layout[1].endswith("'INPUT0', FP32 [1, 2], 8 bytes")
    assert json.loads(tf.message["decoded"]) == {"inputs": {"INPUT0": [[1.5, -2.0]]}}


async def test_every_rewrite_is_named() -> None:
    old, new, *_ = (await explain_yaml(SPLIT, encode(DIGITS))).targets
    assert old.steps == (
        "rewrite.model: model 'digits' becomes 'digits_v1'",
        "rewrite.inputs: input 'x' becomes 'INPUT0'",
        "rewrite.outputs: requested output 'y' becomes 'OUTPUT0'",
        "rewrite.outputs: output 'OUTPUT0' is returned as 'y'",
        "rewrite.model: the response has the client's model name",
    )
    assert new.steps == (
        "rewrite.model: model 'digits' becomes 'digits_v2'",
        "rewrite.model: the response has the client's model name",
    )


async def test_a_mirror_and_its_baseline_have_their_own_names() -> None:
    mirror = "{backend: b, rewrite: {model: new}, compare: {baseline: {percent: 5}}, percent: 20}"
    config = yaml_of(f", rewrite: {{model: old}}, mirror: {mirror}", V2)
    served, mirrored, baseline = (await explain_yaml(config, encode(M))).targets
    assert 'model_name: "old"' in served.message["decoded"]
    assert 'model_name: "new"' in mirrored.message["decoded"]
    assert 'model_name: "old"' in baseline.message["decoded"]
    assert mirrored.when == "a copy of 20% of requests"
    assert baseline.when == "a further copy of 5% of the requests that the mirror gets"


SPLIT_IN_HALF = yaml_of(", split: [{backend: c, percent: 50}], split_by: x-user", V2).replace(
    "backends: {", f"backends: {{c: {{{V2}}}, "
)


@pytest.mark.parametrize(
    ("headers", "parameters", "cause"),
    [
        ({"x-user": "USER"}, {}, "The value of the header 'x-user'"),
        ({"x-request-id": "USER"}, {}, "The value of the header 'x-request-id'"),
        ({"x-user": "ann"}, {"sequence_id": "USER"}, "The sequence"),
    ],
)
async def test_the_target_of_a_split_is_named_if_the_request_decides(
    headers: dict[str, str], parameters: dict[str, Any], cause: str
) -> None:
    config = parse_config(SPLIT_IN_HALF)
    backends = {name: Backend(name) for name in ("b", "c")}
    gateway = RoutingGateway(compiled.routing_table(config), backends, {})
    chosen = set()
    for number in range(20):
        user = f"user {number}"
        request = replace(M, parameters=dict.fromkeys(parameters, user))
        sent = {k: v.replace("USER", user) for k, v in headers.items()}
        result = await explain(config, encode(request, "v2-grpc", metadata=sent), ExplainOptions())
        context = RequestContext("", headers=sent)
        assign_request_id(context)
        with pytest.raises(GatewayError):  # a ``Backend`` has no models
            await gateway.infer(request, gateway.bind("m", "", context), context)
        chosen.add(context.record.backend)
        assert result.notes == [
            f"{cause} selects the backend '{context.record.backend}' for this request."
        ]
    assert chosen == {"b", "c"}


async def test_without_a_sequence_or_header_the_split_is_random() -> None:
    result = await explain_yaml(SPLIT_IN_HALF, encode(M, "v2-grpc"))
    assert result.notes[0].startswith("The request has neither a sequence nor a header that")


BF16 = encode(
    InferRequest("m", inputs=(Tensor("x", Datatype.BF16, (1, 2), b"\x80\x3f\x00\x40"),)), "v2-grpc"
)
LEGACY = 'protocol: trtis-grpc, endpoints: ["grpc://b.test:1"]'


async def test_a_cast_is_named() -> None:
    config = yaml_of(", cast: {BF16: FP32}", LEGACY)
    (target,) = (await explain_yaml(config, BF16)).targets
    assert target.steps == (
        "cast BF16: FP32 for input 'x', because one of the two protocols does not have BF16",
    )
    assert target.error.startswith("unknown, because ")
    (target,) = (await explain_yaml(config + DECLARED, BF16)).targets
    assert target.error == ""
    assert "'x', FP32 [1, 2], 8 bytes" in target.layout[1]


async def test_a_missing_cast_is_reported_as_the_gateway_reports_it() -> None:
    (target,) = (await explain_yaml(yaml_of("", LEGACY), BF16)).targets
    assert "unsupported: input 'x' is BF16, which the protocol trtis-grpc" in target.error


async def test_classes_that_the_gateway_computes_are_named() -> None:
    outputs = (RequestedOutput("y", {"classification": 2}),)
    config = yaml_of("", REST, DECLARED)
    request = encode(InferRequest("m", inputs=(X,), outputs=outputs), "v2-grpc")
    (target,) = (await explain_yaml(config, request)).targets
    assert target.steps == ("classification of 'y': the gateway computes the classes",)


async def test_parameters_that_a_protocol_does_not_carry_are_named() -> None:
    config = yaml_of("", 'protocol: kserve-v1, endpoints: ["http://b.test:1"]', DECLARED)
    request = encode(InferRequest("m", "2", inputs=(X,), parameters={"p": 1}), "v2-grpc")
    (target,) = (await explain_yaml(config, request)).targets
    assert "parameter 'p' is not sent, because kserve-v1 does not carry it" in target.steps
    assert "version '2' is not sent, because kserve-v1 does not carry it" in target.steps


async def test_a_message_of_the_backends_protocol_passes_through() -> None:
    (target,) = (await explain_yaml(yaml_of("", V2), encode(M, "v2-grpc"))).targets
    assert (target.pipeline, target.steps) == ("forward", ())
    (target,) = (
        await explain_yaml(yaml_of(", rewrite: {model: n}", V2), encode(M, "v2-grpc"))
    ).targets
    assert target.pipeline == "forward"
    assert target.steps[0] == "rewrite.model: model 'm' becomes 'n'"


async def test_the_deadline_and_the_headers_of_the_client_are_forwarded() -> None:
    backend = f"{REST}, forward_headers: [x-*, authorization]"
    request = encode(M, headers={"x-a": "1", "authorization": "s", "b": "2"})
    (target,) = (await explain_yaml(yaml_of("", backend), request)).targets
    headers = dict(target.message["headers"])
    assert headers["x-a"] == "1"
    assert headers["authorization"] == "(hidden)"
    assert "b" not in headers
    assert "x-request-id" in headers


@pytest.mark.parametrize(
    ("client", "backend"),
    [
        ("v2-rest", 'protocol: graphpipe, endpoints: ["http://b.test:1"]'),
        ("v2-rest", 'protocol: kserve-v1, endpoints: ["http://b.test:1"]'),
        ("trtis-http", REST),
        ("graphpipe", V2),
    ],
)
async def test_facts_that_only_the_server_has_are_unknown_unless_they_are_declared(
    client: str, backend: str
) -> None:
    spec = TensorMetadata("x", "FP32", (-1, 2))
    model = ModelMetadata("m", inputs=(spec,), outputs=(TensorMetadata("y", "FP32", (-1, 2)),))
    changes = {"path": "/graphpipe/m"} if client == "graphpipe" else {}
    request = encode(M, client, model, **changes)
    (target,) = (await explain_yaml(yaml_of("", backend), request)).targets
    assert (target.url, target.message) == ("", {})
    assert "declare" in target.error
    assert "'models'" in target.error
    (target,) = (await explain_yaml(yaml_of("", backend, DECLARED), request)).targets
    assert target.error == ""
    options = ExplainOptions(recorded=model)
    (target,) = (await explain_yaml(yaml_of("", backend), request, options)).targets
    assert target.error == ""


async def test_a_query_goes_only_to_the_routes_own_backend() -> None:
    request = ClientRequest(HttpRequest("GET", "/v2/models/digits/ready"))
    (target,) = (await explain_yaml(SPLIT, request)).targets
    assert (target.backend, target.url.rpartition("/")[2]) == (
        "old",
        "digits_v1?format=binary",
    )
    request = ClientRequest(HttpRequest("GET", "/v2/models/digits"))
    (target,) = (await explain_yaml(SPLIT, request)).targets
    assert target.error == "nothing is sent: the gateway itself answers this request"


async def test_a_request_about_the_server_has_no_route() -> None:
    result = await explain_yaml(SPLIT, ClientRequest(HttpRequest("GET", "/v2")))
    assert result.notes == ["The gateway itself answers requests about the server."]
    assert (result.operation, result.routes) == ("server_metadata", [])


async def test_a_model_without_a_route_is_refused() -> None:
    result = await explain_yaml(SPLIT, encode(InferRequest("none", inputs=(X,))))
    assert result.error == "not_found: no route matches the model 'none'"
    assert len(result.routes) == 4


async def test_an_invalid_request_is_refused_with_the_gateways_error() -> None:
    result = await explain_yaml(SPLIT, ClientRequest(HttpRequest("POST", "/v2/nothing")))
    assert result.error.startswith("not_found: ")
    request = ClientRequest(HttpRequest("POST", "/v2/models/m/infer", body=(b"{}",)))
    (target,) = (await explain_yaml(yaml_of("", V2), request)).targets
    assert target.error.startswith("bad_request: ")


STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"


@pytest.mark.parametrize(
    "request_of_a_stream",
    [
        encode(M, "v2-grpc", method=STREAM_INFER),
        encode(M, "v2-rest", path="/v2/models/m/infer_stream"),
    ],
    ids=["v2-grpc", "v2-rest"],
)
async def test_a_request_of_a_stream_is_explained(request_of_a_stream: ClientRequest) -> None:
    (target,) = (await explain_yaml(yaml_of("", V2), request_of_a_stream)).targets
    assert target.url == f"grpc://b.test:1{STREAM_INFER}"


LISTENERS = """
listeners:
  graphpipe: [{address: "127.0.0.1:9000", model: m}]
  additional: {v1: {address: "127.0.0.1:9001", protocols: [kserve-v1]}}
  http: {address: "0.0.0.0:8000", envelopes: {sagemaker: {}}}
"""


@pytest.mark.parametrize(
    ("authority", "path", "listener", "protocol"),
    [
        ("", "/v2/models/m", "http", "v2-rest"),
        ("h:8000", "/v1/models/m", "http", "tfs-rest"),
        ("h:9001", "/v1/models/m", "additional.v1", "kserve-v1"),
        ("h:9000", "/", "graphpipe[0]", "graphpipe"),
        ("h:1234", "/graphpipe/m", "http", "graphpipe"),
    ],
)
async def test_the_port_selects_the_listener_and_the_path_the_protocol(
    authority: str, path: str, listener: str, protocol: str
) -> None:
    request = ClientRequest(HttpRequest("GET", path), authority)
    result = await explain_yaml(yaml_of("", V2, LISTENERS), request)
    assert (result.listener, result.protocol) == (listener, protocol)


async def test_an_envelope_is_named() -> None:
    listeners = LISTENERS.replace("sagemaker: {}", "sagemaker: {model: m}")
    result = await explain_yaml(yaml_of("", V2, listeners), encode(M, path="/invocations"))
    assert result.notes == ["The envelope 'sagemaker' carries the request."]
    assert result.model == "m"


async def test_the_gateways_own_services_have_no_route() -> None:
    wire = RpcRequest("/grpc.health.v1.Health/Check", (b"",))
    result = await explain_yaml(yaml_of("", V2), ClientRequest(wire))
    assert result.notes == ["The gateway itself answers requests about the server."]
    assert result.error == ""


async def test_a_stream_needs_facts_that_no_declaration_gives() -> None:
    config = yaml_of("", f"{V2}, profile: triton", DECLARED)
    (target,) = (await explain_yaml(config, encode(M, "v2-grpc", method=STREAM_INFER))).targets
    assert target.error.endswith("such as the model's metadata; query the server with --metadata")


async def test_without_a_listener_for_the_transport_the_request_is_rejected() -> None:
    with pytest.raises(RequestError, match="no listener serves gRPC requests"):
        await explain_yaml(yaml_of("", V2, "listeners: {grpc: null}"), encode(M, "v2-grpc"))


async def test_access_rules_are_mentioned() -> None:
    access = "access: {rules: [{who: [anonymous], models: [m]}]}\n"
    result = await explain_yaml(yaml_of("", V2, access), encode(M))
    assert result.notes == ["Access rules and rate limits are not applied here."]


async def test_the_text_and_the_json_have_every_part() -> None:
    result = await explain_yaml(SPLIT, encode(DIGITS))
    text = as_text(result, shows_bytes=True)
    for target in result.targets:
        assert f"{target.role} '{target.backend}' ({target.protocol}): {target.when}" in text
        for line in (*target.steps, *target.layout, target.url):
            assert line in text
    assert "  3. digits: the request has no header 'x-user' (expected 'b*')\n" in text
    assert "  4. digits: matches\n" in text
    assert "endpoints: http://a.test:8000/(hidden), http://b.test" in text
    assert "00 00 c0 3f" in text
    assert "00 00 c0 3f" not in as_text(result)
    data: Any = json.loads(json.dumps(as_json(result)))
    assert [each["backend"] for each in data["targets"]] == [t.backend for t in result.targets]
    assert "inference" not in data


async def test_control_characters_are_not_printed() -> None:
    headers = {"x-request-id": "a\x1b[2J"}
    request = encode(M, headers=headers, path="/v2/models/%1b%5b2J/infer")
    result = await explain_yaml(yaml_of("", V2), request)
    assert "\x1b" not in as_text(result)
    assert "\x1b" not in as_text(replace(result, error="\x1b[2J"))


# ---- the command


def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    file = tmp_path / "routes.yaml"
    file.write_text(yaml_of("", V2))
    code = main(["explain", "--config", str(file), *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


BODY = '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}'


@pytest.mark.parametrize("form", ["file", "curl", "parts", "rpc"])
def test_the_command_reads_a_request_in_every_form(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"curl http://h:8000/v2/models/m/infer -d '{BODY}'"
    (tmp_path / "request").write_text(command)
    (tmp_path / "body").write_text(BODY)
    message = encode(M, "v2-grpc").wire
    assert isinstance(message, RpcRequest)
    (tmp_path / "message").write_bytes(b"".join(map(bytes, message.message)))
    argv = {
        "file": [str(tmp_path / "request")],
        "curl": ["--curl", command],
        "parts": ["post", "/v2/models/m/infer", "--body", str(tmp_path / "body")],
        "rpc": ["/inference.GRPCInferenceService/ModelInfer", "--body", str(tmp_path / "message")],
    }[form]
    code, out, err = run(tmp_path, capsys, *argv, "--header", "x-a: b")
    assert (code, err) == (0, "")
    assert "request   infer of model 'm'" in out
    assert "gRPC grpc://b.test:1/inference.GRPCInferenceService/ModelInfer" in out


def test_the_command_prints_json_and_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"curl http://h:8000/v2/models/m/infer -d '{BODY}'"
    code, out, _ = run(tmp_path, capsys, "--curl", command, "--json", "--code", "all")
    assert code == 0
    assert set(json.loads(out)["code"]) >= {"curl", "kserve", "graphpipe"}
    _, out, _ = run(tmp_path, capsys, "--curl", command, "--code", "kserve")
    assert "---- kserve ----\n" in out
    assert "---- curl ----" not in out


def test_the_exit_code_says_whether_the_request_reaches_a_backend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, capsys, "get", "/v2")[0] == 0
    assert run(tmp_path, capsys, "get", "/v2/models/none")[0] == 1
    assert run(tmp_path, capsys, "post", "/v2/models/m/infer")[0] == 1


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([], "expected a file with a curl"),
        (["a", "b", "c"], "expected a file with a curl"),
        (["no-such-file"], "no-such-file cannot be read"),
        (["get", "/v2", "--curl", "curl h"], "either --curl or a REQUEST"),
        (["--config", "no-such.yaml"], "cannot be read"),
    ],
)
def test_a_wrong_command_line_has_exit_code_2(
    argv: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(tmp_path, capsys, *argv)
    assert code == 2
    assert reason in err


TRANSFORMED = yaml_of(
    ", transforms: {inputs: [{cast: {tensor: x, from: FP32, to: FP64}}, {rename: {x: z}}],"
    " outputs: [{rename: {y: w}}]}",
    V2,
)


async def test_transforms_are_applied_and_their_inputs_described() -> None:
    request = InferRequest("m", inputs=(X,), outputs=(RequestedOutput("w"),))
    result = await explain_yaml(TRANSFORMED, encode(request))
    (target,) = result.targets
    assert target.error == ""
    assert target.steps[:2] == (
        "transforms: input 'z' becomes FP64 [1, 2], 16 bytes",
        "transforms: output 'y' is requested",
    )
    assert target.layout[1].endswith("'z', FP64 [1, 2], 16 bytes")
    assert result.inference == request


async def test_an_input_that_does_not_fit_the_transforms_is_explained() -> None:
    uint8_input = tensor_from_array("x", Datatype.UINT8, np.zeros((1, 2)))
    result = await explain_yaml(TRANSFORMED, encode(InferRequest("m", inputs=(uint8_input,))))
    assert "input 'x': expected FP32, got UINT8" in result.targets[0].error
