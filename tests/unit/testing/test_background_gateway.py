"""``BackgroundGateway``: models, recordings, configurations, kept requests, errors and files."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from infergate import ConfigError
from infergate.core.errors import Kind
from infergate.core.exchange import OK
from infergate.testing import BackgroundGateway, FakeModel
from recordings import exchange, write_recording

COMPARED = b'infergate_comparisons_total{result="different",route="*"} 1'
VECTOR = {"x": ("FP32", (-1,))}


def double(inputs: Any) -> dict[str, Any]:
    return {"y": inputs["x"] * 2}


def fake(function: Any, name: str = "m") -> FakeModel:
    return FakeModel(name, function, inputs=VECTOR, outputs={"y": ("FP32", (-1,))})


def input_of(library: Any, *values: float) -> Any:
    entry = library.InferInput("x", [len(values)], "FP32")
    entry.set_data_from_numpy(np.array(values, np.float32))
    return entry


def infer_http(gateway: BackgroundGateway, model: str, *values: float) -> Any:
    with triton_http.InferenceServerClient(gateway.http) as client:
        return client.infer(model, [input_of(triton_http, *values)]).as_numpy("y").tolist()


def infer_grpc(gateway: BackgroundGateway, model: str, *values: float) -> Any:
    with triton_grpc.InferenceServerClient(gateway.grpc) as client:
        return client.infer(model, [input_of(triton_grpc, *values)]).as_numpy("y").tolist()


def test_a_triton_client_calls_a_fake_model_and_the_test_sees_its_requests() -> None:
    with BackgroundGateway(models=[fake(double)]) as gateway:
        assert infer_http(gateway, "m", 1, 2) == [2, 4]
        assert infer_grpc(gateway, "m", 3) == [6]
        with pytest.raises(triton_http.InferenceServerException, match="unknown model 'n'"):
            infer_http(gateway, "n", 1)
        first, second, _ = gateway.requests
        assert [first.protocol, second.protocol] == ["v2-rest", "v2-grpc"]
        assert first.request.inputs[0].numpy().tolist() == [1, 2]
        assert first.outcome.responses[0].outputs[0].numpy().tolist() == [2, 4]
        assert "user-agent" in first.headers
        assert [each.outcome.kind for each in gateway.requests] == [OK, OK, "not_found"]
        gateway.clear_requests()
        assert gateway.requests == []


def test_a_generator_of_a_fake_model_is_a_stream() -> None:
    def values(inputs: Any) -> Any:
        for value in inputs["x"]:
            yield {"y": [value]}

    received: SimpleQueue[Any] = SimpleQueue()
    with (
        BackgroundGateway(models=[fake(values)]) as gateway,
        triton_grpc.InferenceServerClient(gateway.grpc) as client,
    ):
        entry = input_of(triton_grpc, 1, 2)
        client.start_stream(lambda result, error: received.put(error or result.as_numpy("y")))
        client.async_stream_infer("m", [entry])
        assert [received.get(timeout=60) for _ in range(2)] == [1, 2]
        client.stop_stream()
        [request] = gateway.requests
        assert request.is_stream
        with pytest.raises(triton_grpc.InferenceServerException, match="use a stream"):
            client.infer("m", [entry])


def test_a_configuration_is_tested_without_its_servers() -> None:
    config = {
        "listeners": {"http": {"address": "0.0.0.0:8000"}, "grpc": {"address": "0.0.0.0:8001"}},
        "backends": {
            name: {"protocol": "v2-grpc", "endpoints": [f"grpc://{name}.example:8001"]}
            for name in ("large", "small")
        },
        "routes": [
            {"model": "old-*", "backend": "small", "rewrite": {"model": "m"}},
            {"model": "*", "backend": "large"},
        ],
    }
    with BackgroundGateway(config, models=[fake(double)]) as gateway:
        assert infer_grpc(gateway, "old-name", 1) == [2]
        assert infer_grpc(gateway, "m", 1) == [2]
        assert [(each.backend, each.route) for each in gateway.requests] == [
            ("small", "old-*"),
            ("large", "*"),
        ]
        assert gateway.addresses["http"].host == "127.0.0.1"
        assert gateway.addresses["http"].port != 8000


def test_recordings_are_served(tmp_path: Path) -> None:
    write_recording(tmp_path / "a.igrec", [exchange(1), exchange(2)])
    with BackgroundGateway(recordings=["a.igrec"], folder=tmp_path) as gateway:
        assert infer_http(gateway, "m", 1) == [1]
        assert infer_grpc(gateway, "m", 2) == [2]
        with pytest.raises(triton_http.InferenceServerException, match="none of the 2 recorded"):
            infer_http(gateway, "m", 3)


def test_without_models_the_embedded_models_are_served(tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(
        "backends: {demo: {protocol: builtin}}\nroutes: [{model: simple, backend: demo}]\n"
    )
    for config in (None, "routes.yaml"):
        with BackgroundGateway(config, folder=tmp_path) as gateway:
            url = f"{gateway.addresses['http'].url}/v2/models/simple/ready"
            assert urllib.request.urlopen(url).status == 200


def test_a_blocking_function_delays_neither_other_requests_nor_the_stop() -> None:
    called, release = threading.Event(), threading.Event()

    def block(_: Any) -> Any:
        called.set()
        release.wait()

    config = {
        "backends": {"b": {"protocol": "builtin"}},
        "routes": [
            {"model": "slow", "backend": "b", "timeout": "100ms"},
            {"model": "m", "backend": "b"},
        ],
    }
    with BackgroundGateway(config, models=[fake(block, "slow"), fake(double)]) as gateway:
        with pytest.raises(triton_http.InferenceServerException, match="before the deadline"):
            infer_http(gateway, "slow", 1)
        assert called.is_set()
        assert infer_http(gateway, "m", 1) == [2]
        assert gateway.requests[0].outcome.kind == Kind.TIMEOUT.value
    release.set()  # after the gateway stopped, so it did not wait for the function


def test_errors_at_the_start_are_raised_in_the_test(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rutes: unknown key"):
        BackgroundGateway({"rutes": []})
    missing = tmp_path / "missing" / "socket"
    listener = {"address": f"unix:{missing}", "model": "m", "framing": "size-prefixed"}
    gateway = BackgroundGateway({"listeners": {"graphpipe": [listener]}})
    threads = set(threading.enumerate())
    with pytest.raises(OSError, match=r"listeners\.graphpipe\[0\]"):
        gateway.__enter__()
    assert set(threading.enumerate()) <= threads


def test_the_gateways_thread_ends() -> None:
    threads = set(threading.enumerate())
    with BackgroundGateway():
        assert "infergate-gateway" in {each.name for each in threading.enumerate()}
    assert set(threading.enumerate()) <= threads


def test_a_configuration_writes_no_files_and_opens_no_connections(tmp_path: Path) -> None:
    """The recordings, the stored mismatches, the Redis server and the payload log belong to the
    real gateway."""
    mirror = {"backend": "new", "compare": {"keep": {"path": "mismatches"}}}
    route = {"model": "*", "backend": "own", "idempotent": True, "cache": {"ttl": "1m"}}
    calls = count()
    with socket.create_server(("127.0.0.1", 0)) as redis:
        url = f"redis://127.0.0.1:{redis.getsockname()[1]}/0"
        config = {
            "backends": {
                name: {"protocol": "v2-rest", "endpoints": ["http://127.0.0.1:1"]}
                for name in ("own", "new")
            },
            "routes": [{**route, "mirror": mirror, "record": {}, "payload_log": {}}],
            "listeners": {each: {"address": "127.0.0.1:0"} for each in ("http", "admin")},
            "recording": {"path": "recordings"},
            "payload_log": {"file": {"path": "payloads"}},
            "access": {
                "rules": [{"who": ["anonymous"], "models": ["*"]}],
                "rates": [{"who": ["anonymous"], "requests": "100/s"}],
                "redis": {"url": url},
            },
            "cache": {"redis": {"url": url}},
        }
        model = fake(lambda _: {"y": np.array([next(calls)], np.float32)})  # all responses differ
        with BackgroundGateway(config, models=[model], folder=tmp_path) as gateway:
            assert infer_http(gateway, "m", 1, 2) == [0]
            metrics = f"{gateway.addresses['admin'].url}/metrics"
            while COMPARED not in urllib.request.urlopen(metrics).read():
                time.sleep(0.05)
        redis.setblocking(False)
        with pytest.raises(BlockingIOError):
            redis.accept()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"models": fake(double)}, "models must be a list, not FakeModel"),
        ({"models": [double]}, r"models\[0\] must be a model, not function"),
        ({"recordings": "recordings"}, "recordings must be a list, not str"),
    ],
)
def test_an_argument_of_another_type_is_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        BackgroundGateway(**arguments)
