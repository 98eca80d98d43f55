"""docs/limits.md lists every limit with its default."""

import dataclasses
import importlib
import re
from pathlib import Path

import pytest

from infergate.core.limits import DEFAULT_LIMITS, KIB, MIB, Limits
from infergate.observe.metrics import Metrics

PAGE = (Path(__file__).parents[3] / "docs" / "limits.md").read_text(encoding="utf-8")
ROWS = {
    name: float(number) * {"MiB": MIB, "KiB": KIB}.get(unit, 1)
    for name, number, unit in re.findall(r"^\| `([\w.]+)` \| (\d+) ?(\w*)", PAGE, re.MULTILINE)
}


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Limits)])
def test_each_limit_has_a_row_with_its_default(field: str) -> None:
    assert ROWS[field] == getattr(DEFAULT_LIMITS, field)


def test_each_limit_names_its_scope_and_its_metric() -> None:
    section = PAGE.partition("## Where each limit applies")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", section, re.MULTILINE))
    assert list(rows) == [f.name for f in dataclasses.fields(Limits)]
    assert all(len(row.split("|")) == 5 for row in rows.values())
    metrics = {name for row in rows.values() for name in re.findall(r"infergate_\w+", row)}
    exported = "\n".join(f"{each.name}\n{each.name}_total" for each in Metrics().registry.collect())
    assert metrics <= set(exported.splitlines())


@pytest.mark.parametrize("name", [name for name in ROWS if "." in name])
def test_a_limit_that_is_not_configured_is_a_constant(name: str) -> None:
    module, _, constant = name.rpartition(".")
    assert ROWS[name] == getattr(importlib.import_module(f"infergate.{module}"), constant)


def test_every_row_describes_an_existing_limit() -> None:
    fields = {f.name for f in dataclasses.fields(Limits)}
    assert {name for name in ROWS if "." not in name} == fields
    assert len(ROWS) - len(fields) >= 66, "a limit is no longer documented"
