"""Tensors of datatypes that one side's protocol cannot carry, as the route says: ``cast``.

*Rule 1.* Only what the other side lacks is cast, and only where the route says to what; else the
tensor is refused by name.
*Rule 2.* Where a client's protocol lacks a datatype, its model is told to have what the route casts
it to; a client that sends that for an input has it cast back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from infergate.core.conversion import converted
from infergate.core.datatypes import BY_NAME, Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor

Casts = Mapping[Datatype, Datatype]
"""Of a route: a datatype, and what stands for it where it cannot be carried."""


def carried(
    tensors: tuple[Tensor, ...],
    lacks: AbstractSet[Datatype],
    casts: Casts,
    what: str,
    protocol: str,
) -> tuple[Tensor, ...]:
    """``tensors`` for a side whose ``protocol`` ``lacks`` some datatypes. Raises UNSUPPORTED naming
    the tensor, which is an input or an output: ``what``."""
    if lacks.isdisjoint([tensor.datatype for tensor in tensors]):
        return tensors
    made: list[Tensor] = []
    for tensor in tensors:
        datatype = tensor.datatype
        if datatype not in lacks:
            made.append(tensor)
        elif datatype in casts:
            made.append(converted(tensor, casts[datatype]))
        else:
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"{what} '{tensor.name}' is {datatype.value}, which the protocol {protocol} cannot "
                "carry; its route may cast it",
            )
    return tuple(made)


def concerning(datatypes: Collection[Datatype], casts: Casts) -> Casts:
    """The ``casts`` of ``datatypes``."""
    return {datatype: to for datatype, to in casts.items() if datatype in datatypes}


def may_stand_for(tensors: tuple[Tensor, ...], casts: Casts) -> bool:
    """Whether one of ``tensors`` may have come for what is cast to its datatype."""
    return any(tensor.datatype in casts.values() for tensor in tensors)


def cast_back(inputs: tuple[Tensor, ...], model: ModelMetadata, casts: Casts) -> tuple[Tensor, ...]:
    """``inputs``; those that came as what ``casts`` makes of the datatype that ``model`` wants, as
    that. All names are of one side."""
    wanted = {told.name: BY_NAME.get(told.datatype) for told in model.inputs}
    made: list[Tensor] = []
    for tensor in inputs:
        datatype = wanted.get(tensor.name)
        if datatype is not None and casts.get(datatype) is tensor.datatype:
            made.append(converted(tensor, datatype))
        else:
            made.append(tensor)
    return tuple(made)


def told(model: ModelMetadata, casts: Casts) -> ModelMetadata:
    """``model`` as a client is told it that is given what ``casts`` say."""
    spelt = {datatype.value: to.value for datatype, to in casts.items()}
    return replace(model, inputs=_told(model.inputs, spelt), outputs=_told(model.outputs, spelt))


def _told(
    tensors: tuple[TensorMetadata, ...], spelt: Mapping[str, str]
) -> tuple[TensorMetadata, ...]:
    return tuple(
        replace(each, datatype=spelt.get(each.datatype, each.datatype)) for each in tensors
    )
