"""Tests random steps on random tensors: metadata and requested outputs agree with the tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from infergate.core.datatypes import FLOATS, Datatype
from infergate.core.messages import ModelMetadata, RequestedOutput, TensorMetadata
from infergate.core.tensor import Tensor, check_data, tensor_from_array
from infergate.transforms.numeric import Cast, Reshape, Scale, Transpose
from infergate.transforms.route_transforms import RouteTransforms
from infergate.transforms.scores import Argmax, Softmax, TopK
from infergate.transforms.step import ANY, Step, TransformError
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
from searching import examples

Tensors = Mapping[str, Tensor]
DrawStep = Callable[[st.DataObject, Tensor], Step | None]
NUMERIC = [each for each in Datatype if each is not Datatype.BYTES]
_SMALL = st.integers(0, 3)


def _cast(data: st.DataObject, tensor: Tensor) -> Step | None:
    if tensor.datatype is Datatype.BYTES:
        return None
    target = data.draw(st.sampled_from(NUMERIC))
    return Cast(tensor=tensor.name, from_=tensor.datatype, to=target)


def _scale(data: st.DataObject, tensor: Tensor) -> Step | None:
    if tensor.datatype not in FLOATS:
        return None
    last = tensor.shape[-1] if len(tensor.shape) > 1 else 1
    count = data.draw(st.sampled_from([1, max(last, 1)]))
    numbers = st.lists(st.floats(-2, 2, width=16), min_size=count, max_size=count).map(tuple)
    return Scale(tensor=tensor.name, factor=data.draw(numbers), offset=data.draw(numbers))


def _transpose(data: st.DataObject, tensor: Tensor) -> Step:
    rest = data.draw(st.permutations(range(1, len(tensor.shape))))
    return Transpose(tensor=tensor.name, order=(0, *rest))


def _reshape(data: st.DataObject, tensor: Tensor) -> Step:
    inner = tensor.shape[1:]
    count = math.prod(inner)
    target = data.draw(st.sampled_from([(count,), (1, count), (*inner, 1)]))
    if count and data.draw(st.booleans()):
        target = (*target[:-1], ANY)
    source = tuple(data.draw(st.sampled_from([size, ANY])) for size in inner)
    return Reshape(tensor=tensor.name, from_=source, to=target)


def _copy(data: st.DataObject, tensor: Tensor) -> Step:
    return Copy(tensor=tensor.name, to=f"{tensor.name}2")


def _rename(data: st.DataObject, tensor: Tensor) -> Step:
    return Rename(names={tensor.name: f"{tensor.name}r"})


def _split(data: st.DataObject, tensor: Tensor) -> Step | None:
    if len(tensor.shape) < 2 or tensor.shape[-1] < 2:
        return None
    first = data.draw(st.integers(1, tensor.shape[-1] - 1))
    parts = {f"{tensor.name}a": first, f"{tensor.name}b": tensor.shape[-1] - first}
    return Split(tensor=tensor.name, to=parts)


def _text(data: st.DataObject, tensor: Tensor) -> Step | None:
    if tensor.datatype is Datatype.BYTES:
        kind = data.draw(st.sampled_from([Base64Encode, TextEncode, Base64Decode]))
        if kind is TextEncode:
            datatype = data.draw(st.sampled_from([Datatype.UINT8, Datatype.INT32]))
            return TextEncode(tensor=tensor.name, length=40, datatype=datatype)
        return kind(tensor=tensor.name)
    if tensor.datatype is Datatype.UINT8 and len(tensor.shape) > 1 and tensor.shape[-1]:
        return TextDecode(tensor=tensor.name, length=tensor.shape[-1])
    return None


def _softmax(data: st.DataObject, tensor: Tensor) -> Step | None:
    fits = tensor.datatype in FLOATS and len(tensor.shape) > 1
    return Softmax(tensor=tensor.name) if fits else None


def _argmax(data: st.DataObject, tensor: Tensor) -> Step | None:
    fits = tensor.datatype not in {Datatype.BYTES, Datatype.BOOL}
    fits = fits and len(tensor.shape) > 1 and tensor.shape[-1] > 0
    return Argmax(tensor=tensor.name, to=f"{tensor.name}m") if fits else None


def _top_k(data: st.DataObject, tensor: Tensor) -> Step | None:
    if tensor.datatype in {Datatype.BYTES, Datatype.BOOL} or len(tensor.shape) < 2:
        return None
    name = tensor.name
    k = data.draw(st.integers(1, 4))
    return TopK(
        tensor=name, k=k, values=name, indices=f"{name}i", labels=f"{name}l", classes=("a", "bc")
    )


INPUT_STEPS: list[DrawStep] = [_cast, _scale, _transpose, _reshape, _copy, _rename, _split, _text]
OUTPUT_STEPS: list[DrawStep] = [*INPUT_STEPS, _softmax, _argmax, _top_k]


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Tensor]:
    """Draw up to three tensors of small numbers or Base64, with one batch size."""
    batch = draw(_SMALL)
    result = {}
    for name in "abc"[: draw(st.integers(1, 3))]:
        shape = (batch, *draw(st.lists(_SMALL, max_size=3)))
        datatype = draw(st.sampled_from(list(Datatype)))
        array: Any = np.array(
            draw(st.lists(st.integers(0, 9), min_size=math.prod(shape), max_size=math.prod(shape)))
        ).reshape(shape)
        if datatype is Datatype.BYTES:
            array = np.vectorize(lambda number: b"QUJD" * number, otypes=[object])(array)
        result[name] = tensor_from_array(name, datatype, array)
    return result


def draw_steps(data: st.DataObject, tensors: Tensors, kinds: list[DrawStep]) -> list[Step]:
    """Draw steps that fit ``tensors``."""
    steps: list[Step] = []
    for _ in range(data.draw(st.integers(0, 5))):
        kind = data.draw(st.sampled_from([*kinds, None]))
        name = data.draw(st.sampled_from(sorted(tensors)))
        step: Step | None
        if kind is None:
            other = data.draw(st.sampled_from(sorted(tensors)))
            pair = tensors[name], tensors[other]
            joins = name != other and len({(each.datatype, each.shape) for each in pair}) == 1
            fits = joins and len(pair[0].shape) > 1
            step = Concatenate(tensors=(name, other), to=f"{name}j") if fits else None
        else:
            step = kind(data, tensors[name])
        if step is None or any(new in tensors and new not in step.reads for new in step.writes):
            continue
        assert not step.find_problem(is_input=True)
        try:
            tensors = step.apply(tensors)
        except TransformError:  # the text is too long or not Base64, or a number does not fit
            continue
        steps.append(step)
    return steps


def _metadata(tensors: Mapping[str, Tensor]) -> tuple[TensorMetadata, ...]:
    return tuple(
        TensorMetadata(tensor.name, tensor.datatype.value, (ANY, *tensor.shape[1:]))
        for tensor in tensors.values()
    )


def assert_agree(metadata: tuple[TensorMetadata, ...], tensors: Mapping[str, Tensor]) -> None:
    """Assert that names, datatypes, shapes and sizes of the tensors fit ``metadata``."""
    assert {each.name for each in metadata} == {tensor.name for tensor in tensors.values()}
    for each in metadata:
        tensor = tensors[each.name]
        assert tensor.datatype.value == each.datatype
        assert each.accepts_shape(tensor.shape)
        check_data(tensor.name, tensor.datatype, tensor.shape, tensor.data)


def run(transforms: RouteTransforms, tensors: Tensors, *, is_input: bool) -> dict[str, Tensor]:
    """Run the groups of one side, and check the sizes against ``measure``."""
    result = tuple(tensors.values())
    for group in transforms.input_groups if is_input else transforms.output_groups:
        sizes = group.measure(result)
        result = group.run(result)
        assert sum(len(tensor.data) for tensor in result) <= sizes.result <= sizes.total
    return {tensor.name: tensor for tensor in result}


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), tensors())
def test_inputs_agree_with_the_metadata_for_clients(
    data: st.DataObject, inputs: dict[str, Tensor]
) -> None:
    steps = draw_steps(data, inputs, INPUT_STEPS)
    added = Constant(tensor="z", datatype=Datatype.FP32, shape=(2,), value=(1.5,))
    default = Default(tensor="y", datatype=Datatype.BYTES, value=("text",))
    position = data.draw(st.integers(0, len(steps)))
    steps.insert(position, added)
    transforms = RouteTransforms([*steps, default], (), batch=True)
    received = run(transforms, inputs, is_input=True)
    model = ModelMetadata("m", inputs=_metadata(received))
    metadata = transforms.transform_metadata(model)
    assert_agree(model.inputs, received)
    default_input = {"y": received["y"]}
    assert_agree(metadata.inputs, inputs | default_input)
    assert transforms.find_mismatch(model) is None
    # A client may also send an input that has a default.
    assert run(transforms, inputs | default_input, is_input=True) == received


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), tensors())
def test_outputs_agree_with_the_metadata_for_clients(
    data: st.DataObject, returned: dict[str, Tensor]
) -> None:
    steps = draw_steps(data, returned, OUTPUT_STEPS)
    transforms = RouteTransforms((), steps, batch=True)
    outputs = run(transforms, returned, is_input=False)
    selected = data.draw(st.lists(st.sampled_from(sorted(outputs)), min_size=1, unique=True))
    dropped = tuple(name for name in outputs if name not in selected)
    last = data.draw(st.sampled_from([Select(names=tuple(selected)), Drop(names=dropped)]))
    transforms = RouteTransforms((), [*steps, last], batch=True)
    model = ModelMetadata("m", outputs=_metadata(returned))
    metadata = transforms.transform_metadata(model)
    outputs = run(transforms, returned, is_input=False)
    assert_agree(metadata.outputs, outputs)
    assert outputs.keys() == set(selected)


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), tensors())
def test_the_outputs_requested_from_the_backend_suffice_for_the_client(
    data: st.DataObject, returned: dict[str, Tensor]
) -> None:
    transforms = RouteTransforms((), draw_steps(data, returned, OUTPUT_STEPS), batch=True)
    outputs = run(transforms, returned, is_input=False)
    names = data.draw(st.lists(st.sampled_from(sorted(outputs)), min_size=1, unique=True))
    sources = transforms.backend_outputs([RequestedOutput(name) for name in names])
    result = tuple(returned[output.name] for output in sources)
    for group in transforms.requested_output_groups:
        group.measure(result)
        result = group.run(result)
    by_name = {tensor.name: tensor for tensor in result}
    assert {name: by_name[name] for name in names} == {name: outputs[name] for name in names}
