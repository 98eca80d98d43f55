"""Plug-ins that tests name in configurations: some work, and some misbehave."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, field_validator

from infergate.plugins import (
    Datatype,
    GatewayError,
    InferRequest,
    InferResponse,
    Kind,
    ModelMetadata,
    Plugin,
    PluginCall,
    PythonModel,
    RequestHook,
    Tensor,
    TensorMetadata,
    TensorTransform,
    input_arrays,
    tensor_from_array,
)

RELEASE = threading.Event()
"""Ends the calls that hang, so that no thread outlives a test."""


@dataclass
class DoubleOptions:
    factor: int = 2
    outcome: str = ""


class Double(PythonModel):
    """Maps X FP32 [-1,2] to Y = ``factor`` times X. ``outcome`` selects a misbehavior."""

    options_type = DoubleOptions

    def __init__(self, options: DoubleOptions) -> None:
        super().__init__(options)
        self.started = self.closed = False

    async def start(self) -> None:
        self.started = True

    async def close(self) -> None:
        self.closed = True

    @property
    def metadata(self) -> ModelMetadata:
        return ModelMetadata(
            "double",
            inputs=(TensorMetadata("X", "FP32", (-1, 2)),),
            outputs=(TensorMetadata("Y", "FP32", (-1, 2)),),
            max_batch_size=8,
        )

    def result(self, request: InferRequest) -> Any:  # noqa: PLR0912 - a case for each outcome
        x = input_arrays(request)["X"]
        match self.options.outcome:
            case "":
                return {"Y": x * np.float32(self.options.factor)}
            case "raises":
                raise RuntimeError("the password is hunter2")
            case "exits":
                raise SystemExit(3)
            case "rejects":
                raise GatewayError(Kind.RATE_LIMITED, "try later", retry_after=2.0)
            case "dtype":
                return {"Y": x.astype(np.float64)}
            case "shape":
                return {"Y": x.reshape(-1)}
            case "missing":
                return {"Z": x}
            case "type":
                return [1]
            case "list":
                return {"Y": x.tolist()}
            case "tensor":
                return InferResponse("", outputs=(Tensor("Y", Datatype.FP32, (1, 2), b"123"),))
            case "broadcast":
                return {"Y": np.broadcast_to(np.float32(0), (1 << 40, 2))}
            case "huge":
                return {"Y": np.zeros((5000, 2), np.float32)}
            case "hangs":
                RELEASE.wait()
                return {"Y": x}
        raise AssertionError(self.options.outcome)

    def infer(self, request: InferRequest, call: PluginCall) -> Any:
        return self.result(request)


class AsyncDouble(Double):
    async def infer(self, request: InferRequest, call: PluginCall) -> Any:
        if self.options.outcome == "waits":
            await asyncio.Event().wait()
        return self.result(request)


class Count(Double):
    """Yields one response per row of X, from a plain generator."""

    def stream(self, request: InferRequest, call: PluginCall) -> Iterator[Any]:
        for row in input_arrays(request)["X"]:
            yield self.result(replace(request, inputs=(_tensor(row.reshape(1, 2)),)))


class AsyncCount(Double):
    """Yields one response per row of X, from an asynchronous generator."""

    def stream(self, request: InferRequest, call: PluginCall) -> AsyncIterator[Any]:
        return self.rows(request)

    async def rows(self, request: InferRequest) -> AsyncIterator[Any]:
        try:
            for row in input_arrays(request)["X"]:
                yield {"Y": row.reshape(1, 2)}
                if self.options.outcome == "waits":
                    await asyncio.Event().wait()
        finally:
            self.closed = True


class UnhashableMetadata(Double):
    @property
    def metadata(self) -> ModelMetadata:
        datatype: Any = ["FP32"]
        return ModelMetadata("double", inputs=(TensorMetadata("X", datatype, (1,)),))


class BadVersions(Double):
    @property
    def metadata(self) -> ModelMetadata:
        return replace(super().metadata, versions=(1,))  # type: ignore[arg-type]


class BadMetadata(Double):
    @property
    def metadata(self) -> ModelMetadata:
        return ModelMetadata("double", inputs=(TensorMetadata("X", "FLOAT", (1,)),))


class FailsToStart(Double):
    async def start(self) -> None:
        raise OSError("no connection")


class HangsInConstructor(Double):
    def __init__(self, options: DoubleOptions) -> None:
        print("the constructor hangs", flush=True)  # noqa: T201 - a test reads it
        RELEASE.wait()


class FailsInConstructor(Double):
    def __init__(self, options: DoubleOptions) -> None:
        raise ValueError("no weights")


class Abstract(PythonModel):
    pass


class FromTheFuture(Double):
    plugin_api = "1.99"


def _tensor(array: np.ndarray[Any, Any], name: str = "X") -> Tensor:
    return tensor_from_array(name, Datatype.FP32, array.astype(np.float32))


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class HookOptions(BaseModel):
    name: str = "hook"
    before: str = ""
    after: str = ""
    level: Literal["low", "high"] = "low"
    items: list[int] = []

    @field_validator("items")
    @classmethod
    def _positive(cls, value: list[int]) -> list[int]:
        if any(item < 0 for item in value):
            raise ValueError("items must not be negative")
        return value


class Hook(RequestHook):
    """A hook whose behavior ``options`` selects. ``events`` records the names of the methods that
    ran, and ``calls`` their PluginCalls."""

    options_type = HookOptions
    events: ClassVar[list[str]] = []
    calls: ClassVar[list[PluginCall]] = []

    async def before(self, request: InferRequest, call: PluginCall) -> Any:
        self.events.append(f"{self.options.name} before")
        self.calls.append(call)
        call.state["seen"] = request
        return await self._outcome(self.options.before, request, None)

    async def after(self, request: InferRequest, response: InferResponse, call: PluginCall) -> Any:
        assert call.state["seen"] is request
        self.events.append(f"{self.options.name} after")
        return await self._outcome(self.options.after, request, response)

    async def _outcome(  # noqa: PLR0912 - a case for each outcome
        self, outcome: str, request: InferRequest, response: InferResponse | None
    ) -> Any:
        match outcome:
            case "":
                return None
            case "adds":
                if response is None:
                    x = request.inputs[0].numpy() + np.float32(1)
                    return replace(request, inputs=(_tensor(x),))
                y = response.outputs[0].numpy() + np.float32(1)
                return replace(response, outputs=(_tensor(y, "Y"),))
            case "answers":
                return InferResponse("x", outputs=(_tensor(np.zeros((1, 2)), "Y"),))
            case "rejects":
                raise GatewayError(Kind.FORBIDDEN, "not today")
            case "raises":
                raise RuntimeError("the password is hunter2")
            case "cancels":
                raise asyncio.CancelledError
            case "waits":
                await asyncio.Event().wait()
            case "blocks":
                RELEASE.wait()
            case "stops":
                asyncio.get_running_loop().stop()
            case "exits":
                asyncio.get_running_loop().call_soon(sys.exit, 3)
                await asyncio.sleep(0)
            case "unprintable":
                raise UnprintableError
            case "kind":
                unknown: Any = "nonsense"
                raise GatewayError(unknown, "text")
            case "outputs" if response is None:
                return replace(request, outputs=("Y",))
            case "parameters":
                return replace(response or request, parameters={"x": object()})
            case "version" if response is not None:
                return replace(response, version=1)
            case "renames":
                return replace(request, model="other")
            case "nonsense":
                return 5
            case "data":
                return replace(request, inputs=(Tensor("X", Datatype.FP32, (1, 2), b"1"),))
        return None


@dataclass
class TransformOptions:
    outcome: str = ""


class Lengths(TensorTransform):
    """Maps text BYTES [-1] to X FP32 [-1, 2], with the row [length, 1] for each text."""

    options_type = TransformOptions
    reads = ("text",)
    writes = ("X",)

    def backward_metadata(self, *tensors: TensorMetadata) -> list[TensorMetadata]:
        datatype: Any = "FLOAT"
        match self.options.outcome:
            case "describes":
                raise RuntimeError("the password is hunter2")
            case "exits":
                raise SystemExit(3)
            case "forgets":
                RELEASE.wait()
            case "datatype":
                return [TensorMetadata("text", datatype, (-1,))]
            case "count":
                return []
        return [TensorMetadata("text", "BYTES", tensors[0].shape[:1])]

    def apply(self, *tensors: Tensor) -> Any:
        (text,) = tensors
        lengths = [(len(each), 1) for each in text.numpy()]
        match self.options.outcome:
            case "raises":
                raise RuntimeError("the password is hunter2")
            case "rejects":
                raise GatewayError(Kind.BAD_REQUEST, "input 'text': too sad")
            case "hangs":
                RELEASE.wait()
            case "names":
                return [_tensor(np.array(lengths), "Z")]
            case "type":
                return 5
        return [_tensor(np.array(lengths))]


class NotAHook(Plugin):
    pass
