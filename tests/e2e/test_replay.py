"""Tests the replay, the comparison and the export of traffic that a gateway has recorded."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as tg
from tritonclient.utils import InferenceServerException

from e2e.clients import ARRAYS
from e2e.running import LISTENERS, Infergate, started_infergate
from e2e.test_streams import streaming, tensor
from faults.peer import post
from faults.watch import counted, until
from infergate.backends.builtin import embedded_models
from infergate.cli import main
from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest
from infergate.core.tensor import tensor_from_array
from infergate.core.wire import HttpRequest, RpcRequest, join_parts
from infergate.migration.recorded import client_message
from infergate.recording.encoding import RecordedExchange, encode_exchange
from infergate.recording.reader import read_recording
from infergate.recording.writer import RecordingFile

EMBEDDED = "backends: {b: {protocol: builtin}}\nroutes: [{model: '*', backend: b}]\n"
SWAPPED = """
backends: {b: {protocol: builtin}}
routes:
  - {model: simple, backend: b, rewrite: {outputs: {OUTPUT0: OUTPUT1, OUTPUT1: OUTPUT0}}}
  - {model: '*', backend: b}
"""
SIMPLE = next(each.metadata for each in embedded_models() if each.metadata.name == "simple")
PROTOCOLS = ("v2-rest", "v2-grpc", "trtis-http", "trtis-grpc", "tfs-grpc", "tfs-rest", "graphpipe")


def simple(number: int) -> InferRequest:
    a = np.arange(16, dtype=np.int32).reshape(1, 16) + number
    inputs = (("INPUT0", a), ("INPUT1", np.full_like(a, 3)))
    tensors = (tensor_from_array(name, Datatype.INT32, array) for name, array in inputs)
    return InferRequest("simple", inputs=tuple(tensors))


def send(gateway: Infergate, protocol: str, request: InferRequest) -> None:
    """Send ``request`` as a client of ``protocol`` does."""
    wire = client_message(protocol, request, SIMPLE)
    if isinstance(wire, RpcRequest):
        with grpc.insecure_channel(gateway.grpc) as channel:
            channel.unary_unary(wire.method)(bytes(join_parts(wire.message)))
        return
    assert isinstance(wire, HttpRequest)
    path = f"{wire.path}?{wire.query}" if wire.query else wire.path
    headers = {**wire.headers, "x-tenant": "t"}
    body = bytes(join_parts(wire.body))
    assert post(gateway.http, path, body, headers, wire.method).status == 200


def send_mixed_traffic(gateway: Infergate) -> None:
    for number, protocol in enumerate(PROTOCOLS):
        send(gateway, protocol, simple(number))
    with tg.InferenceServerClient(gateway.grpc) as client:
        for datatype, array in ARRAYS.items():
            infer_input = tg.InferInput("INPUT0", list(array.shape), datatype).set_data_from_numpy(
                array
            )
            client.infer("identity", [infer_input])
        for number in range(5):
            infer_input = tensor("INPUT", np.array([number], np.int32))
            client.infer("accumulate", [infer_input], sequence_id=7, sequence_start=number == 0,
                         sequence_end=number == 4)  # fmt: skip
        with pytest.raises(InferenceServerException):
            client.infer("simple", [tensor("INPUT0", np.zeros((1, 16), np.int32))])
        with pytest.raises(InferenceServerException):
            client.infer("none", [tensor("INPUT0", np.zeros((1, 16), np.int32))])
    with streaming(gateway) as stream:
        stream.repeat(3)
        for _ in range(3):
            stream.next()


def recorded(folder: Path) -> Iterator[RecordedExchange]:
    for file in sorted(folder.glob("*.igrec")):
        for entry in read_recording(file):
            assert isinstance(entry, RecordedExchange)
            yield entry


def replayed_fields(entries: Iterable[RecordedExchange]) -> list[Any]:
    """Return the parts of exchanges that a replay repeats bit by bit."""
    fields = []
    for entry in entries:
        each, outcome = entry.exchange, entry.exchange.outcome
        tensors = [each.request.inputs, *(response.outputs for response in outcome.responses)]
        flat = [
            (tensor.name, tensor.datatype.value, tensor.shape, bytes(tensor.data))
            for group in tensors
            for tensor in group
        ]
        parameters = sorted(each.request.parameters.items())
        request = each.protocol, each.request.model, parameters, each.headers, each.is_stream
        fields.append((*request, flat, outcome.kind))
    return sorted(fields, key=repr)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the recorded traffic."""
    path = tmp_path_factory.mktemp("recorded")
    with started_infergate(recording_config(path)) as gateway:
        send_mixed_traffic(gateway)
    return path


def recording_config(path: Path) -> str:
    """Return a configuration that records all inferences to ``path``."""
    section = f"recording: {{path: {json.dumps(str(path))}, headers: [x-tenant]}}\n"
    return EMBEDDED.replace("b}]", "b, record: {}}]") + section


@pytest.fixture(scope="module")
def files(folder: Path) -> list[str]:
    return [str(file) for file in sorted(folder.glob("*.igrec"))]


@pytest.fixture(scope="module")
def plain(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with the inferences that every protocol can carry."""
    path = tmp_path_factory.mktemp("plain") / "plain.igrec"
    file = RecordingFile(path)
    for entry in recorded(folder):
        if entry.exchange.request.model == "simple" and entry.exchange.outcome.error is None:
            file.append(encode_exchange(entry.exchange))
    file.close()
    return path


@pytest.fixture(scope="module")
def server() -> Iterator[Infergate]:
    with started_infergate(EMBEDDED) as running:
        yield running


def test_traffic_is_replayed_bit_by_bit_in_its_own_protocols(
    folder: Path, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started_infergate(recording_config(tmp_path / "second")) as second:
        target = ["--to", f"http://{second.http}", "--to", f"grpc://{second.grpc}"]
        target += ["--to", f"graphpipe=http://{second.http}/graphpipe/{{model}}"]
        code = main(["replay", *files, *target, "--fast", "--compare", "exact"])
    out = capsys.readouterr().out
    assert code == 0, out
    assert f"100 % of {len(list(recorded(folder)))} responses equal" in out
    assert replayed_fields(recorded(tmp_path / "second")) == replayed_fields(recorded(folder))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_traffic_is_replayed_in_any_protocol(
    protocol: str, plain: Path, server: Infergate, capsys: pytest.CaptureFixture[str]
) -> None:
    address = server.grpc if protocol.endswith("grpc") else server.http
    url = f"{'grpc' if protocol.endswith('grpc') else 'http'}://{address}"
    if protocol == "graphpipe":
        url += "/graphpipe/{model}"
    target = ["--to", url, "--protocol", protocol]
    code = main(["replay", str(plain), *target, "--compare", "exact"])
    out = capsys.readouterr().out
    assert code == 0, out
    assert f"100 % of {len(PROTOCOLS)} responses equal" in out


def test_a_protocol_without_metadata_uses_the_recorded_tensors(
    plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listeners = LISTENERS.replace('{2}"', '{2}", v1: kserve-v1')
    with started_infergate(EMBEDDED, listeners) as server:
        target = ["--to", f"http://{server.http}", "--protocol", "kserve-v1"]
        code = main(["replay", str(plain), *target, "--compare", "exact"])
    assert code == 0, capsys.readouterr().out


def test_sequences_streams_and_all_datatypes_are_replayed_in_another_protocol(
    files: list[str], server: Infergate, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ["--to", f"grpc://{server.grpc}", "--protocol", "v2-grpc", "--fast"]
    code = main(["replay", *files, *target, "--compare", "exact"])
    assert code == 0, capsys.readouterr().out


def test_traffic_is_replayed_through_the_routes_of_a_configuration(
    plain: Path, server: Infergate, tmp_path: Path
) -> None:
    config = tmp_path / "routes.yaml"
    config.write_text(
        f"backends: {{b: {{protocol: v2-rest, endpoints: ['http://{server.http}']}}}}\n"
        "routes: [{model: '*', backend: b}]\n"
    )
    assert main(["replay", str(plain), "--config", str(config), "--fast"]) == 0


def test_a_different_response_is_in_the_exit_code_and_the_report(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, page = tmp_path / "report.json", tmp_path / "report.html"
    with started_infergate(SWAPPED) as other:
        target = ["--to", f"http://{other.http}", "--protocol", "v2-rest"]
        assert main(["replay", str(plain), *target, "--report", str(report)]) == 1
    assert f"0 % of {len(PROTOCOLS)} responses equal" in capsys.readouterr().out
    assert json.loads(report.read_text())["equal"] is False
    assert main(["report", "--replay", str(report)]) == 1
    assert "OUTPUT0" in capsys.readouterr().out
    assert main(["report", "--replay", str(report), "--html", str(page)]) == 1
    assert "OUTPUT0" in page.read_text()


def test_a_damaged_part_is_reported_and_the_rest_is_replayed(
    plain: Path, server: Infergate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged.igrec"
    entries = list(read_recording(plain))
    data = bytearray(plain.read_bytes())
    data[entries[2].position + 60] ^= 1
    damaged.write_bytes(data)
    target = ["--to", f"http://{server.http}", "--protocol", "v2-rest"]
    assert main(["replay", str(damaged), *target]) == 0
    out = capsys.readouterr().out
    end = entries[2].position + entries[2].length - 1
    assert f"{damaged}: bytes {entries[2].position} to {end}: the checksum" in out
    assert f"100 % of {len(PROTOCOLS) - 1} responses equal" in out


def test_a_foreign_file_is_an_error_before_anything_is_sent_or_written(
    plain: Path, server: Infergate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign, report = tmp_path / "foreign", tmp_path / "report.html"
    foreign.write_bytes(b"{}")
    report.write_text("the previous report")
    requests = server.metrics().count("infergate_requests_total{")
    target = ["--to", f"http://{server.http}", "--protocol", "v2-rest", "--report", str(report)]
    assert main(["replay", str(plain), str(foreign), *target]) == 2
    err = capsys.readouterr().err
    assert f"{foreign}: byte 0: this is not an infergate recording" in err
    assert report.read_text() == "the previous report"
    assert server.metrics().count("infergate_requests_total{") == requests
    assert sorted(tmp_path.iterdir()) == [foreign, report]


def test_ctrl_c_ends_a_replay_with_the_result_until_then(
    plain: Path, server: Infergate, tmp_path: Path
) -> None:
    report = tmp_path / "report.html"
    target = ["--to", f"http://{server.http}", "--protocol", "v2-rest", "--report", str(report)]
    argv = [sys.executable, "-m", "infergate", "replay", str(plain), *target, "--rate", "0.001"]
    argv = ["env", "--default-signal=INT", *argv]  # the background jobs of a shell ignore SIGINT
    count = counted(server, operation="infer")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        until(lambda: counted(server, operation="infer") > count, "an inference is replayed")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.startswith("The replay was interrupted; this is the result so far.\n")
    assert not report.exists()


def test_a_file_for_perf_analyzer_is_exported_and_replayed(
    plain: Path, server: Infergate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "input.json"
    target = ["--to", f"grpc://{server.grpc}", "--protocol", "v2-grpc", "--model", "simple"]
    assert main(["replay", str(plain), *target, "--export", str(file)]) == 0
    assert f"{len(PROTOCOLS)} requests written to {file}" in capsys.readouterr().out
    exported = json.loads(file.read_text())
    assert len(exported["data"]) == len(exported["validation_data"]) == len(PROTOCOLS)
    assert main(["replay", str(file), *target, "--compare", "exact", "--fast"]) == 0
    assert f"100 % of {len(PROTOCOLS)} responses equal" in capsys.readouterr().out
    del exported["validation_data"]
    file.write_text(json.dumps(exported))
    assert main(["replay", str(file), *target]) == 0
    assert f"{len(PROTOCOLS)} not compared" in capsys.readouterr().out


def test_a_recorded_inference_is_explained(
    files: list[str], server: Infergate, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "routes.yaml"
    config.write_text(EMBEDDED)
    for number in range(1, len(PROTOCOLS) + 1):
        argv = ["explain", "--config", str(config), f"{files[0]}#{number}"]
        assert main(argv) == 0, capsys.readouterr().out
    assert "input 'INPUT0': INT32 [1, 16], 64 bytes" in capsys.readouterr().out
