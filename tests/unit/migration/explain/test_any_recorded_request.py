"""Any inference of a recording can be explained, or is refused with a reason."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from exchange_samples import EXCHANGES
from infergate.config.load import parse
from infergate.core.errors import GatewayError
from infergate.core.exchange import Exchange, Outcome
from infergate.core.messages import InferRequest, RequestedOutput
from infergate.migration.explain.client_code import CLIENTS, code_of
from infergate.migration.explain.client_inference import ClientAddresses, ClientInference
from infergate.migration.explain.client_request import ClientRequest
from infergate.migration.explain.explanation import ExplainOptions, explain
from infergate.migration.explain.explanation_text import as_json, as_text
from infergate.migration.recorded import recorded_message, recorded_metadata
from infergate.testing import strategies

BACKENDS = ("v2-rest", "v2-grpc", "trtis-http", "trtis-grpc", "tfs-rest", "tfs-grpc", "kserve-v1",
            "graphpipe")  # fmt: skip
TARGETS = [
    f"{{protocol: {name}, endpoints: ['{'grpc' if name.endswith('grpc') else 'http'}://h:{port}']}}"
    for port, name in enumerate(BACKENDS, 1)
]
SPLIT = ", ".join(f"{{backend: b{n}, percent: 5}}" for n in range(1, len(TARGETS)))
CONFIG = parse(
    f"backends: {{{', '.join(f'b{n}: {text}' for n, text in enumerate(TARGETS))}}}\n"
    "routes: [{model: '*', backend: b0, cast: {BF16: FP32, BOOL: UINT8}, split: ["
    f"{SPLIT}]}}]\n"
    "allow_slash_in_model_names: true\n",
    "routes.yaml",
    {},
)
_NAMES = st.from_regex(r"[a-z]{1,3}(/[a-z])?", fullmatch=True)
_TENSORS = st.lists(strategies.tensors(name=_NAMES), max_size=2, unique_by=lambda each: each.name)
VALID_REQUESTS = st.builds(
    InferRequest,
    _NAMES,
    st.sampled_from(["", "1"]),
    st.sampled_from(["", "7"]),
    st.sampled_from([{}, {"sequence_id": 3, "sequence_start": True}, {"p": "q"}]),
    _TENSORS.map(tuple),
    st.lists(st.builds(RequestedOutput, _NAMES), max_size=1).map(tuple),
)
ANY_EXCHANGES = EXCHANGES | st.builds(replace, EXCHANGES, request=VALID_REQUESTS)
PROTOCOLS = st.sampled_from([*BACKENDS, "sagemaker", "\x1b"])
WITHOUT_MODEL = Exchange(InferRequest("", "", "", {}, (), ()), Outcome((), None, 0.0, ()))


@given(ANY_EXCHANGES, PROTOCOLS)
@example(WITHOUT_MODEL, "trtis-grpc")
def test_any_recorded_request_is_explained_or_refused(exchange: Exchange, protocol: str) -> None:
    exchange = replace(exchange, protocol=protocol)
    try:
        request = ClientRequest(recorded_message(exchange))
    except GatewayError:
        return  # the protocol cannot carry the inference
    options = ExplainOptions(recorded=recorded_metadata(exchange))
    explanation = asyncio.run(explain(CONFIG, request, options))
    assert explanation.error or len(explanation.targets) == len(TARGETS)
    assert not any("internal" in target.error for target in explanation.targets)
    assert "\x1b" not in as_text(explanation, shows_bytes=True)
    json.dumps(as_json(explanation))
    if explanation.inference is None:
        return
    inference = ClientInference.of(
        request, explanation.inference, ClientAddresses("h:1", "h:2"), explanation.metadata, None
    )
    for client, code in code_of(CLIENTS, inference).items():
        if client != "curl":
            compile(code, client, "exec")
