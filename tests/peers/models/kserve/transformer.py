"""A KServe transformer in front of the model ``simple`` of a predictor. It doubles OUTPUT0."""

import argparse

from kserve import Model, ModelServer
from kserve.model_server import parser as server_arguments


class Doubling(Model):
    async def postprocess(self, result, headers=None, response_headers=None):
        for output in result.outputs:
            if output.name == "OUTPUT0":
                output.set_data_from_numpy(output.as_numpy() * 2, binary_data=False)
        return result


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(parents=[server_arguments]).parse_args()
    model = Doubling("simple")
    model.load()
    ModelServer(
        http_port=arguments.http_port, grpc_port=arguments.grpc_port, enable_latency_logging=False
    ).start([model])
