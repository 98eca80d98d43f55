from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from infergate.runtime.memory import freeze_objects


class Knot:
    """References itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_frozen_objects_are_collected_at_the_next_freeze() -> None:
    knot = Knot()
    known = weakref.ref(knot)
    freeze_objects()
    del knot
    gc.collect()
    assert known() is not None, "it is not looked at any more"
    freeze_objects()
    assert known() is None


def test_later_objects_are_collected_normally() -> None:
    freeze_objects()
    known = weakref.ref(Knot())
    gc.collect()
    assert known() is None
