"""Tests ``infergate probe`` of a running infergate, the configuration that it writes, and the
requests that it prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.probing import models_of, probe, protocols_of, run_requests, serve_config
from e2e.running import Infergate, started_infergate
from faults.peer import get
from faults.watch import until
from infergate.cli import main

MODELS = ("simple", "simple_string", "identity", "repeat", "accumulate", "digits", "embed")


@pytest.fixture(scope="module")
def server() -> Iterator[Infergate]:
    config = "backends: {demo: {protocol: builtin}}\nroutes: [{model: '*', backend: demo}]\n"
    with started_infergate(config) as running:
        yield running


def test_the_printed_requests_run(server: Infergate) -> None:
    models = models_of(probe(f"http://{server.http}"))
    assert models.keys() == set(MODELS)
    for name in set(MODELS) - {"repeat"}:
        for response in run_requests(models[name]):
            assert [item["name"] for item in response["outputs"]] == [
                item["name"] for item in models[name]["outputs"]
            ]


def test_the_written_configuration_serves_the_models_in_all_protocols(
    server: Infergate, tmp_path: Path
) -> None:
    file = tmp_path / "routes.yaml"
    models = models_of(probe(f"grpc://{server.grpc}", "--write", str(file)))
    with serve_config(file) as document:
        assert [route["model"] for route in document["routes"]] == list(MODELS)
        listeners = document["listeners"]
        addresses = [listeners["http"], listeners["grpc"], listeners["additional"]["kserve-v1"]]
        http, grpc, v1 = (item["address"] for item in addresses)
        probed_again = probe(http, grpc, v1)
        assert protocols_of(probed_again) == {
            http: {"v2-rest", "tfs-rest", "trtis-http"},
            grpc: {"v2-grpc", "tfs-grpc", "trtis-grpc"},
            v1: {"kserve-v1"},
        }
        for response in run_requests(models["digits"]):  # through the written configuration
            assert response["outputs"][0]["shape"] == [1, 10]
        assert models["digits"]["needs_gateway"]


def test_an_existing_file_is_replaced_only_with_force(server: Infergate, tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text("mine")
    assert main(["probe", server.http, "--write", str(file)]) == 2
    assert file.read_text() == "mine"
    assert main(["probe", server.http, "--write", str(file), "--force"]) == 0
    assert "  - model: digits\n" in file.read_text()


def test_the_text_output_has_tables_and_requests(
    server: Infergate, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", server.http, server.grpc]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert [server.grpc, "v2-grpc", "infergate"] in [line.split()[:3] for line in lines]
    assert ["digits", "in", "IMAGE", "FP32", "[-1,8,8]", "up", "to", "64"] in [
        line.split() for line in lines
    ]
    assert "# digits" in lines
    assert any(line.startswith("curl -sS ") for line in lines)


def test_mirrors_to_the_new_server_compare_the_responses(server: Infergate, tmp_path: Path) -> None:
    """One server plays both roles: the old server over HTTP, and the new server over gRPC."""
    file = tmp_path / "routes.yaml"
    new = f"grpc://{server.grpc}"
    document = probe(f"http://{server.http}", "--against", new, "--write", str(file))
    assert models_of(document["against"]).keys() == set(MODELS)
    with serve_config(file) as written:
        assert {route["mirror"]["backend"] for route in written["routes"]} == {"new"}
        http, admin = (written["listeners"][name]["address"] for name in ("http", "admin"))
        mirrored_model = models_of(probe(http))["digits"]
        run_requests(mirrored_model)
        line = 'infergate_comparisons_total{result="equal",route="digits"} 2.0'
        until(lambda: line in get(admin, "/metrics").body.decode(), line)
