import numpy as np
import pytest
from builtin_requests import fp32, infer, int32, rejection, requested_outputs, strings

from infergate.backends.builtin import BuiltinBackend
from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest
from infergate.core.tensor import Tensor, pack_bytes


@pytest.mark.parametrize("datatype", Datatype)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 1)])
async def test_outputs_share_the_memory_of_inputs(
    backend: BuiltinBackend, datatype: Datatype, shape: tuple[int, ...]
) -> None:
    count = int(np.prod(shape))
    data = (
        pack_bytes([b"\x00\xff"] * count)
        if datatype is Datatype.BYTES
        else b"\x01" * (count * datatype.itemsize)
    )
    tensor = Tensor("INPUT0", datatype, shape, data, {"binary_data_size": len(data)})
    (output,) = (await infer(backend, InferRequest("identity", inputs=(tensor,)))).outputs
    assert output == Tensor("OUTPUT0", datatype, shape, data)
    assert output.data is data


async def test_each_input_has_an_output(backend: BuiltinBackend) -> None:
    inputs = (int32("INPUT2", [2]), strings("INPUT0", [b"a", b""]), fp32("INPUT11", [[0.5]]))
    response = await infer(backend, InferRequest("identity", inputs=inputs))
    assert [(o.name, o.datatype, o.data) for o in response.outputs] == [
        (i.name.replace("IN", "OUT"), i.datatype, i.data) for i in inputs
    ]
    request = InferRequest(
        "identity", inputs=inputs, outputs=requested_outputs("OUTPUT11", "OUTPUT0")
    )
    response = await infer(backend, request)
    assert [output.name for output in response.outputs] == ["OUTPUT11", "OUTPUT0"]


async def test_classification_ranks_all_dimensions(backend: BuiltinBackend) -> None:
    request = InferRequest(
        "identity",
        inputs=(fp32("INPUT0", [[1.0, 4.0], [3.0, 2.0]]),),
        outputs=requested_outputs("OUTPUT0", classification=3),
    )
    (output,) = (await infer(backend, request)).outputs
    assert output.numpy().tolist() == [b"4.000000:1", b"3.000000:2", b"2.000000:3"]


@pytest.mark.parametrize("name", ["", "INPUT", "INPUT01", "INPUT-1", "input0", "X", "INPUT0 "])
async def test_other_input_names_are_refused(backend: BuiltinBackend, name: str) -> None:
    error = await rejection(backend, InferRequest("identity", inputs=(fp32(name, [1.0]),)))
    assert f"unexpected inference input '{name}' for model 'identity'" in error


async def test_invalid_inputs_and_outputs_are_rejected(backend: BuiltinBackend) -> None:
    x = fp32("INPUT0", [1.0])
    assert "got 0 inputs" in await rejection(backend, InferRequest("identity"))
    assert "already exists" in await rejection(backend, InferRequest("identity", inputs=(x, x)))
    request = InferRequest("identity", inputs=(x,), outputs=requested_outputs("OUTPUT1"))
    assert "unexpected inference output 'OUTPUT1'" in await rejection(backend, request)
