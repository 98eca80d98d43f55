"""``v1_client.py HTTP MODEL ROWS``: call a model with ROWS (JSON) over KServe's V1 protocol, and
print a JSON line for each scenario."""

import asyncio
import json
import sys

import httpx
from cloudevents.conversion import to_binary, to_structured
from cloudevents.http import CloudEvent, from_http
from kserve import InferenceRESTClient, RESTConfig

ROWS = {"instances": json.loads(sys.argv[3])}


def example_event():
    return CloudEvent({"type": "com.example.t", "source": "example/source", "subject": "x"}, ROWS)


async def send(url, message):
    headers, body = message
    async with httpx.AsyncClient() as client:
        response = await client.post(url, headers=headers, content=body)
    assert response.status_code == 200, response.text
    event = from_http(dict(response.headers), response.content)
    assert event["id"]
    return [event["type"], event["source"], event.data]


async def error(call):
    try:
        await call
    except httpx.HTTPStatusError as failure:
        return [failure.response.status_code, failure.response.json()]
    return "no error"


async def main(http, model):
    base = f"http://{http}"
    url = f"{base}/v1/models/{model}:predict"
    client = InferenceRESTClient(RESTConfig(protocol="v1"))
    scenarios = {
        "live": lambda: client.is_server_live(base),
        "ready": lambda: client.is_model_ready(base, model),
        "unknown ready": lambda: error(client.is_model_ready(base, "nosuch")),
        "infer": lambda: client.infer(base, ROWS, model_name=model),
        "infer inputs": lambda: client.infer(base, {"inputs": [[1, 2]]}, model_name=model),
        "explain": lambda: error(client.explain(base, model, ROWS)),
        "binary event": lambda: send(url, to_binary(example_event())),
        "structured event": lambda: send(url, to_structured(example_event())),
        # last, because KServe closes the connection after an exception
        "infer ragged": lambda: error(
            client.infer(base, {"instances": [[1], [1, 2]]}, model_name=model)
        ),
    }
    for name, call in scenarios.items():
        try:
            outcome = await call()
        except httpx.HTTPError as failure:
            outcome = f"failed: {type(failure).__name__}"
        sys.stdout.write(json.dumps([name, outcome]) + "\n")
    await client.close()


asyncio.run(main(*sys.argv[1:3]))
