"""``python mlflow_scoring.py ADDRESS``: run every scenario with MLflow's scoring client, for a
listener that serves ``simple``.

Each printed line is JSON, ``[name, outcome]``; an outcome is ``{"ok": value}`` or
``{"error": text}``.
"""

import json
import sys

import numpy as np
import pandas as pd
from mlflow.pyfunc.scoring_server.client import ScoringServerClient

LEFT = np.arange(32, dtype=np.int32).reshape(2, 16)
RIGHT = np.ones((2, 16), np.int32)


class Scenarios:
    def __init__(self, address):
        host, port = address.split(":")
        self.client = ScoringServerClient(host, port)
        self.client.wait_server_ready()

    def table(self):
        return pd.DataFrame({"INPUT0": LEFT.tolist(), "INPUT1": RIGHT.tolist()})

    def version(self):
        return self.client.get_version()

    def columns(self):  # version 3.17 of the client fails to encode a dict
        data = {"INPUT0": LEFT.tolist(), "INPUT1": RIGHT.tolist()}
        return self.client.invoke(json.dumps({"inputs": data}))["predictions"]

    def a_table(self):
        return self.client.invoke(self.table())["predictions"]

    def params(self):
        return self.client.invoke(self.table(), params={"threshold": 0.5})["predictions"]

    def a_wrong_table(self):
        return self.client.invoke(pd.DataFrame({"a": [1, 2]}))["predictions"]


def outcome(scenario):
    try:
        return {"ok": scenario()}
    except Exception as error:  # noqa: BLE001 - the error is reported
        return {"error": f"{type(error).__name__}: {error}"}


scenarios = Scenarios(sys.argv[1])
for name in vars(Scenarios):
    if not name.startswith("_") and name != "table":
        print(json.dumps([name, outcome(getattr(scenarios, name))]))  # noqa: T201
