"""The frontend responds to captured HTTP requests like the real server, byte for byte except
``request_id``. ``DIFFERENT`` and docs/fidelity-trtis.md list the exceptions.
"""

import re

import pytest
from trtis_captures import HTTP, Exchange, known_fields
from trtis_gateway import respond

from infergate.codecs.trtis import HTTP as PLUGIN
from infergate.codecs.trtis import text_format
from infergate.codecs.trtis.messages import CODES, RequestStatus, ServerStatus
from infergate.core.wire import HttpResponse, join_parts

NOT_IMITATED = re.compile("/api/(infer|status)/(sequence|ensemble_simple|slow|broken)")
"""Matches the paths of models that ``trtis_gateway`` does not imitate."""
DIFFERENT = {
    "059_infer_string_garbage": "string lengths that contradict the data are refused",
    "068_cls_count_zero": "the real server omits the values that its header announces",
    "069_cls_empty": "the real server omits the values that its header announces",
    "116_err_dims_negative": "refused as a wrong shape; the real server reports a size near 2^64",
    "144_shm_register": "this gateway cannot register a region",
    "145_shm_register_dup": "this gateway cannot register a region",
    "148_shm_status_one": "this gateway cannot register a region",
    "149_shm_status_one_binary": "this gateway cannot register a region",
    "150_shm_infer": "this gateway cannot register a region",
    "153_shm_status_after_slash_all": "this gateway cannot register a region",
}
STATUS_NAMES = {case.name for case in HTTP if case.response.body[:2] in {b"id", b"\n\n"}}
COMPARED = [
    case
    for case in HTTP
    if case.name not in DIFFERENT
    and case.name not in STATUS_NAMES
    and not NOT_IMITATED.match(case.request.path)
]
BY_NAME = {case.name: case for case in HTTP}
TRANSPORT_HEADERS = {"content-length", "connection"}


def response_to(case: Exchange) -> HttpResponse:
    response = respond(PLUGIN.create({"server_id": "trtis-gold"}), case.request)
    assert isinstance(response, HttpResponse)
    return response


def mask_request_id(value: str) -> str:
    return re.sub(r" request_id: \d+$", " request_id: N", value)


def test_enough_captures_are_compared() -> None:
    assert len(COMPARED) > 110
    assert set(DIFFERENT) < set(BY_NAME)


@pytest.mark.parametrize("case", COMPARED, ids=str)
def test_captured_requests_get_the_captured_response(case: Exchange) -> None:
    response = response_to(case)
    expected = case.response
    assert response.status == expected.status
    assert (response.reason or "Bad Request") == expected.reason or response.status == 200
    headers = {name: mask_request_id(value) for name, value in response.headers.items()}
    names = [name for name in expected.names if name.lower() not in TRANSPORT_HEADERS]
    if expected.body or "NV-InferResponse" in names:
        assert list(headers) == names
    assert headers == {name: mask_request_id(expected.headers[name.lower()]) for name in names}
    assert bytes(join_parts(response.body)) == expected.body


# ---- differences


def check_refusal(name: str, code: str, expected: str) -> None:
    """Check the code and the start of the message of the response to the capture ``name``."""
    response = response_to(BY_NAME[name])
    status = text_format.parse(RequestStatus, response.headers["NV-Status"])
    assert (response.status, status.code) == (400, CODES[code])
    assert status.msg.startswith(expected)


def test_strings_that_contradict_their_size_are_refused() -> None:
    expected = "tensor 'INPUT0': the length of element 0"
    check_refusal("059_infer_string_garbage", "INVALID_ARG", expected)


def test_negative_dimensions_are_refused() -> None:
    expected = "unexpected shape for input 'INPUT0' for model 'identity_nobatch'. "
    check_refusal("116_err_dims_negative", "INVALID_ARG", f"{expected}Expected [-1], got [-1]")


def test_no_region_can_be_registered() -> None:
    for name in ("144_shm_register", "145_shm_register_dup"):
        check_refusal(name, "INTERNAL", "Unable to open shared memory region: '/trtisgold'")
    assert bytes(join_parts(response_to(BY_NAME["148_shm_status_one"]).body)) == b""
    expected = "shared memory block 'reg0' not found in manager"
    check_refusal("150_shm_infer", "NOT_FOUND", expected)


@pytest.mark.parametrize("name", ["068_cls_count_zero", "069_cls_empty"])
def test_a_class_count_of_zero_returns_values(name: str) -> None:
    response, case = response_to(BY_NAME[name]), BY_NAME[name]
    assert response.headers["NV-InferResponse"] == case.response.headers["nv-inferresponse"]
    values = bytes(join_parts(case.request.body))
    assert bytes(join_parts(response.body)) == values + case.response.body


STATUS_CASES = [
    BY_NAME[name]
    for name in sorted(STATUS_NAMES)
    if BY_NAME[name].request.path not in {"/api/status", "/api/status/"}
    and not NOT_IMITATED.match(BY_NAME[name].request.path)
]


@pytest.mark.parametrize("case", STATUS_CASES, ids=str)
def test_captured_status_requests_get_the_captured_known_fields(case: Exchange) -> None:
    response = response_to(case)
    assert mask_request_id(response.headers["NV-Status"]) == mask_request_id(
        case.response.headers["nv-status"]
    )
    assert response.headers["Content-Type"] == case.response.headers["content-type"]
    if response.headers["Content-Type"] == "text/plain":
        captured = text_format.parse(ServerStatus, case.response.body.decode())
        expected = text_format.to_lines(known_fields(captured))
        assert bytes(join_parts(response.body)).decode() == expected
    else:
        captured = ServerStatus.FromString(case.response.body)
        assert ServerStatus.FromString(join_parts(response.body)) == known_fields(captured)


def test_a_status_without_a_model_lists_all_models() -> None:
    for name in ("016_status_all_text", "017_status_all_slash"):
        status = text_format.parse(
            ServerStatus, bytes(join_parts(response_to(BY_NAME[name]).body)).decode()
        )
        captured = text_format.parse(ServerStatus, BY_NAME[name].response.body.decode())
        assert set(status.model_status) < set(captured.model_status)
        assert len(status.model_status) == 11
