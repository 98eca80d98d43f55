"""``python judge.py``: read and write tensors with TensorFlow, and print a line of JSON for
each line of standard input.

``{"proto": BASE64}`` is read by ``tf.io.parse_tensor`` (C++) and by ``tf.make_ndarray`` (Python).
The output has the elements from each function as base64, or an error. ``{"dtype": NAME, "shape":
[...], "data": BASE64}`` is written by ``tf.make_tensor_proto`` (Python) and by
``tf.io.serialize_tensor`` (C++), as base64.
"""

import base64
import json
import os
import struct
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2


def packed(array):
    if array.dtype == object:
        elements = [bytes(item) for item in array.ravel()]
        return b"".join(struct.pack("<I", len(item)) + item for item in elements)
    return np.ascontiguousarray(array).tobytes()


def result_of(read):
    try:
        array = read()
        if isinstance(array, bytes):  # a scalar
            array = np.array(array, dtype=object)
    except Exception as error:  # noqa: BLE001 - the error is reported
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    array = np.asarray(array)
    data = base64.b64encode(packed(array)).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def respond(request):
    if "proto" in request:
        proto = base64.b64decode(request["proto"])
        message = tensor_pb2.TensorProto.FromString(proto)
        return {
            "parse_tensor": result_of(
                lambda: tf.io.parse_tensor(proto, tf.dtypes.as_dtype(message.dtype)).numpy()
            ),
            "make_ndarray": result_of(lambda: tf.make_ndarray(message)),
        }
    dtype = tf.dtypes.as_dtype(request["dtype"])
    data, shape = base64.b64decode(request["data"]), request["shape"]
    if dtype == tf.string:
        elements, position = [], 0
        while position < len(data):
            (length,) = struct.unpack_from("<I", data, position)
            elements.append(data[position + 4 : position + 4 + length])
            position += 4 + length
        array = np.empty(len(elements), dtype=object)
        array[:] = elements
        array = array.reshape(shape)
    else:
        array = np.frombuffer(data, dtype.as_numpy_dtype).reshape(shape)
    made = tf.make_tensor_proto(array, dtype=dtype, shape=shape)
    serialized = tf.io.serialize_tensor(tf.constant(array, dtype=dtype, shape=shape)).numpy()
    return {
        "make_tensor_proto": base64.b64encode(made.SerializeToString()).decode(),
        "serialize_tensor": base64.b64encode(serialized).decode(),
    }


for line in sys.stdin:
    print(json.dumps(respond(json.loads(line))), flush=True)  # noqa: T201
