"""The configuration that a probe writes."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from probe_kit import model, server, tensor

from infergate.config import source
from infergate.config.load import parse
from infergate.config.mistakes import ConfigError
from infergate.config.schema import Config
from infergate.core.messages import TensorMetadata
from infergate.core.name_rules import NameRule
from infergate.migration.probe import listener_ports
from infergate.migration.probe.findings import ProbedModel, ProbedServer
from infergate.migration.probe.listener_ports import ListenerPorts
from infergate.migration.probe.new_file import ConfigurationExistsError, write_configuration
from infergate.migration.probe.options import ProbeOptions
from infergate.migration.probe.routes_file import RoutesFile, compose_routes
from infergate.migration.probe.targets import parse_target
from infergate.migration.probe.yaml_text import flow

GRAPHPIPE = {"protocol": "graphpipe", "name": "graphpipe-go"}


def compose(
    *old: ProbedServer, new: tuple[ProbedServer, ...] = (), options: ProbeOptions | None = None
) -> RoutesFile:
    return compose_routes("routes.yaml", old, new, options or ProbeOptions(), ListenerPorts([]))


def parse_routes(text: str) -> Config:
    """Return the configuration in ``text``. Raises ConfigError if it is invalid."""
    return parse(text, "routes.yaml", {})


def test_the_file_of_one_server() -> None:
    text = compose(server(model("resnet50"), model("bert", source="v2-rest"))).text
    assert text == (
        "# Written by infergate probe. Check it, then serve it:\n"
        "#   infergate --config routes.yaml --check\n"
        "#   infergate --config routes.yaml\n"
        "# docs/configuration.md describes every key.\n"
        "\n"
        "listeners:\n"
        '  http: {address: "127.0.0.1:8000"}\n'
        '  grpc: {address: "127.0.0.1:8001"}\n'
        '  admin: {address: "127.0.0.1:8002"}\n'
        "  additional:  # tfs-rest and kserve-v1 have the same paths\n"
        '    kserve-v1: {address: "127.0.0.1:8003", protocols: [kserve-v1]}\n'
        "\n"
        "backends:\n"
        "  triton:  # triton 2.51.0\n"
        "    protocol: v2-grpc\n"
        '    endpoints: ["grpc://10.0.0.7:8001"]\n'
        "\n"
        "routes:\n"
        "  - model: resnet50\n"
        "    backend: triton\n"
        "  - model: bert\n"
        "    backend: triton\n"
        "\n"
        "models:  # the backends' protocols do not provide this metadata\n"
        "  bert: {inputs: [{name: x, datatype: FP32, shape: [-1, 3]}], "
        "outputs: [{name: y, datatype: FP32, shape: [-1]}]}\n"
    )
    config = parse_routes(text)
    assert config.models["bert"].inputs[0].shape == (-1, 3)


def test_kserve_v1_is_served_under_v1_if_the_server_speaks_it() -> None:
    kserve = server(ProbedModel("m"), protocol="kserve-v1", url="http://a:80", name="KServe V1")
    config = parse_routes(compose(kserve).text)
    assert config.listeners.http is not None
    assert config.listeners.http.v1 == "kserve-v1"
    assert config.listeners.additional["tfs-rest"].protocols == ("tfs-rest",)


def test_each_model_of_a_graphpipe_server_gets_a_port_and_a_name_of_its_own() -> None:
    routes = compose(
        server(model("model", source="graphpipe"), url="http://a:9000", **GRAPHPIPE),
        server(model("model", source="graphpipe"), url="tcp://a:9001", **GRAPHPIPE),
    )
    config = parse_routes(routes.text)
    listeners = config.listeners.graphpipe
    assert [(item.model, item.framing) for item in listeners] == [
        ("model", "http"),
        ("model-2", "size-prefixed"),
    ]
    assert [(item.model, item.backend) for item in config.routes] == [
        ("model", "graphpipe-go"),
        ("model-2", "graphpipe-go-2"),
    ]
    assert list(routes.names.values()) == ["model", "model-2"]


def test_a_second_server_with_the_same_model_is_a_comment() -> None:
    text = compose(server(model("m")), server(model("m"), url="grpc://b:1", name="mlserver")).text
    assert "  # grpc://b:1 (v2-grpc) also has m." in text.splitlines()
    assert list(parse_routes(text).backends) == ["triton"]


def test_casts_are_written_for_datatypes_that_some_protocols_do_not_have() -> None:
    inputs = (tensor("x", "BOOL", -1), tensor("z", "BF16", -1))
    [route] = parse_routes(compose(server(model("m", inputs=inputs))).text).routes
    assert {key: value.value for key, value in route.cast.items()} == {
        "BOOL": "UINT8",
        "BF16": "FP32",
    }


def test_unknown_tensors_are_a_comment_to_fill_in() -> None:
    unknown = ProbedModel("m", "READY", problem="the server reports neither inputs nor outputs")
    odd = model("n", inputs=(tensor("x", "COMPLEX64", -1),))
    text = compose(server(unknown, odd)).text
    assert not parse_routes(text).models
    lines = text.splitlines()
    assert "    # When probed: the server reports neither inputs nor outputs" in lines
    commented = lines[lines.index("# models:") :]
    assert commented[1].startswith("#   m: {inputs: [{name: x, datatype: FP32, shape: [-1, 3]}]")
    filled = "\n".join([*lines, *(line[2:].replace("COMPLEX64", "FP32") for line in commented)])
    assert list(parse_routes(filled).models) == ["m", "n"]


def test_a_server_that_cannot_list_its_models_gets_all_other_models() -> None:
    serving = server(protocol="tfs-grpc", url="grpc://tf:8500", name="TensorFlow Serving")
    config = parse_routes(compose(server(model("m")), serving).text)
    assert [(route.model, route.backend) for route in config.routes] == [
        ("m", "triton"),
        ("*", "tensorflow-serving"),
    ]


def test_headers_are_forwarded_and_never_written() -> None:
    options = ProbeOptions(headers={"authorization": "Bearer secret"}, verify=False)
    text = compose(server(model("m"), url="grpcs://a:1"), options=options).text
    assert "secret" not in text
    backend = parse_routes(text).backends["triton"]
    assert backend.forward_headers[-1] == "authorization"
    assert "traceparent" in backend.forward_headers
    assert backend.tls is not None
    assert not backend.tls.verify


def test_names_that_routes_would_read_as_patterns_match_only_themselves() -> None:
    config = parse_routes(compose(server(model("a*b"), model("team/m"), model("x[y]"))).text)
    assert config.allow_slash_in_model_names
    assert [route.model for route in config.routes] == [r"/a\*b/", "team/m", r"/x\[y\]/"]


def test_a_name_that_no_client_can_send_is_a_comment() -> None:
    text = compose(server(model("a\nroutes: []"), model("m"))).text
    assert (
        "# Not served: the model name a routes: [] contains the control character U+000A." in text
    )
    assert [route.model for route in parse_routes(text).routes] == ["m"]


NAMES = st.text(min_size=1, max_size=30)


@given(st.lists(NAMES, min_size=1, max_size=4, unique=True), NAMES, NAMES)
@example(["null"], "true", "FALSE")
def test_the_file_is_valid_with_any_names_of_a_server(
    models: list[str], tensor_name: str, server_name: str
) -> None:
    rule = NameRule(allow_slash=True)
    inputs = (tensor(tensor_name, "BOOL", -1),)
    probed = [model(name, inputs=inputs, source="v2-rest") for name in ["ok", *models]]
    text = compose(server(*probed, name=server_name)).text
    config = parse_routes(text)
    sendable = {name for name in ["ok", *models] if not rule.find_problem(name)}
    assert len(config.routes) == len(sendable)


# ---- against a new server


def mirror_route(old: ProbedModel, new: ProbedModel) -> str:
    """Return the lines of the route for ``old`` in a valid configuration with ``new``."""
    text = compose(server(old), new=(server(new, url="grpc://new:8001"),)).text
    assert parse_routes(text)
    return text.partition("routes:\n")[2].partition("\n\n")[0]


def test_a_certain_pair_is_mirrored_and_compared() -> None:
    assert mirror_route(model("m"), model("m")) == (
        "  - model: m\n"
        "    backend: old\n"
        "    mirror:\n"
        "      backend: new\n"
        "      percent: 100\n"
        "      compare: {}\n"
    )


def test_other_names_are_rewritten() -> None:
    inputs = (tensor("input__0", "FP32", -1, 3),)
    outputs = (tensor("scores", "FP32", -1), tensor("labels", "BYTES", -1))
    old = model("Resnet", outputs=(tensor("probs", "FP32", -1), tensor("names", "BYTES", -1)))
    text = mirror_route(old, model("res-net", inputs=inputs, outputs=outputs))
    assert text.splitlines()[2:] == [
        "    mirror:",
        "      backend: new",
        "      percent: 100",
        "      rewrite:",
        "        model: res-net",
        "        inputs: {x: input__0}",
        "        outputs: {probs: scores, names: labels}",
        "      compare: {}",
    ]


def test_an_uncertain_pair_is_a_comment_with_the_reason_and_the_alternatives() -> None:
    old = model("m", inputs=(tensor("a", "INT64", -1), tensor("b", "INT64", -1)))
    new = model("m", inputs=(tensor("x", "INT64", -1), tensor("y", "INT64", -1)))
    lines = mirror_route(old, new).splitlines()
    reason = "several tensors have this datatype and shape; possible: x, y"
    assert lines[2:] == [
        "    # The mirror is not certain:",
        f"    #   input a: {reason}",
        f"    #   input b: {reason}",
        "    #   input x of the new model: the old model has no such input",
        "    #   input y of the new model: the old model has no such input",
        "    # mirror:",
        "    #   backend: new",
        "    #   percent: 100",
        "    #   compare: {}",
    ]


def test_an_output_without_a_counterpart_is_a_comment_in_the_mirror() -> None:
    new = model("m", outputs=(tensor("y", "FP64", -1),))
    lines = mirror_route(model("m"), new).splitlines()
    assert "      # output y: the datatypes differ: FP32 and FP64; no cast fits" in lines
    assert "      compare: {}" in lines


def test_an_uncertain_output_is_not_rewritten() -> None:
    lines = mirror_route(model("m"), model("m", outputs=(tensor("Y", "FP64", -1),))).splitlines()
    reason = "the datatypes differ: FP32 and FP64; no cast fits; possible: Y"
    assert f"      # output y: {reason}" in lines
    assert not any("rewrite" in line for line in lines)


TENSORS = st.lists(
    st.builds(tensor, NAMES, st.sampled_from(["FP32", "BOOL", "INT64", ""]), st.just(-1)),
    min_size=1,
    max_size=3,
    unique_by=lambda item: item.name,
)


@given(NAMES, NAMES, TENSORS, TENSORS)
def test_the_file_of_a_pair_is_valid_with_any_names(
    old_name: str, new_name: str, old: list[TensorMetadata], new: list[TensorMetadata]
) -> None:
    first = server(model("ok"), model(old_name, tuple(old), tuple(old)))
    second = server(model("OK"), model(new_name, tuple(new), tuple(new)), url="grpc://new:1")
    config = parse_routes(compose(first, new=(second,)).text)
    assert config.routes[0].backend == "old"


def test_models_of_only_one_side_are_served_without_a_mirror() -> None:
    other = model("other", inputs=(tensor("t", "BYTES", -1),))
    text = compose(server(model("m")), new=(server(other, url="grpc://new:1"),)).text
    config = parse_routes(text)
    assert [(route.model, route.backend) for route in config.routes] == [
        ("m", "old"),
        ("other", "new"),
    ]
    assert "    # No mirror: no model has this name or these tensors; possible: other" in text


def test_a_cast_that_the_pair_needs_is_written() -> None:
    old = model("m", inputs=(tensor("x", "BOOL", -1),))
    new = model("m", inputs=(tensor("x", "INT32", -1),), source="graphpipe")
    text = compose(server(old), new=(server(new, url="http://new:1", **GRAPHPIPE),)).text
    assert "    cast: {BOOL: INT32}  # for protocols without these datatypes" in text
    assert "    mirror:" in text


# ---- ports and the file


def test_ports_of_local_servers_and_of_other_programs_are_avoided() -> None:
    ports = ListenerPorts([parse_target("http://localhost:8000")])
    assert ports.assign(8000) != 8000
    with socket.socket() as occupied:
        occupied.bind((listener_ports.HOST, 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        assert ports.assign(port) == port + 100
        assert ListenerPorts([parse_target("http://10.0.0.7:8000")]).assign(port) == port
        assert ListenerPorts([parse_target("unix:/run/gp.sock")]).assign(port) == port + 100
    assert ListenerPorts([]).assign(8000) == 8000


TEXT = compose(server(model("m"))).text


def test_the_file_is_written_completely(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    write_configuration(path, TEXT, force=False)
    assert path.read_text(encoding="utf-8") == TEXT
    assert list(tmp_path.iterdir()) == [path]


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text("mine")
    with pytest.raises(ConfigurationExistsError):
        write_configuration(path, TEXT, force=False)
    assert path.read_text() == "mine"
    write_configuration(path, TEXT, force=True)
    assert path.read_text(encoding="utf-8") == TEXT
    assert list(tmp_path.iterdir()) == [path]


def test_a_temporary_file_of_a_killed_process_does_not_prevent_writing(tmp_path: Path) -> None:
    (tmp_path / f".routes.yaml.{os.getpid()}.tmp").touch()  # process ids repeat in containers
    write_configuration(tmp_path / "routes.yaml", TEXT, force=False)


def test_an_invalid_configuration_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        write_configuration(tmp_path / "routes.yaml", "backends: {}", force=True)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
    path = tmp_path / "routes.yaml"
    path.write_text("mine")
    with pytest.raises(OSError, match="No space left"):
        write_configuration(path, TEXT, force=True)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


VALUES = st.recursive(
    st.text(max_size=20) | st.integers(-(2**63), 2**63) | st.booleans() | st.none(),
    lambda items: st.lists(items, max_size=3) | st.dictionaries(st.text(max_size=9), items),
    max_leaves=8,
)


def as_lists(value: Any) -> Any:
    """Return ``value`` with lists in place of tuples."""
    if isinstance(value, dict):
        return {key: as_lists(item) for key, item in value.items()}
    return list(map(as_lists, value)) if isinstance(value, tuple | list) else value


@given(VALUES)
@example("${HOME} $${ ${")
@example(None)
def test_a_configuration_has_the_written_values(value: Any) -> None:
    parsed = source.parse(f"key: {flow(value)}", "routes.yaml", {"HOME": "wrong"})
    assert not parsed.mistakes
    assert as_lists(parsed.data) == {"key": value}
