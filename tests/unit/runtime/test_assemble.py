"""What the configuration says reaches what is built of it."""

from __future__ import annotations

import time

import numpy as np
import pytest

from infergate.config.schema import Config
from infergate.core.call import Call
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest
from infergate.core.tensor import tensor_of
from infergate.runtime.assemble import assemble


async def test_a_builtin_backends_timeout() -> None:
    config = Config.model_validate(
        {
            "log": {"access": False},
            "helpers": 0,
            "backends": {"demo": {"protocol": "builtin", "timeout": "50ms"}},
            "routes": ({"model": "*", "backend": "demo"},),
        }
    )
    gateway = assemble(config).gateway
    inputs = (
        tensor_of("IN", Datatype.INT32, np.array([1])),
        tensor_of("DELAY", Datatype.UINT32, np.array([4_000_000_000])),
    )
    call = Call(peer="test", started=time.monotonic())
    answers = gateway.stream(
        InferRequest("repeat", inputs=inputs), gateway.bind("repeat", "", call), call
    )
    with pytest.raises(GatewayError) as caught:
        await anext(answers)
    assert caught.value.kind is Kind.TIMEOUT
