from __future__ import annotations

import json

from probe_kit import model, server, tensor

from infergate.config.values import parse_url
from infergate.migration.probe import report
from infergate.migration.probe.example_requests import ExampleRequest
from infergate.migration.probe.findings import ProbedModel, ProbeFindings, TargetFindings
from infergate.migration.probe.targets import PortProblem, ProbeTarget
from infergate.terminal import plain_text


def findings(*models: ProbedModel, name: str = "triton") -> ProbeFindings:
    probed = server(*models, name=name)
    target = ProbeTarget("grpc://10.0.0.7:8001", parse_url("grpc://10.0.0.7:8001"))
    closed = ProbeTarget("a:1", parse_url("tcp://a:1"))
    problem = PortProblem("connection refused", "check the port")
    return ProbeFindings(
        [TargetFindings(target, [probed.best]), TargetFindings(closed, problem=problem)], [probed]
    )


def text(probe_result: ProbeFindings) -> str:
    return "\n".join(map(plain_text, report.tables(probe_result)))


def test_the_tables_show_addresses_and_models() -> None:
    inputs = (tensor("a", "FP32", -1, 3), tensor("b", "", -1))
    probed = model("m", inputs=inputs, max_batch_size=8)
    unknown = ProbedModel("n", "UNAVAILABLE", problem="the model is UNAVAILABLE")
    assert text(findings(probed, unknown)) == (
        "addresses\n"
        "  ADDRESS               PROTOCOL  SERVER              MODELS\n"
        "  grpc://10.0.0.7:8001  v2-grpc   triton 2.51.0       2\n"
        "  a:1                   -         connection refused  -\n"
        "\n"
        "models of triton 2.51.0, over v2-grpc at grpc://10.0.0.7:8001\n"
        "  MODEL  TENSOR  DATATYPE  SHAPE   BATCH\n"
        "  m      in a    FP32      [-1,3]  up to 8\n"
        "         in b    unknown   [-1]\n"
        "         out y   FP32      [-1]\n"
        "  n      -       -         -       unavailable\n"
    )


def test_a_table_omits_the_rest_of_many_tensors() -> None:
    inputs = tuple(tensor(f"n{n}", "FP32", 1) for n in range(40))
    rows = text(findings(model("m", inputs=inputs))).splitlines()
    assert [row.split() for row in rows if "…" in row] == [["in", "…", "8", "more"]]
    assert sum(" n" in row for row in rows) == 32


def test_remarks_say_what_to_try() -> None:
    unknown = [ProbedModel(f"m{n}", problem="no metadata") for n in range(12)]
    names = "m0, m1, m2, m3, m4, m5, m6, m7, m8, m9 and 2 more"
    assert list(report.remarks(findings(*unknown), ["other"])) == [
        "a:1: connection refused; check the port",
        f"triton 2.51.0 at grpc://10.0.0.7:8001: {names}: no metadata",
        "model other: no server serves it; check the name given with --model",
    ]


ESCAPE = "\x1b[2J\x9b31m\u202e"


def test_no_control_character_of_a_server_reaches_the_terminal() -> None:
    hostile = model(ESCAPE, inputs=(tensor(f"t\n{ESCAPE}", ESCAPE, 1),))
    result = findings(hostile, ProbedModel(f"n{ESCAPE}", problem=ESCAPE), name=ESCAPE)
    example = ExampleRequest(ESCAPE, f"curl '{ESCAPE}'", repr(ESCAPE))
    printed = [
        text(result),
        *report.remarks(result, [ESCAPE]),
        report.example_text([example]),
        report.json_text(report.as_json(result, [[example]])),
    ]
    assert not any(character in part for part in printed for character in ESCAPE if character < " ")
    assert "\x9b" not in "".join(printed)
    assert "\u202e" not in "".join(printed)
    document = json.loads(printed[-1])
    assert document["servers"][0]["models"][0]["name"] == ESCAPE


def test_the_requests_of_many_models_are_only_in_the_json() -> None:
    examples = [ExampleRequest("m", "curl", "python"), ExampleRequest("n", problem="unknown")]
    assert report.example_text(examples, 5) == (
        "# m\ncurl\n\npython\n\n# The requests of 5 more models are not shown; use --json\n"
    )
