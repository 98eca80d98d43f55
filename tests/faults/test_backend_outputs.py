"""Tests responses with invalid, missing or additional outputs, or with the name of another
model."""

from __future__ import annotations

import json

import pytest
from tritonclient.grpc import service_pb2 as pb

from faults import h2
from faults.payloads import document, tensor
from faults.peer import GOOD_BODY, Script, good_http, http_answer
from faults.rpc import call, infer_message, ok_response
from faults.scripted_backends import (
    END,
    REQUESTS,
    Harness,
    data_frame,
    good_rpc,
    respond_with,
    send_frames,
)
from faults.watch import rises, until


def _changed(**members: object) -> bytes:
    response = json.loads(GOOD_BODY)
    response["outputs"][0].update(members)
    return http_answer(json.dumps(response).encode())


WRONG_OUTPUTS: dict[str, bytes] = {
    "too few elements": _changed(shape=[2]),
    "too many elements": _changed(data=[7, 8]),
    "an unknown datatype": _changed(datatype="FLOAT"),
    "a value out of range": _changed(data=[2**40]),
    "a negative dimension": _changed(shape=[-1]),
    "no data": _changed(data=None),
    "a size and no bytes": _changed(data=None, parameters={"binary_data_size": 4}),
}


@pytest.mark.parametrize("wrong", WRONG_OUTPUTS)
def test_outputs_that_do_not_fit_are_rejected(harness: Harness, wrong: str) -> None:
    harness.rest.use(respond_with(WRONG_OUTPUTS[wrong]))
    harness.fails("rest.tr", "shop", "backend_garbage")
    harness.rest.use(good_http)
    harness.good("rest.tr")


def test_passed_through_responses_are_not_validated(harness: Harness) -> None:
    """The gateway does not read the tensors of a response that it passes through."""
    harness.rest.use(respond_with(WRONG_OUTPUTS["too few elements"]))
    with harness.serves("rest.fwd"):
        response = json.loads(harness.send_rest("rest.fwd").body)
    assert (response["model_name"], response["outputs"][0]["shape"]) == ("rest.fwd", [2])


def test_a_missing_output_is_reported(harness: Harness) -> None:
    with rises(harness.gateway, REQUESTS, route="rest.tr", outcome="backend_garbage"):
        response = harness.send_rest("rest.tr", document(tensor(), outputs=[{"name": "OTHER"}]))
    assert response.status == 502
    assert "OTHER" in response.error


def _outputs(*outputs: tuple[str, list[int], bytes | None]) -> Script:
    response = pb.ModelInferResponse(model_name="m")
    for datatype, shape, raw in outputs:
        response.outputs.add(name=f"O{len(response.outputs)}", datatype=datatype, shape=shape)
        if raw is not None:
            response.raw_output_contents.append(raw)
    return send_frames(h2.headers, data_frame(h2.message(response.SerializeToString())), END)


@pytest.mark.parametrize(
    "script",
    [
        _outputs(("INT32", [1], b"\7\0\0")),
        _outputs(("INT32", [1], b"\7\0\0\0\0")),
        _outputs(("INT32", [1], b"\7\0\0\0"), ("INT32", [1], None), ("INT32", [1], None)),
        _outputs(("INT32", [1], None)),
        _outputs(("FLOAT", [1], b"\7\0\0\0")),
        _outputs(("INT32", [-1], b"\7\0\0\0")),
        _outputs(("BYTES", [1], b"\x09\0\0\0abc")),
    ],
    ids=["short data", "long data", "data for one", "no data", "datatype", "shape", "string"],
)
def test_grpc_outputs_that_do_not_fit_are_rejected(harness: Harness, script: Script) -> None:
    harness.rpc.use(script)
    harness.fails("grpc.tr", "depot", "backend_garbage")
    harness.rpc.use(good_rpc)
    until(lambda: harness.send_rest("grpc.tr").status == 200, "the gateway is connected again")


@pytest.mark.parametrize("model", ["rest.fwd", "rest.tr"])
def test_the_client_gets_the_model_name_that_it_requested(harness: Harness, model: str) -> None:
    response = json.loads(GOOD_BODY) | {"model_name": "another"}
    harness.rest.use(respond_with(http_answer(json.dumps(response).encode())))
    with harness.serves(model):
        answer = harness.send_rest(model)
    assert answer.status == 200
    assert json.loads(answer.body)["model_name"] == model


@pytest.mark.parametrize("model", ["grpc.fwd", "grpc.tr"])
def test_grpc_clients_get_the_model_name_that_they_requested(harness: Harness, model: str) -> None:
    response = pb.ModelInferResponse.FromString(ok_response())
    response.model_name = "another"
    harness.rpc.use(
        send_frames(h2.headers, data_frame(h2.message(response.SerializeToString())), END)
    )
    with harness.serves(model):
        answer = call(harness.channel, infer_message(model))
    assert pb.ModelInferResponse.FromString(answer.message).model_name == model


def test_additional_outputs_are_passed_through(harness: Harness) -> None:
    """Additional outputs are rejected only from legacy servers, which number their outputs."""
    response = json.loads(GOOD_BODY)
    response["outputs"].append({**response["outputs"][0], "name": "MORE"})
    harness.rest.use(respond_with(http_answer(json.dumps(response).encode())))
    request = document(tensor(), outputs=[{"name": "OUTPUT0"}])
    with harness.serves("rest.tr"):
        answer = harness.send_rest("rest.tr", request)
    assert answer.status == 200, answer
    assert [each["name"] for each in json.loads(answer.body)["outputs"]] == ["OUTPUT0", "MORE"]
