"""The sections of routes.yaml on plug-ins, and the checks of their classes and options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, WithJsonSchema

from infergate.config import protocols
from infergate.config.fields import Name, PositiveDuration
from infergate.config.mistakes import Finding, KeyPath, suggestion
from infergate.config.section import Section
from infergate.plugin_host.loading import BACKENDS, HOOKS, TRANSFORMS, PluginError, load_class
from infergate.plugin_host.options import OptionsError, read_options
from infergate.plugins.hook import RequestHook
from infergate.plugins.model import PythonModel
from infergate.plugins.transform import TensorTransform

PluginOptions = Annotated[
    dict[str, Any], WithJsonSchema({"type": ["object"], "format": "options of the plug-in"})
]
"""The options of a plug-in. Its ``options_type`` validates them."""


class HookConfig(Section):
    """A request hook: plug-in code that runs before and after inferences (docs/plugins.md).

    Example: `{hook: "my_package:MyHook", options: {limit: 5}}`."""

    hook: Name = Field(
        description="The class of the hook, as `module:Class` or as the name of an entry point of "
        "the group `infergate.hooks`."
    )
    options: PluginOptions = Field(
        default={}, description="Options, which the hook defines and validates."
    )
    timeout: PositiveDuration = Field(
        default=1.0,
        description="Timeout of each call of the hook, before an inference or after a response.",
    )
    on_error: Literal["reject", "ignore"] = Field(
        default="reject",
        description="The reaction if the hook fails, times out or returns an invalid result. "
        "`reject` fails the inference with an error that names the hook. `ignore` continues as if "
        "the hook had changed nothing. A GatewayError from the hook always rejects the inference.",
    )


class PluginStepConfig(Section):
    """A step of `transform` that a plug-in implements (docs/plugins.md). Example: `plugin:
    {transform: "my_package:MyTransform"}`."""

    transform: Name = Field(
        description="The class of the transform, as `module:Class` or as the name of an entry "
        "point of the group `infergate.transforms`."
    )
    options: PluginOptions = Field(
        default={}, description="Options, which the transform defines and validates."
    )
    timeout: PositiveDuration = Field(default=1.0, description="Timeout of the step.")


_INTERFACES: Final[Mapping[str, Any]] = {
    "hook": (HOOKS, RequestHook),
    "model": (BACKENDS, PythonModel),
    "transform": (TRANSFORMS, TensorTransform),
}
"""The entry point group and the interface of a plug-in, by the key that names its class."""


def class_findings(
    path: KeyPath, key: str, reference: str, options: Mapping[str, Any]
) -> Iterator[Finding]:
    """Import the class of the plug-in at ``path``, and yield the errors in the class and its
    options. ``reference`` is the value of ``key``, which names the class."""
    try:
        plugin_class = load_class(reference, *_INTERFACES[key])
    except PluginError as error:
        yield (*path, key), str(error)
        return
    yield from _option_findings((*path, "options"), plugin_class.options_type, options)


def codec_findings(path: KeyPath, protocol: str, options: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the errors in ``options``, the options at ``path`` for the codec of ``protocol``."""
    codecs = protocols.codec_plugins()
    plugin = codecs.get(protocol)
    if plugin is None:
        yield path, f"no codec implements the protocol '{protocol}'{suggestion(protocol, codecs)}"
    elif plugin.options_type is not None or options:
        yield from _option_findings(path, plugin.options_type, options)


def _option_findings(
    path: KeyPath, options_type: type | None, options: Mapping[str, Any]
) -> Iterator[Finding]:
    try:
        read_options(options_type, options)
    except OptionsError as error:
        for below, text in error.findings:
            yield (*path, *below), text
