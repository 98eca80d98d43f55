"""The frontend responds to captured gRPC calls like the real server, byte for byte except
``request_id``. ``DIFFERENT`` and docs/fidelity-trtis.md list the exceptions.
"""

import re

import pytest
from trtis_captures import GRPC, PACKAGE, Call, known_fields
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
NOT_IMITATED = re.compile(r"\d+_(seq_|stream_seq|infer_ensemble|status_(broken|sequence|all))")
"""Matches the captures of models that ``trtis_gateway`` does not imitate."""
DIFFERENT = {
    "042_err_dup_input": "reported as a duplicate; the real server adds both sizes",
    "061_shm_register": "this gateway cannot register a region",
    "063_shm_status_one": "this gateway cannot register a region",
    "064_shm_infer": "this gateway cannot register a region",
    "006_status_simple": "fields that a gateway cannot know are omitted",
}
COMPARED = [
    case
    for case in GRPC
    if case.name not in DIFFERENT and case.requests and not NOT_IMITATED.match(case.name)
]
BY_NAME = {case.name: case for case in GRPC}


def message_type(method: str) -> type:
    return RESPONSES[method.removeprefix(PACKAGE)]


def response_to(request: RpcRequest) -> RpcResponse:
    response = respond(PLUGIN.create({"server_id": "trtis-gold"}), request)
    assert isinstance(response, RpcResponse)
    return response


def response_message(name: str) -> pb.InferResponse:  # type: ignore[valid-type]
    (request,) = BY_NAME[name].requests
    return message_type(request.method).FromString(join_parts(response_to(request).message))


def test_enough_captures_are_compared() -> None:
    assert len(COMPARED) > 45
    assert set(DIFFERENT) < set(BY_NAME)


def is_imitated(request: RpcRequest) -> bool:
    """Return False if ``request`` belongs to a stream and the test's gateway lacks its model."""
    if not request.method.endswith("StreamInfer"):
        return True
    name = pb.InferRequest.FromString(join_parts(request.message)).model_name
    return name in MODELS or name == "nosuch"


@pytest.mark.parametrize("case", COMPARED, ids=str)
def test_captured_requests_get_the_captured_response(case: Call) -> None:
    for index, request in enumerate(case.requests):
        if not is_imitated(request):
            continue
        response = response_to(request)
        assert response.code == CODES[case.code]
        assert response.details == case.details
        if response.code:
            assert not response.message
            continue
        expected = message_type(request.method).FromString(case.responses[index])
        data = bytes(join_parts(response.message))
        request_id = message_type(request.method).FromString(data).request_status.request_id
        assert request_id == 1
        expected.request_status.request_id = request_id
        assert data == expected.SerializeToString(deterministic=True)


# ---- differences


def test_a_duplicate_input_is_refused() -> None:
    status = response_message("042_err_dup_input").request_status
    assert status.code == pb.CODES["INVALID_ARG"]
    assert status.msg == "input 'INPUT0' already exists in request"


def test_no_region_can_be_registered() -> None:
    status = response_message("061_shm_register").request_status
    assert status.code == pb.CODES["INTERNAL"]
    assert status.msg == "Unable to open shared memory region: '/trtisgoldg'"
    assert not response_message("063_shm_status_one").shared_memory_status.shared_memory_region
    status = response_message("064_shm_infer").request_status
    assert status.code == pb.CODES["NOT_FOUND"]
    assert status.msg == "shared memory block 'g0' not found in manager"


def test_status_has_the_available_fields() -> None:
    captured = pb.StatusResponse.FromString(BY_NAME["006_status_simple"].responses[0])
    actual = response_message("006_status_simple").server_status
    assert actual == known_fields(captured.server_status)
