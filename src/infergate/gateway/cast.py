"""Casts tensors whose datatypes the client's or the backend's protocol does not support. A route's
``cast`` maps datatypes to substitutes.

- A tensor whose datatype the receiver's protocol does not support is cast to the substitute. If the
  route has no substitute, the request fails with an error that names the tensor.
- A client whose protocol does not support a datatype sees the substitute in the model's metadata.
  An input that the client sends as the substitute is cast back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from infergate.core.conversion import convert
from infergate.core.datatypes import DATATYPES_BY_NAME, Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor

CastRules = Mapping[Datatype, Datatype]
"""A route's casts: the keys are datatypes that a protocol may not support, and the values are their
substitutes."""


def cast_unsupported(
    tensors: tuple[Tensor, ...],
    unsupported: AbstractSet[Datatype],
    casts: CastRules,
    side: str,
    protocol: str,
) -> tuple[Tensor, ...]:
    """Cast each tensor whose datatype is in ``unsupported``, the datatypes that ``protocol`` does
    not support. ``side`` is ``input`` or ``output``. Raises UNSUPPORTED, with the tensor's name, if
    ``casts`` has no substitute."""
    result: list[Tensor] = []
    for tensor in tensors:
        datatype = tensor.datatype
        if datatype not in unsupported:
            result.append(tensor)
        elif datatype in casts:
            result.append(convert(tensor, casts[datatype]))
        else:
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"{side} '{tensor.name}' is {datatype.value}, which the protocol {protocol} does "
                "not support; configure 'cast' on the route",
            )
    return tuple(result)


def casts_of(datatypes: Collection[Datatype], casts: CastRules) -> CastRules:
    """Return the entries of ``casts`` for ``datatypes``."""
    return {datatype: to for datatype, to in casts.items() if datatype in datatypes}


def cast_back(
    inputs: tuple[Tensor, ...], model: ModelMetadata, casts: CastRules
) -> tuple[Tensor, ...]:
    """Cast back each input whose datatype is the substitute for the datatype in ``model``.
    ``inputs`` and ``model`` must both have the client's names or both have the backend's names."""
    declared = {spec.name: DATATYPES_BY_NAME.get(spec.datatype) for spec in model.inputs}
    return tuple(
        convert(tensor, datatype)
        if (datatype := declared.get(tensor.name)) and casts.get(datatype) is tensor.datatype
        else tensor
        for tensor in inputs
    )


def substitute_datatypes(model: ModelMetadata, casts: CastRules) -> ModelMetadata:
    """Return ``model`` with each datatype in ``casts`` replaced by its substitute."""
    substitutes = {datatype.value: to.value for datatype, to in casts.items()}
    return replace(
        model,
        inputs=_substitute_in(model.inputs, substitutes),
        outputs=_substitute_in(model.outputs, substitutes),
    )


def _substitute_in(
    tensors: tuple[TensorMetadata, ...], substitutes: Mapping[str, str]
) -> tuple[TensorMetadata, ...]:
    return tuple(
        replace(tensor, datatype=substitutes.get(tensor.datatype, tensor.datatype))
        for tensor in tensors
    )
