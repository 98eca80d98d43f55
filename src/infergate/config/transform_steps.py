"""Creates the transform steps of a route from the configuration. This module is imported only if a
route has transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from infergate.config.plugins import PluginStepConfig
from infergate.config.section import Section
from infergate.config.transforms import StepSection, TransformsConfig
from infergate.transforms.images import DecodeImage
from infergate.transforms.numeric import Cast, Reshape, Scale, Transpose
from infergate.transforms.route_transforms import RouteTransforms
from infergate.transforms.scores import Argmax, Softmax, TopK
from infergate.transforms.step import Step
from infergate.transforms.structure import (
    Concatenate,
    Constant,
    Copy,
    Default,
    Drop,
    Rename,
    Select,
    Split,
)
from infergate.transforms.text import Base64Decode, Base64Encode, TextDecode, TextEncode

_STEPS: Final[Mapping[str, type[Step]]] = {
    "cast": Cast,
    "scale": Scale,
    "transpose": Transpose,
    "reshape": Reshape,
    "rename": Rename,
    "copy_": Copy,
    "concatenate": Concatenate,
    "split": Split,
    "base64_decode": Base64Decode,
    "base64_encode": Base64Encode,
    "text_encode": TextEncode,
    "text_decode": TextDecode,
    "decode_image": DecodeImage,
    "constant": Constant,
    "default": Default,
    "softmax": Softmax,
    "argmax": Argmax,
    "top_k": TopK,
    "select": Select,
    "drop": Drop,
}
MakePluginStep = Callable[[PluginStepConfig], Step]
"""A function that returns the step implemented by a plug-in."""


def _no_plugins(config: PluginStepConfig) -> Step:
    raise AssertionError(f"the step of '{config.transform}' needs its plug-in")


def make_step(
    section: StepSection, *, batch: bool, make_plugin: MakePluginStep = _no_plugins
) -> Step:
    """Return the step of a valid ``section``."""
    if section.plugin is not None:
        return make_plugin(section.plugin)
    kind, value = next((kind, value) for kind, value in section if value is not None)
    settings: dict[str, Any] = dict(value) if isinstance(value, Section) else {"names": value}
    return _STEPS[kind](batch=batch, **settings)


def make_transforms(
    config: TransformsConfig, make_plugin: MakePluginStep = _no_plugins
) -> RouteTransforms:
    """Return the transforms of a valid ``config``."""
    inputs, outputs = (
        [make_step(each, batch=config.batch, make_plugin=make_plugin) for each in sections]
        for sections in (config.inputs, config.outputs)
    )
    return RouteTransforms(inputs, outputs, batch=config.batch)
