"""Pairs of an old and a new server's models and tensors, and reasons to reject other pairs."""

from __future__ import annotations

import pytest
from probe_kit import model, tensor

from infergate.core.datatypes import Datatype
from infergate.core.messages import TensorMetadata
from infergate.migration.probe.findings import ProbedModel
from infergate.migration.probe.pairing import ModelPair, Pairing, TensorPair

ALL = frozenset(Datatype)
GRAPHPIPE = ALL - {Datatype.BOOL, Datatype.BF16}


def pair_tensors(
    old: list[TensorMetadata],
    new: list[TensorMetadata],
    old_datatypes: frozenset[Datatype] = ALL,
    new_datatypes: frozenset[Datatype] = ALL,
) -> list[TensorPair]:
    return Pairing(old_datatypes, new_datatypes).pair_tensors(old, new)


def names(pairs: list[TensorPair]) -> list[str | None]:
    return [pair.new.name if pair.new and pair.is_certain else None for pair in pairs]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([-1, 3], [-1, 3]),
        ([-1, 3], [8, 3]),
        ([1, 3], [-1, 3]),
        ([-1, -1, -1, 3], [-1, 224, 224, 3]),
        ([], [-1, 3]),
        ([-1, 3], []),
    ],
)
def test_shapes_with_variable_dimensions_are_compatible(old: list[int], new: list[int]) -> None:
    [pair] = pair_tensors([tensor("x", "FP32", *old)], [tensor("x", "FP32", *new)])
    assert pair.is_certain


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ([-1, 3], [-1, 4], "the shapes differ: [-1,3] and [-1,4]"),
        (
            [3, 224],
            [-1, 3, 224],
            "the shapes differ: [3,224] and [-1,3,224]; one shape has no batch dimension",
        ),
        ([-1, 1, 8], [8], "the shapes differ: [-1,1,8] and [8]"),
    ],
)
def test_other_shapes_are_not_a_certain_pair(old: list[int], new: list[int], reason: str) -> None:
    [pair] = pair_tensors([tensor("x", "FP32", *old)], [tensor("x", "FP32", *new)])
    assert (pair.is_certain, pair.reason) == (False, reason)


def test_equal_names_win_over_similar_names() -> None:
    old = [tensor("input_1"), tensor("Input-1")]
    new = [tensor("INPUT1"), tensor("input_1")]
    assert names(pair_tensors(old, new)) == ["input_1", "INPUT1"]


@pytest.mark.parametrize("new", ["INPUT__0", "input-0", "Input.0", "input_0:0"])
def test_names_that_differ_in_case_and_punctuation_are_a_pair(new: str) -> None:
    assert names(pair_tensors([tensor("input_0")], [tensor(new)])) == [new]


def test_similar_names_that_fit_several_tensors_are_not_a_pair() -> None:
    old = [tensor("a_b", "FP32", 3), tensor("ab", "FP32", 3)]
    pairs = pair_tensors(old, [tensor("A.B", "FP32", 3)])
    assert names(pairs) == [None, None]


def test_other_names_are_paired_by_datatype_and_shape_if_only_one_fits() -> None:
    old = [tensor("ids", "INT64", -1), tensor("image", "FP32", -1, 3)]
    new = [tensor("data", "FP32", -1, 3), tensor("tokens", "INT64", -1)]
    assert names(pair_tensors(old, new)) == ["tokens", "data"]


def test_tensors_of_the_same_type_are_uncertain_with_the_alternatives() -> None:
    old = [tensor("a", "INT64", -1), tensor("b", "INT64", -1)]
    new = [tensor("x", "INT64", -1), tensor("y", "INT64", -1)]
    pairs = pair_tensors(old, new)
    assert names(pairs) == [None, None]
    assert {pair.reason for pair in pairs} == {"several tensors have this datatype and shape"}
    assert {tuple(pair.alternatives) for pair in pairs} == {("x", "y")}


def test_one_of_two_fitting_tensors_is_not_chosen() -> None:
    [pair] = pair_tensors([tensor("a")], [tensor("x"), tensor("y")])
    assert (pair.is_certain, pair.alternatives) == (False, ["x", "y"])
    first, second = pair_tensors([tensor("a"), tensor("b")], [tensor("x")])
    assert (first.is_certain, second.is_certain) == (False, False)


def test_a_tensor_without_a_counterpart_has_the_other_names() -> None:
    [pair] = pair_tensors([tensor("a", "FP32", 3)], [tensor("x", "BYTES", 3)])
    assert pair.new is None
    assert pair.reason == "no tensor has this name, or this datatype and shape"
    assert pair.alternatives == ["x"]


def test_datatypes_must_be_equal() -> None:
    [pair] = pair_tensors([tensor("x", "FP64", 3)], [tensor("x", "FP32", 3)])
    reason = "the datatypes differ: FP64 and FP32; no cast fits"
    assert (pair.is_certain, pair.reason) == (False, reason)


@pytest.mark.parametrize(
    ("old", "new", "old_datatypes", "new_datatypes", "cast"),
    [
        ("BOOL", "UINT8", ALL, GRAPHPIPE, ("BOOL", "UINT8")),
        ("UINT8", "BOOL", GRAPHPIPE, ALL, ("BOOL", "UINT8")),
        ("BF16", "FP32", ALL, GRAPHPIPE, ("BF16", "FP32")),
        (
            "BOOL",
            "UINT8",
            ALL,
            ALL,
            None,
        ),  # a route casts only datatypes that a protocol cannot carry
        ("BF16", "FP16", ALL, GRAPHPIPE, None),
        ("COMPLEX64", "FP32", ALL, GRAPHPIPE, None),
    ],
)
def test_a_datatype_that_a_protocol_does_not_have_is_paired_with_its_cast(
    old: str,
    new: str,
    old_datatypes: frozenset[Datatype],
    new_datatypes: frozenset[Datatype],
    cast: tuple[str, str] | None,
) -> None:
    [pair] = pair_tensors([tensor("x", old)], [tensor("x", new)], old_datatypes, new_datatypes)
    assert pair.cast == cast
    assert pair.is_certain == (cast is not None)


def pair_models(old: list[ProbedModel], new: list[ProbedModel]) -> list[ModelPair]:
    return Pairing(ALL, ALL).pair_models(old, new)


def test_models_are_paired_by_name_and_then_by_similar_names() -> None:
    old = [model("resnet50"), model("Bert_Base")]
    new = [model("bert-base"), model("resnet50")]
    pairs = pair_models(old, new)
    assert [pair.new.name for pair in pairs if pair.new] == ["resnet50", "bert-base"]
    assert all(pair.can_mirror for pair in pairs)


def test_similar_names_of_several_models_are_uncertain() -> None:
    [pair] = pair_models([model("bert_base")], [model("bert-base"), model("BERT.base")])
    assert (pair.new, pair.reason) == (None, "several models have similar names")
    assert pair.alternatives == ["bert-base", "BERT.base"]


def test_two_old_models_with_similar_names_are_uncertain() -> None:
    pairs = pair_models([model("bert_base"), model("bert-base")], [model("BERT.base")])
    assert {pair.reason for pair in pairs} == {"several models have similar names"}


def test_names_that_no_message_can_contain_are_uncertain() -> None:
    problem = "contains the control character U+000A"
    [pair] = pair_tensors([tensor("x")], [tensor("x\n")])
    assert (pair.is_certain, pair.reason) == (False, f"the new name {problem}")
    [other] = pair_models([model("m")], [model("M\n")])
    assert (other.can_mirror, other.reason) == (False, f"the name of the new model {problem}")


def test_thousands_of_tensors_with_other_names_are_not_compared_with_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []
    compare = Pairing._tensor_pair

    def record_pair(pairing: Pairing, old: TensorMetadata, new: TensorMetadata) -> TensorPair:
        compared.append(old.name)
        return compare(pairing, old, new)

    monkeypatch.setattr(Pairing, "_tensor_pair", record_pair)
    old = [tensor(f"old{n}", "FP32", n) for n in range(4000)]
    new = [tensor(f"new{n}", "FP32", n) for n in range(4000)]
    pairs = pair_tensors([*old, tensor("x")], [tensor("x"), *new])
    assert compared == ["x"]
    assert pairs[-1].is_certain
    assert {pair.reason for pair in pairs[:-1]} == {
        "no tensor has this name, and too many tensors remain to compare them by shape"
    }


def test_another_name_with_the_same_tensors_is_uncertain() -> None:
    other = model("other", inputs=(tensor("t", "BYTES", -1),))
    [pair] = pair_models([model("resnet")], [model("resnet_v2"), other])
    assert pair.new is not None
    assert (pair.new.name, pair.can_mirror) == ("resnet_v2", False)
    assert pair.reason == "the names differ; no other model has the same tensors"
    [pair] = pair_models([model("resnet")], [model("a"), model("b")])
    assert (pair.new, pair.alternatives) == (None, ["a", "b"])


def test_a_model_with_the_name_of_another_old_model_is_not_offered() -> None:
    first, second = pair_models([model("a"), model("b")], [model("b")])
    assert first.new is None
    assert first.reason == "no model has this name or these tensors"
    assert second.can_mirror


def test_a_model_without_metadata_is_paired_but_not_mirrored() -> None:
    unknown = ProbedModel("m", "READY", problem="no metadata")
    [pair] = pair_models([model("m")], [unknown])
    assert (pair.can_mirror, pair.reason) == (False, "the new model's tensors are unknown")
    [pair] = pair_models([unknown], [model("m")])
    assert (pair.can_mirror, pair.reason) == (False, "the old model's tensors are unknown")
    [pair] = pair_models([unknown], [model("n")])
    assert pair.new is None


def test_a_new_input_prevents_the_mirror_and_a_new_output_does_not() -> None:
    old = model("m")
    inputs = (tensor("x", "FP32", -1, 3), tensor("scale"))
    [pair] = pair_models([old], [model("m", inputs=inputs)])
    assert (pair.can_mirror, pair.extra_inputs) == (False, ["scale"])
    outputs = (tensor("y", "FP32", -1), tensor("confidence"))
    [pair] = pair_models([old], [model("m", outputs=outputs)])
    assert pair.can_mirror
