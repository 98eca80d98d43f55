"""Tests the decoding of images, in comparison with Pillow and numpy, and the limits of decoding."""

from __future__ import annotations

import base64
import io
import math
import zlib
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from images import chunk, encoded, images_tensor, photo, png_bomb
from PIL import Image, ImageOps

from gateway_errors import error_of, raises_kind
from infergate.core.datatypes import Datatype
from infergate.core.errors import Kind
from infergate.core.tensor import Tensor
from infergate.transforms import image_header
from infergate.transforms.image_header import read_header
from infergate.transforms.images import DecodeImage
from infergate.transforms.route_transforms import RouteTransforms
from searching import examples

PHOTO = photo()
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def decode(tensor: Tensor, **settings: Any) -> npt.NDArray[Any]:
    """Decode ``tensor`` as for a request, and check the result's size against ``measure``."""
    step = DecodeImage(tensor="image", **settings)
    assert not step.find_problem(is_input=True)
    (group,) = RouteTransforms([step], (), batch=step.batch).input_groups
    sizes = group.measure([tensor])
    (result,) = group.run([tensor])
    assert len(result.data) <= sizes.result <= sizes.total
    assert result.datatype is step.datatype
    return result.numpy()


def failure(tensor: Tensor, **settings: Any) -> str:
    """Return the error of decoding ``tensor``."""
    with raises_kind(Kind.BAD_REQUEST) as caught:
        decode(tensor, **settings)
    assert caught.value.public.startswith("input 'image': ")
    return caught.value.public


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
    ],
)
def test_each_format_is_decoded_as_by_pillow(kind: str, options: dict[str, Any]) -> None:
    data = encoded(PHOTO, kind, **options)
    header = read_header(data)
    assert (header.format, header.width, header.height) == (kind, 30, 20)
    expected = np.asarray(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(decode(images_tensor(data)), expected[np.newaxis])


def test_binary_and_base64_images_are_decoded_in_a_batch_of_any_shape() -> None:
    first, second = encoded(PHOTO, "JPEG"), encoded(photo(seed=1))
    texts = [base64.b64encode(image) for image in (first, second)]
    expected = decode(images_tensor(first, second))
    equal = np.testing.assert_array_equal
    equal(decode(images_tensor(*texts, shape=(2, 1))), expected)
    equal(decode(images_tensor(texts[0], second)), expected)
    equal(decode(images_tensor(first, shape=())), expected[:1])
    equal(decode(images_tensor(first), batch=False), expected[0])
    assert decode(images_tensor(), size=(4, 5)).shape == (0, 4, 5, 3)


def test_values_are_normalized_and_channels_come_first() -> None:
    result = decode(
        images_tensor(encoded(PHOTO)),
        datatype=Datatype.FP32,
        layout="NCHW",
        size=(16, 16),
        method="bicubic",
        scale=(1 / 255,),
        mean=MEAN,
        std=STD,
    )
    resized = np.asarray(Image.fromarray(PHOTO).resize((16, 16), Image.Resampling.BICUBIC))
    mean, std = np.array(MEAN, np.float32), np.array(STD, np.float32)
    expected = (resized * np.float32(1 / 255) - mean) / std
    np.testing.assert_array_equal(result, expected.transpose(2, 0, 1)[np.newaxis])
    half = decode(images_tensor(encoded(PHOTO)), datatype=Datatype.FP16, scale=(1 / 255,))
    np.testing.assert_array_equal(half[0], (PHOTO * np.float32(1 / 255)).astype(np.float16))


@pytest.mark.parametrize(("height", "width"), [(20, 30), (30, 20), (7, 50)])
def test_resizing_crops_and_pads_as_pillow_and_torchvision_do(height: int, width: int) -> None:
    pixels = photo(height, width)
    image, data = Image.fromarray(pixels), images_tensor(encoded(pixels))
    bilinear = Image.Resampling.BILINEAR
    cropped = ImageOps.fit(image, (12, 8), bilinear)
    np.testing.assert_array_equal(decode(data, size=(8, 12), resize="crop")[0], cropped)
    padded = ImageOps.pad(image, (12, 8), bilinear)
    np.testing.assert_array_equal(decode(data, size=(8, 12), resize="pad")[0], padded)
    # torchvision: Resize(16), then CenterCrop((8, 12))
    scaled = (16, int(16 * height / width)) if width < height else (int(16 * width / height), 16)
    left, top = round((scaled[0] - 12) / 2.0), round((scaled[1] - 8) / 2.0)
    central = image.resize(scaled, bilinear).crop((left, top, left + 12, top + 8))
    result = decode(data, size=(8, 12), resize="crop", shorter_side=16)
    np.testing.assert_array_equal(result[0], central)


def test_colors_are_converted_to_bgr_or_gray() -> None:
    data = images_tensor(encoded(PHOTO))
    np.testing.assert_array_equal(decode(data, color="BGR")[0], PHOTO[:, :, ::-1])
    gray = np.asarray(Image.fromarray(PHOTO).convert("L"))
    np.testing.assert_array_equal(decode(data, color="L")[0], gray[:, :, np.newaxis])


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "I;16"])
def test_unusual_color_modes_become_rgb(mode: str) -> None:
    if mode == "I;16":
        data = encoded(PHOTO[:, :, 0].astype(np.uint16) * 257)
        expected = np.repeat(PHOTO[:, :, :1], 3, axis=2)
    else:
        image = Image.fromarray(PHOTO).convert(mode)
        kind = "JPEG" if mode in {"CMYK", "YCbCr"} else "PNG"
        data = encoded(image, kind, **({"transparency": b"\x00\x80"} if mode == "P" else {}))
        opened = Image.open(io.BytesIO(data))
        opaque = opened.convert("RGBA") if mode == "P" else opened
        expected = np.asarray(opaque.convert("RGB"))
    np.testing.assert_array_equal(decode(images_tensor(data))[0], expected)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_images_are_rotated_by_their_exif_orientation(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(PHOTO, kind, exif=exif)
    stored = Image.open(io.BytesIO(data))
    rotated = np.asarray(ImageOps.exif_transpose(stored))
    np.testing.assert_array_equal(decode(images_tensor(data))[0], rotated)
    unrotated = decode(images_tensor(data), exif_orientation=False)[0]
    np.testing.assert_array_equal(unrotated, np.asarray(stored))


def test_the_first_frame_of_an_animation_is_decoded() -> None:
    frames = [Image.fromarray(photo(seed=seed)) for seed in range(3)]
    for kind in ("PNG", "WEBP"):
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
        np.testing.assert_array_equal(decode(images_tensor(data))[0], photo(seed=0))


# ---- limits and invalid images


def test_a_decompression_bomb_is_refused_by_its_header() -> None:
    bomb = png_bomb(10_000, 10_000)
    assert len(bomb) < 20_000
    good = encoded(PHOTO)
    error = failure(images_tensor(good, bomb), size=(8, 8))
    assert "element 1: an image of 10000 x 10000 pixels" in error
    assert "67108864 (max_pixels)" in error


def test_the_limits_of_pixels_and_images_apply_to_a_whole_tensor() -> None:
    data = encoded(PHOTO)
    assert decode(images_tensor(data, data), max_pixels=1200).shape == (2, 20, 30, 3)
    assert "element 1" in failure(images_tensor(data, data), max_pixels=1199)
    assert "3 images; the limit is 2" in failure(images_tensor(data, data, data), max_images=2)


def test_a_thin_image_is_refused_because_resizing_it_would_take_gigabytes() -> None:
    thin = images_tensor(png_bomb(1, 1_000_000))
    assert "1 x 1000000" in failure(thin, size=(224, 224))
    assert "1 x 1000000" in failure(thin, size=(224, 224), resize="crop", shorter_side=256)


def test_a_jpeg_with_two_sizes_is_refused() -> None:
    jpeg = bytearray(encoded(PHOTO, "JPEG"))
    frame = bytes(jpeg[jpeg.index(b"\xff\xc0") :][:19])
    two_sizes = bytes(jpeg[:2]) + frame + bytes(jpeg[2:])
    assert "two sizes" in failure(images_tensor(two_sizes))


def test_a_png_with_long_compressed_texts_is_refused() -> None:
    text = chunk(b"zTXt", b"key\0\0" + zlib.compress(bytes(1_000_000), 9))
    assert "cannot be decoded" in failure(images_tensor(png_bomb(8, 8, *[text] * 4)))


def test_a_jpeg_with_hundreds_of_scans_is_refused() -> None:
    data = encoded(PHOTO, "JPEG", progressive=True)
    start = data.index(b"\xff\xda")
    end = data.index(b"\xff", start + 20)
    scans = data[:start] + data[start:end] * 101 + data[start:]
    assert "more than 100 scans" in failure(images_tensor(scans))


def test_a_jpeg_with_thousands_of_fill_bytes_is_refused() -> None:
    data = encoded(PHOTO, "JPEG")
    few = data[:2] + b"\xff" * 10 + data[2:]
    np.testing.assert_array_equal(decode(images_tensor(few)), decode(images_tensor(data)))
    many = data[:2] + b"\xff" * 5000 + data[2:]
    assert "more than 4096 fill bytes" in failure(images_tensor(many))


def test_a_jpeg_with_many_segments_of_exif_is_refused() -> None:
    data = encoded(PHOTO, "JPEG")
    segment = b"\xff\xe1\x00\x0aExif\0\0II"
    many = data[:2] + segment * 33 + data[2:]
    assert "more than 32 EXIF segments" in failure(images_tensor(many))


def test_an_image_with_too_many_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_header, "_MAX_CHUNKS", 50)
    many = png_bomb(8, 8, *[chunk(b"tEXt", b"")] * 50)
    assert "more than 50 chunks" in failure(images_tensor(many))
    monkeypatch.setattr(image_header, "_MAX_CHUNKS", 53)  # 50 texts, IHDR, IDAT and IEND
    assert image_header.read_header(many).pixels == 64
    jpeg = encoded(PHOTO, "JPEG")
    segments = jpeg[:2] + b"\xff\xfe\x00\x02" * 1024 + jpeg[2:]
    assert "more than 1024 segments" in failure(images_tensor(segments))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_every_truncated_image_is_refused(kind: str) -> None:
    data = encoded(photo(4, 5), kind)
    tail = 20 if kind == "PNG" else 2  # decoders ignore a missing end mark or checksum
    for length in range(len(data) - tail):
        assert "element 0" in failure(images_tensor(data[:length]))


@pytest.mark.parametrize(
    "data", [b"", b"GIF89a", b"/9j/!!!!", b"\xff\xd8\xff", b"RIFF1234WEBPVP8?" + bytes(30)]
)
def test_data_that_is_not_an_image_is_refused(data: bytes) -> None:
    assert "element 0" in failure(images_tensor(data))


CORRUPTIBLE = [
    encoded(photo(8, 9), kind, **options)
    for kind, options in (("PNG", {}), ("JPEG", {"progressive": True}), ("JPEG", {}), ("WEBP", {}))
]


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(CORRUPTIBLE), st.data())
def test_a_corrupted_image_is_decoded_or_refused(image: bytes, data: st.DataObject) -> None:
    corrupted = bytearray(image)
    for _ in range(data.draw(st.integers(1, 4))):
        corrupted[data.draw(st.integers(0, len(image) - 1))] = data.draw(st.integers(0, 255))
    tensor = images_tensor(bytes(corrupted))
    error = error_of(partial(decode, tensor, size=(4, 4), max_pixels=10_000))
    assert error is None or "input 'image': element 0" in error.public


def test_an_error_does_not_contain_the_address_of_an_object() -> None:
    broken = png_bomb(8, 8).replace(b"IEND", b"IENE")
    for image in (broken, encoded(PHOTO)[:40] + bytes(100)):
        error = error_of(decode, images_tensor(image))
        assert error is None or "0x" not in error.public


def test_images_of_different_sizes_need_a_size() -> None:
    data = images_tensor(encoded(PHOTO), encoded(photo(9, 9)))
    assert "set 'size'" in failure(data)
    assert decode(data, size=(4, 4)).shape == (2, 4, 4, 3)


@pytest.mark.parametrize("shape", [(1, 2), (2, 1, 2)])
def test_a_shape_that_is_not_a_batch_is_refused(shape: tuple[int, ...]) -> None:
    tensor = images_tensor(*[encoded(PHOTO)] * math.prod(shape), shape=shape)
    assert "expected shape [N] or [N, 1]" in failure(tensor)
