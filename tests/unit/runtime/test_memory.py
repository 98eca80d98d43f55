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


def test_what_has_settled_is_collected_when_it_settles_again() -> None:
    knot = Knot()
    known = weakref.ref(knot)
    freeze_objects()
    del knot
    gc.collect()
    assert known() is not None, "it is not looked at any more"
    freeze_objects()
    assert known() is None


def test_what_comes_later_is_collected_as_ever() -> None:
    freeze_objects()
    known = weakref.ref(Knot())
    gc.collect()
    assert known() is None
