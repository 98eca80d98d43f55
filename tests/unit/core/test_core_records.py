import copy
import dataclasses
import pickle

import pytest

from infergate.core.records import record
from infergate.core.region_ref import RegionRef

REGION = RegionRef("region", 1, 2)


@record
class ExampleRecord:
    name: str
    notes: list[str] = dataclasses.field(default_factory=list)


def test_records_compare_by_their_fields() -> None:
    assert RegionRef("region", 1, 2) == REGION != RegionRef("region", 1, 3)
    assert hash(RegionRef("region", 1, 2)) == hash(REGION)
    assert ExampleRecord("a").notes is not ExampleRecord("a").notes


def test_a_record_has_no_other_attributes() -> None:
    with pytest.raises((AttributeError, TypeError)):
        REGION.other = 1  # type: ignore[attr-defined]


def test_a_record_is_replaced_copied_pickled_and_matched() -> None:
    assert dataclasses.replace(REGION, size=3) == RegionRef("region", 1, 3)
    assert copy.copy(REGION) == pickle.loads(pickle.dumps(REGION)) == REGION
    match REGION:
        case RegionRef(region, offset, size):
            assert (region, offset, size) == ("region", 1, 2)
