"""Every captured gRPC call is answered by the frontend as by the real server.

Responses are equal byte for byte except ``request_id``; differences are listed here with their
reason, and in docs/fidelity-trtis.md.
"""

import re

import pytest
from trtis_captures import GRPC, PACKAGE, Call
from trtis_gateway import MODELS, respond

from infergate.codecs.trtis import GRPC as PLUGIN
from infergate.codecs.trtis import messages as pb
from infergate.core.wire import RpcRequest, RpcResponse, join_parts

RESPONSES = {
    "Status": pb.StatusResponse,
    "Health": pb.HealthResponse,
    "Infer": pb.InferResponse,
    "StreamInfer": pb.InferResponse,
    "ModelControl": pb.ModelControlResponse,
    "SharedMemoryControl": pb.SharedMemoryControlResponse,
    "Repository": pb.RepositoryResponse,
}
CODES = {"OK": 0, "UNIMPLEMENTED": 12, "INTERNAL": 13}
NOT_MODELLED = re.compile(r"\d+_(seq_|stream_seq|infer_ensemble|status_(broken|sequence|all))")
"""Models with other behaviour."""
DIFFERENT = {
    "042_err_dup_input": "told as what it is; the real server adds both up to one input's size",
    "061_shm_register": "no region can be registered here",
    "063_shm_status_one": "the same",
    "064_shm_infer": "the same",
    "006_status_simple": "what a gateway cannot know is left out",
}
SAME = [
    case
    for case in GRPC
    if case.name not in DIFFERENT and case.requests and not NOT_MODELLED.match(case.name)
]
BY_NAME = {case.name: case for case in GRPC}


def kind(method: str) -> type:
    return RESPONSES[method.removeprefix(PACKAGE)]


def answered(request: RpcRequest) -> RpcResponse:
    answer = respond(PLUGIN.create({"server_id": "trtis-gold"}), request)
    assert isinstance(answer, RpcResponse)
    return answer


def recorded(name: str) -> pb.InferResponse:  # type: ignore[valid-type]
    (request,) = BY_NAME[name].requests
    return kind(request.method).FromString(join_parts(answered(request).message))


def test_captured_requests_get_responses_with_the_same_names() -> None:
    assert len(SAME) > 45
    assert set(DIFFERENT) < set(BY_NAME)


def known(request: RpcRequest) -> bool:
    """Whether an exchange in a stream is with a model of this test."""
    if not request.method.endswith("StreamInfer"):
        return True
    name = pb.InferRequest.FromString(join_parts(request.message)).model_name
    return name in MODELS or name == "nosuch"


@pytest.mark.parametrize("case", SAME, ids=str)
def test_captured_requests_get_the_captured_response(case: Call) -> None:
    for index, request in enumerate(case.requests):
        if not known(request):
            continue
        answer = answered(request)
        assert answer.code == CODES[case.code]
        assert answer.details == case.details
        if answer.code:
            assert not answer.message
            continue
        wanted = kind(request.method).FromString(case.responses[index])
        data = bytes(join_parts(answer.message))
        numbered = kind(request.method).FromString(data).request_status.request_id
        assert numbered == 1
        wanted.request_status.request_id = numbered
        assert data == wanted.SerializeToString(deterministic=True)


# ---- lists


def test_an_input_twice() -> None:
    status = recorded("042_err_dup_input").request_status
    assert status.code == pb.CODES["INVALID_ARG"]
    assert status.msg == "input 'INPUT0' already exists in request"


def test_no_region_can_be_registered() -> None:
    status = recorded("061_shm_register").request_status
    assert status.code == pb.CODES["INTERNAL"]
    assert status.msg == "Unable to open shared memory region: '/trtisgoldg'"
    assert not recorded("063_shm_status_one").shared_memory_status.shared_memory_region
    status = recorded("064_shm_infer").request_status
    assert status.code == pb.CODES["NOT_FOUND"]
    assert status.msg == "shared memory block 'g0' not found in manager"


def test_status_has_the_available_fields() -> None:
    theirs = pb.StatusResponse.FromString(BY_NAME["006_status_simple"].responses[0]).server_status
    ours = recorded("006_status_simple").server_status
    config = theirs.model_status["simple"].config
    for name in ("version_policy", "instance_group", "default_model_filename"):
        config.ClearField(name)
    theirs.ClearField("uptime_ns")
    for name in ("status_stats", "health_stats"):
        theirs.ClearField(name)
    for version in theirs.model_status["simple"].version_status.values():
        for name in ("infer_stats", "model_execution_count", "model_inference_count"):
            version.ClearField(name)
        version.ClearField("last_inference_timestamp_milliseconds")
    assert ours == theirs
