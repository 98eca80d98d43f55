"""Run every protocol's vectors through its codec, in both directions.

No vector was written by the codec under test: each ``case.json`` names the client or server
that wrote the bytes. The expected messages were derived from the models of that server.
"""

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


def test_cases_have_unique_names_and_a_source() -> None:
    assert len({str(vector) for vector in VECTORS}) == len(VECTORS)
    for vector in VECTORS:
        assert vector.about, vector
        assert vector.source, vector
