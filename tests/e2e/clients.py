"""The four forms of tritonclient behind one interface, and an array of each datatype."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from ml_dtypes import bfloat16

FORMS = ("http", "grpc", "http.aio", "grpc.aio")

Array = npt.NDArray[Any]

ARRAYS: dict[str, Array] = {
    "BOOL": np.array([True, False, True]),
    "UINT8": np.array([0, 1, 255], "u1"),
    "UINT16": np.array([0, 1, 65535], "u2"),
    "UINT32": np.array([0, 1, 2**32 - 1], "u4"),
    "UINT64": np.array([0, 2**53 + 1, 2**64 - 1], "u8"),
    "INT8": np.array([-128, 0, 127], "i1"),
    "INT16": np.array([-32768, 0, 32767], "i2"),
    "INT32": np.array([-(2**31), 0, 2**31 - 1], "i4"),
    "INT64": np.array([-(2**63), 2**53 + 1, 2**63 - 1], "i8"),
    "FP16": np.array([0.1, -65504, 6e-8], "f2"),
    "FP32": np.array([0.1, -3.4028235e38, 1e-45], "f4"),
    "FP64": np.array([0.1, -1.7976931348623157e308, 5e-324], "f8"),
    "BF16": np.array([0.1, -1.5, 3e38], bfloat16),
    "BYTES": np.array([b"plain", "é".encode(), b""], np.object_),
}
"""Three elements of each of the 14 datatypes."""


class Client:
    """A client of tritonclient. Calls to its coroutines block until they return."""

    def __init__(self, form: str, client: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.form = form
        self._client = client
        self._loop = loop
        self.http = form.startswith("http")
        self._module = tritonclient.http if self.http else tritonclient.grpc
        self.as_json: dict[str, Any] = {} if self.http else {"as_json": True}
        """Options that make a method return a dict."""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def run_method(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if asyncio.iscoroutine(result):
                return self._loop.run_until_complete(result)
            return result

        return run_method

    def input(self, name: str, array: Array, datatype: str, *, binary: bool = True) -> Any:
        tensor = self._module.InferInput(name, list(array.shape), datatype)
        if self.http:
            return tensor.set_data_from_numpy(array, binary_data=binary)
        return tensor.set_data_from_numpy(array)

    def output(self, name: str, *, binary: bool = True, classes: int = 0) -> Any:
        if self.http:
            return self._module.InferRequestedOutput(name, binary_data=binary, class_count=classes)
        return self._module.InferRequestedOutput(name, class_count=classes)


@contextmanager
def client(form: str, http: str, grpc: str) -> Iterator[Client]:
    loop = asyncio.new_event_loop()

    async def make() -> Any:
        match form:
            case "http":
                return tritonclient.http.InferenceServerClient(http)
            case "grpc":
                return tritonclient.grpc.InferenceServerClient(grpc)
            case "http.aio":
                return tritonclient.http.aio.InferenceServerClient(http)
            case _:
                return tritonclient.grpc.aio.InferenceServerClient(grpc)

    created = loop.run_until_complete(make())
    wrapped = Client(form, created, loop)
    try:
        yield wrapped
    finally:
        wrapped.close()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
