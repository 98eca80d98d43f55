"""Pairs the models and tensors of an old server with the models and tensors of a new server.

*Rule 1.* A pair of tensors is certain if the datatypes are equal or can be cast, the shapes are
compatible, and either the names are equal or no other pair is possible. Names that differ only in
case, punctuation or a suffix such as ``:0`` count as equal unless an identical name exists.
*Rule 2.* Shapes are canonical: in every protocol, the batch dimension is part of the shape (-1 if
variable). Two shapes are compatible if they have the same number of dimensions, and each pair of
dimensions is equal or contains a -1. The gateway does not add or remove dimensions. An empty shape
matches any shape, because some servers report no shapes.
*Rule 3.* A model is paired by its name. If no name matches, it is paired with the only model whose
tensors match its own tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, TypeVar

from infergate.core.conversion import LOSSLESS_TARGETS
from infergate.core.datatypes import DATATYPES_BY_NAME, Datatype
from infergate.core.messages import TensorMetadata
from infergate.core.name_rules import NameRule, find_tensor_name_problem
from infergate.migration.probe.findings import ProbedModel
from infergate.migration.probe.report import shape_text

_NamedT = TypeVar("_NamedT", ProbedModel, TensorMetadata)
_MAX_ALTERNATIVES: Final = 5
_MAX_CANDIDATES: Final = 100
"""Maximum number of models whose tensors are compared with the tensors of one model."""
_MAX_COMPARISONS: Final = 1 << 14
"""Maximum number of pairs of tensors that are compared by datatype and shape."""
_NAMES: Final = NameRule(allow_slash=True)


@dataclass(frozen=True, slots=True)
class TensorPair:
    """An input or output of the old model, and its counterpart ``new`` or None. ``reason`` says why
    the pair is not certain, or is empty. ``alternatives`` has the possible names."""

    old: TensorMetadata
    new: TensorMetadata | None
    reason: str = ""
    alternatives: Sequence[str] = ()
    cast: tuple[str, str] | None = None
    """A datatype and its substitute, if the route must cast the tensor."""

    @property
    def is_certain(self) -> bool:
        return self.new is not None and not self.reason

    @property
    def is_renamed(self) -> bool:
        return self.new is not None and self.new.name != self.old.name


@dataclass(frozen=True, slots=True)
class ModelPair:
    """A model of the old server, and its counterpart ``new`` or None. ``reason`` says why the pair
    is not certain, or is empty. ``alternatives`` has the possible names."""

    old: ProbedModel
    new: ProbedModel | None
    reason: str = ""
    alternatives: Sequence[str] = ()
    inputs: Sequence[TensorPair] = ()
    outputs: Sequence[TensorPair] = ()
    extra_inputs: Sequence[str] = ()
    """Inputs of the new model that the old model does not have."""

    @property
    def can_mirror(self) -> bool:
        """Whether the new model certainly accepts every inference of the old model."""
        return (
            self.new is not None
            and not self.reason
            and not self.extra_inputs
            and all(pair.is_certain for pair in self.inputs)
        )


class Pairing:
    """Pairs the models of old and new servers. The old servers' protocols support
    ``old_datatypes``, and the new servers' protocols support ``new_datatypes``."""

    def __init__(
        self, old_datatypes: AbstractSet[Datatype], new_datatypes: AbstractSet[Datatype]
    ) -> None:
        self._old_datatypes: Final = old_datatypes
        self._new_datatypes: Final = new_datatypes

    def pair_models(
        self, old: Sequence[ProbedModel], new: Sequence[ProbedModel]
    ) -> list[ModelPair]:
        """Return a pair for each old model."""
        by_name = {model.name: model for model in new}
        old_names = {model.name for model in old}
        # A new model with the name of an old model is the counterpart of only this old model.
        others = [model for model in new if model.name not in old_names]
        similar = _group_by(others, _normalize)
        rivals = _group_by((model for model in old if model.name not in by_name), _normalize)
        pairs = []
        for model in old:
            key = _normalize(model.name)
            matches = similar.get(key, [])
            if model.name in by_name:
                pairs.append(self._pair(model, by_name[model.name]))
            elif len(matches) == len(rivals[key]) == 1:
                pairs.append(self._pair(model, matches[0]))
            elif matches:
                reason = "several models have similar names"
                pairs.append(ModelPair(model, None, reason, _names(matches)))
            else:
                pairs.append(self._pair_by_tensors(model, others))
        return pairs

    def _pair_by_tensors(self, old: ProbedModel, others: Sequence[ProbedModel]) -> ModelPair:
        candidates = [item for item in others if _tensor_counts(item) == _tensor_counts(old)]
        fitting = [item for item in candidates[:_MAX_CANDIDATES] if self._fits(old, item)]
        if len(fitting) == 1:
            reason = "the names differ; no other model has the same tensors"
            return self._pair(old, fitting[0], reason)
        if fitting:
            return ModelPair(old, None, "the names differ; several models fit", _names(fitting))
        return ModelPair(old, None, "no model has this name or these tensors", _names(others))

    def _fits(self, old: ProbedModel, new: ProbedModel) -> bool:
        pair = self._pair(old, new)
        return pair.can_mirror and all(item.is_certain for item in pair.outputs)

    def _pair(self, old: ProbedModel, new: ProbedModel, reason: str = "") -> ModelPair:
        if problem := _NAMES.find_problem(new.name):
            reason = f"the name of the new model {problem}"
        if old.metadata is None or new.metadata is None:
            side = "old" if old.metadata is None else "new"
            return ModelPair(old, new, reason or f"the {side} model's tensors are unknown")
        inputs = self.pair_tensors(old.metadata.inputs, new.metadata.inputs)
        outputs = self.pair_tensors(old.metadata.outputs, new.metadata.outputs)
        paired = {pair.new.name for pair in inputs if pair.new is not None}
        extra = [tensor.name for tensor in new.metadata.inputs if tensor.name not in paired]
        return ModelPair(old, new, reason, (), inputs, outputs, extra)

    def pair_tensors(
        self, old: Sequence[TensorMetadata], new: Sequence[TensorMetadata]
    ) -> list[TensorPair]:
        """Return a pair for each old tensor, in the order of ``old``."""
        pairs: dict[str, TensorPair] = {}
        rest = {item.name: item for item in new}
        for normalize in (str, _normalize):
            candidates = _group_by(rest.values(), normalize)
            unpaired = [tensor for tensor in old if tensor.name not in pairs]
            for key, tensors in _group_by(unpaired, normalize).items():
                matches = candidates.get(key, [])
                if len(tensors) == len(matches) == 1:
                    pairs[tensors[0].name] = self._tensor_pair(tensors[0], matches[0])
                    del rest[matches[0].name]
        unpaired = [tensor for tensor in old if tensor.name not in pairs]
        for tensor in unpaired:
            pairs[tensor.name] = self._pair_by_type(tensor, unpaired, list(rest.values()))
        return [pairs[tensor.name] for tensor in old]

    def _pair_by_type(
        self,
        tensor: TensorMetadata,
        unpaired: Sequence[TensorMetadata],
        rest: Sequence[TensorMetadata],
    ) -> TensorPair:
        if len(unpaired) * len(rest) > _MAX_COMPARISONS:  # GraphPipe servers list all graph nodes
            names = [item.name for item in rest[:_MAX_ALTERNATIVES]]
            reason = "no tensor has this name, and too many tensors remain to compare them by shape"
            return TensorPair(tensor, None, reason, names)
        fitting = [item for item in rest if self._tensor_pair(tensor, item).is_certain]
        rivals = [i for i in unpaired if fitting and self._tensor_pair(i, fitting[0]).is_certain]
        if len(fitting) == 1 and len(rivals) == 1:
            return self._tensor_pair(tensor, fitting[0])
        reason = "several tensors have this datatype and shape"
        if not fitting:
            reason = "no tensor has this name, or this datatype and shape"
        names = [item.name for item in (fitting or rest)[:_MAX_ALTERNATIVES]]
        return TensorPair(tensor, None, reason, names)

    def _tensor_pair(self, old: TensorMetadata, new: TensorMetadata) -> TensorPair:
        if problem := find_tensor_name_problem(old.name):
            return TensorPair(old, new, f"the old name {problem}")
        if problem := find_tensor_name_problem(new.name):
            return TensorPair(old, new, f"the new name {problem}")
        cast = None
        if old.datatype != new.datatype:
            cast = self._cast(old.datatype, new.datatype)
            if cast is None:
                kinds = f"{old.datatype} and {new.datatype}"
                return TensorPair(old, new, f"the datatypes differ: {kinds}; no cast fits")
        return TensorPair(old, new, _shape_difference(old.shape, new.shape), cast=cast)

    def _cast(self, old: str, new: str) -> tuple[str, str] | None:
        """Return the cast between the datatypes ``old`` and ``new``, or None. A route casts only
        datatypes that one of the protocols does not support."""
        for datatype, substitute, supported in (
            (old, new, self._new_datatypes),
            (new, old, self._old_datatypes),
        ):
            source = DATATYPES_BY_NAME.get(datatype)
            targets = LOSSLESS_TARGETS.get(source) if source is not None else None
            if targets and source not in supported and DATATYPES_BY_NAME.get(substitute) in targets:
                return datatype, substitute
        return None


def _group_by(items: Iterable[_NamedT], key: Callable[[str], str]) -> dict[str, list[_NamedT]]:
    groups: dict[str, list[_NamedT]] = {}
    for item in items:
        groups.setdefault(key(item.name), []).append(item)
    return groups


def _tensor_counts(model: ProbedModel) -> tuple[int, int] | None:
    metadata = model.metadata
    return None if metadata is None else (len(metadata.inputs), len(metadata.outputs))


def _names(models: Sequence[ProbedModel]) -> list[str]:
    return [model.name for model in models[:_MAX_ALTERNATIVES]]


def _shape_difference(old: Sequence[int], new: Sequence[int]) -> str:
    """Return the reason why the shapes are not compatible (Rule 2), or an empty string."""
    if not (old and new):
        return ""
    shapes = f"{shape_text(old)} and {shape_text(new)}"
    if len(old) != len(new):
        longer, shorter = sorted((old, new), key=len, reverse=True)
        is_batch = len(longer) == len(shorter) + 1 and longer[0] in {-1, 1}
        hint = "; one shape has no batch dimension" if is_batch else ""
        return f"the shapes differ: {shapes}{hint}"
    if any(a != b and -1 not in {a, b} for a, b in zip(old, new, strict=True)):
        return f"the shapes differ: {shapes}"
    return ""


def _normalize(name: str) -> str:
    return re.sub(r"[\W_]+", "", re.sub(r":\d+$", "", name)).lower()
