"""``python ovms_photo.py ADDRESS grpc|http MODEL FILE``: send an image file to MODEL as ovmsclient
does in its examples. Each printed line is JSON: the name and the elements of an output,
``["metadata", metadata]`` or ``["error", text]``."""

import json
import sys
from pathlib import Path

from ovmsclient import make_grpc_client, make_http_client

address, transport, model, file = sys.argv[1:]
client = (make_http_client if transport == "http" else make_grpc_client)(address)
try:
    outputs = client.predict({"image": Path(file).read_bytes()}, model, timeout=20)
    report = {name: array.tolist() for name, array in outputs.items()}
    report["metadata"] = client.get_model_metadata(model, timeout=20)
except Exception as error:  # noqa: BLE001 - the error is reported
    report = {"error": f"{type(error).__name__}: {error}"}
for item in report.items():
    print(json.dumps(item))  # noqa: T201
