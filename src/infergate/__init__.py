"""infergate, a translating gateway for model inference.

The names in ``__all__`` are the public library (docs/library.md). Each name is imported on first
use, because ``import infergate`` must be cheap. The entry point of the command line is
``infergate.cli``; docs/architecture.md describes the packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infergate.config.mistakes import ConfigError
    from infergate.config.schema import Config
    from infergate.core.datatypes import Datatype
    from infergate.core.errors import GatewayError, Kind, Origin
    from infergate.core.messages import (
        InferRequest,
        InferResponse,
        ModelMetadata,
        RequestedOutput,
        TensorMetadata,
    )
    from infergate.core.tensor import Tensor
    from infergate.library.addresses import ListenerAddress
    from infergate.library.gateway import Gateway
    from infergate.library.tensors import tensor
    from infergate.runtime.running import ConfigRejectedError

__version__ = "0.1.0"

__all__ = [
    "Config",
    "ConfigError",
    "ConfigRejectedError",
    "Datatype",
    "Gateway",
    "GatewayError",
    "InferRequest",
    "InferResponse",
    "Kind",
    "ListenerAddress",
    "ModelMetadata",
    "Origin",
    "RequestedOutput",
    "Tensor",
    "TensorMetadata",
    "tensor",
]

_MODULES = {
    "Config": "config.schema",
    "ConfigError": "config.mistakes",
    "ConfigRejectedError": "runtime.running",
    "Datatype": "core.datatypes",
    "Gateway": "library.gateway",
    "GatewayError": "core.errors",
    "InferRequest": "core.messages",
    "InferResponse": "core.messages",
    "Kind": "core.errors",
    "ListenerAddress": "library.addresses",
    "ModelMetadata": "core.messages",
    "Origin": "core.errors",
    "RequestedOutput": "core.messages",
    "Tensor": "core.tensor",
    "TensorMetadata": "core.messages",
    "tensor": "library.tensors",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - on first use

    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
