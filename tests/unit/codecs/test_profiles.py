"""Detection of servers' profiles, and correction of Triton's error codes."""

from dataclasses import replace

import pytest

from infergate.codecs import profiles
from infergate.codecs.base import Profile
from infergate.core.errors import Kind
from infergate.core.messages import ServerMetadata


@pytest.mark.parametrize(
    ("name", "extensions", "profile"),
    [
        ("triton", (), profiles.TRITON),
        ("my-triton", ("statistics",), replace(profiles.GENERIC, reports_statistics=True)),
        (
            "x",
            ("trace", "logging"),
            replace(profiles.GENERIC, has_trace_settings=True, has_log_settings=True),
        ),
        (
            "x",
            ("binary_tensor_data", "classification", "model_configuration"),
            replace(
                profiles.GENERIC,
                supports_binary=True,
                supports_classification=True,
                reports_config=True,
            ),
        ),
        ("MLServer", (), profiles.MLSERVER),
        ("kserve", ("model_repository_extension",), profiles.KSERVE),
        ("OpenVINO Model Server", (), profiles.OVMS),
        ("infergate", (), profiles.INFERGATE),
        (
            "infergate",
            ("statistics", "logging"),
            replace(profiles.INFERGATE, reports_statistics=True, has_log_settings=True),
        ),
        ("", (), profiles.GENERIC),
    ],
)
def test_profiles_are_detected_from_metadata(
    name: str, extensions: tuple[str, ...], profile: Profile
) -> None:
    assert profiles.detect_profile(ServerMetadata(name, "1", extensions)) == profile


def test_profiles_are_configured_by_name() -> None:
    assert {
        "triton",
        "mlserver",
        "kserve",
        "ovms",
        "trtserver-1.x",
        "graphpipe-go",
        "graphpipe-py",
    } <= set(profiles.PROFILES)
    assert all(name == profile.name for name, profile in profiles.PROFILES.items())


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        (Kind.BACKEND_ERROR, "Unable to parse 'inputs'", Kind.BAD_REQUEST),
        (
            Kind.BACKEND_ERROR,
            "failed to load 'nosuch', failed to poll from model repository",
            Kind.NOT_FOUND,
        ),
        (Kind.BACKEND_ERROR, "failed to load 'simple', version 1 is broken", Kind.BACKEND_ERROR),
        (Kind.BAD_REQUEST, "invalid model version specified '-1' , version should", Kind.NOT_FOUND),
        (
            Kind.BAD_REQUEST,
            "[request id: 7] failed to get model version from specified version string 'abc'",
            Kind.NOT_FOUND,
        ),
        (
            Kind.BAD_REQUEST,
            "requested model version is not available for model 'simple'",
            Kind.NOT_FOUND,
        ),
        (Kind.BAD_REQUEST, "the model says: invalid model version specified '", Kind.BAD_REQUEST),
        (Kind.NO_BACKEND, "invalid model version specified '-1'", Kind.NO_BACKEND),
    ],
)
def test_errors_that_triton_sends_with_another_code(
    kind: Kind, message: str, expected: Kind
) -> None:
    assert profiles.corrected_kind(kind, message) is expected
