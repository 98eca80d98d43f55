from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from infergate.runtime.memory import freeze_objects


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _unfreeze() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_frozen_garbage_is_collected_by_the_next_freeze() -> None:
    cycle = Cycle()
    reference = weakref.ref(cycle)
    freeze_objects()
    del cycle
    gc.collect()
    assert reference() is not None, "frozen objects are not collected"
    freeze_objects()
    assert reference() is None


def test_later_objects_are_collected() -> None:
    freeze_objects()
    reference = weakref.ref(Cycle())
    gc.collect()
    assert reference() is None
