"""The parameters of requests to load and unload models."""

from __future__ import annotations

from dataclasses import replace

from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import ModelLoadRequest, ModelUnloadRequest
from infergate.core.tensor import NO_PARAMETERS

_UNLOAD_DEPENDENTS = "unload_dependents"


def unloads_dependents(operation: ModelUnloadRequest) -> bool:
    """Return whether the request also unloads the models that an ensemble consists of."""
    return operation.parameters.get(_UNLOAD_DEPENDENTS) not in (None, False)


def require_name_only(
    operation: ModelLoadRequest | ModelUnloadRequest,
) -> ModelLoadRequest | ModelUnloadRequest:
    """Return ``operation`` for a server that accepts only a model name.

    Raises UNSUPPORTED if information would be lost. ``unload_dependents: false`` is dropped,
    because tritonclient always sends it."""
    if operation.repository:
        raise GatewayError(
            Kind.UNSUPPORTED,
            f"model '{operation.model}': this server does not support named repositories",
        )
    for key, value in operation.parameters.items():
        if not (value is None or (key == _UNLOAD_DEPENDENTS and value is False)):
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"parameter '{key[:100]}': this server accepts no parameters for loading or "
                f"unloading model '{operation.model}'",
            )
    return replace(operation, parameters=NO_PARAMETERS)
