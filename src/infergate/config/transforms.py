"""The sections of routes.yaml that describe the transforms of a route."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from infergate.config.fields import (
    Dimension,
    Labels,
    Name,
    NonNegative,
    Positive,
    TensorType,
    Text,
    YamlValue,
)
from infergate.config.mistakes import KeyPath
from infergate.config.plugins import PluginStepConfig
from infergate.config.section import Section
from infergate.config.values import describe_value
from infergate.core.datatypes import Datatype
from infergate.transforms.image_header import DEFAULT_MAX_IMAGES, DEFAULT_MAX_PIXELS

_FRACTION: Final = re.compile(r"\s*(-?[0-9.]+)\s*/\s*([0-9.]+)\s*")
_MAX_RANK: Final = 16
_PILLOW_MAX_PIXELS: Final = 89_478_485
"""Pillow warns about larger images, and rejects images with more than twice this number of
pixels."""


def _parse_number(value: Any) -> float:
    """Parse a finite number, or a fraction such as ``1/255``."""
    if isinstance(value, str) and (match := _FRACTION.fullmatch(value)):
        try:
            return float(match[1]) / float(match[2])
        except (ValueError, ZeroDivisionError):
            pass
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"expected a number or a fraction like 1/255, got {describe_value(value)}")
    return float(value)


def _parse_numbers(value: Any) -> tuple[float, ...]:
    values = value if isinstance(value, list | tuple) else (value,)
    if not values:
        raise ValueError("must not be empty")
    return tuple(map(_parse_number, values))


def _parse_elements(value: Any) -> tuple[Any, ...]:
    if isinstance(value, list | tuple):
        return tuple(element for item in value for element in _parse_elements(item))
    if isinstance(value, bool | int | float | str):
        return (value,)
    raise ValueError(f"expected numbers, strings, true or false, got {describe_value(value)}")


Numbers = Annotated[
    tuple[float, ...],
    YamlValue(
        _parse_numbers,
        "number, or list of numbers",
        type=["number", "string", "array"],
        items={"type": ["number", "string"]},
    ),
]
"""One number, or one number for each channel or index of an axis."""
_ELEMENT_TYPES: Final = ["number", "string", "boolean", "array"]
Elements = Annotated[
    tuple[Any, ...], YamlValue(_parse_elements, "value, or nested lists", type=_ELEMENT_TYPES)
]
Axis = Annotated[int, Field(ge=-_MAX_RANK, lt=_MAX_RANK)]
Shape = Annotated[tuple[Dimension, ...], Field(max_length=_MAX_RANK)]


class _TensorSection(Section):
    """The section of a step for one tensor."""

    tensor: Name = Field(description="The tensor's name before this step.")


class CastConfig(_TensorSection):
    """Converts the datatype. A float that becomes an integer is truncated. A value that the new
    datatype cannot hold is an error. Example: `cast: {tensor: x, from: FP64, to: FP32}`."""

    from_: TensorType | None = Field(
        default=None,
        alias="from",
        description="The datatype before this step. Any other datatype is an error. The key is "
        "required for inputs, because clients see this datatype in the metadata.",
    )
    to: TensorType = Field(description="The datatype after this step.")


class ScaleConfig(_TensorSection):
    """Multiplies a float tensor by `factor`, then adds `offset`. Example: `scale: {tensor: x,
    factor: 1/255, offset: -0.5}`."""

    factor: Numbers = Field(
        default=(1.0,), description="A number, or a list with one number per index of `axis`."
    )
    offset: Numbers = Field(
        default=(0.0,), description="A number, or a list with one number per index of `axis`."
    )
    axis: Axis = Field(
        default=-1,
        description="The axis to which the lists apply. Negative axes count from the end.",
    )


class TransposeConfig(_TensorSection):
    """Reorders the dimensions. Example, from NHWC to NCHW: `transpose: {tensor: image, order: [0,
    3, 1, 2]}`."""

    order: Annotated[tuple[NonNegative, ...], Field(max_length=_MAX_RANK)] = Field(
        min_length=1,
        description="The old dimensions in their new order, as in `numpy.transpose`. The batch "
        "must stay first.",
    )


class ReshapeConfig(_TensorSection):
    """Changes the shape and keeps the batch. Example: `reshape: {tensor: image, from: [784], to:
    [1, 28, 28]}`."""

    from_: Shape | None = Field(
        default=None,
        alias="from",
        description="The shape before this step, without the batch. -1 matches any size. Any "
        "other shape is an error. The key is required for inputs, because clients see this shape "
        "in the metadata.",
    )
    to: Shape = Field(
        description="The shape after this step, without the batch. One dimension may be -1: its "
        "size follows from the other dimensions."
    )


class CopyConfig(_TensorSection):
    """Adds a copy of a tensor. Example: `copy: {tensor: logits, to: scores}`."""

    to: Name = Field(description="The name of the copy.")


class ConcatenateConfig(Section):
    """Joins tensors. Example: `concatenate: {tensors: [age, income], to: features, axis: 1}`."""

    tensors: tuple[Name, ...] = Field(min_length=2, description="The tensors, in order.")
    to: Name = Field(description="The name of the joined tensor.")
    axis: Axis = Field(default=-1, description="The axis, which must not be the batch.")


class SplitConfig(_TensorSection):
    """Splits a tensor. Example: `split: {tensor: features, to: {age: 1, income: 3}, axis: 1}`."""

    to: dict[str, Positive] = Field(
        min_length=1, description="The name of each part and its size on `axis`, in order."
    )
    axis: Axis = Field(default=-1, description="The axis, which must not be the batch.")


class Base64Config(_TensorSection):
    """Decodes each element of a BYTES tensor from Base64, or encodes it as Base64. Example:
    `base64_decode: {tensor: audio}`."""


class TextConfig(_TensorSection):
    """Converts text (BYTES) to its UTF-8 bytes as numbers, or such numbers to text. The tensor of
    numbers has one more dimension. Example: `text_encode: {tensor: text, length: 128}`."""

    datatype: TensorType = Field(
        default=Datatype.UINT8,
        description="Datatype of the numbers: UINT8, UINT16, INT32 or INT64.",
    )
    length: Positive = Field(
        description="The number of bytes per text, which is the size of the added dimension."
    )
    pad: int = Field(
        default=0,
        description="The value used for padding. Decoding removes the padding.",
    )
    too_long: Literal["error", "truncate"] = Field(
        default="error",
        description="Whether a text longer than `length` is an error or is truncated.",
    )


class DecodeImageConfig(_TensorSection):
    """Decodes JPEG, PNG and WebP images, raw or in Base64. A BYTES tensor of the shape [N] or [N,
    1] becomes the pixels of N images. Requires `pip install infergate[images]`. Example:
    `decode_image: {tensor: image, datatype: FP32, layout: NCHW, size: [224, 224], scale: 1/255}`.
    """

    datatype: TensorType = Field(
        default=Datatype.UINT8, description="Datatype of the pixels: UINT8, FP16 or FP32."
    )
    layout: Literal["NCHW", "NHWC"] = Field(
        default="NHWC", description="The order of the dimensions: channels (C) first or last."
    )
    color: Literal["RGB", "BGR", "L"] = Field(
        default="RGB",
        description="The channels; `L` is grayscale. Images with other channels are converted: "
        "transparency is dropped, and 16-bit values are reduced to 8 bits.",
    )
    size: tuple[Positive, ...] | None = Field(
        default=None,
        description="Height and width of the result. By default, images keep their size, and all "
        "images of a request must have the same size.",
    )
    resize: Literal["stretch", "crop", "pad"] = Field(
        default="stretch",
        description="How an image with another aspect ratio is fitted to `size`: `stretch` "
        "distorts the image, `crop` keeps its center, and `pad` adds black bars.",
    )
    shorter_side: Positive | None = Field(
        default=None,
        description="With `crop`: scale the image until its shorter side has this many pixels, "
        "then cut out the center, like torchvision's `Resize` and `CenterCrop`. By default, as "
        "much of the image as possible is kept. Example: `256` for the size `[224, 224]`.",
    )
    method: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] = Field(
        default="bilinear", description="Pillow's method of resampling."
    )
    scale: Numbers = Field(
        default=(1.0,),
        description="Factor for each pixel, for float datatypes: `(pixel * scale - mean) / std`. "
        "Example: `1/255`.",
    )
    mean: Numbers = Field(
        default=(0.0,),
        description="Mean to subtract, or a mean for each channel. Example: `[0.485, 0.456, "
        "0.406]`.",
    )
    std: Numbers = Field(
        default=(1.0,),
        description="Standard deviation to divide by, or a standard deviation for each channel. "
        "Example: `[0.229, 0.224, 0.225]`.",
    )
    exif_orientation: bool = Field(
        default=True, description="Rotate and flip images according to their EXIF orientation."
    )
    max_pixels: Annotated[int, Field(ge=1, le=_PILLOW_MAX_PIXELS)] = Field(
        default=DEFAULT_MAX_PIXELS,
        description="Maximum total number of pixels in the images of an input before resizing. "
        "During and after resizing, the limit applies to each image separately. It is checked "
        "before an image is decoded.",
    )
    max_images: Positive = Field(
        default=DEFAULT_MAX_IMAGES, description="Maximum number of images per input."
    )


class ConstantConfig(_TensorSection):
    """An input with a configured value. Example: `constant: {tensor: threshold, datatype: FP32,
    shape: [1], value: 0.5}`."""

    tensor: Name = Field(description="The name of the input.")
    datatype: TensorType = Field(description="The datatype.")
    shape: Shape = Field(
        default=(),
        description="The shape without the batch. The value is repeated for each batch element.",
    )
    value: Elements = Field(
        description="One value for all elements, or all elements as (nested) lists."
    )


class SoftmaxConfig(_TensorSection):
    """Computes the softmax of a float tensor. Example: `softmax: {tensor: logits}`."""

    axis: Axis = Field(default=-1, description="The axis, which must not be the batch.")


class ArgmaxConfig(_TensorSection):
    """Replaces scores with the position of the largest score, as INT64. Example: `argmax: {tensor:
    logits, to: class}`."""

    to: Text = Field(default="", description="The new name. By default, the name does not change.")
    axis: Axis = Field(
        default=-1, description="The axis, which must not be the batch. This dimension is removed."
    )


class TopKConfig(_TensorSection):
    """Replaces scores with the largest scores of each row (the last dimension), in descending
    order. Example: `top_k: {tensor: probs, k: 5, values: scores, indices: classes}`."""

    k: Positive = Field(description="The number of scores per row.")
    values: Text = Field(default="", description="The name of the output with the scores.")
    indices: Text = Field(
        default="", description="The name of the output with the scores' positions, as INT64."
    )
    labels: Text = Field(
        default="", description="The name of the output with the scores' labels, as BYTES."
    )
    classes: Labels = Field(
        default=(),
        description="The labels of all classes, in order, as a list or as the path (relative to "
        "routes.yaml) of a text file with one label per line.",
    )


class StepSection(Section):
    """A step. The key that is set determines the kind of step."""

    cast: CastConfig | None = Field(default=None, description="Convert the datatype.")
    scale: ScaleConfig | None = Field(default=None, description="Multiply and add.")
    transpose: TransposeConfig | None = Field(default=None, description="Reorder the dimensions.")
    reshape: ReshapeConfig | None = Field(
        default=None, description="Change the shape, except the batch."
    )
    rename: dict[str, Name] | None = Field(
        default=None,
        description="New names of tensors, keyed by the names before this step. Example: `rename: "
        "{image: data}`.",
    )
    copy_: CopyConfig | None = Field(default=None, alias="copy", description="Copy a tensor.")
    concatenate: ConcatenateConfig | None = Field(default=None, description="Join tensors.")
    split: SplitConfig | None = Field(default=None, description="Split a tensor.")
    base64_decode: Base64Config | None = Field(default=None, description="Decode Base64.")
    base64_encode: Base64Config | None = Field(default=None, description="Encode as Base64.")
    text_encode: TextConfig | None = Field(default=None, description="Convert text to numbers.")
    text_decode: TextConfig | None = Field(default=None, description="Convert numbers to text.")
    plugin: PluginStepConfig | None = Field(
        default=None, description="A step that a plug-in implements."
    )


class InputStepConfig(StepSection):
    """An input step. Exactly one of these keys is required."""

    decode_image: DecodeImageConfig | None = Field(default=None, description="Decode images.")
    constant: ConstantConfig | None = Field(
        default=None, description="Add an input that clients do not see and cannot send."
    )
    default: ConstantConfig | None = Field(
        default=None, description="Add an input if the client does not send it."
    )


class OutputStepConfig(StepSection):
    """An output step. Exactly one of these keys is required."""

    softmax: SoftmaxConfig | None = Field(default=None, description="Compute the softmax.")
    argmax: ArgmaxConfig | None = Field(default=None, description="Find the largest score.")
    top_k: TopKConfig | None = Field(default=None, description="Find the largest scores.")
    select: tuple[Name, ...] | None = Field(
        default=None,
        description="Keep only these outputs, in this order. Example: `select: [probs]`.",
    )
    drop: tuple[Name, ...] | None = Field(
        default=None, description="Remove these outputs. Example: `drop: [debug]`."
    )


class TransformsConfig(Section):
    """Changes of the tensors between clients and the backend, for clients of every protocol
    (docs/transforms.md). Clients see the changed tensors in the model's metadata. If the route has
    a `rewrite`, steps use the clients' names. The top-level `models` declares the backend's
    tensors."""

    batch: bool = Field(
        default=True,
        description="Whether the first dimension of every tensor is the batch. With `true`, steps "
        "do not change the batch, their shapes do not include it, and no step may use axis 0, "
        "which is the batch.",
    )
    inputs: tuple[InputStepConfig, ...] = Field(
        default=(),
        description="Steps from the client's inputs to the backend's inputs, in this order.",
    )
    outputs: tuple[OutputStepConfig, ...] = Field(
        default=(),
        description="Steps from the backend's outputs to the client's outputs, in this order.",
    )


def kinds_of(section: StepSection) -> list[str]:
    """Return the kinds of steps in ``section``, as keys of routes.yaml. A valid section has exactly
    one kind."""
    return [kind.rstrip("_") for kind, settings in section if settings is not None]


def plugin_steps(config: TransformsConfig | None) -> Iterator[PluginStepConfig]:
    """Yield the steps of ``config`` that plug-ins implement."""
    for section in () if config is None else (*config.inputs, *config.outputs):
        if section.plugin is not None:
            yield section.plugin


def step_sections(config: TransformsConfig) -> Iterator[tuple[KeyPath, StepSection]]:
    """Yield each step of ``config`` with its path."""
    for index, item in enumerate(config.inputs):
        yield ("inputs", index), item
    for index, step in enumerate(config.outputs):
        yield ("outputs", index), step
