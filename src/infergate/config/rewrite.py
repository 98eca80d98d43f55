"""The section of routes.yaml on the names of a model and its tensors at a backend."""

from __future__ import annotations

from pydantic import Field

from infergate.config.fields import Name, Text
from infergate.config.section import Section


class RewriteConfig(Section):
    """Replacements for names that differ between clients and the backend. Other names are not
    changed.

    Example: `rewrite: {model: resnet50, inputs: {image: data}}`."""

    model: Text = Field(
        default="",
        description="The model's name at the backend. If the route's `model` is a regular "
        "expression, `\\1` or `\\g<name>` is replaced by the text that the group matched. Example: "
        "`bert_\\1`, for the route `/bert-(.*)/`.",
    )
    version: Text = Field(
        default="", description='The model version to request from the backend. Example: `"3"`.'
    )
    inputs: dict[str, Name] = Field(
        default={},
        description="The backend's name of each input, keyed by the client's name. Example: "
        "`{image: data}`.",
    )
    outputs: dict[str, Name] = Field(
        default={},
        description="The backend's name of each output, keyed by the client's name. Example: "
        "`{probs: prob}`.",
    )
