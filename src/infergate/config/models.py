"""The section of routes.yaml on models whose backends do not provide metadata."""

from __future__ import annotations

from pydantic import Field

from infergate.config.fields import Dimension, Name, NonNegative, TensorType, Text
from infergate.config.section import Section
from infergate.core.messages import ModelMetadata, TensorMetadata


class TensorConfig(Section):
    """An input or output of a declared model.

    Example: `{name: image, datatype: FP32, shape: [-1, 3, 224, 224]}`."""

    name: Name = Field(description="The tensor's name, as clients use it.")
    datatype: TensorType = Field(
        description="The datatype, by its name in the Open Inference Protocol."
    )
    shape: tuple[Dimension, ...] = Field(
        description="The dimensions, including the batch dimension; `-1` means any size. Example: "
        "`[-1, 3, 224, 224]`."
    )

    @property
    def metadata(self) -> TensorMetadata:
        """The tensor as in the metadata of a model."""
        return TensorMetadata(self.name, self.datatype.value, self.shape)


class DeclaredModelConfig(Section):
    """Metadata of a model whose backend does not provide it, such as datatypes for a GraphPipe
    server. It takes precedence over metadata from the backend."""

    max_batch_size: NonNegative = Field(
        default=0,
        description="Maximum batch size reported in the model's metadata. With `0`, the shapes "
        "have no batch dimension.",
    )
    inputs: tuple[TensorConfig, ...] = Field(default=(), description="The input tensors.")
    outputs: tuple[TensorConfig, ...] = Field(default=(), description="The output tensors.")
    platform: Text = Field(
        default="",
        description="The framework reported in the model's metadata. Example: `onnxruntime_onnx`.",
    )
    versions: tuple[Text, ...] = Field(
        default=(), description='Versions reported in the model\'s metadata. Example: `["1", "2"]`.'
    )

    def metadata(self, name: str) -> ModelMetadata:
        """Return the metadata of the model, which clients call ``name``."""
        return ModelMetadata(
            name=name,
            versions=self.versions,
            platform=self.platform,
            inputs=tuple(tensor.metadata for tensor in self.inputs),
            outputs=tuple(tensor.metadata for tensor in self.outputs),
            properties={"max_batch_size": str(self.max_batch_size)},
            max_batch_size=self.max_batch_size,
        )
