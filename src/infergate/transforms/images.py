"""The step that decodes images. It needs Pillow (``pip install infergate[images]``)."""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from infergate.core.datatypes import NUMPY_DTYPES, Datatype
from infergate.core.tensor import Tensor, unpack_bytes
from infergate.transforms.image_header import (
    BASE64_PREFIXES,
    DEFAULT_MAX_IMAGES,
    DEFAULT_MAX_PIXELS,
    ImageHeader,
    read_header,
)
from infergate.transforms.numeric import TensorStep
from infergate.transforms.step import ANY, BYTES, Spec, TransformError, check_datatype, check_shape
from infergate.transforms.text import decode_base64

if TYPE_CHECKING:
    from PIL import Image

PILLOW_MISSING: Final = "decode_image requires Pillow: pip install infergate[images]"
PIXEL_BYTES: Final = 20
"""The memory in bytes per pixel that decoding takes. There may be five copies with up to 4 bytes
per pixel: two canvases of the WebP decoder, the decoded image, the image in another mode, and
the rotated image."""
_COEFFICIENT_BYTES: Final = 56
"""The memory in bytes per row and per column that resizing takes: up to six float64 coefficients,
and some overhead."""
_ORIENTATION: Final = 0x0112
_WIDE_MODE_PREFIX: Final = "I"
"""The prefix of Pillow's modes for 16-bit grayscale images."""
_MAX_TEXT_BYTES: Final = 1 << 20
"""Maximum size in bytes of all text in a PNG after inflation. Pillow's default limit is 64 MiB."""
_TYPES: Final = frozenset({Datatype.UINT8, Datatype.FP16, Datatype.FP32})


def has_pillow() -> bool:
    """Return whether Pillow is installed, without importing it."""
    return importlib.util.find_spec("PIL") is not None


@dataclass(frozen=True, kw_only=True)
class DecodeImage(TensorStep):
    """Converts a BYTES tensor of encoded images, raw or in Base64, to a tensor of pixels. For float
    datatypes, each value is ``(pixel * scale - mean) / std``, computed in FP32.

    ``size`` is the height and the width of the result, or None if images keep their size."""

    datatype: Datatype = Datatype.UINT8
    layout: Literal["NCHW", "NHWC"] = "NHWC"
    color: Literal["RGB", "BGR", "L"] = "RGB"
    size: tuple[int, ...] | None = None
    resize: Literal["stretch", "crop", "pad"] = "stretch"
    shorter_side: int | None = None
    method: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] = "bilinear"
    scale: tuple[float, ...] = (1.0,)
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    exif_orientation: bool = True
    max_pixels: int = DEFAULT_MAX_PIXELS
    max_images: int = DEFAULT_MAX_IMAGES
    holds_interpreter_lock = True

    @property
    def channels(self) -> int:
        return 1 if self.color == "L" else 3

    def find_problem(self, *, is_input: bool) -> str:
        del is_input
        if self.datatype not in _TYPES:
            return "'datatype' must be UINT8, FP16 or FP32"
        if self.size is not None and len(self.size) != 2:
            return "'size' must be the height and the width"
        if self.size is None and (self.resize != "stretch" or self.shorter_side is not None):
            return "'resize' and 'shorter_side' require 'size'"
        if self.shorter_side is not None:
            assert self.size is not None
            if self.resize != "crop":
                return "'shorter_side' requires 'resize: crop'"
            if self.shorter_side < max(self.size):
                return f"'shorter_side' must be at least {max(self.size)}, the maximum of 'size'"
        if self.datatype is Datatype.UINT8 and (
            {*self.scale, *self.std} != {1.0} or {*self.mean} != {0.0}
        ):
            return "'scale', 'mean' and 'std' require 'datatype: FP32' or 'datatype: FP16'"
        for name in ("scale", "mean", "std"):
            if len(getattr(self, name)) not in {1, self.channels}:
                return f"'{name}' must have 1 or {self.channels} numbers, one for each channel"
        return "'std' must not be 0" if 0 in self.std else ""

    # ---- specs

    def _images_shape(self, batch: Sequence[int], size: tuple[int, ...]) -> tuple[int, ...]:
        inner = (self.channels, *size) if self.layout == "NCHW" else (*size, self.channels)
        return (*batch, *inner)

    def _batch(self, spec: Spec) -> tuple[int, ...]:
        """Return a tuple with the result's batch dimension, or an empty tuple without a batch."""
        check_datatype(self.tensor, spec, BYTES)
        shape = spec.shape
        if any(size not in {1, ANY} for size in (shape[1:] if self.batch else shape)):
            expected = "[N] or [N, 1]" if self.batch else "[] or [1]"
            raise TransformError(self.tensor, f"expected shape {expected}, got {list(shape)}")
        if not self.batch:
            return ()
        return shape[:1] or (1,)

    def forward_specs(self, *before: Spec) -> Sequence[Spec]:
        (spec,) = before
        size = self.size or (ANY, ANY)
        return (Spec(self.datatype.v2_name, self._images_shape(self._batch(spec), size)),)

    def backward_specs(self, *after: Spec) -> Sequence[Spec]:
        (spec,) = after
        check_datatype(self.tensor, spec, self.datatype.v2_name)
        batch = spec.shape[:1] if self.batch else ()
        check_shape(self.tensor, spec, self._images_shape(batch, self.size or (ANY, ANY)))
        return (Spec(BYTES, batch or (1,)),)

    # ---- images

    def measure(self, tensor: Tensor) -> tuple[Spec, int]:
        """Read only the headers of the images. Return the spec of the result for ``tensor``, and
        the memory in bytes that decoding takes in addition to the result. Raises TransformError for
        too many images, and for images that are invalid or too large."""
        (spec,) = self.forward_specs(Spec(BYTES, tensor.shape))
        count = math.prod(tensor.shape)
        if count > self.max_images:
            raise TransformError(
                self.tensor, f"{count} images; the limit is {self.max_images} (max_images)"
            )
        total = work = 0
        sizes = set()
        for index, element in enumerate(unpack_bytes(tensor.data)):
            header = self._header(index, self._encoded_image(index, element))
            total += header.pixels
            resampled = self._resampled_pixels(header)
            if max(total, resampled) > self.max_pixels:
                subject = f"element {index}: an image of {header.width} x {header.height} pixels"
                limit = (
                    "the limit on pixels of all images together, and of a resized image, is "
                    f"{self.max_pixels}"
                )
                raise TransformError(self.tensor, f"{subject}; {limit} (max_pixels)")
            sides = header.width + header.height
            pixels = header.pixels + resampled
            work = max(work, pixels * PIXEL_BYTES + sides * _COEFFICIENT_BYTES)
            sizes.add((header.height, header.width))
        if self.size is None:
            spec = self._with_largest_size(spec, sizes)
        return spec, work

    def _resampled_pixels(self, header: ImageHeader) -> int:
        """Return an upper limit for the pixels of the resized image, and of the intermediate image
        between the horizontal and the vertical pass of resizing. The intermediate image is huge if
        the original is one pixel wide."""
        if self.size is None:
            return 0
        sides = header.width, header.height
        target = max(self.size)
        if self.shorter_side is not None:
            target = self.shorter_side * max(sides) // min(sides) + 1
        return target * max(*sides, *self.size)

    def _with_largest_size(self, spec: Spec, sizes: set[tuple[int, int]]) -> Spec:
        """Return ``spec`` with the shape for the largest of ``sizes``, which are pairs of height
        and width. The shape after decoding may differ, because an EXIF orientation may swap height
        and width."""
        height, width = max(sizes, key=math.prod, default=(0, 0))
        batch = spec.shape[:1] if self.batch else ()
        return replace(spec, shape=self._images_shape(batch, (height, width)))

    def _encoded_image(self, index: int, element: bytes) -> bytes:
        if not element.startswith(BASE64_PREFIXES):
            return element
        try:
            return decode_base64(element)
        except ValueError:
            raise TransformError(self.tensor, f"element {index} is not Base64") from None

    def _header(self, index: int, data: bytes) -> ImageHeader:
        try:
            return read_header(data)
        except ValueError as error:
            raise TransformError(self.tensor, f"element {index}: {error}") from None

    def apply_tensors(self, *before: Tensor) -> Sequence[Tensor]:
        (tensor,) = before
        (spec,) = self.forward_specs(Spec(BYTES, tensor.shape))
        batch = spec.shape[:1] if self.batch else ()
        count = math.prod(tensor.shape)
        result: npt.NDArray[Any] | None = None
        if not count:
            result = np.empty((0, *self._images_shape((), self.size or (0, 0))))
        for index, element in enumerate(unpack_bytes(tensor.data)):
            pixels = self._decode(index, self._encoded_image(index, element))
            if result is None:
                result = np.empty((count, *pixels.shape), NUMPY_DTYPES[self.datatype])
            if pixels.shape != result.shape[1:]:
                raise TransformError(
                    self.tensor, f"element {index} differs in size from element 0; set 'size'"
                )
            result[index] = pixels
        assert result is not None
        data = memoryview(result.astype(NUMPY_DTYPES[self.datatype], copy=False).tobytes())
        return (Tensor(self.tensor, self.datatype, (*batch, *result.shape[1:]), data),)

    def _decode(self, index: int, data: bytes) -> npt.NDArray[Any]:
        header = self._header(index, data)
        try:
            pixels = self._read_pixels(data, header)
        except Exception as error:  # noqa: BLE001 - Pillow raises errors of many kinds
            # The text of other errors may contain memory addresses.
            reason = f": {error}" if type(error) in {OSError, ValueError} else ""
            problem = f"element {index}: the {header.format} image cannot be decoded{reason}"
            raise TransformError(self.tensor, problem) from None
        if self.datatype is not Datatype.UINT8:
            scale, mean, std = (
                # numpy is several times faster with a scalar than with an array.
                np.array(numbers if len(numbers) > 1 else numbers[0], np.float32)
                for numbers in (self.scale, self.mean, self.std)
            )
            with np.errstate(over="ignore"):
                pixels = ((pixels * scale - mean) / std).astype(NUMPY_DTYPES[self.datatype])
        return pixels.transpose(2, 0, 1) if self.layout == "NCHW" else pixels

    def _read_pixels(self, data: bytes, header: ImageHeader) -> npt.NDArray[Any]:
        """Return the pixels as a UINT8 array of shape ``[height, width, channels]``."""
        from PIL import Image, PngImagePlugin  # noqa: PLC0415 - Pillow is optional

        PngImagePlugin.MAX_TEXT_MEMORY = min(PngImagePlugin.MAX_TEXT_MEMORY, _MAX_TEXT_BYTES)
        with Image.open(io.BytesIO(data), formats=(header.format,)) as image:
            if image.size != (header.width, header.height):
                raise ValueError("its header has two sizes")
            orientation = image.getexif().get(_ORIENTATION) if self.exif_orientation else None
            converted = self._convert(image)
        oriented = _apply_orientation(converted, orientation)
        resized = oriented if self.size is None else self._resize(oriented)
        pixels = np.asarray(resized)
        if self.color == "L":
            return pixels[:, :, np.newaxis]
        return pixels[:, :, ::-1] if self.color == "BGR" else pixels

    def _convert(self, image: Image.Image) -> Image.Image:
        from PIL import Image as images  # noqa: N813, PLC0415

        mode = "L" if self.color == "L" else "RGB"
        if image.mode.startswith(_WIDE_MODE_PREFIX):  # Pillow would clip the values at 255
            wide = np.asarray(image)
            return images.fromarray((wide.astype(np.uint32) >> 8).astype(np.uint8)).convert(mode)
        if image.mode == "P" and "transparency" in image.info:
            return image.convert("RGBA").convert(mode)
        return image.convert(mode)

    def _resize(self, image: Image.Image) -> Image.Image:
        from PIL import Image as images  # noqa: N813, PLC0415
        from PIL import ImageOps  # noqa: PLC0415

        assert self.size is not None
        height, width = self.size
        method = images.Resampling[self.method.upper()]
        if self.resize == "pad":
            return ImageOps.pad(image, (width, height), method)
        if self.resize == "stretch":
            return image.resize((width, height), method)
        if self.shorter_side is None:
            return ImageOps.fit(image, (width, height), method)
        shorter = min(image.size)
        scaled = [int(self.shorter_side * side / shorter) for side in image.size]
        left, top = round((scaled[0] - width) / 2), round((scaled[1] - height) / 2)
        resized = image.resize((scaled[0], scaled[1]), method)
        return resized.crop((left, top, left + width, top + height))


def _apply_orientation(image: Image.Image, orientation: Any) -> Image.Image:
    """Return ``image`` rotated or flipped according to its EXIF ``orientation``."""
    from PIL import Image as images  # noqa: N813, PLC0415

    operation = {
        2: images.Transpose.FLIP_LEFT_RIGHT,
        3: images.Transpose.ROTATE_180,
        4: images.Transpose.FLIP_TOP_BOTTOM,
        5: images.Transpose.TRANSPOSE,
        6: images.Transpose.ROTATE_270,
        7: images.Transpose.TRANSVERSE,
        8: images.Transpose.ROTATE_90,
    }.get(orientation)
    return image if operation is None else image.transpose(operation)
