"""Tests sequences through infergate to servers that keep separate state.

For each protocol with sequences, a backend has two endpoints, which are instances of infergate with
the embedded model ``accumulate``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as tg
from tritonclient.utils import InferenceServerException

from e2e.clients import Client, client
from e2e.running import Infergate, started_infergate
from faults.legacy import http_outcome, old_post
from peers.support.triton import Triton

SERVER = """
backends:
  inside: {protocol: builtin}
routes:
  - {model: '*', backend: inside}
"""
PROTOCOLS = {"v2-rest": "http", "v2-grpc": "grpc", "trtis-http": "http", "trtis-grpc": "grpc"}
GATEWAY = """
backends:
{backends}  none: {{protocol: graphpipe, endpoints: ["http://127.0.0.1:9"]}}
models:
  none:
    inputs: [{{name: INPUT, datatype: INT32, shape: [1]}}]
    outputs: [{{name: OUTPUT, datatype: INT32, shape: [1]}}]
routes:
{routes}  - {{model: none, backend: none}}
"""


def config(servers: list[Infergate]) -> str:
    backends, routes = "", ""
    for protocol, scheme in PROTOCOLS.items():
        urls = ", ".join(f'"{scheme}://{getattr(each, scheme)}"' for each in servers)
        backends += f"  {protocol}: {{protocol: {protocol}, endpoints: [{urls}]}}\n"
        for form in ("validated", "unvalidated"):
            routes += (
                f"  - {{model: {protocol}.{form}, backend: {protocol}, "
                f"validate: {str(form == 'validated').lower()}, rewrite: {{model: accumulate}}}}\n"
            )
    return GATEWAY.format(backends=backends, routes=routes)


@pytest.fixture(scope="module")
def gateways() -> Iterator[tuple[Infergate, Infergate]]:
    """Run two gateways with the same configuration. A sequence may use both."""
    with ExitStack() as stack:
        servers = [stack.enter_context(started_infergate(SERVER)) for _ in range(2)]
        text = config(servers)
        yield (
            stack.enter_context(started_infergate(text)),
            stack.enter_context(started_infergate(text)),
        )


@contextmanager
def clients(form: str, gateways: tuple[Infergate, ...]) -> Iterator[list[Client]]:
    with ExitStack() as stack:
        yield [stack.enter_context(client(form, each.http, each.grpc)) for each in gateways]


def add(triton_client: Client, model: str, value: int, **sequence: Any) -> int:
    """Return the sum of the sequence after ``value`` is added."""
    tensor = triton_client.input("INPUT", np.array([value], np.int32), "INT32")
    return int(triton_client.infer(model, [tensor], **sequence).as_numpy("OUTPUT")[0])


@pytest.mark.parametrize("form", ["http", "grpc"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("route", ["validated", "unvalidated"])
def test_a_sequence_reaches_one_endpoint(
    gateways: tuple[Infergate, Infergate], form: str, protocol: str, route: str
) -> None:
    """Run seven sequences step by step, alternating between the gateways."""
    model, base = f"{protocol}.{route}", first_number(form, route)
    numbers = [base + number for number in range(7)]
    with clients(form, gateways) as created:
        for step in range(1, 5):
            for number in numbers:
                result = add(
                    created[step % 2],
                    model,
                    step * number,
                    sequence_id=number,
                    sequence_start=step == 1,
                    sequence_end=step == 4,
                )
                assert result == number * step * (step + 1) // 2
        with pytest.raises(InferenceServerException, match="START"):
            add(created[0], model, 1, sequence_id=numbers[0])


def first_number(form: str, route: str) -> int:
    """Return the first sequence number of a case. Cases use different numbers."""
    return {"http": 1000, "grpc": 2000}[form] + {"validated": 100, "unvalidated": 200}[route]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_streams_of_a_sequence_reach_one_endpoint(
    gateways: tuple[Infergate, Infergate], protocol: str
) -> None:
    numbers = range(3001, 3008)
    sums: dict[int, list[int]] = {number: [] for number in numbers}
    with clients("grpc", gateways) as (created, _):
        errors: list[Any] = []

        def collect(result: Any, error: Any) -> None:
            if error is not None:
                errors.append(error)
            else:
                number = int(result.get_response().id)
                sums[number].append(int(result.as_numpy("OUTPUT")[0]))

        created.start_stream(collect)
        for step in range(1, 5):
            for number in numbers:
                tensor = tg.InferInput("INPUT", [1], "INT32")
                created.async_stream_infer(
                    f"{protocol}.validated",
                    [tensor.set_data_from_numpy(np.array([step], np.int32))],
                    request_id=str(number),
                    sequence_id=number,
                    sequence_start=step == 1,
                    sequence_end=step == 4,
                )
        created.stop_stream()
    assert not errors
    assert sums == {number: [1, 3, 6, 10] for number in numbers}


@pytest.mark.parametrize("form", ["http", "grpc"])
def test_a_protocol_without_sequences_refuses_v2_sequences(
    gateways: tuple[Infergate, Infergate], form: str
) -> None:
    with (
        clients(form, gateways) as (created, _),
        pytest.raises(InferenceServerException, match=r"sequence_id.*graphpipe") as caught,
    ):
        add(created, "none", 1, sequence_id=5, sequence_start=True)
    assert caught.value.status() in {"501", "StatusCode.UNIMPLEMENTED"}


def test_a_protocol_without_sequences_refuses_legacy_sequences(
    gateways: tuple[Infergate, Infergate],
) -> None:
    header = (
        'batch_size: 1 flags: 1 correlation_id: 5 input { name: "INPUT" } output { name: "OUTPUT" }'
    )
    rejection = http_outcome(old_post(gateways[0].http, "none", header, b"\1\0\0\0"))
    assert rejection.code == "UNSUPPORTED"
    assert "sequence_id" in rejection.error


def test_sequences_of_an_unreachable_endpoint_fail() -> None:
    with started_infergate(SERVER) as reachable, ExitStack() as stack:
        unreachable = stack.enter_context(started_infergate(SERVER))
        urls = f'["http://{reachable.http}", "http://{unreachable.http}"]'
        text = (
            f"backends:\n  replicas: {{protocol: v2-rest, endpoints: {urls}}}\n"
            "routes:\n  - {model: accumulate, backend: replicas}\n"
        )
        with started_infergate(text) as gateway, client("http", gateway.http, "") as created:
            numbers = range(1, 17)
            for number in numbers:
                add(created, "accumulate", number, sequence_id=number, sequence_start=True)
            stack.close()
            errors = {}
            for number in numbers:
                try:
                    result = add(created, "accumulate", number, sequence_id=number)
                except InferenceServerException as error:
                    errors[number] = error
                else:
                    assert result == 2 * number
        assert 0 < len(errors) < len(numbers)
        for number, error in errors.items():
            assert error.status() == "502"
            text = f"endpoint 2 of 2, which holds the state of sequence {number} "
            assert text in error.message()


TRITON = """
backends:
  rest: {{protocol: v2-rest, endpoints: ["http://{0.http}", "http://localhost:{1}"]}}
  grpc: {{protocol: v2-grpc, endpoints: ["grpc://{0.grpc}", "grpc://localhost:{2}"]}}
routes:
  - {{model: rest, backend: rest, rewrite: {{model: accumulate}}}}
  - {{model: grpc, backend: grpc, rewrite: {{model: accumulate}}}}
"""


def test_real_triton_behind_both_protocols(triton: Triton) -> None:
    """Both endpoints of each backend are the same Triton, under two addresses."""
    ports = [address.rpartition(":")[2] for address in (triton.http, triton.grpc)]
    with started_infergate(TRITON.format(triton, *ports)) as gateway:
        for form in ("http", "grpc"):
            with client(form, gateway.http, gateway.grpc) as created:
                for model, number in (("rest", 71), ("grpc", 72)):
                    for step in range(1, 5):
                        result = add(
                            created,
                            model,
                            step,
                            sequence_id=number,
                            sequence_start=step == 1,
                            sequence_end=step == 4,
                        )
                        assert result == step * (step + 1) // 2
                    with pytest.raises(InferenceServerException, match="START"):
                        add(created, model, 1, sequence_id=number)
