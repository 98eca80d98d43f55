"""Every protocol's vectors through its codec, both ways. New folders are found by themselves."""

from pathlib import Path

import pytest

from infergate.codecs.registry import plugins
from infergate.testing import Vector, check_vector, load

FOLDERS = sorted(path for path in Path(__file__).parent.iterdir() if any(path.glob("*/case.json")))
VECTORS = [vector for folder in FOLDERS for vector in load(folder)]


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_vector(vector: Vector) -> None:
    codec = plugins()[vector.protocol].create(vector.options)
    check_vector(codec, vector)


def test_every_protocol_has_vectors() -> None:
    assert {vector.protocol for vector in VECTORS} == set(plugins())


def test_most_cases_are_told_apart_by_name_and_have_a_source() -> None:
    assert len({str(vector) for vector in VECTORS}) == len(VECTORS)
    for vector in VECTORS:
        assert vector.about, vector
        assert vector.source, vector
