"""Tests tritonclient's gRPC calls, compression and pings through ``engine: own`` to a real
Triton."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as tc
from tritonclient.grpc import aio

from e2e.running import Infergate, started_infergate
from faults.watch import SECONDS, alive, limited_growth, logged_bugs
from peers.support.triton import Triton

MIB = 1 << 20
CONFIG = """
backends: {{triton: {{protocol: v2-grpc, endpoints: ["grpc://{grpc}"]}}}}
routes: [{{model: "*", backend: triton}}]
limits: {{body: 80MiB}}
"""
COMPRESSIONS = [None, "gzip", "deflate"]


@pytest.fixture(scope="module")
def gateway(triton: Triton) -> Iterator[Infergate]:
    with started_infergate(CONFIG.format(grpc=triton.grpc), engine="own") as running:
        yield running
        assert alive(running)
        assert logged_bugs(running) == ""


def numbers(size: int) -> np.ndarray[Any, Any]:
    return np.arange(size, dtype=np.uint8)


def identity(size: int) -> list[tc.InferInput]:
    tensor = tc.InferInput("INPUT0", [size], "UINT8")
    return [tensor.set_data_from_numpy(numbers(size))]


def slow(seconds: float) -> list[tc.InferInput]:
    value = tc.InferInput("INPUT0", [1], "INT32")
    value.set_data_from_numpy(np.array([7], np.int32))
    wait = tc.InferInput("SECONDS", [1], "FP32")
    wait.set_data_from_numpy(np.array([seconds], np.float32))
    return [value, wait]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("size", [1, 3 * MIB])
def test_all_call_styles(gateway: Infergate, compression: str | None, size: int) -> None:
    results: queue.Queue[Any] = queue.Queue()

    def put_result(result: Any, error: Any) -> None:
        results.put(result if error is None else error)

    with tc.InferenceServerClient(gateway.grpc) as client:
        response = client.infer("id_UINT8", identity(size), compression_algorithm=compression)
        assert (response.as_numpy("OUTPUT0") == numbers(size)).all()
        for _ in range(10):
            client.async_infer(
                "id_UINT8", identity(size), put_result, compression_algorithm=compression
            )
        client.start_stream(put_result, compression_algorithm=compression)
        for _ in range(10):
            client.async_stream_infer("id_UINT8", identity(size))
        for _ in range(20):
            response = results.get(timeout=SECONDS)
            assert not isinstance(response, Exception), str(response)
            assert (response.as_numpy("OUTPUT0") == numbers(size)).all()
        client.stop_stream()


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_the_asyncio_client(gateway: Infergate, compression: str | None) -> None:
    async with aio.InferenceServerClient(gateway.grpc) as client:
        pending = [
            client.infer("id_UINT8", identity(1000 + each), compression_algorithm=compression)
            for each in range(50)
        ]
        results = await asyncio.gather(*pending)
        assert [len(each.as_numpy("OUTPUT0")) for each in results] == list(range(1000, 1050))

        async def requests() -> Any:
            for each in range(10):
                yield {"model_name": "id_UINT8", "inputs": identity(1 + each)}

        stream = client.stream_infer(requests(), compression_algorithm=compression)
        sizes = []
        async for result, error in stream:
            assert error is None
            sizes.append(len(result.as_numpy("OUTPUT0")))
        assert sorted(sizes) == list(range(1, 11))


@pytest.mark.parametrize("interval_ms", [50, 1000])
def test_pings_during_a_call(gateway: Infergate, interval_ms: int) -> None:
    """grpcio's client limits the pings that it sends."""
    options = tc.KeepAliveOptions(interval_ms, 1000, True, 0)
    with tc.InferenceServerClient(gateway.grpc, keepalive_options=options) as client:
        assert client.infer("slow", slow(1.5), client_timeout=30).as_numpy("OUTPUT0")[0] == 7


def test_a_large_message_and_its_memory(gateway: Infergate) -> None:
    size = 64 * MIB
    with tc.InferenceServerClient(gateway.grpc) as client, limited_growth(gateway.pid, 3 * size):
        response = client.infer("id_UINT8", identity(size), client_timeout=100)
        assert response.as_numpy("OUTPUT0").nbytes == size
