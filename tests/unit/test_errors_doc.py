"""docs/errors.md has each outcome, its code in every protocol, and the kinds of backend errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from infergate.codecs import http_status
from infergate.codecs.graphpipe import errors as graphpipe
from infergate.codecs.protos import statuses as grpc_statuses
from infergate.codecs.trtis import request_status as legacy
from infergate.codecs.v2_rest import errors as v2_rest
from infergate.core.errors import Kind
from infergate.runtime.console.explanations import explain

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
GRPC = {code.value[0]: f"`{code.name}`" for code in grpc.StatusCode}
OTHER_STATUSES = {
    Kind.BAD_REQUEST: ["other 4xx"],
    Kind.BACKEND_ERROR: ["other 5xx"],
    Kind.BACKEND_GARBAGE: ["2xx other than 200", "3xx"],
}
"""The HTTP statuses that the page names together."""


def rows(heading: str) -> dict[str, list[str]]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| `(\w+)` \|(.*)\|$", section, re.MULTILINE)
    return {kind: [cell.strip() for cell in cells.split("|")] for kind, cells in lines}


def test_every_outcome_has_a_row() -> None:
    assert list(rows("Outcomes")) == [kind.value for kind in Kind]


@pytest.mark.parametrize("kind", Kind)
def test_the_page_has_the_codes_of_every_protocol(kind: Kind) -> None:
    v2_status, graphpipe_status = v2_rest.STATUS_BY_KIND[kind], graphpipe.STATUS_BY_KIND[kind]
    explanation = explain(kind.value)
    assert rows("Outcomes")[kind.value] == [
        str(v2_status)
        if v2_status == graphpipe_status
        else f"{v2_status}; GraphPipe {graphpipe_status}",
        GRPC[grpc_statuses.CODE_BY_KIND[kind]],
        f"`{legacy.CODE_BY_KIND[kind]}`",
        explanation["meaning"],
        explanation["advice"],
    ]


def _codes_of(kinds: Mapping[Any, Kind], kind: Kind) -> list[Any]:
    return [code for code, each in kinds.items() if each is kind]


def test_the_page_maps_backend_errors_to_kinds() -> None:
    expected = {}
    for kind in Kind:
        statuses = [
            *map(str, _codes_of(http_status.KIND_BY_STATUS, kind)),
            *OTHER_STATUSES.get(kind, []),
        ]
        codes = [GRPC[code] for code in _codes_of(grpc_statuses.KIND_BY_CODE, kind)]
        legacy_codes = [f"`{code}`" for code in _codes_of(legacy.KIND_BY_CODE, kind)]
        if statuses or codes or legacy_codes:
            expected[kind.value] = [", ".join(cell) for cell in (statuses, codes, legacy_codes)]
    assert rows("Errors from backends") == expected


@pytest.mark.parametrize(
    ("status", "kind"),
    [(418, Kind.BAD_REQUEST), (599, Kind.BACKEND_ERROR), (302, Kind.BACKEND_GARBAGE)],
)
def test_grouped_statuses_have_the_kind_of_their_row(status: int, kind: Kind) -> None:
    assert http_status.kind_of_status(status) is kind
