"""``client.py HTTP GRPC``: call a server with KServe's SDK, and print a JSON line per scenario."""

import asyncio
import json
import sys

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig


def request(binary):
    inputs = []
    for i in range(2):
        tensor = InferInput(f"INPUT{i}", [1, 16], "INT32")
        tensor.set_data_from_numpy(np.full((1, 16), i + 1, np.int32), binary_data=binary)
        inputs.append(tensor)
    return InferRequest("simple", inputs)


def summary(response):
    return {output.name: output.as_numpy().ravel().tolist()[:2] for output in response.outputs}


async def main(http, grpc):
    url = f"http://{http}"
    rest = InferenceRESTClient(RESTConfig(protocol="v2"))
    rpc = InferenceGRPCClient(grpc)
    scenarios = {
        "rest live": lambda: rest.is_server_live(url),
        "rest ready": lambda: rest.is_server_ready(url),
        "rest model ready": lambda: rest.is_model_ready(url, "simple"),
        "rest unknown model ready": lambda: rest.is_model_ready(url, "nosuch"),
        "rest infer": lambda: rest.infer(url, request(False), model_name="simple"),
        "rest infer binary": lambda: rest.infer(url, request(True), model_name="simple"),
        "grpc live": rpc.is_server_live,
        "grpc ready": rpc.is_server_ready,
        "grpc model ready": lambda: rpc.is_model_ready("simple"),
        "grpc infer": lambda: rpc.infer(request(True)),
    }
    for name, call in scenarios.items():
        result = await call()
        outcome = result if isinstance(result, bool | None) else summary(result)
        sys.stdout.write(json.dumps([name, outcome]) + "\n")
    await rest.close()
    await rpc.close()


asyncio.run(main(*sys.argv[1:]))
