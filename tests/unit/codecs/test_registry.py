"""The choice between protocols that claim the same path."""

from __future__ import annotations

from typing import Any

import pytest

from infergate.codecs import registry
from infergate.codecs.base import CodecPlugin, TransportKind
from infergate.codecs.registry import plugins_by_claim

HTTP, GRPC = TransportKind.HTTP, TransportKind.GRPC


def _plugin(name: str, kind: TransportKind, *claims: str, **fields: Any) -> CodecPlugin:
    return CodecPlugin(name, kind, claims, lambda _: None, **fields)  # type: ignore[arg-type,return-value]  # never called


PLUGINS = (
    _plugin("a", HTTP, "v1", "V1"),
    _plugin("b", HTTP, "v1"),
    _plugin("c", HTTP, "v2", is_fallback=True),
    _plugin("d", GRPC, "v1"),
)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "plugins", lambda: {plugin.name: plugin for plugin in PLUGINS})


@pytest.mark.parametrize("preferred", ["a", "b"])
def test_the_preferred_protocol_gets_the_path(preferred: str) -> None:
    owners = {claim: plugin.name for claim, plugin in plugins_by_claim(HTTP, (preferred,)).items()}
    assert owners == {"v2": "c", "v1": preferred, "V1": "a"}
    assert next(iter(owners)) == "v2"  # the fallback


def test_claims_of_another_transport_are_no_conflict() -> None:
    assert [plugin.name for plugin in plugins_by_claim(GRPC, ()).values()] == ["d"]


@pytest.mark.parametrize(
    ("preferred", "expected"),
    [
        ((), "'a' and 'b' both claim 'v1'"),
        (("a", "b"), "'a' and 'b' both claim 'v1'"),
        (("x",), "protocol 'x' is not installed"),
    ],
)
def test_an_undecided_conflict(preferred: tuple[str, ...], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        plugins_by_claim(HTTP, preferred)
