"""``python client.py ADDRESSES``: run every scenario with graphpipe-py's client.

ADDRESSES is JSON that maps models to URLs. Each printed line is JSON, ``[name, outcome]``; an
outcome is ``{"ok": value}``, ``{"status": HTTP status}`` or ``{"error": text}``. An array is
written as its dtype, its shape, and its bytes in hex or its strings as latin-1 text.
"""

import json
import sys

import numpy as np
from graphpipe import remote
from requests import HTTPError

A = np.arange(16, dtype=np.int32).reshape(1, 16)
B = np.full((1, 16), 3, np.int32)
KINDS = {
    "UINT8": (np.uint8, [0, 1, 255]), "INT8": (np.int8, [0, -1, -128]),
    "UINT16": (np.uint16, [0, 1, 65535]), "INT16": (np.int16, [0, -1, -32768]),
    "UINT32": (np.uint32, [0, 1, 2**32 - 1]), "INT32": (np.int32, [0, -1, -(2**31)]),
    "UINT64": (np.uint64, [0, 1, 2**64 - 1]), "INT64": (np.int64, [0, -1, -(2**63)]),
    "FP16": (np.float16, [0, -1.5, 65504]), "FP32": (np.float32, [0, -1.5, 3.4028235e38]),
    "FP64": (np.float64, [0, -1.5, 1.7976931348623157e308]),
}  # fmt: skip
EDGE_FLOATS = np.array([0x7FC00001, 0xFFA00001, 0x7F800000, 0x80000000], np.uint32).view(np.float32)
"""Two NaNs with payloads, infinity and negative zero."""


class Scenarios:
    def __init__(self, addresses):
        self.urls = addresses

    def sum(self, input_names=None, output_names=None, config=None, model="simple"):
        result = remote.execute_multi(self.urls[model], [A, B], input_names, output_names, config)
        return plain(result)

    # tensors

    def float32(self):
        return plain(remote.execute(self.urls["id_FP32"], np.array([1.5, -2, 0], np.float32)))

    def special_floats(self):
        return plain(remote.execute(self.urls["id_FP32"], EDGE_FLOATS))

    def all_types(self):
        return {
            name: plain(remote.execute(self.urls[f"id_{name}"], np.array(values, kind)))
            for name, (kind, values) in KINDS.items()
        }

    def photo(self):
        return plain(remote.execute(self.urls["id_photo"], np.arange(60, dtype=np.uint8)
                                    .reshape(1, 4, 5, 3)))  # fmt: skip

    def photo_with_other_strides(self):
        transposed = np.arange(60, dtype=np.uint8).reshape(1, 3, 5, 4).T.reshape(4, 5, 3, 1)
        return plain(remote.execute(self.urls["id_photo"], np.transpose(transposed, (3, 1, 0, 2))))

    def strings(self):
        strings = np.array([["foo", ""], ["héllo", "four"]])
        return plain(remote.execute(self.urls["id_words"], strings))

    def arbitrary_bytes(self):
        data = np.array([[b"a\0b", b"\xff\xfe"]], np.object_)
        return plain(remote.execute(self.urls["id_words"], data))

    def no_elements(self):
        return plain(remote.execute(self.urls["id_FP32"], np.zeros(0, np.float32)))

    def no_strings(self):
        return plain(remote.execute(self.urls["id_BYTES"], np.zeros(0, np.object_)))

    def scalar(self):
        return plain(remote.execute(self.urls["id_FP32"], np.array(1.5, np.float32)))

    def big(self):
        numbers = np.arange(5_000_000, dtype=np.float32)
        return bool((remote.execute(self.urls["id_FP32"], numbers) == numbers).all())

    def cast_bool(self):
        return plain(remote.execute(self.urls["id_BOOL"], np.array([0, 1, 5], np.uint8)))

    def cast_bf16(self):
        return plain(remote.execute(self.urls["id_BF16"], np.array([1.0, 3.14159], np.float32)))

    # names

    def named(self):
        return self.sum(["INPUT0", "INPUT1"], ["OUTPUT0", "OUTPUT1"])

    def unnamed(self):
        return self.sum()

    def empty_names(self):
        return self.sum(["", ""], ["", ""])

    def inputs_in_reverse_order(self):
        return self.sum(["INPUT1", "INPUT0"])

    def outputs_in_reverse_order(self):
        return self.sum(None, ["OUTPUT1", "OUTPUT0"])

    def first_input_named(self):
        return self.sum(["INPUT0"])

    def one_output(self):
        return self.sum(None, ["OUTPUT1"])

    def default_output(self):
        return self.sum(None, [""])

    def output_twice(self):
        return self.sum(None, ["OUTPUT1", "OUTPUT1"])

    def doubled_names(self):
        return self.sum(["INPUT0", "INPUT1", "INPUT0", "INPUT1"])

    def tensorflow_names(self):
        return self.sum(["INPUT0:0", "INPUT1:0"], ["OUTPUT1:0"])

    def version(self):
        return self.sum(model="simple/versions/1")

    # config

    def json_config(self):
        return self.sum(config='{"threshold": 0.5, "mode": "fast"}')

    def text_config(self):
        return self.sum(config="fast, please")

    # metadata

    def metadata(self):
        metadata = remote.metadata(self.urls["simple"])
        ios = [metadata.Inputs(i) for i in range(metadata.InputsLength())]
        ios += [metadata.Outputs(i) for i in range(metadata.OutputsLength())]
        return {
            "name": metadata.Name().decode(),
            "ios": [[io.Name().decode(), io.Type(), io.ShapeAsNumpy().tolist()] for io in ios],
        }

    def metadata_helpers(self):
        url = self.urls["simple"]
        return [
            remote.get_input_names(url), remote.get_output_names(url),
            [str(kind) for kind in remote.get_input_types(url)],
            [str(kind) for kind in remote.get_output_types(url)],
            remote.get_input_shapes(url), remote.get_output_shapes(url),
        ]  # fmt: skip

    # errors

    def error_unknown_model(self):
        return self.sum(model="nosuch")

    def error_unknown_version(self):
        return self.sum(model="simple/versions/9")

    def error_metadata_of_unknown_model(self):
        return remote.get_input_names(self.urls["nosuch"])

    def error_missing_input(self):
        return plain(remote.execute(self.urls["simple"], A))

    def error_inputs_without_names(self):
        return plain(remote.execute_multi(self.urls["simple"], [A, B, B], None, None))

    def error_unknown_input(self):
        return self.sum(["INPUT0", "nope"])

    def error_unknown_output(self):
        return self.sum(None, ["nope"])

    def error_shape(self):
        return plain(remote.execute_multi(self.urls["simple"], [A[:, :3], B[:, :3]], None, None))

    def error_datatype(self):
        return plain(remote.execute_multi(self.urls["simple"], [A * 1.5, B * 1.5], None, None))

    def error_from_the_model(self):
        return plain(remote.execute(self.urls["fail"], np.array([b"UNAVAILABLE"], np.object_)))


def plain(response):
    if isinstance(response, list):
        return [plain(each) for each in response]
    if response.dtype.kind in "SO":
        return [
            "S",
            list(response.shape),
            [each.decode("latin-1") for each in response.ravel().tolist()],
        ]
    return [response.dtype.str, list(response.shape), response.tobytes().hex()]


def outcome(scenario):
    try:
        return {"ok": scenario()}
    except HTTPError as error:
        return {"status": error.response.status_code}
    except Exception as error:  # noqa: BLE001 - the client raises nothing narrower
        response = error.args[0] if error.args else ""
        text = (
            response.decode()
            if isinstance(response, bytes)
            else f"{type(error).__name__}: {response}"
        )
        return {"error": text}


def main(addresses):
    scenarios = Scenarios(json.loads(addresses))
    for name in vars(Scenarios):
        if not name.startswith("_") and name != "sum":
            line = json.dumps([name, outcome(getattr(scenarios, name))])
            sys.stdout.write(f"{line}\n")


main(*sys.argv[1:])
