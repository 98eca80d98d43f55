"""Maps the input and output names in a message to the model's names.

*Rule 1.* A tensor without a name, or with an empty name, is the model's input at the tensor's
position. An empty output name stands for the model's output at the name's position (graphpipe-tf's
client requests ``[""]``).

*Rule 2.* TensorFlow's ``name:0`` means ``name`` if the model has only ``name``, and vice versa. An
unknown name stays unchanged; the backend's codec or the server rejects it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from infergate.core.errors import bad_request
from infergate.core.messages import ModelMetadata, TensorMetadata
from infergate.core.name_rules import check_tensor_name

_FIRST_OUTPUT_SUFFIX: Final = ":0"


def resolve_inputs(message_names: Sequence[str], model: ModelMetadata) -> tuple[str, ...]:
    """Return the name of each input. Raises BAD_REQUEST for an invalid or duplicate name, and if
    the model has no input at the position of an empty name."""
    names = _resolve(message_names, model.inputs, "input", model.name)
    for name, count in Counter(names).items():
        if count > 1:
            raise bad_request(f"input '{name}' is given twice")
    return names


def resolve_outputs(message_names: Sequence[str], model: ModelMetadata) -> tuple[str, ...]:
    """Return the name of each requested output. A name may occur twice. Raises BAD_REQUEST for an
    invalid name, and if the model has no output at the position of an empty name."""
    return _resolve(message_names, model.outputs, "output", model.name)


def _resolve(
    message_names: Sequence[str], tensors: Sequence[TensorMetadata], role: str, model: str
) -> tuple[str, ...]:
    model_names = {tensor.name for tensor in tensors}
    names: list[str] = []
    for index, name in enumerate(message_names):
        if name:
            check_tensor_name(name, f"{role} {index}")
            names.append(_match_name(name, model_names))
        elif index < len(tensors):
            names.append(tensors[index].name)
        else:
            raise bad_request(
                f"{role} {index} has no name, and model '{model}' has {len(tensors)} {role}s"
            )
    return tuple(names)


def _match_name(name: str, model_names: Collection[str]) -> str:
    for candidate in (name, name + _FIRST_OUTPUT_SUFFIX, name.removesuffix(_FIRST_OUTPUT_SUFFIX)):
        if candidate in model_names:
            return candidate
    return name
