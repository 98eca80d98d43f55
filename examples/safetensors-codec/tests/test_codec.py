"""The codec follows the interface of codecs, and reads and writes the test vectors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from infergate_safetensors import PLUGIN

from infergate.plugins import DEFAULT_LIMITS, GatewayError, InferResponse, ModelMetadata
from infergate.testing import Vector, check_codec, check_stream, check_vector, load

VECTORS = load(Path(__file__).parent / "vectors" / "safetensors")


def test_the_codec_follows_the_interface() -> None:
    check_codec(PLUGIN)


def without_metadata(value: Any) -> Any:
    """Return ``value`` without the fields that need ``__metadata__``."""
    if hasattr(value, "parameters") and not isinstance(value, ModelMetadata):
        value = replace(value, id="", parameters={})
        return replace(
            value, **({"version": ""} if isinstance(value, InferResponse) else {"outputs": ()})
        )
    return value


def test_the_codec_without_metadata_follows_the_interface() -> None:
    check_codec(PLUGIN, options={"metadata": "none"}, round_trip=without_metadata)


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_messages_of_a_vector_are_read_and_written(vector: Vector) -> None:
    check_vector(PLUGIN.create(vector.options), vector, DEFAULT_LIMITS)


def test_responses_of_a_stream_arrive_unchanged() -> None:
    check_stream(PLUGIN)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ValueError, match="metadata"):
        PLUGIN.create({"metadata": "some"})


@pytest.mark.parametrize("path", ["/safetensors", "/safetensors//x", "/safetensors/m/versions"])
def test_an_unknown_path_is_refused(path: str) -> None:
    codec = PLUGIN.create({})
    vector = VECTORS[0]
    with pytest.raises(GatewayError, match="expected the path"):
        codec.summarize(replace(vector.wire, path=path))  # type: ignore[type-var]
