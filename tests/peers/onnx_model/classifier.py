"""``python classifier.py MODEL INPUTS OUTPUTS``: write an ONNX classifier of photos to MODEL, run
it on each array of INPUTS, a file of ``numpy.savez``, and write the logits to OUTPUTS.

The tensors are those of a ResNet: ``data`` FP32 [N,3,224,224] → ``logits`` FP32 [N,1000]. The
weights are random, so the classes mean nothing, but every pixel changes the logits.
"""

import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

CHANNELS, CLASSES = 16, 1000


def classifier():
    random = np.random.default_rng(7)
    weights = {
        "kernel": random.normal(0, 0.2, (CHANNELS, 3, 7, 7)),
        "shift": random.normal(0, 0.5, CHANNELS),
        "matrix": random.normal(0, 2, (CHANNELS, CLASSES)),
        "bias": random.normal(0, 0.5, CLASSES),
    }
    nodes = [
        helper.make_node("Conv", ["data", "kernel", "shift"], ["c"], strides=[4, 4], pads=[3] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "matrix", "bias"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["N", 3, 224, 224])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", CLASSES])],
        [numpy_helper.from_array(each.astype(np.float32), name) for name, each in weights.items()],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def main(model, inputs, outputs):
    onnx.save(classifier(), model)
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options)
    with np.load(inputs) as batches:
        logits = {name: session.run(["logits"], {"data": batches[name]})[0] for name in batches}
    np.savez(outputs, **logits)


main(*sys.argv[1:])
