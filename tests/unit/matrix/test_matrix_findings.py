"""The matrix's findings about changed requests, responses and errors, and their summary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse, RequestedOutput
from infergate.core.tensor import Tensor, pack_bytes
from infergate.matrix import table
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
from infergate.matrix.gateways import BACKENDS
from infergate.matrix.run import ClientResult


def fp32(name: str, *bits: int) -> Tensor:
    return Tensor(name, Datatype.FP32, (len(bits),), np.array(bits, "<u4").tobytes())


def texts(name: str, *elements: bytes) -> Tensor:
    return Tensor(name, Datatype.BYTES, (len(elements),), pack_bytes(elements))


A_ONE = fp32("A", 0x3F800000)
B_TWO = fp32("B", 0x40000000)
A_NAN = fp32("A", 0x7FC00001)
REQUEST = InferRequest("m", "1", "id", {"n": 1, "t": "x"}, (A_ONE,), (RequestedOutput("A"),))
RESPONSE = InferResponse("m", "1", "id", {"n": 1}, (A_ONE, B_TWO))
PLAIN = InferRequest("m", "1", "id", inputs=(A_ONE,))


def note_of(differences: Iterator[str]) -> str:
    """Return the note of the finding, empty if nothing differs, or "wrong"."""
    finding = finding_of([*differences])
    assert (finding.mark is Mark.EXACT) == (not finding.note)
    return "wrong" if finding.mark is Mark.WRONG else finding.note


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"outputs": ()}, ""),  # without a list, all outputs are requested
        ({}, ""),
        ({"model": "theirs"}, ""),
        ({"version": ""}, "the version is not sent to the server"),
        ({"id": ""}, "the id is not sent to the server; the client gets its own id back"),
        ({"parameters": {"n": 1}}, "parameters not sent to the server: t"),
        ({"parameters": {}}, "parameters not sent to the server: n, t"),
        ({"version": "2"}, "wrong"),
        ({"id": "other"}, "wrong"),
        ({"parameters": {"n": 2, "t": "x"}}, "wrong"),
        ({"parameters": {"n": "1", "t": "x"}}, "wrong"),
        ({"parameters": {"n": 1.0, "t": "x"}}, "wrong"),
        ({"parameters": {"n": 1, "t": "x", "z": 0}}, "wrong"),
        ({"outputs": (RequestedOutput("A"), RequestedOutput("B"))}, "wrong"),
        ({"inputs": (replace(A_ONE, shape=(1, 1)),)}, "wrong"),
        ({"inputs": (B_TWO,)}, "wrong"),
        ({"inputs": (fp32("A", 0x3F800001),)}, "wrong"),
        ({"inputs": (Tensor("A", Datatype.INT32, A_ONE.shape, A_ONE.data),)}, "wrong"),
        ({"outputs": (RequestedOutput("C"),)}, "wrong"),
    ],
)
def test_changes_of_the_request_are_noted(changed: dict[str, Any], expected: str) -> None:
    assert note_of(request_differences(REQUEST, replace(REQUEST, **changed))) == expected


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ""),
        ({"version": ""}, "the version is not sent to the client"),
        ({"id": ""}, "the id is not sent to the client"),
        ({"parameters": {}}, "parameters not sent to the client: n"),
        ({"model": "theirs"}, "wrong"),
        ({"id": "other"}, "wrong"),
        ({"version": "2"}, "wrong"),
        ({"outputs": (B_TWO,)}, "wrong"),
        ({"outputs": (B_TWO, A_ONE)}, "wrong"),
        ({"outputs": (A_ONE, B_TWO, fp32("C", 0))}, "wrong"),
    ],
)
def test_changes_of_the_response_are_noted(changed: dict[str, Any], expected: str) -> None:
    assert note_of(response_differences(RESPONSE, replace(RESPONSE, **changed), PLAIN)) == expected


def test_lost_nan_payloads_are_noted() -> None:
    sent = replace(PLAIN, inputs=(A_NAN,))
    received = replace(PLAIN, inputs=(fp32("A", 0x7FC00000),))
    assert note_of(request_differences(sent, received)) == "NaN payloads are lost"
    assert note_of(request_differences(sent, PLAIN)) == "wrong"


def test_a_server_may_compute_all_outputs() -> None:
    sent = replace(PLAIN, outputs=(RequestedOutput("B"), RequestedOutput("A")))
    received = replace(PLAIN, outputs=())
    finding = finding_of([*request_differences(sent, received)])
    assert finding.mark is Mark.CONVERTED
    assert finding.note.startswith("the server computes all outputs")


def test_outputs_must_have_the_requested_order() -> None:
    request = replace(PLAIN, outputs=(RequestedOutput("B"), RequestedOutput("A")))
    assert not [*response_differences(RESPONSE, replace(RESPONSE, outputs=(B_TWO, A_ONE)), request)]
    assert note_of(response_differences(RESPONSE, RESPONSE, request)) == "wrong"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (texts("A", b"1.000000:2:x"), ""),
        (texts("A", b"1.000000:2"), "classes have no labels, since the server reports none"),
        (texts("A", b"1.000000:3:x"), "wrong"),
        (texts("A", b"2.000000:2:x"), "wrong"),
        (texts("A", b"1:2:x"), "wrong"),
        (texts("A"), "wrong"),
        (texts("A", b"none"), "wrong"),
        (texts("A", b"x:2:x"), "wrong"),
        (A_ONE, "wrong"),
    ],
)
def test_changes_of_classes_are_noted(output: Tensor, expected: str) -> None:
    request = replace(PLAIN, outputs=(RequestedOutput("A", {"classification": 1}),))
    original = replace(RESPONSE, outputs=(texts("A", b"1.000000:2:x"),))
    received = replace(original, outputs=(output,))
    assert note_of(response_differences(original, received, request)) == expected


BUSY = GatewayError(Kind.OVERLOADED, "busy", retry_after=3)


@pytest.mark.parametrize(
    ("received", "notes"),
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
def test_changed_errors_are_noted(received: GatewayError | None, notes: list[str]) -> None:
    assert [*error_differences(BUSY, received)] == notes


def test_a_rejection_is_described_without_the_name_of_its_model() -> None:
    finding = rejection(GatewayError(Kind.UNSUPPORTED, "model 'm' is not 'n'"), "m")
    assert finding == Finding(Mark.REJECTED, "unsupported: model '…' is not 'n'")
    assert rejection(GatewayError(Kind.INTERNAL, "bug"), "m").mark is Mark.WRONG


def test_the_summary_counts_the_marks_of_each_pair() -> None:
    column = (EXACT, Finding(Mark.REJECTED, "no"), Finding(Mark.NOT_EXPRESSIBLE), EXACT)
    result = ClientResult("a client", tuple((finding,) * len(BACKENDS) for finding in column))
    summary = table.summary([result])
    assert summary.headings == ("client", *BACKENDS)
    assert summary.rows == [("a client", *["2= 1✗"] * len(BACKENDS))]
