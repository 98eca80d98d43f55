"""``python ovms.py ADDRESS grpc|http``: run every scenario with ovmsclient, OpenVINO's client for
the APIs of TensorFlow Serving. Unless a version is given, ovmsclient requests version 0.

Each printed line is JSON, ``[name, outcome]``; an outcome is ``{"ok": value}`` or
``{"error": text}``.
"""

import json
import sys

import numpy as np
from ovmsclient import make_grpc_client, make_http_client

RANGE = np.arange(16, dtype=np.int32).reshape(1, 16)
ONES = np.ones((1, 16), np.int32)
SECONDS = 20


def plain(value):
    if isinstance(value, dict):
        return {name: plain(item) for name, item in sorted(value.items())}
    array = np.asarray(value)
    if array.dtype.kind in "OS":
        return [bytes(item).decode("latin-1") for item in array.ravel()]
    return [str(array.dtype), list(array.shape), array.ravel().astype(float).tolist()]


class Scenarios:
    def __init__(self, address, transport):
        self.client = (make_http_client if transport == "http" else make_grpc_client)(address)

    def predict(self, inputs, model, **options):
        return plain(self.client.predict(inputs, model, timeout=SECONDS, **options))

    def simple(self):
        return self.predict({"INPUT0": RANGE, "INPUT1": ONES}, "simple")

    def simple_version(self):
        return self.predict({"INPUT0": RANGE, "INPUT1": ONES}, "simple", model_version=1)

    def strings(self):
        return self.predict({"INPUT0": [[b"a", b"\xff\1"]]}, "simple_identity")

    def a_wrong_input(self):
        return self.predict({"INPUT0": RANGE}, "simple")

    def an_unknown_model(self):
        return self.predict({"INPUT0": RANGE}, "nosuch")

    def status(self):
        return {
            str(version): [str(entry["state"]), int(entry["error_code"])]
            for version, entry in self.client.get_model_status("simple", timeout=SECONDS).items()
        }

    def status_of_an_unknown_model(self):
        return self.client.get_model_status("nosuch", timeout=SECONDS)

    def metadata(self):
        return self.client.get_model_metadata("simple", timeout=SECONDS)


def outcome(scenario):
    try:
        return {"ok": scenario()}
    except Exception as error:  # noqa: BLE001 - the error is reported
        return {"error": f"{type(error).__name__}: {error}"}


scenarios = Scenarios(*sys.argv[1:])
for name in vars(Scenarios):
    if not name.startswith("_") and name != "predict":
        print(json.dumps([name, outcome(getattr(scenarios, name))]))  # noqa: T201
