"""A step of a route's transforms that a plug-in carries out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infergate.core.errors import GatewayError
from infergate.core.limits import Limits
from infergate.core.messages import TensorMetadata
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor
from infergate.plugin_host.loading import describe_exception
from infergate.plugin_host.results import InvalidResultError, check_tensors
from infergate.plugin_host.runner import PluginRunner
from infergate.plugins.transform import TensorTransform
from infergate.transforms.step import AsyncStep, Spec, TransformError, substitute


@dataclass(frozen=True, kw_only=True)
class PluginStep(AsyncStep):
    """Runs the transform of ``runner``, for at most ``timeout`` seconds."""

    runner: PluginRunner
    timeout: float
    limits: Limits

    @property
    def transform(self) -> TensorTransform:
        """The plug-in."""
        assert isinstance(self.runner.plugin, TensorTransform)
        return self.runner.plugin

    @property
    def reads(self) -> tuple[str, ...]:
        return self.transform.reads

    @property
    def writes(self) -> tuple[str, ...]:
        return self.transform.writes

    def forward_specs(self, *before: Spec) -> Sequence[Spec]:
        return self._describe(self.transform.forward_metadata, self.reads, before, self.writes)

    def backward_specs(self, *after: Spec) -> Sequence[Spec]:
        return self._describe(self.transform.backward_metadata, self.writes, after, self.reads)

    def _describe(
        self,
        describe: Callable[..., Any],
        names: Sequence[str],
        specs: Sequence[Spec],
        new_names: Sequence[str],
    ) -> Sequence[Spec]:
        known = [
            TensorMetadata(name, spec.datatype, spec.shape)
            for name, spec in zip(names, specs, strict=True)
        ]
        try:
            described = [Spec(each.datatype, tuple(each.shape)) for each in describe(*known)]
        except BaseException as error:  # noqa: BLE001 - a plug-in may raise anything
            problem = f"{self.runner.label} failed with {describe_exception(error)}"
            raise TransformError(names[0], problem) from None
        if len(described) != len(new_names):
            problem = f"{self.runner.label} describes {len(described)} tensors"
            raise TransformError(names[0], problem)
        return described

    async def run(
        self, tensors: Mapping[str, Tensor], context: RequestContext
    ) -> dict[str, Tensor]:
        """Return the tensors after the step. Raises GatewayError and TransformError."""
        missing = [name for name in self.reads if name not in tensors]
        if missing:
            raise TransformError(missing[0], "there is no such tensor")
        before = [tensors[name] for name in self.reads]
        seconds = self.timeout
        if context.deadline is not None:
            seconds = min(seconds, context.deadline - time.monotonic())
        after = await self.runner.run(
            lambda: self._apply(before),
            seconds,
            memory=context.memory,
            held_bytes=sum(len(tensor.data) for tensor in before),
        )
        return substitute(tensors, self.reads, dict(zip(self.writes, after, strict=True)))

    def _apply(self, before: Sequence[Tensor]) -> tuple[Tensor, ...]:
        result: Any = self.transform.apply(*before)
        if not isinstance(result, tuple | list):
            raise InvalidResultError(f"it returned {type(result).__name__}")
        after = tuple(result)
        check_tensors(after, "tensors", self.limits, before)
        names = tuple(tensor.name for tensor in after)
        if names != tuple(self.writes):
            raise InvalidResultError(f"it returned the tensors {names} instead of {self.writes}")
        return after


def check_names(transform: TensorTransform) -> None:
    """Raise InvalidResultError unless the names of ``transform`` are tuples of texts."""
    try:
        names = transform.reads, transform.writes
    except GatewayError as error:
        raise InvalidResultError(error.public) from None
    for label, value in zip(("reads", "writes"), names, strict=True):
        if not (isinstance(value, tuple) and value and all(type(name) is str for name in value)):
            raise InvalidResultError(f"{label} is {value!r}; expected a tuple of names")
