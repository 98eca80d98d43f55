"""KServe's model server with the models identity, simple and fail."""

import argparse
from uuid import uuid4

from kserve import InferInput, InferOutput, InferRequest, InferResponse, Model, ModelServer
from kserve.model_server import parser as server_arguments


class Echo(Model):
    """Returns each input INPUT<n> unchanged as OUTPUT<n>."""

    def predict(self, payload: InferRequest, headers=None, response_headers=None):
        return _response(self, payload, [_renamed(each) for each in payload.inputs])


class SumDifference(Model):
    """Returns INPUT0 + INPUT1 as OUTPUT0, and INPUT0 - INPUT1 as OUTPUT1."""

    def predict(self, payload: InferRequest, headers=None, response_headers=None):
        a, b = (tensor.as_numpy() for tensor in sorted(payload.inputs, key=lambda t: t.name))
        outputs = []
        for name, result in (("OUTPUT0", a + b), ("OUTPUT1", a - b)):
            output = InferOutput(name, list(result.shape), "INT32")
            output.set_data_from_numpy(result, binary_data=False)
            outputs.append(output)
        return _response(self, payload, outputs)

    def get_input_types(self):
        return [{"name": f"INPUT{i}", "datatype": "INT32", "shape": [-1, 16]} for i in range(2)]

    def get_output_types(self):
        return [{"name": f"OUTPUT{i}", "datatype": "INT32", "shape": [-1, 16]} for i in range(2)]


class Fail(Model):
    """Raises an exception that the server does not handle."""

    def predict(self, payload: InferRequest, headers=None, response_headers=None):
        raise RuntimeError("the model failed")


def _response(model: Model, payload: InferRequest, outputs: list[InferOutput]) -> InferResponse:
    """Return a response that is binary if the client requested it, as KServe's runtimes do."""
    return InferResponse(
        payload.id or str(uuid4()),
        model.name,
        outputs,
        use_binary_outputs=payload.use_binary_outputs,
        requested_outputs=payload.request_outputs,
    )


def _renamed(tensor: InferInput) -> InferOutput:
    name = tensor.name.replace("INPUT", "OUTPUT")
    output = InferOutput(name, list(tensor.shape), tensor.datatype)
    output.set_data_from_numpy(tensor.as_numpy(), binary_data=tensor._raw_data is not None)
    return output


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(parents=[server_arguments]).parse_args()
    models = [Echo("identity"), SumDifference("simple"), Fail("fail")]
    for model in models:
        model.load()
    ModelServer(
        http_port=arguments.http_port, grpc_port=arguments.grpc_port, enable_latency_logging=False
    ).start(models)
