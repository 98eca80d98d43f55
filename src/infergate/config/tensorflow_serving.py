"""The section of routes.yaml on the names that only clients of TensorFlow Serving use."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from infergate.config.fields import Name, Text
from infergate.config.section import Section

Version = Annotated[Text, Field(pattern=r"^[0-9]{1,19}$")]


class TensorFlowModelConfig(Section):
    """Version labels and signatures of one model.

    Example: `{labels: {stable: "3"}, signatures: {embed: resnet-embed}}`."""

    labels: dict[str, Version] = Field(
        default={},
        description="Versions by label. A label that is not listed here is sent to backends that "
        "speak TensorFlow Serving's protocol; for other backends, the request is rejected. "
        'Example: `{stable: "3", canary: "4"}`.',
    )
    signatures: dict[str, Name] = Field(
        default={},
        description="Models by signature: a request for the signature is sent to the route of "
        "that model, as a request for the model's default signature. A signature that is not "
        "listed here is sent to backends that speak TensorFlow Serving's protocol; for other "
        "backends, only `serving_default` is accepted. Example: `{embed: resnet-embed}`.",
    )


class TensorFlowServingConfig(Section):
    """Names that only clients of TensorFlow Serving use."""

    version_zero: Literal["default", "literal"] = Field(
        default="default",
        description="The meaning of version 0 in a request. `default` means no version, as "
        "intended by OpenVINO's client. `literal` means version 0, as in TensorFlow Serving.",
    )
    models: dict[str, TensorFlowModelConfig] = Field(
        default={},
        description="Version labels and signatures by model, under the name that clients use. "
        'Example: `{resnet: {labels: {stable: "3"}}}`.',
    )

    def codec_options(self) -> dict[str, Any]:
        """Return the values of this section as codec options."""
        return {
            "version_zero": self.version_zero,
            "labels": {name: model.labels for name, model in self.models.items()},
            "signatures": {name: model.signatures for name, model in self.models.items()},
        }
