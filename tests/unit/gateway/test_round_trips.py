"""Inferences of any client protocol to any server protocol arrive unchanged, and so do their
responses, except for the rules of ``round_trip_rules``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from round_trip_rules import (
    BINARY,
    GRAPHPIPE,
    JSON,
    NAMES,
    OLD_GRPC,
    OLD_HTTP,
    RAW,
    RULES,
    TYPED,
    Refused,
    Rule,
    request_after,
    response_after,
)

from infergate.codecs import graphpipe, trtis, v2_grpc, v2_rest
from infergate.codecs.base import ParsedRequest, Profile
from infergate.codecs.profiles import GENERIC, TRITON
from infergate.codecs.v2_grpc.messages import ModelInferRequest
from infergate.codecs.v2_grpc.tensors import can_be_typed, write_typed
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    RequestedOutput,
    TensorMetadata,
)
from infergate.core.tensor import Tensor
from infergate.core.wire import RpcRequest, join_parts
from infergate.testing import strategies
from infergate.testing.canonical import to_text
from infergate.testing.vectors import completed
from searching import examples


def _as_written(wire: Any, operation: InferRequest) -> Any:
    del operation
    return wire


def _typed(wire: RpcRequest, operation: InferRequest) -> RpcRequest:
    """Spell the message with typed contents if its datatypes allow it."""
    if not can_be_typed(operation.inputs):
        return wire
    message = ModelInferRequest.FromString(bytes(join_parts(wire.message)))
    message.ClearField("raw_input_contents")
    for written, tensor in zip(message.inputs, operation.inputs, strict=True):
        write_typed(written, tensor)
    return RpcRequest(wire.method, (message.SerializeToString(),))


@dataclass(frozen=True)
class Form:
    """A protocol in one tensor format, for both sides."""

    codec: Any
    profile: Profile = GENERIC
    spell: Callable[[Any, InferRequest], Any] = _as_written

    def read_request(self, operation: InferRequest, model: ModelMetadata) -> ParsedRequest:
        """Return the request that a server reads from a client's ``operation``."""
        wire = self.codec.build_request(operation, self.profile, model)
        return completed(
            self.codec.parse_request(self.spell(wire, operation), DEFAULT_LIMITS), model
        )

    def read_response(
        self,
        answer: InferResponse,
        parsed: ParsedRequest,
        operation: InferRequest,
        model: ModelMetadata,
    ) -> InferResponse:
        """Return the response that the client reads from a server's ``answer``."""
        wire = self.codec.build_response(answer, parsed)
        read = self.codec.parse_response(wire, operation, DEFAULT_LIMITS, model)
        assert isinstance(read, InferResponse)
        return read


FORMS = {
    JSON: Form(v2_rest.PLUGIN.create({})),
    BINARY: Form(v2_rest.PLUGIN.create({}), TRITON),
    RAW: Form(v2_grpc.PLUGIN.create({})),
    TYPED: Form(v2_grpc.PLUGIN.create({"contents": "typed"}), spell=_typed),
    GRAPHPIPE: Form(graphpipe.PLUGIN.create({"model": "m"})),
    OLD_HTTP: Form(trtis.HTTP.create({})),
    OLD_GRPC: Form(trtis.GRPC.create({})),
}
Exchange = tuple[InferRequest, InferResponse, ModelMetadata]

# ---- what is sent ----------------------------------------------------------------------------

MODELS = st.just("m") | st.sampled_from(["m", "simple.v1", "größe", "a b", "a/b", ".", "0"])
VERSIONS = st.sampled_from(["", "1", "10", "007", "v2", ".."])
IDS = st.sampled_from(["", "7", "007", "0", "a-1", "ü", str(2**64 - 1), str(2**64)])
OF_SEQUENCES = st.fixed_dictionaries(
    {},
    optional={
        "sequence_id": st.integers(0, 2**64 - 1) | st.sampled_from(["5", "007"]),
        "sequence_start": st.booleans(),
        "sequence_end": st.booleans(),
        "priority": st.integers(0, 2**32 - 1),
        "timeout": st.integers(0, 2**64 - 1),
    },
)
NESTED = st.none() | st.sampled_from([[], [1, "x", None], {"a": [{}]}])
PARAMETERS = st.one_of(
    strategies.parameters(),
    OF_SEQUENCES,
    st.dictionaries(strategies.names(), strategies.scalars() | NESTED, max_size=2),
    st.sampled_from([{}, {}, {"binary_data_size": 4}, {"graphpipe_config": "text"}]),
)


@st.composite
def exchanges(draw: st.DrawFn) -> Exchange:
    """Draw a request, a response with the requested outputs, and the model's metadata."""
    batch = draw(st.none() | st.integers(1, 3))

    def tensors() -> list[Tensor]:
        given = draw(strategies.tensor_lists())
        if batch is None:
            return list(given)
        return [
            replace(each, shape=(batch, *each.shape), data=bytes(each.data) * batch)
            for each in given
        ]

    def metadata_of(tensor: Tensor) -> TensorMetadata:
        free = [draw(st.sampled_from((dim, -1))) for dim in tensor.shape]
        if batch is not None:
            free[0] = -1
        return TensorMetadata(tensor.name, tensor.datatype.value, tuple(free))

    inputs, outputs = tensors(), tensors()
    model = ModelMetadata(
        "m",
        inputs=tuple(map(metadata_of, draw(st.permutations(inputs)))),
        outputs=tuple(map(metadata_of, draw(st.permutations(outputs)))),
        max_batch_size=0 if batch is None else 4,
        supports_scheduling=True,
    )
    some = draw(st.permutations(outputs))[: draw(st.integers(1, 3))]
    requested = [RequestedOutput(each.name, draw(strategies.parameters())) for each in some]
    all_of_them = draw(st.booleans())
    request = InferRequest(
        draw(MODELS),
        draw(VERSIONS),
        draw(IDS),
        draw(PARAMETERS),
        tuple(inputs),
        () if all_of_them else tuple(requested),
    )
    answer = InferResponse(
        draw(MODELS),
        draw(VERSIONS),
        draw(IDS),
        draw(PARAMETERS),
        tuple(outputs if all_of_them else draw(st.permutations(some))),
    )
    return request, answer, model


# ---- the trips -------------------------------------------------------------------------------


def expected(rule: Callable[..., Any]) -> Any:
    try:
        return rule()
    except Refused as refused:
        return refused


def as_ruled(rule: Callable[..., Any], codec: Callable[..., Any]) -> Any:
    """Return the result of ``codec``, None if it refuses; either must agree with ``rule``."""
    wanted = expected(rule)
    if isinstance(wanted, Refused):
        with pytest.raises(GatewayError) as error:
            codec()
        assert error.value.kind in wanted.kinds
        return None
    found = codec()
    assert to_text(found.operation if isinstance(found, ParsedRequest) else found) == to_text(
        wanted
    )
    return found


def travel(client: str, server: str, exchange: Exchange) -> None:
    """Send an exchange there and back; each leg must follow the rules."""
    request, answer, model = exchange
    ours, theirs = FORMS[client], FORMS[server]
    parsed = as_ruled(
        lambda: request_after(client, request, model), lambda: ours.read_request(request, model)
    )
    if parsed is None:
        return
    passed = parsed.operation
    reached = as_ruled(
        lambda: request_after(server, passed, model), lambda: theirs.read_request(passed, model)
    )
    if reached is None:
        return
    back = as_ruled(
        lambda: response_after(server, answer, passed, model),
        lambda: theirs.read_response(answer, reached, passed, model),
    )
    if back is None:
        return
    as_ruled(
        lambda: response_after(client, back, request, model),
        lambda: ours.read_response(back, parsed, request, model),
    )


@pytest.mark.parametrize("client", NAMES)
@settings(
    deadline=None,
    max_examples=examples(40),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(exchange=exchanges())
def test_there_and_back(client: str, exchange: Exchange) -> None:
    for server in NAMES:
        travel(client, server, exchange)


# ---- the rules -------------------------------------------------------------------------------

DOCS = Path(__file__).resolve().parents[3] / "docs"


def described(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> ModelMetadata:
    def metadata_of(tensors: Sequence[Tensor]) -> tuple[TensorMetadata, ...]:
        return tuple(TensorMetadata(t.name, t.datatype.value, t.shape) for t in tensors)

    return ModelMetadata(
        "m", inputs=metadata_of(inputs), outputs=metadata_of(outputs), max_batch_size=0
    )


PAIRS = [pytest.param(rule, name, id=f"{rule.what}, {name}") for rule in RULES
         for name in rule.forms]  # fmt: skip
SOME = Tensor("X", Datatype.UINT8, (1,), b"\x07")


@pytest.mark.parametrize(("rule", "name"), PAIRS)
def test_a_rule_applies(rule: Rule, name: str) -> None:
    """The rule changes or refuses its example, and the codec does the same."""
    form = FORMS[name]
    if isinstance(rule.example, InferRequest):
        request = rule.example
        outputs = [replace(request.inputs[0], name=each) for each in ("Y", "Z")]
        model = described(request.inputs, outputs)
        assert changes(lambda: rule.asks(request, model), request)
        as_ruled(
            lambda: request_after(name, request, model), lambda: form.read_request(request, model)
        )
        return
    answer = rule.example
    model = described([SOME], sorted(answer.outputs, key=lambda each: each.name))
    some_request = InferRequest("m", inputs=(SOME,))
    parsed = form.read_request(some_request, model)
    assert changes(lambda: rule.tells(answer, some_request, model), answer)
    as_ruled(
        lambda: response_after(name, answer, some_request, model),
        lambda: form.read_response(answer, parsed, some_request, model),
    )


def changes(rule: Callable[[], Any], example: Any) -> bool:
    try:
        return to_text(rule()) != to_text(example)
    except GatewayError:
        return True


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.what)
def test_a_name_rule_is_reported(rule: Rule) -> None:
    file, row = rule.row
    rows = [line.split("|")[1].strip() for line in (DOCS / file).read_text().splitlines()
            if line.startswith("|")]  # fmt: skip
    assert row in rows
