"""KServe's model server with models for its V1 protocol: double and swap."""

import argparse

import numpy as np
from kserve import Model, ModelServer
from kserve.model_server import parser as server_arguments
from kserve.utils.utils import get_predict_input, get_predict_response


class Double(Model):
    """Returns doubled numbers as predictions, and the numbers themselves as explanations."""

    def predict(self, payload, headers=None, response_headers=None):
        rows = np.asarray(get_predict_input(payload))
        return get_predict_response(payload, rows * 2, self.name)

    def explain(self, payload, headers=None):
        return {"explanations": payload["instances"]}


class Swap(Model):
    """Returns the values a and b of each row as d and c."""

    def predict(self, payload, headers=None, response_headers=None):
        return {"predictions": [{"c": row["b"], "d": row["a"]} for row in payload["instances"]]}


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(parents=[server_arguments]).parse_args()
    models = [Double("double"), Swap("swap")]
    for model in models:
        model.load()
    ModelServer(
        http_port=arguments.http_port, grpc_port=arguments.grpc_port, enable_latency_logging=False
    ).start(models)
