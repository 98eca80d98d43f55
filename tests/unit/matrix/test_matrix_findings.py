"""The finding of the matrix for each way in which an inference may change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse, RequestedOutput
from infergate.core.tensor import Tensor, pack_bytes
from infergate.matrix.findings import (
    EXACT,
    Finding,
    Mark,
    error_differences,
    finding_of,
    rejection,
    request_differences,
    response_differences,
)


def fp32(name: str, *bits: int) -> Tensor:
    return Tensor(name, Datatype.FP32, (len(bits),), np.array(bits, "<u4").tobytes())


def texts(name: str, *elements: bytes) -> Tensor:
    return Tensor(name, Datatype.BYTES, (len(elements),), pack_bytes(elements))


ONE = fp32("A", 0x3F800000)
TWO = fp32("B", 0x40000000)
NAN = fp32("A", 0x7FC00001)
REQUEST = InferRequest("m", "1", "id", {"n": 1, "t": "x"}, (ONE,), (RequestedOutput("A"),))
GIVEN = InferResponse("m", "1", "id", {"n": 1}, (ONE, TWO))
PLAIN = InferRequest("m", "1", "id", inputs=(ONE,))


@pytest.mark.parametrize(
    ("changed", "note"),
    [
        ({"outputs": ()}, ""),  # REQUEST requests all of them
        ({}, ""),
        ({"model": "theirs"}, ""),
        ({"version": ""}, "the version is not sent to the server"),
        ({"id": ""}, "the id is not sent to the server; the client gets its own id back"),
        ({"parameters": {"n": 1}}, "parameters not sent to the server: t"),
        ({"parameters": {}}, "parameters not sent to the server: n, t"),
    ],
)
def test_the_request_that_a_server_receives(changed: dict[str, Any], note: str) -> None:
    finding = finding_of([*request_differences(REQUEST, replace(REQUEST, **changed))])
    assert finding == (Finding(Mark.CONVERTED, note) if note else EXACT)


@pytest.mark.parametrize(
    "changed",
    [
        {"version": "2"},
        {"id": "other"},
        {"parameters": {"n": 2, "t": "x"}},
        {"parameters": {"n": "1", "t": "x"}},
        {"parameters": {"n": 1.0, "t": "x"}},
        {"parameters": {"n": 1, "t": "x", "z": 0}},
        {"outputs": (RequestedOutput("A"), RequestedOutput("B"))},
        {"inputs": (replace(ONE, shape=(1, 1)),)},
        {"inputs": (TWO,)},
        {"inputs": (fp32("A", 0x3F800001),)},
        {"inputs": (Tensor("A", Datatype.INT32, ONE.shape, ONE.data),)},
        {"outputs": (RequestedOutput("C"),)},
    ],
)
def test_properties_that_must_not_change(changed: dict[str, Any]) -> None:
    assert (
        finding_of([*request_differences(REQUEST, replace(REQUEST, **changed))]).mark is Mark.WRONG
    )


@pytest.mark.parametrize(
    ("changed", "note"),
    [
        ({}, ""),
        ({"version": ""}, "the version is not sent to the client"),
        ({"id": ""}, "the id is not sent to the client"),
        ({"parameters": {}}, "parameters not sent to the client: n"),
    ],
)
def test_expected_client_results(changed: dict[str, Any], note: str) -> None:
    finding = finding_of([*response_differences(GIVEN, replace(GIVEN, **changed), PLAIN)])
    assert finding == (Finding(Mark.CONVERTED, note) if note else EXACT)


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "theirs"},
        {"id": "other"},
        {"version": "2"},
        {"outputs": (TWO,)},
        {"outputs": (TWO, ONE)},
        {"outputs": (ONE, TWO, fp32("C", 0))},
    ],
)
def test_forbidden_client_results(changed: dict[str, Any]) -> None:
    assert (
        finding_of([*response_differences(GIVEN, replace(GIVEN, **changed), PLAIN)]).mark
        is Mark.WRONG
    )


def test_only_nan_payloads_may_be_lost() -> None:
    meant = replace(PLAIN, inputs=(NAN,))
    note = "NaN payloads are lost"
    other = replace(PLAIN, inputs=(fp32("A", 0x7FC00000),))
    assert finding_of([*request_differences(meant, other)]) == Finding(Mark.CONVERTED, note)
    assert finding_of([*request_differences(meant, PLAIN)]).mark is Mark.WRONG


def test_a_server_may_compute_all_outputs() -> None:
    meant = replace(PLAIN, outputs=(RequestedOutput("B"), RequestedOutput("A")))
    received = replace(PLAIN, outputs=())
    finding = finding_of([*request_differences(meant, received)])
    assert finding.mark is Mark.CONVERTED
    assert finding.note.startswith("the server computes all outputs")


def test_outputs_have_the_requested_order() -> None:
    request = replace(PLAIN, outputs=(RequestedOutput("B"), RequestedOutput("A")))
    assert not [*response_differences(GIVEN, replace(GIVEN, outputs=(TWO, ONE)), request)]
    assert finding_of([*response_differences(GIVEN, GIVEN, request)]).mark is Mark.WRONG


@pytest.mark.parametrize(
    ("elements", "finding"),
    [
        ((b"1.000000:2:x",), EXACT),
        (
            (b"1.000000:2",),
            Finding(Mark.CONVERTED, "classes have no labels, since the server reports none"),
        ),
    ],
)
def test_classes(elements: tuple[bytes, ...], finding: Finding) -> None:
    request = replace(PLAIN, outputs=(RequestedOutput("A", {"classification": 1}),))
    given = replace(GIVEN, outputs=(texts("A", b"1.000000:2:x"),))
    got = replace(given, outputs=(texts("A", *elements),))
    assert finding_of([*response_differences(given, got, request)]) == finding


@pytest.mark.parametrize(
    "elements",
    [(b"1.000000:3:x",), (b"2.000000:2:x",), (b"1:2:x",), (), (b"none",), (b"x:2:x",)],
)
def test_other_classes_are_wrong(elements: tuple[bytes, ...]) -> None:
    request = replace(PLAIN, outputs=(RequestedOutput("A", {"classification": 1}),))
    given = replace(GIVEN, outputs=(texts("A", b"1.000000:2:x"),))
    got = replace(given, outputs=(texts("A", *elements),))
    assert finding_of([*response_differences(given, got, request)]).mark is Mark.WRONG


def test_values_instead_of_classes_are_wrong() -> None:
    request = replace(PLAIN, outputs=(RequestedOutput("A", {"classification": 1}),))
    given = replace(GIVEN, outputs=(texts("A", b"1.000000:2:x"),))
    assert (
        finding_of([*response_differences(given, replace(GIVEN, outputs=(ONE,)), request)]).mark
        is Mark.WRONG
    )


BUSY = GatewayError(Kind.OVERLOADED, "busy", retry_after=3)


@pytest.mark.parametrize(
    ("got", "notes"),
    [
        (GatewayError(Kind.OVERLOADED, "it is busy", retry_after=3), []),
        (GatewayError(Kind.NO_BACKEND, "it is busy", retry_after=3), []),
        (GatewayError(Kind.OVERLOADED, "busy"), ["the retry time is not passed on"]),
        (
            GatewayError(Kind.BAD_REQUEST, "no", retry_after=3),
            ["reported as bad request", "the reason is not passed on"],
        ),
        (None, ["! a response instead of an error"]),
    ],
)
def test_errors(got: GatewayError | None, notes: list[str]) -> None:
    assert [*error_differences(BUSY, got)] == notes


def test_a_rejection_is_described_without_the_names_of_its_request() -> None:
    error = GatewayError(Kind.UNSUPPORTED, "model 'a.m' cannot, 'm' neither")
    finding = rejection(error, "m", "a.m")
    assert finding == Finding(Mark.REJECTED, "unsupported: model '…' cannot, '…' neither")
    assert rejection(GatewayError(Kind.INTERNAL, "bug")).mark is Mark.WRONG
