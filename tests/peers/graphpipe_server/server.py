"""``python server.py PORT MODEL``: a server like those in graphpipe-py's examples.

It serves one connection at a time over HTTP/1.0; a response ends with the connection. GET is
not supported, and an invalid request closes the connection without a response. Models:

=========  ===================================================================================
identity   any inputs → the same outputs; the metadata declares FP32 ``x`` → ``y``
mute       identity without metadata, as in the examples
sum        ``a``, ``b`` → the requested outputs among ``sum`` and ``difference``, with metadata
=========  ===================================================================================
"""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
from graphpipe import convert


def io(name, kind=np.float32, shape=(-1, -1)):
    return {"name": name, "type": np.dtype(kind), "shape": list(shape)}


def identity(request):
    return request.input_tensors


def add(request):
    names = [name.decode() for name in request.input_names]
    inputs = dict(zip(names, request.input_tensors, strict=True))
    outputs = {"sum": inputs["a"] + inputs["b"], "difference": inputs["a"] - inputs["b"]}
    return [outputs[name.decode()] for name in request.output_names]


def metadata(name, inputs, outputs):
    return {"name": name, "version": "1", "server": "test", "description": "",
            "inputs": inputs, "outputs": outputs}  # fmt: skip


MODELS = {
    "identity": (identity, metadata("identity", [io("x")], [io("y")])),
    "mute": (identity, None),
    "sum": (add, metadata("sum", [io("a"), io("b")], [io("sum"), io("difference")])),
}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        apply, result = MODELS[sys.argv[2]]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = convert.deserialize_request(bytearray(body))
        if request is None:
            response = convert.serialize_metadata_response(result)
        else:
            response = convert.serialize_infer_response(apply(request))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(response)


HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
