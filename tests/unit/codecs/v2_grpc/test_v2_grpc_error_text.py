"""Error kinds from the error texts of Triton, as captured with their codes from ModelInfer."""

import json
from pathlib import Path

import pytest

from infergate.codecs.v2_grpc.error_text import kind_of
from infergate.core.errors import Kind

TEXTS = [
    json.loads(line)
    for line in Path(__file__).with_name("triton_errors.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize(("kind", "text"), TEXTS)
def test_the_kind_of_each_error_text(kind: str, text: str) -> None:
    assert kind_of(text, "i") is Kind[kind]


@pytest.mark.parametrize(("request_id", "prefix"), [("", "<id_unknown>"), ("a] b", "a] b")])
def test_the_request_id_prefix_is_ignored(request_id: str, prefix: str) -> None:
    text = f"[request id: {prefix}] unexpected shape for input 'IN' for model 'm'."
    assert kind_of(text, request_id) is Kind.BAD_REQUEST
