"""The message classes of the package ``inference``, and the response of gRPC's health service, from
the gateway's private descriptor pool.

Each message of ``proto/open_inference.proto`` is an attribute, for example
``messages.ModelInferRequest``.
"""

from __future__ import annotations

from typing import Any, Final

from infergate.codecs.protos import SCHEMA

HealthCheckResponse: Final = SCHEMA.message_class("grpc.health.v1.HealthCheckResponse")


def __getattr__(name: str) -> Any:
    return SCHEMA.attribute(__name__, f"inference.{name}")
