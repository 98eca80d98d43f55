"""Every captured HTTP exchange is answered by the frontend as by the real server.

Responses are equal byte for byte except ``request_id``; differences are listed here with their
reason, and in docs/fidelity-trtis.md.
"""

import re

import pytest
from trtis_captures import HTTP, Exchange
from trtis_gateway import respond

from infergate.codecs.trtis import HTTP as PLUGIN
from infergate.codecs.trtis import text_format
from infergate.codecs.trtis.messages import ServerStatus
from infergate.core.wire import HttpResponse, join_parts

NOT_MODELLED = re.compile("/api/(infer|status)/(sequence|ensemble_simple|slow|broken)")
"""Models that the test's gateway does not imitate."""
DIFFERENT = {
    "059_infer_string_garbage": "strings whose lengths contradict their data are refused",
    "068_cls_count_zero": "the real server omits the values that its header announces",
    "069_cls_empty": "the same",
    "116_err_dims_negative": "dimensions below 0 are refused as such, not as a size of 2^64",
    "144_shm_register": "this gateway cannot register a region",
    "145_shm_register_dup": "the same",
    "148_shm_status_one": "the same",
    "149_shm_status_one_binary": "the same",
    "150_shm_infer": "the same",
    "153_shm_status_after_slash_all": "the same",
}
STATUS = {case.name for case in HTTP if case.response.body[:2] in {b"id", b"\n\n"}}
SAME = [
    case
    for case in HTTP
    if case.name not in DIFFERENT
    and case.name not in STATUS
    and not NOT_MODELLED.match(case.request.path)
]
BY_NAME = {case.name: case for case in HTTP}
TRANSPORT_HEADERS = {"content-length", "connection"}


def response_to(case: Exchange) -> HttpResponse:
    codec = PLUGIN.create({"server_id": "trtis-gold"})
    response = respond(codec, case.request)
    assert isinstance(response, HttpResponse)
    return response


def mask_request_id(value: str) -> str:
    return re.sub(r" request_id: \d+$", " request_id: N", value)


def test_the_captures_are_complete() -> None:
    assert len(SAME) > 110
    assert set(DIFFERENT) < set(BY_NAME)


@pytest.mark.parametrize("case", SAME, ids=str)
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


def test_strings_that_contradict_their_size_are_refused() -> None:
    response = response_to(BY_NAME["059_infer_string_garbage"])
    assert response.status == 400
    assert "tensor \\'INPUT0\\': the length of element 0" in response.headers["NV-Status"]


@pytest.mark.parametrize("name", ["068_cls_count_zero", "069_cls_empty"])
def test_a_class_count_of_zero_returns_values(name: str) -> None:
    response, case = response_to(BY_NAME[name]), BY_NAME[name]
    assert response.headers["NV-InferResponse"] == case.response.headers["nv-inferresponse"]
    values = bytes(join_parts(case.request.body))
    assert bytes(join_parts(response.body)) == values + case.response.body


def test_dimensions_below_zero() -> None:
    response = response_to(BY_NAME["116_err_dims_negative"])
    assert response.headers["NV-Status"].startswith(
        "code: INVALID_ARG msg: \"unexpected shape for input \\'INPUT0\\' for model "
        "\\'identity_nobatch\\'. Expected [-1], got [-1]"
    )


def test_no_region_can_be_registered() -> None:
    for name in ("144_shm_register", "145_shm_register_dup"):
        assert (
            response_to(BY_NAME[name])
            .headers["NV-Status"]
            .startswith(
                "code: INTERNAL msg: \"Unable to open shared memory region: \\'/trtisgold\\'\""
            )
        )
    assert bytes(join_parts(response_to(BY_NAME["148_shm_status_one"]).body)) == b""
    assert (
        response_to(BY_NAME["150_shm_infer"])
        .headers["NV-Status"]
        .startswith("code: NOT_FOUND msg: \"shared memory block \\'reg0\\' not found in manager\"")
    )


def clear_unknown_fields(status: ServerStatus) -> None:  # type: ignore[valid-type]
    for name in ("uptime_ns", "health_stats", "status_stats", "model_control_stats"):
        status.ClearField(name)
    for name in ("shm_control_stats", "repository_stats"):
        status.ClearField(name)
    for model in status.model_status.values():
        config = model.config
        for name in ("version_policy", "instance_group", "default_model_filename"):
            config.ClearField(name)
        for tensor in (*config.input, *config.output):
            tensor.ClearField("reshape")
        for output in config.output:
            output.ClearField("label_filename")
        for version in model.version_status.values():
            for name in ("infer_stats", "model_execution_count", "model_inference_count"):
                version.ClearField(name)
            version.ClearField("last_inference_timestamp_milliseconds")


STATUS_CASES = [
    BY_NAME[name]
    for name in sorted(STATUS)
    if BY_NAME[name].request.path not in {"/api/status", "/api/status/"}
    and not NOT_MODELLED.match(BY_NAME[name].request.path)
]


@pytest.mark.parametrize("case", STATUS_CASES, ids=str)
def test_metadata_round_trips(case: Exchange) -> None:
    response = response_to(case)
    assert mask_request_id(response.headers["NV-Status"]) == mask_request_id(
        case.response.headers["nv-status"]
    )
    if case.response.headers["content-type"] == "text/plain":
        captured = text_format.parse(ServerStatus, case.response.body.decode())
    else:
        captured = ServerStatus.FromString(case.response.body)
    expected = ServerStatus()
    expected.CopyFrom(captured)
    clear_unknown_fields(expected)
    assert response.headers["Content-Type"] == case.response.headers["content-type"]
    if response.headers["Content-Type"] == "text/plain":
        assert bytes(join_parts(response.body)).decode() == text_format.to_lines(expected)
    else:
        assert ServerStatus.FromString(bytes(join_parts(response.body))) == expected


def test_a_status_without_a_model_lists_all_models() -> None:
    for name in ("016_status_all_text", "017_status_all_slash"):
        status = text_format.parse(
            ServerStatus, bytes(join_parts(response_to(BY_NAME[name]).body)).decode()
        )
        captured = text_format.parse(ServerStatus, BY_NAME[name].response.body.decode())
        assert set(status.model_status) < set(captured.model_status)
        assert len(status.model_status) == 11
