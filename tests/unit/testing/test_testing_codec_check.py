"""``check_codec`` accepts a sound codec, and reports rules that a codec breaks."""

import gzip
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from infergate.codecs.base import Capabilities, CodecPlugin, ParsedRequest, RequestSummary
from infergate.codecs.v2_grpc import PLUGIN
from infergate.codecs.v2_grpc.codec import V2Grpc
from infergate.codecs.v2_rest import PLUGIN as REST
from infergate.codecs.v2_rest import V2RestCodec
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.messages import InferRequest, InferResponse, ModelIndexRequest
from infergate.core.wire import HttpRequest, RpcResponse, join_parts
from infergate.testing import check_codec

ONLY_INT8 = Capabilities(frozenset({Datatype.INT8}))


def without_id(value: Any) -> Any:
    return replace(value, id="") if hasattr(value, "id") else value


class Sound(V2Grpc):
    capabilities = ONLY_INT8


class Misnamed(Sound):
    name = "other"


class NoDatatypes(Sound):
    capabilities = Capabilities(frozenset())


class ErrorsEscape(Sound):
    def parse_request(self, wire: Any, limits: Any) -> Any:
        if not b"".join(wire.message).startswith(b"\x0a"):
            raise IndexError("any bytes parse or raise GatewayError")
        return super().parse_request(wire, limits)


class ErrorsAreResponses(Sound):
    def build_error(self, error: Any, wire: Any = None) -> Any:
        return RpcResponse()


class ErrorsOfAnotherTransport(Sound):
    def build_error(self, error: Any, wire: Any = None) -> Any:
        return HttpRequest("GET", "/")


class RefusesWithTheWrongKind(Sound):
    def build_request(self, operation: Any, profile: Any, model: object = None) -> Any:
        if isinstance(operation, ModelIndexRequest):
            raise bad_request("no index")
        return super().build_request(operation, profile)


class BuildsForAnotherTransport(Sound):
    def build_request(self, operation: Any, profile: Any, model: object = None) -> Any:
        return HttpRequest("GET", "/")


class LosesTheId(Sound):
    def parse_request(self, wire: Any, limits: Any) -> Any:
        return ParsedRequest(without_id(super().parse_request(wire, limits).operation))


class LosesAnOutput(Sound):
    def parse_response(self, wire: Any, operation: Any, limits: Any, model: object = None) -> Any:
        response = super().parse_response(wire, operation, limits)
        if isinstance(response, InferResponse):
            return replace(response, outputs=response.outputs[:1])
        return response


class SummarizesOnlyTheOperation(Sound):
    def summarize(self, wire: Any) -> Any:
        return RequestSummary(super().summarize(wire).operation)


class MisreadsSummarizedRequests(Sound):
    def summarize(self, wire: Any) -> Any:
        summary = super().summarize(wire)
        wire.codec_state = "summarized"
        return summary

    def parse_request(self, wire: Any, limits: Any) -> Any:
        parsed = super().parse_request(replace(wire), limits)
        if wire.codec_state == "summarized" and isinstance(parsed.operation, InferRequest):
            return replace(parsed, operation=replace(parsed.operation, id="other"))
        return parsed


class ValidatesNothing(Sound):
    def validate(self, wire: Any, limits: Any) -> Any:
        return wire


class KeepsTheClientsModel(Sound):
    def rewrite_request(self, wire: Any, model: Any, version: Any, profile: Any) -> Any:
        return wire


class OverlooksSequences(Sound):
    def sequence_of(self, wire: Any, limits: Any) -> Any:
        return None


class KeepsTheBackendsModel(Sound):
    def rewrite_response(
        self, wire: Any, request: Any, model: Any, version: Any, limits: Any
    ) -> Any:
        return wire


def plugin(create: Callable[[], Any], base: CodecPlugin = PLUGIN) -> CodecPlugin:
    return replace(base, create=lambda _: create())


def test_a_sound_codec_passes() -> None:
    check_codec(plugin(Sound))


@pytest.mark.parametrize(
    ("create", "expected"),
    [
        (Misnamed, "named other"),
        (NoDatatypes, "datatype"),
        (ErrorsAreResponses, "parsed as a response"),
        (ErrorsOfAnotherTransport, "HttpRequest"),
        (RefusesWithTheWrongKind, "ModelIndexRequest.*is rejected"),
        (BuildsForAnotherTransport, "HttpRequest"),
        (LosesTheId, "request: "),
        (LosesAnOutput, "response: "),
        (SummarizesOnlyTheOperation, "summarize returns the model"),
        (MisreadsSummarizedRequests, "summarized request"),
        (ValidatesNothing, "parse_request and validate differ"),
        (KeepsTheClientsModel, "rewritten request"),
        (KeepsTheBackendsModel, "rewritten response"),
        (OverlooksSequences, "sequence 9223372036854775808"),
    ],
)
def test_a_broken_rule_is_named(create: type[Sound], expected: str) -> None:
    with pytest.raises(AssertionError, match=expected):
        check_codec(plugin(create))


def test_open_request_may_change_only_the_encoding() -> None:
    class LosesTheBody(V2RestCodec):
        def open_request(self, wire: HttpRequest) -> None:
            wire.body = ()

    class Raises(V2RestCodec):
        def open_request(self, wire: HttpRequest) -> None:
            if "content-encoding" in wire.headers:
                gzip.decompress(join_parts(wire.body))

    with pytest.raises(GatewayError):
        check_codec(plugin(LosesTheBody, REST))
    with pytest.raises(gzip.BadGzipFile):
        check_codec(plugin(Raises, REST))


def test_an_exception_other_than_gateway_error_is_raised() -> None:
    with pytest.raises(IndexError, match="any bytes"):
        check_codec(plugin(ErrorsEscape))


def test_a_plugin_without_claims_is_rejected() -> None:
    with pytest.raises(AssertionError, match="must claim"):
        check_codec(replace(plugin(Sound), claims=()))


def test_parts_that_a_protocol_cannot_represent_may_be_declared() -> None:
    class WithoutIds(LosesTheId):
        can_pass_through = False

        def __init__(self) -> None:
            super().__init__()
            self.can_pass_through = False

        def parse_response(
            self, wire: Any, operation: Any, limits: Any, model: object = None
        ) -> Any:
            return without_id(super().parse_response(wire, operation, limits))

    with pytest.raises(AssertionError, match="request: "):
        check_codec(plugin(WithoutIds))
    check_codec(plugin(WithoutIds), round_trip=without_id)


def test_an_exception_of_build_error_for_one_kind_is_raised() -> None:
    class FailsForTimeouts(Sound):
        def build_error(self, error: Any, wire: Any = None) -> Any:
            if error.kind is Kind.TIMEOUT:
                raise KeyError(error.kind)
            return super().build_error(error, wire)

    with pytest.raises(KeyError):
        check_codec(plugin(FailsForTimeouts))
