"""Answers whose outputs do not fit: a shape, a datatype, a count, another model's name."""

from __future__ import annotations

import json

import pytest
from tritonclient.grpc import service_pb2 as pb

from faults import h2
from faults.behind import END, REQUESTS, Site, answers, good_rpc, sends, some
from faults.payloads import document, tensor
from faults.peer import GOOD_BODY, Script, good_http, http_answer
from faults.rpc import call, good_answer, infer_message
from faults.watch import rises, until


def _changed(**members: object) -> bytes:
    told = json.loads(GOOD_BODY)
    told["outputs"][0].update(members)
    return http_answer(json.dumps(told).encode())


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
def test_outputs_that_do_not_fit(site: Site, wrong: str) -> None:
    site.rest.use(answers(WRONG_OUTPUTS[wrong]))
    site.fails("rest.tr", "shop", "backend_garbage")
    site.rest.use(good_http)
    site.good("rest.tr")


def test_a_forwarded_answer_is_the_backends_word(site: Site) -> None:
    """Its tensors are not read, as if there were no gateway."""
    site.rest.use(answers(WRONG_OUTPUTS["too few elements"]))
    with site.serves("rest.fwd"):
        told = json.loads(site.ask_rest("rest.fwd").body)
    assert (told["model_name"], told["outputs"][0]["shape"]) == ("rest.fwd", [2])
    site.rest.use(good_http)


def test_an_output_that_was_asked_for_is_missing(site: Site) -> None:
    with rises(site.gateway, REQUESTS, route="rest.tr", outcome="backend_garbage"):
        told = site.ask_rest("rest.tr", document(tensor(), outputs=[{"name": "OTHER"}]))
    assert told.status == 502
    assert "OTHER" in told.error


def _answer(*outputs: tuple[str, list[int], bytes | None]) -> Script:
    told = pb.ModelInferResponse(model_name="m")
    for datatype, shape, raw in outputs:
        told.outputs.add(name=f"O{len(told.outputs)}", datatype=datatype, shape=shape)
        if raw is not None:
            told.raw_output_contents.append(raw)
    return sends(h2.headers, some(h2.message(told.SerializeToString())), END)


@pytest.mark.parametrize(
    "script",
    [
        _answer(("INT32", [1], b"\7\0\0")),
        _answer(("INT32", [1], b"\7\0\0\0\0")),
        _answer(("INT32", [1], b"\7\0\0\0"), ("INT32", [1], None), ("INT32", [1], None)),
        _answer(("INT32", [1], None)),
        _answer(("FLOAT", [1], b"\7\0\0\0")),
        _answer(("INT32", [-1], b"\7\0\0\0")),
        _answer(("BYTES", [1], b"\x09\0\0\0abc")),
    ],
    ids=["short", "long", "too few", "none", "datatype", "negative", "string"],
)
def test_grpc_outputs_that_do_not_fit(site: Site, script: Script) -> None:
    site.rpc.use(script)
    site.fails("grpc.tr", "depot", "backend_garbage")
    site.rpc.use(good_rpc)
    until(lambda: site.ask_rest("grpc.tr").status == 200, "it is connected again")


@pytest.mark.parametrize("model", ["rest.fwd", "rest.tr"])
def test_another_models_name(site: Site, model: str) -> None:
    """The client hears the name that it asked for."""
    told = json.loads(GOOD_BODY) | {"model_name": "another"}
    site.rest.use(answers(http_answer(json.dumps(told).encode())))
    with site.serves(model):
        answer = site.ask_rest(model)
    assert answer.status == 200
    assert json.loads(answer.body)["model_name"] == model
    site.rest.use(good_http)


@pytest.mark.parametrize("model", ["grpc.fwd", "grpc.tr"])
def test_another_models_name_over_grpc(site: Site, model: str) -> None:
    named = pb.ModelInferResponse.FromString(good_answer())
    named.model_name = "another"
    site.rpc.use(sends(h2.headers, some(h2.message(named.SerializeToString())), END))
    with site.serves(model):
        answer = call(site.channel, infer_message(model))
    assert pb.ModelInferResponse.FromString(answer.message).model_name == model


def test_more_outputs_than_were_asked_for(site: Site) -> None:
    """They go on, as without a gateway. (A legacy server numbers its outputs: that is refused.)"""
    told = json.loads(GOOD_BODY)
    told["outputs"].append({**told["outputs"][0], "name": "MORE"})
    site.rest.use(answers(http_answer(json.dumps(told).encode())))
    asked = document(tensor(), outputs=[{"name": "OUTPUT0"}])
    with site.serves("rest.tr"):
        answer = site.ask_rest("rest.tr", asked)
    assert answer.status == 200, answer
    assert [each["name"] for each in json.loads(answer.body)["outputs"]] == ["OUTPUT0", "MORE"]
    site.rest.use(good_http)
