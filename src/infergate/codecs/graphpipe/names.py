"""Which of a model's inputs and outputs the names of a message mean.

*Strategy.* GraphPipe lets clients leave names out: the model's metadata has them, in order.
*Rule 1.* A tensor without a name, or with an empty one, is the input of its place; an output with
an empty name is the output of its place (graphpipe-tf's client asks for ``[""]``).
*Rule 2.* Names beyond the last tensor mean nothing: graphpipe-batcher sends each name twice.
*Rule 3.* TensorFlow's ``name:0`` is ``name`` where the model has only that, and the other way
round. A name that the model has not goes on as it is: its server has words for that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from infergate.core.errors import bad_request
from infergate.core.messages import ModelMetadata, TensorMetadata
from infergate.core.names import check_tensor_name

_FIRST: Final = ":0"


def resolve_inputs(given: Sequence[str], model: ModelMetadata) -> tuple[str, ...]:
    """The name of each input. Raises BAD_REQUEST where there is none, or one twice."""
    names = _resolved(given, model.inputs, "input", model.name)
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise bad_request(f"input '{name}' is given twice")
        seen.add(name)
    return names


def resolve_outputs(given: Sequence[str], model: ModelMetadata) -> tuple[str, ...]:
    """The name of each output asked for; one may be asked for twice. Raises BAD_REQUEST."""
    return _resolved(given, model.outputs, "output", model.name)


def _resolved(
    given: Sequence[str], told: Sequence[TensorMetadata], what: str, model: str
) -> tuple[str, ...]:
    known = {each.name for each in told}
    names: list[str] = []
    for index, name in enumerate(given):
        if name:
            check_tensor_name(name, f"{what} {index}")
            names.append(_meant(name, known))
        elif index < len(told):
            names.append(told[index].name)
        else:
            raise bad_request(
                f"{what} {index} has no name, and model '{model}' has {len(told)} {what}s"
            )
    return tuple(names)


def _meant(name: str, known: Collection[str]) -> str:
    for candidate in (name, name + _FIRST, name.removesuffix(_FIRST)):
        if candidate in known:
            return candidate
    return name
