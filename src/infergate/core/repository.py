"""What a request to load or unload a model says besides the model's name."""

from __future__ import annotations

from dataclasses import replace

from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import ModelLoadRequest, ModelUnloadRequest
from infergate.core.tensor import NO_PARAMETERS

_UNLOAD_DEPENDENTS = "unload_dependents"


def unloads_others(operation: ModelUnloadRequest) -> bool:
    """Whether the models that an ensemble consists of are to go with it."""
    return operation.parameters.get(_UNLOAD_DEPENDENTS) not in (None, False)


def name_alone(
    operation: ModelLoadRequest | ModelUnloadRequest,
) -> ModelLoadRequest | ModelUnloadRequest:
    """``operation`` for a server that takes a name and nothing else. Raises UNSUPPORTED for what
    would be lost; tritonclient always says that dependents are not to be unloaded."""
    if operation.repository:
        raise GatewayError(
            Kind.UNSUPPORTED,
            f"model '{operation.model}': this server knows no repositories by name",
        )
    for key, value in operation.parameters.items():
        if not (value is None or (key == _UNLOAD_DEPENDENTS and value is False)):
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"parameter '{key[:100]}': this server loads and unloads model "
                f"'{operation.model}' by its name alone",
            )
    return replace(operation, parameters=NO_PARAMETERS)
