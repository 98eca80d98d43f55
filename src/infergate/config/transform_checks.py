"""Checks the settings of transform steps, and whether the steps fit the declared models."""

from __future__ import annotations

from collections.abc import Iterator

from infergate.config.mistakes import Finding, KeyPath
from infergate.config.models import DeclaredModelConfig
from infergate.config.outline import Outline
from infergate.config.plugins import class_findings
from infergate.config.transform_steps import make_step, make_transforms
from infergate.config.transforms import TransformsConfig, kinds_of, plugin_steps, step_sections
from infergate.transforms.images import PILLOW_MISSING, DecodeImage, has_pillow


def transform_findings(outline: Outline) -> Iterator[Finding]:
    """Yield an error for each step with invalid settings. If a route has neither such a step nor a
    plug-in step, yield an error for its first step that does not fit the declared model."""
    for index, route in outline.routes.items():
        transforms = route.transforms
        if transforms is None:
            continue
        base: KeyPath = ("routes", index, "transforms")
        findings = [((*base, *path), problem) for path, problem in _step_findings(transforms)]
        yield from findings
        declared = outline.models.get(route.model)
        # The metadata of a plug-in's tensors is unknown until the plug-in is created.
        if declared is not None and not findings and not any(plugin_steps(transforms)):
            yield from _model_findings(base, transforms, declared)


def _step_findings(transforms: TransformsConfig) -> Iterator[Finding]:
    for path, section in step_sections(transforms):
        kinds = kinds_of(section)
        if len(kinds) != 1:
            found = f", got {' and '.join(kinds)}" if kinds else ""
            yield path, f"expected exactly one kind of step{found}"
            continue
        if section.plugin is not None:
            plugin = section.plugin
            plugin_path = (*path, "plugin")
            yield from class_findings(plugin_path, "transform", plugin.transform, plugin.options)
            continue
        step = make_step(section, batch=transforms.batch)
        problem = step.find_problem(is_input=path[0] == "inputs")
        if not problem and isinstance(step, DecodeImage) and not has_pillow():
            problem = PILLOW_MISSING
        if problem:
            yield (*path, kinds[0]), problem


def _model_findings(
    base: KeyPath, transforms: TransformsConfig, declared: DeclaredModelConfig
) -> Iterator[Finding]:
    mismatch = make_transforms(transforms).find_mismatch(declared.metadata(""))
    if mismatch is not None:
        is_input, position, problem = mismatch
        side = "inputs" if is_input else "outputs"
        section = getattr(transforms, side)[position]
        path = (*base, side, position, kinds_of(section)[0])
        yield path, f"the step does not fit the declared model: {problem}"
