"""Tests tritonclient's shared memory with a gateway that copies the data or forwards regions to
Triton."""

from __future__ import annotations

import itertools
import json
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as tc
from tritonclient.utils import InferenceServerException, serialize_byte_tensor
from tritonclient.utils import shared_memory as shm

from e2e.clients import FORMS, Client, client
from e2e.running import Infergate, started_infergate
from faults.peer import post as post_bytes
from faults.watch import SECONDS, open_files, until
from peers.support.triton import Triton

DEMO = """
backends: {demo: {protocol: builtin}}
routes: [{model: '*', backend: demo}]
control: {shared_memory: true}
limits: {regions: 8, body: 4MiB}
"""
COPIED = """
backends:
  demo: {{protocol: builtin}}
  rest: {{protocol: v2-rest, endpoints: ["http://{http}"]}}
  grpc: {{protocol: v2-grpc, endpoints: ["grpc://{grpc}"]}}
routes:
  - {{model: '/rest\\.(.+)/', backend: rest, rewrite: {{model: '\\1'}}}}
  - {{model: '/grpc\\.(.+)/', backend: grpc, rewrite: {{model: '\\1'}}}}
  - {{model: '*', backend: demo}}
control: {{shared_memory: true}}
"""
FORWARDED = """
backends:
  triton: {{protocol: {protocol}, endpoints: ["{endpoint}"], shared_memory: forward}}
  demo: {{protocol: builtin}}
routes:
  - {{model: '/forwarded\\.(.+)/', backend: triton, rewrite: {{model: '\\1'}}}}
  - {{model: '*', backend: demo}}
control: {{shared_memory: true}}
"""
_NUMBERS = itertools.count()
SIZE = 64
A = np.arange(16, dtype=np.int32).reshape(1, 16)
B = np.full((1, 16), 3, np.int32)


class Region:
    """A shared memory object that a client on the same host has created."""

    def __init__(self, size: int) -> None:
        self.key = f"/infergate_test_{os.getpid()}_{next(_NUMBERS)}"
        self.size = size
        self.name = self.key[1:]
        self.handle = shm.create_shared_memory_region(self.name, self.key, size)

    def put(self, *arrays: Any, offset: int = 0) -> None:
        shm.set_shared_memory_region(self.handle, arrays, offset=offset)

    def get(self, kind: Any, shape: Any, offset: int = 0) -> Any:
        return shm.get_contents_as_numpy(self.handle, kind, shape, offset=offset).copy()

    def truncate(self, size: int) -> None:
        os.truncate(f"/dev/shm{self.key}", size)


@contextmanager
def new_region(size: int = 4 * SIZE) -> Iterator[Region]:
    created = Region(size)
    try:
        yield created
    finally:
        shm.destroy_shared_memory_region(created.handle)


@contextmanager
def registered(peer: Client, size: int = 4 * SIZE) -> Iterator[Region]:
    with new_region(size) as created:
        peer.register_system_shared_memory(created.name, created.key, size)
        try:
            yield created
        finally:
            peer.unregister_system_shared_memory(created.name)


def infer_in_region(
    peer: Client, region: Region, name: str = "simple", output_size: int = SIZE
) -> Any:
    """Run ``simple`` with INPUT0, INPUT1 and OUTPUT0 in ``region``."""
    module = peer._module
    inputs = [module.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in range(2)]
    inputs[0].set_shared_memory(region.name, SIZE)
    inputs[1].set_shared_memory(region.name, SIZE, offset=SIZE)
    outputs = [peer.output("OUTPUT0"), peer.output("OUTPUT1")]
    outputs[0].set_shared_memory(region.name, output_size, offset=2 * SIZE)
    return peer.infer(name, inputs, outputs=outputs, request_id="7")


@contextmanager
def streaming(peer: Client) -> Iterator[Callable[[], Any]]:
    """Open a stream of ``peer``. The yielded function waits for the next result."""
    results: queue.Queue[tuple[Any, Any]] = queue.Queue()
    peer.start_stream(lambda result, error: results.put((result, error)))

    def next_result() -> Any:
        result, error = results.get(timeout=SECONDS)
        if error is not None:
            raise error
        return result

    try:
        yield next_result
    finally:
        peer.stop_stream(cancel_requests=True)


def check_stream(peer: Client, region: Region, model: str) -> None:
    """Send valid and invalid requests with tensors in shared memory on one stream."""

    def send_request(number: str, output_size: int = SIZE, name: str = region.name) -> None:
        inputs = [tc.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in range(2)]
        inputs[0].set_shared_memory(name, SIZE)
        inputs[1].set_shared_memory(name, SIZE, offset=SIZE)
        outputs = [peer.output("OUTPUT0"), peer.output("OUTPUT1")]
        outputs[0].set_shared_memory(name, output_size, offset=2 * SIZE)
        peer.async_stream_infer(model, inputs, outputs=outputs, request_id=number)

    with streaming(peer) as next_result:
        for number in range(3):
            values = np.full((1, 16), number, np.int32)
            region.put(A, values)
            send_request(str(number))
            result = next_result()
            assert (region.get(np.int32, [1, 16], 2 * SIZE) == A + values).all()
            assert (result.as_numpy("OUTPUT1") == A - values).all()
            response = result.get_response()
            assert response.id == str(number)
            assert [len(entry) for entry in response.raw_output_contents] == [0, SIZE]
        send_request("unknown", name="nosuch")
        with pytest.raises(InferenceServerException, match="Unable to find shared memory region"):
            next_result()
        send_request("small", output_size=10)
        with pytest.raises(InferenceServerException, match=r"OUTPUT0|shared memory"):
            next_result()
        send_request("valid")
        assert next_result().get_response().id == "valid"


def check_repeated(peer: Client, region: Region, model: str, *more_inputs: Any) -> None:
    """Check that a decoupled model writes each response to the same offset."""
    numbers = np.array([7, 8, 9], np.int32)
    region.put(numbers)
    infer_input = tc.InferInput("IN", [3], "INT32")
    infer_input.set_shared_memory(region.name, numbers.nbytes)
    delay = peer.input("DELAY", np.full(3, 100, np.uint32), "UINT32")
    output = peer.output("OUT")
    output.set_shared_memory(region.name, 4, offset=SIZE)
    with streaming(peer) as next_result:
        outputs = [output, peer.output("IDX")]
        peer.async_stream_infer(model, [infer_input, delay, *more_inputs], outputs=outputs)
        for index, number in enumerate(numbers):
            assert next_result().as_numpy("IDX").tolist() == [index]
            assert region.get(np.int32, [1], SIZE).tolist() == [number]


def check(peer: Client, region: Region, model: str) -> None:
    region.put(A, B)
    result = infer_in_region(peer, region, model)
    assert (region.get(np.int32, [1, 16], 2 * SIZE) == A + B).all()
    assert (result.as_numpy("OUTPUT1") == A - B).all()
    output = result.get_output("OUTPUT0")
    assert (list(output["shape"]) if peer.http else list(output.shape)) == [1, 16]
    response = result.get_response()
    assert (response["id"] if peer.http else response.id) == "7"
    if not peer.http:
        assert [len(entry) for entry in response.raw_output_contents] == [0, SIZE]


# ---- regions that the gateway reads and writes


@pytest.fixture(scope="module")
def gateway() -> Iterator[Infergate]:
    with started_infergate(DEMO) as running:
        yield running


@pytest.fixture
def http(gateway: Infergate) -> Iterator[Client]:
    with client("http", gateway.http, gateway.grpc) as created:
        yield created


def test_inputs_are_read_and_outputs_written(triton_client: Client) -> None:
    with registered(triton_client) as region:
        check(triton_client, region, "simple")


def test_shared_memory_in_streams(gateway: Infergate) -> None:
    with client("grpc", gateway.http, gateway.grpc) as peer, registered(peer) as region:
        check_stream(peer, region, "simple")
        check_repeated(peer, region, "repeat")


def test_strings_in_shared_memory(triton_client: Client) -> None:
    strings = np.array([["a", "é", "", "\0"] * 4], np.object_)
    module = triton_client._module
    with registered(triton_client, 1024) as region:
        region.put(serialize_byte_tensor(strings))
        size = sum(4 + len(str(each).encode()) for each in strings.flat)
        tensor = module.InferInput("INPUT0", [1, 16], "BYTES")
        tensor.set_shared_memory(region.name, size)
        output = triton_client.output("OUTPUT0")
        output.set_shared_memory(region.name, 512, offset=512)
        triton_client.infer("identity", [tensor], outputs=[output])
        result = region.get(np.object_, [1, 16], 512)
        assert [bytes(each) for each in result.flat] == [
            str(each).encode() for each in strings.flat
        ]


def test_registrations_are_listed_and_removed(triton_client: Client) -> None:
    with new_region() as region:
        triton_client.register_system_shared_memory(region.name, region.key, 32, offset=8)
        status = triton_client.get_system_shared_memory_status(region.name)
        row = status[0] if triton_client.http else status.regions[region.name]
        if triton_client.http:
            assert row == {"name": region.name, "key": region.key, "offset": 8, "byte_size": 32}
        else:
            assert (row.name, row.key, row.offset, row.byte_size) == (
                region.name,
                region.key,
                8,
                32,
            )
        with pytest.raises(InferenceServerException, match="already in manager") as duplicate:
            triton_client.register_system_shared_memory(region.name, region.key, 32)
        assert duplicate.value.status() in ("400", "StatusCode.ALREADY_EXISTS")
        triton_client.unregister_system_shared_memory(region.name)
        triton_client.unregister_system_shared_memory(region.name)
        with pytest.raises(InferenceServerException, match="Unable to find system") as missing:
            triton_client.get_system_shared_memory_status(region.name)
        assert missing.value.status() in ("404", "StatusCode.NOT_FOUND")
        with pytest.raises(InferenceServerException, match="Unable to find shared memory region"):
            infer_in_region(triton_client, region)


def test_all_regions_are_unregistered(triton_client: Client) -> None:
    with new_region() as region:
        for name in ("one", "two"):
            triton_client.register_system_shared_memory(name, region.key, 32)
        assert len(region_names(triton_client)) == 2
        triton_client.unregister_system_shared_memory()
        assert not region_names(triton_client)


def region_names(peer: Client) -> list[str]:
    status = peer.get_system_shared_memory_status()
    return [each["name"] for each in status] if peer.http else list(status.regions)


def test_a_truncated_region_is_reported_and_harms_no_other_request(triton_client: Client) -> None:
    """If the gateway mapped the object, reading beyond its end would end the process."""
    with registered(triton_client) as region:
        region.put(A, B)
        region.truncate(SIZE)
        with pytest.raises(InferenceServerException, match="become shorter"):
            infer_in_region(triton_client, region)
        region.truncate(0)
        with pytest.raises(InferenceServerException, match="become shorter"):
            infer_in_region(triton_client, region)
        region.truncate(4 * SIZE)
        check(triton_client, region, "simple")


def test_an_output_that_does_not_fit_is_an_error_with_the_sizes(triton_client: Client) -> None:
    with registered(triton_client) as region:
        region.put(A, B)
        with pytest.raises(InferenceServerException, match=r"'OUTPUT0' \(10 bytes\).* 64 bytes"):
            infer_in_region(triton_client, region, output_size=10)
        assert not region.get(np.int32, [1, 16], 2 * SIZE).any()
        with pytest.raises(InferenceServerException, match=r"Invalid offset \+ byte size"):
            infer_in_region(triton_client, region, output_size=2 * SIZE + 1)


def test_concurrent_clients_keep_their_regions_apart(gateway: Infergate) -> None:
    """Clients register and unregister regions while other clients run inferences. Each inference
    returns its own numbers or an error."""
    errors: list[Any] = []

    def use_regions(number: int) -> None:
        form = FORMS[number % 4]
        values = np.full((1, 16), number, np.int32)
        with client(form, gateway.http, gateway.grpc) as peer, new_region() as region:
            region.put(A, values)
            for attempt in range(30):
                try:
                    peer.register_system_shared_memory(region.name, region.key, 4 * SIZE)
                    infer_in_region(peer, region)
                    if (region.get(np.int32, [1, 16], 2 * SIZE) != A + values).any():
                        errors.append((number, attempt))
                except InferenceServerException as error:
                    if "already" not in str(error) and "Unable to find" not in str(error):
                        errors.append(error)
                finally:
                    peer.unregister_system_shared_memory(region.name if attempt % 3 else "")

    threads = [threading.Thread(target=use_regions, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    with client("http", gateway.http, gateway.grpc) as peer:
        assert not region_names(peer)
    paths = open_files(gateway.pid)
    assert not [each for each in paths if "infergate_test" in each]


def post(gateway: Infergate, path: str, fields: Any) -> tuple[int, str]:
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    response = post_bytes(gateway.http, path, body)
    return response.status, response.body.decode() if response.status == 200 else response.error


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"key": "/nothing_of_this_name", "byte_size": 1}, "Unable to open"),
        ({"key": "/../etc/passwd", "byte_size": 1}, "Unable to open"),
        ({"key": "KEY", "byte_size": 257}, "Invalid shared memory region"),
        ({"key": "KEY", "offset": 2**64 - 1, "byte_size": 2}, "Invalid shared memory region"),
        ({"key": "KEY", "byte_size": 2**64}, "byte_size"),
        ({"key": "KEY", "byte_size": -1}, "byte_size"),
        ({"key": "KEY", "byte_size": 1.5}, "byte_size"),
        ({"key": "KEY", "byte_size": True}, "byte_size"),
        ({"key": "KEY", "offset": "0", "byte_size": 1}, "offset"),
        ({"key": 1, "byte_size": 1}, "key"),
        ({"byte_size": 1}, "key"),
        ({"key": "KEY"}, "byte_size"),
        (b"", "empty"),
        (b"[]", "body"),
    ],
    ids=str,
)
def test_invalid_registrations_are_rejected(gateway: Infergate, fields: Any, expected: str) -> None:
    with new_region() as region:
        if isinstance(fields, dict) and fields.get("key") == "KEY":
            fields = {**fields, "key": region.key}
        status, error = post(gateway, "/v2/systemsharedmemory/region/wrong/register", fields)
    assert status == 400
    assert expected in error


def test_region_names_and_counts_are_bounded(gateway: Infergate, http: Client) -> None:
    with new_region() as region:
        fields = {"key": region.key, "byte_size": 1}
        assert post(gateway, "/v2/systemsharedmemory/register", fields)[0] == 400
        long = f"/v2/systemsharedmemory/region/{'x' * 257}/register"
        assert post(gateway, long, fields)[0] == 400
        for number in range(8):
            path = f"/v2/systemsharedmemory/region/r{number}/register"
            assert post(gateway, path, fields)[0] == 200
        assert post(gateway, "/v2/systemsharedmemory/region/x/register", fields)[0] == 413
        assert sorted(region_names(http)) == [f"r{number}" for number in range(8)]
        assert post(gateway, "/v2/systemsharedmemory/unregister", b"")[0] == 200
        assert region_names(http) == []


INVALID_REGIONS: list[tuple[dict[str, Any], str]] = [
    ({"shared_memory_byte_size": 60}, "needs 64 bytes"),
    ({}, "needs 64 bytes"),
    ({"shared_memory_byte_size": 64, "shared_memory_offset": 193}, "Invalid offset"),
    ({"shared_memory_byte_size": 64, "shared_memory_offset": 2**64 - 64}, "Invalid offset"),
    ({"shared_memory_byte_size": 2**63, "shared_memory_offset": 2**63}, "the limit is"),
    ({"shared_memory_byte_size": 64, "shared_memory_offset": 2**64}, "shared_memory_offset"),
    ({"shared_memory_byte_size": 64, "shared_memory_offset": -1}, "shared_memory_offset"),
    ({"shared_memory_byte_size": "64"}, "shared_memory_byte_size"),
    ({"shared_memory_byte_size": True}, "shared_memory_byte_size"),
    ({"shared_memory_byte_size": 64, "shared_memory_region": "other"}, "'other'"),
    ({"shared_memory_byte_size": 64, "shared_memory_region": ""}, "shared_memory_region"),
    ({"shared_memory_byte_size": 64, "shared_memory_region": 1}, "shared_memory_region"),
]


@pytest.mark.parametrize(("parameters", "expected"), INVALID_REGIONS, ids=str)
def test_invalid_region_parameters_are_rejected(
    gateway: Infergate, http: Client, parameters: dict[str, Any], expected: str
) -> None:
    with registered(http) as region:
        parameters = {"shared_memory_region": region.name, **parameters}
        tensor = {"datatype": "INT32", "shape": [1, 16], "parameters": parameters}
        fields = {"inputs": [{"name": f"INPUT{i}", **tensor} for i in range(2)]}
        status, error = post(gateway, "/v2/models/simple/infer", fields)
        assert status == (404 if "other" in expected else 413 if "limit" in expected else 400)
        assert expected in error
        region.put(A, B)
        check(http, region, "simple")


def test_data_beside_a_region_and_classes_in_a_region_are_rejected(
    gateway: Infergate, http: Client
) -> None:
    with registered(http) as region:
        location = {"shared_memory_region": region.name, "shared_memory_byte_size": 64}
        tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "parameters": location}
        ambiguous = {**tensor, "data": [0] * 16}
        status, error = post(gateway, "/v2/models/identity/infer", {"inputs": [ambiguous]})
        assert (status, "INPUT0" in error) == (400, True)
        output = {"name": "OUTPUT0", "parameters": {**location, "classification": 1}}
        body = {"inputs": [tensor], "outputs": [output]}
        status, error = post(gateway, "/v2/models/identity/infer", body)
        assert (status, "OUTPUT0" in error) == (400, True)


def test_a_request_reads_up_to_the_body_limit(gateway: Infergate, http: Client) -> None:
    with registered(http, 3 * 2**20) as region:
        location = {"shared_memory_region": region.name, "shared_memory_byte_size": 3 * 2**20}
        tensor = {"datatype": "UINT8", "shape": [3 * 2**20], "parameters": location}
        too_large = {"inputs": [{"name": f"INPUT{i}", **tensor} for i in range(2)]}
        assert post(gateway, "/v2/models/identity/infer", too_large)[0] == 413
        fitting = {
            "inputs": [{"name": "INPUT0", **tensor}],
            "outputs": [{"name": "OUTPUT0", "parameters": location}],
        }
        assert post(gateway, "/v2/models/identity/infer", fitting)[0] == 200


def test_gpu_memory_is_refused_without_a_backend_that_reads_it(triton_client: Client) -> None:
    handle = b"AAAA" if triton_client.http else b"0" * 64
    with pytest.raises(InferenceServerException, match="GPUs not supported") as refused:
        triton_client.register_cuda_shared_memory("gpu", handle, 0, 64)
    assert refused.value.status() in ("501", "StatusCode.UNIMPLEMENTED")
    status = triton_client.get_cuda_shared_memory_status()
    assert not (status if triton_client.http else status.regions)
    triton_client.unregister_cuda_shared_memory("gpu")


def test_the_enabled_extension_is_listed(triton_client: Client) -> None:
    metadata = triton_client.get_server_metadata()
    extensions = metadata["extensions"] if triton_client.http else metadata.extensions
    assert "system_shared_memory" in extensions
    assert "cuda_shared_memory" not in extensions


# ---- Triton as the backend


@pytest.fixture(scope="module")
def copying(triton: Triton) -> Iterator[Infergate]:
    with started_infergate(COPIED.format(http=triton.http, grpc=triton.grpc)) as running:
        yield running


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", ["rest", "grpc"])
def test_regions_are_copied_for_a_backend(copying: Infergate, form: str, backend: str) -> None:
    with client(form, copying.http, copying.grpc) as peer, registered(peer) as region:
        check(peer, region, f"{backend}.simple")


@pytest.mark.parametrize("backend", ["rest", "grpc"])
def test_regions_are_copied_for_a_backend_in_streams(copying: Infergate, backend: str) -> None:
    with client("grpc", copying.http, copying.grpc) as peer, registered(peer) as region:
        check_stream(peer, region, f"{backend}.simple")
        if backend == "grpc":  # V2 REST has no streams, and decoupled models need them
            wait = peer.input("WAIT", np.zeros(1, np.uint32), "UINT32")
            check_repeated(peer, region, "grpc.repeat_int32", wait)


@pytest.fixture(scope="module", params=["v2-rest", "v2-grpc"])
def forwarding(request: pytest.FixtureRequest, triton: Triton) -> Iterator[Infergate]:
    rest = request.param == "v2-rest"
    endpoint = f"http://{triton.http}" if rest else f"grpc://{triton.grpc}"
    with started_infergate(FORWARDED.format(protocol=request.param, endpoint=endpoint)) as running:
        yield running


def pipelines(gateway: Infergate, peer: Client) -> set[str]:
    """Return the pipelines that the access log reports for ``peer``'s inferences on the route to
    Triton."""
    protocol = "v2-rest" if peer.http else "v2-grpc"

    def lines() -> list[dict[str, Any]]:
        fields = {"protocol": protocol, "model": "forwarded.simple"}.items()
        return [line for line in gateway.logged("request") if fields <= line.items()]

    until(lambda: bool(lines()), "the request is logged")
    return {line["pipeline"] for line in lines() if line["outcome"] == "ok"}


def same_protocol(gateway: Infergate, peer: Client) -> bool:
    protocol = "v2-rest" if peer.http else "v2-grpc"
    config = Path(gateway.log).parent / "routes.yaml"
    return f"protocol: {protocol}" in config.read_text()


@pytest.mark.parametrize("form", FORMS)
def test_regions_are_registered_with_a_backend_that_reads_them(
    forwarding: Infergate, triton: Triton, form: str
) -> None:
    with (
        client(form, forwarding.http, forwarding.grpc) as peer,
        client("http", triton.http, triton.grpc) as direct,
        registered(peer) as region,
    ):
        assert direct.get_system_shared_memory_status(region.name)
        check(peer, region, "forwarded.simple")
        assert pipelines(forwarding, peer) == {"translate"}  # the gateway checks offsets
        with pytest.raises(InferenceServerException, match="Invalid offset"):
            infer_in_region(peer, region, "forwarded.simple", output_size=2 * SIZE + 1)
        check(peer, region, "simple")  # the gateway reads the region for another backend
        direct.unregister_system_shared_memory(region.name)
        with pytest.raises(InferenceServerException, match="Unable to find shared memory region"):
            infer_in_region(peer, region, "forwarded.simple")
        check(peer, region, "simple")


def test_forwarded_regions_in_streams(forwarding: Infergate) -> None:
    with client("grpc", forwarding.http, forwarding.grpc) as peer, registered(peer) as region:
        check_stream(peer, region, "forwarded.simple")
        check_stream(peer, region, "simple")
        if same_protocol(forwarding, peer):
            wait = peer.input("WAIT", np.zeros(1, np.uint32), "UINT32")
            check_repeated(peer, region, "forwarded.repeat_int32", wait)


def test_regions_rejected_by_a_backend_are_not_registered(
    forwarding: Infergate, triton: Triton
) -> None:
    with (
        client("grpc", forwarding.http, forwarding.grpc) as peer,
        client("http", triton.http, triton.grpc) as direct,
        new_region() as region,
    ):
        direct.register_system_shared_memory(region.name, region.key, 64)
        with pytest.raises(InferenceServerException, match="already in manager"):
            peer.register_system_shared_memory(region.name, region.key, 64)
        assert region.name not in region_names(peer)
        peer.unregister_system_shared_memory(region.name)  # removes it from Triton too
        peer.register_system_shared_memory(region.name, region.key, 64)
        peer.unregister_system_shared_memory(region.name)
        with pytest.raises(InferenceServerException):  # this Triton has no GPU
            peer.register_cuda_shared_memory("gpu", b"0" * 64, 0, 64)
        assert not peer.get_cuda_shared_memory_status().regions


def test_shared_memory_is_off_by_default(triton: Triton) -> None:
    off = COPIED.replace("control: {{shared_memory: true}}", "")
    with (
        started_infergate(off.format(http=triton.http, grpc=triton.grpc)) as running,
        new_region() as region,
    ):
        for form in FORMS:
            with client(form, running.http, running.grpc) as peer:
                with pytest.raises(InferenceServerException, match="not supported") as refused:
                    peer.register_system_shared_memory(region.name, region.key, 64)
                assert refused.value.status() in ("501", "StatusCode.UNIMPLEMENTED")
                assert not region_names(peer)
                peer.unregister_system_shared_memory()
                for model in ("simple", "rest.simple", "grpc.simple"):
                    with pytest.raises(InferenceServerException, match="not enabled") as refused:
                        infer_in_region(peer, region, model)
                    assert refused.value.status() in ("501", "StatusCode.UNIMPLEMENTED")
                metadata = peer.get_server_metadata()
                extensions = metadata["extensions"] if peer.http else metadata.extensions
                assert "system_shared_memory" not in extensions
