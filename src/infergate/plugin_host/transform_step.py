"""The step that runs a plug-in's transform."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from infergate.core.errors import GatewayError
from infergate.core.limits import Limits
from infergate.core.messages import TensorMetadata
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor, data_bytes
from infergate.plugin_host.loading import PluginError, run_within
from infergate.plugin_host.results import InvalidResultError, check_tensor_metadata, check_tensors
from infergate.plugin_host.runner import PluginRunner
from infergate.plugins.transform import TensorTransform
from infergate.transforms.step import AsyncStep, Spec, TransformError, substitute, take

_MAX_DESCRIBE_SECONDS: Final = 1.0
"""Maximum seconds for which the event loop waits while a transform describes tensors. The
description is kept until the model's metadata changes."""
_RETRY_SECONDS: Final = 30.0
"""Seconds after a timeout during which a transform is not called for metadata."""


@dataclass(slots=True, eq=False)
class _HangState:
    """The time from which a transform may be called for metadata again after a timeout."""

    retry_at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PluginStep(AsyncStep):
    """Runs the transform of ``runner``, for at most ``timeout`` seconds."""

    runner: PluginRunner
    timeout: float
    limits: Limits
    hang: _HangState = field(default_factory=_HangState)

    @property
    def transform(self) -> TensorTransform:
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
        client_specs = [
            TensorMetadata(name, spec.datatype, spec.shape)
            for name, spec in zip(names, specs, strict=True)
        ]
        if time.monotonic() < self.hang.retry_at:
            raise TransformError(names[0], f"{self.runner.label} does not respond")

        def describe_tensors() -> Sequence[Spec]:
            return check_specs(describe(*client_specs), new_names)

        label = self.runner.label
        seconds = min(self.timeout, _MAX_DESCRIBE_SECONDS)
        try:
            return run_within(seconds, "describing tensors", describe_tensors)
        except PluginError as failure:
            error = failure.__cause__
            match error:
                case GatewayError():
                    problem = error.public
                case InvalidResultError():
                    problem = f"{label} returned an invalid description: {error}"
                case None:
                    self.hang.retry_at = time.monotonic() + _RETRY_SECONDS
                    problem = f"{label} did not describe its tensors within {seconds:.3g} seconds"
                case _:  # only the log has the text, which may reveal secrets
                    problem = f"{label} failed with {type(error).__name__}"
            self.runner.log_failure(f"{label}: {failure}", error)
            raise TransformError(names[0], problem) from None

    async def run(
        self, tensors: Mapping[str, Tensor], context: RequestContext
    ) -> dict[str, Tensor]:
        """Return the tensors after the step. Raises GatewayError and TransformError."""
        before = take(tensors, self.reads)
        after = await self.runner.run(
            lambda: apply_transform(self.transform, before, self.limits),
            context.remaining_seconds(self.timeout),
            memory=context.memory,
            held_bytes=data_bytes(before),
        )
        return substitute(tensors, self.reads, dict(zip(self.writes, after, strict=True)))


def apply_transform(
    transform: TensorTransform, before: Sequence[Tensor], limits: Limits
) -> tuple[Tensor, ...]:
    """Return the tensors that ``transform`` writes for ``before``. Raises InvalidResultError, and
    the errors of the plug-in."""
    result: Any = transform.apply(*before)
    if not isinstance(result, tuple | list):
        raise InvalidResultError(f"it returned {type(result).__name__}; expected a tuple of Tensor")
    after = tuple(result)
    check_tensors(after, "tensors", limits, before)
    names = tuple(tensor.name for tensor in after)
    if names != tuple(transform.writes):
        raise InvalidResultError(f"it returned the tensors {names} instead of {transform.writes}")
    return after


def check_specs(described: Any, names: Sequence[str]) -> Sequence[Spec]:
    """Convert ``described``, a transform's metadata of the tensors ``names``, to specs. Raises
    InvalidResultError."""
    if not isinstance(described, tuple | list):
        text = f"it returned {type(described).__name__}"
        raise InvalidResultError(f"{text}; expected a tuple of TensorMetadata")
    if len(described) != len(names):
        raise InvalidResultError(f"{len(described)} tensors; expected {len(names)}")
    for each in described:
        if not isinstance(each, TensorMetadata):
            raise InvalidResultError(f"{type(each).__name__} instead of TensorMetadata")
        check_tensor_metadata(each)
    return [Spec(each.datatype, each.shape) for each in described]


def check_names(transform: TensorTransform) -> None:
    """Raise InvalidResultError unless the names of ``transform`` are non-empty tuples of
    strings."""
    try:
        names = transform.reads, transform.writes
    except GatewayError as error:
        raise InvalidResultError(error.public) from None
    for label, value in zip(("reads", "writes"), names, strict=True):
        if not (isinstance(value, tuple) and value and all(type(name) is str for name in value)):
            raise InvalidResultError(f"{label} is {value!r}; expected a tuple of names")
