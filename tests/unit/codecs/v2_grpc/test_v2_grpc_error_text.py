"""Error kinds from the error texts of Triton, as captured with their codes from ModelInfer."""

import pytest

from infergate.codecs.v2_grpc.error_text import kind_of
from infergate.core.errors import Kind

NOT_FOUND = [
    "Request for unknown model: 'nosuch' is not found",
    "Request for unknown model: 'simple' version 9 is not found",
    "Unable to find shared memory region: 'nosuch'",
    (
        "failed to get model version from specified version string 'x' (details: stol), version "
        "should be an integral value > 0"
    ),
    "invalid model version specified '-1' , version should be an integral value > 0",
]
BAD_REQUEST = [
    (
        "[request id: i] expected 3 inputs but got 2 inputs for model 'repeat_int32'. Got "
        "input(s) ['DELAY','IN'], but missing required input(s) ['WAIT']. Please provide all "
        "required input(s)."
    ),
    (
        "[request id: i] expected 2 inputs but got 3 inputs for model 'simple'. Got input(s) "
        "['MORE','INPUT1','INPUT0'], but missing required input(s) ]. Please provide all "
        "required input(s)."
    ),
    "unexpected inference input 'OTHER' for model 'simple'",
    "unexpected inference output 'NO' for model 'simple'",
    "unable to find data for input tensor 'INPUT1' for model 'simple' in request.",
    "[request id: i] input 'INPUT0' already exists in request",
    (
        "[request id: i] inference input 'IN' data-type is '<invalid>', but model 'm' expects "
        "'INT32'"
    ),
    "[request id: i] unexpected shape for input 'IN' for model 'm'. Expected [-1], got [2,1]. ",
    (
        "[request id: i] All input dimensions should be specified for input 'INPUT0' for model "
        "'id_INT32', got [-1]"
    ),
    "[request id: i] input byte size mismatch for input 'IN' for model 'm'. Expected 12, got 8",
    ("[request id: i] input 'INPUT0' has no shape but model requires batch dimension for 'simple'"),
    "[request id: i] input 'INPUT0' batch size does not match other inputs for 'simple'",
    "[request id: i] inference request batch-size must be <= 8 for 'simple'",
    (
        "[request id: i] expected 2 string elements for inference input 'INPUT0' for model 'm', "
        "got 1"
    ),
    (
        "[request id: i] unexpected number of string elements 2 for inference input 'INPUT0' for "
        "model 'm', expecting 1"
    ),
    (
        "incomplete string data for inference input 'INPUT0', expecting string of length 255 but "
        "only 1 bytes available"
    ),
    (
        "[request id: i] incomplete string length indicator for inference input 'INPUT0' for "
        "model 'm', expecting 4 bytes but only 2 bytes available. Please make sure the string "
        "length indicator is in one buffer."
    ),
    (
        "contents field must not be specified when using raw_input_contents for 'INPUT0' for "
        "model 'm'"
    ),
    (
        "unexpected explicit tensor data for input tensor 'INPUT0' for model 'simple' of type "
        "'FP32', expected datatype 'INT32'"
    ),
    "invalid value type for 'classification' parameter, expected int64_param",
    "invalid value type for 'x' parameter, expected int64_param, bool_param, or string_param.",
    "invalid value for 'priority', expected value >= 0.",
    (
        "parameter keys starting with 'triton_' are reserved for Triton usage. Only the "
        "following keys starting with 'triton_' are allowed: triton_enable_empty_final_response"
    ),
    (
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter "
        "for tensor 'INPUT0'"
    ),
    ("inference request to model 'accumulate' must specify a non-zero or non-empty correlation ID"),
    (
        "inference request for sequence 999 to model 'accumulate' must specify the START flag on "
        "the first request of the sequence"
    ),
]
BACKEND_ERROR = [
    "",
    "the model says INVALID_ARG",
    "batch size 16 for 'simple_0_0', max allowed is 8",
    (
        "Failed to process the request(s) for model 'fail_0_0', message: RuntimeError: the model "
        "failed: unexpected shape for input 'IN'"
    ),
    "expected more of life",
    "input 'IN' is wrong",
    "[request id: other] unexpected shape for input 'IN'",
    "Server is stopping, scheduler for model has stopped accepting new inference requests",
]


@pytest.mark.parametrize(
    ("text", "kind"),
    [(text, Kind.NOT_FOUND) for text in NOT_FOUND]
    + [(text, Kind.BAD_REQUEST) for text in BAD_REQUEST]
    + [(text, Kind.BACKEND_ERROR) for text in BACKEND_ERROR],
)
def test_kinds(text: str, kind: Kind) -> None:
    assert kind_of(text, "i") is kind


@pytest.mark.parametrize(("request_id", "prefix"), [("", "<id_unknown>"), ("a] b", "a] b")])
def test_the_request_id_prefix_is_ignored(request_id: str, prefix: str) -> None:
    text = f"[request id: {prefix}] unexpected shape for input 'IN' for model 'm'."
    assert kind_of(text, request_id) is Kind.BAD_REQUEST
