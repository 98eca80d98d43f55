"""``python client.py PROTOCOL URL``: run every scenario with the real client.

Each result is a line of JSON, ``[name, outcome]``; an outcome is ``{"ok": value}`` or ``{"error":
text}``. The client prints other lines in between. Arrays become lists, bytes become latin-1 text,
and a class becomes ``[index, value, label]``.
"""

import json
import sys
import threading
import warnings

warnings.simplefilter("ignore")
import numpy as np  # noqa: E402

# The client uses np.object and np.bool, which numpy has removed.
vars(np).update(object=object, bool=bool)
from tensorrtserver import api  # noqa: E402

for kind in (api.ServerStatus, api.ModelRepositoryIndex, api.SharedMemoryStatus):
    # Pure-Python protobuf cannot read the ctypes array that the client passes.
    kind.ParseFromString = lambda self, data, read=kind.ParseFromString: read(self, bytes(data))

RAW, CLASS = api.InferContext.ResultFormat.RAW, api.InferContext.ResultFormat.CLASS
START, END = 1, 2
RANGE = np.arange(16, dtype=np.int32)
ONES = np.ones(16, np.int32)
SCORES = np.array([0.1, 0.7, 0.05, 0.15], np.float32)
SECONDS = 20

KINDS = (
    ("BOOL", [True, False], np.bool_), ("UINT8", [1, 255], np.uint8),
    ("UINT16", [1, 65535], np.uint16), ("UINT32", [1, 2**32 - 1], np.uint32),
    ("UINT64", [1, 2**64 - 1], np.uint64), ("INT8", [-1, 127], np.int8),
    ("INT16", [-1, 2**15 - 1], np.int16), ("INT32", [-1, 2**31 - 1], np.int32),
    ("INT64", [-1, 2**63 - 1], np.int64), ("FP16", [1.5, -2.0], np.float16),
    ("FP32", [1.5, -2.0], np.float32), ("FP64", [1.5, -2.0], np.float64),
    ("STRING", [b"x", b"\xc3\0\xa9"], np.bytes_),
)  # fmt: skip


class Scenarios:
    def __init__(self, protocol, url):
        self.url = url
        self.protocol = api.ProtocolType.from_str(protocol)

    def context(self, model, version=None, **options):
        return api.InferContext(self.url, self.protocol, model, version, **options)

    def run(self, model, inputs, outputs, batch=1, version=None):
        """Run an inference, and return its outputs and the version that ran."""
        context = self.context(model, version)
        return plain(context.run(inputs, outputs, batch)), context.get_last_request_model_version()

    def simple(self, **options):
        return self.run(
            "simple",
            {"INPUT0": [RANGE], "INPUT1": [ONES]},
            {"OUTPUT0": RAW, "OUTPUT1": RAW},
            **options,
        )

    # health, status, repository

    def health(self):
        context = api.ServerHealthContext(self.url, self.protocol)
        return [context.is_live(), context.is_ready()]

    def status(self):
        status = api.ServerStatusContext(self.url, self.protocol).get_server_status()
        return [bool(status.id), status.ready_state]

    def status_of(self, model):
        response = api.ServerStatusContext(self.url, self.protocol, model).get_server_status()
        status = response.model_status[model]
        tensors = [*status.config.input, *status.config.output]
        return {
            "max_batch_size": status.config.max_batch_size,
            "tensors": [[each.name, each.data_type, list(each.dims)] for each in tensors],
            "ready": sorted(k for k, v in status.version_status.items() if v.ready_state == 1),
        }

    def status_model(self):
        return self.status_of("simple")

    def status_model_without_batches(self):
        return self.status_of("simple_nobatch")

    def status_unknown_model(self):
        return self.status_of("nosuch")

    def repository(self):
        result = api.ModelRepositoryContext(self.url, self.protocol).get_model_repository_index()
        return "simple" in {model.name for model in result.models}

    def load(self):
        api.ModelControlContext(self.url, self.protocol).load("simple")

    def shared_memory(self):
        status = api.SharedMemoryControlContext(self.url, self.protocol).get_shared_memory_status()
        return len(status.shared_memory_region)

    # inference

    def infer(self):
        return self.simple()

    def infer_version(self):
        return self.simple(version=1)

    def infer_batch(self):
        inputs = {"INPUT0": [RANGE, RANGE + 100], "INPUT1": [ONES, ONES]}
        return self.run("simple", inputs, {"OUTPUT0": RAW, "OUTPUT1": RAW}, batch=2)

    def infer_in_reverse_order(self):
        inputs = {"INPUT1": [ONES], "INPUT0": [RANGE]}
        return self.run("simple", inputs, {"OUTPUT1": RAW, "OUTPUT0": RAW})

    def infer_one_output(self):
        return self.run("simple", {"INPUT0": [RANGE], "INPUT1": [ONES]}, {"OUTPUT1": RAW})

    def infer_twice_in_a_context(self):
        context = self.context("simple")
        return [
            plain(context.run({"INPUT0": [RANGE * n], "INPUT1": [ONES]}, {"OUTPUT0": RAW}))
            for n in (1, 2)
        ]

    def infer_without_batches(self):
        numbers = np.array([1.5, 2.5, -3, 4], np.float32)
        inputs = {"INPUT0": [numbers], "INPUT1": [numbers]}
        return self.run("simple_nobatch", inputs, {"OUTPUT0": RAW, "OUTPUT1": RAW})

    def infer_older_version(self):
        numbers = np.array([1.5, 2.5, -3, 4], np.float32)
        inputs = {"INPUT0": [numbers], "INPUT1": [numbers]}
        return self.run("simple_nobatch", inputs, {"OUTPUT0": RAW}, version=1)

    def infer_strings(self):
        strings = np.array([b"a", b"bcd", b"", b"\xc3\xa9"])
        return self.run("identity_string", {"INPUT0": [strings]}, {"OUTPUT0": RAW})

    def infer_strings_batch(self):
        batch = [np.array([b"a", b"bb"]), np.array([b"ccc", b"dddd"])]
        return self.run("identity_string", {"INPUT0": batch}, {"OUTPUT0": RAW}, batch=2)

    def infer_variable_dims(self):
        numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
        return self.run("identity_fp32", {"INPUT0": [numbers]}, {"OUTPUT0": RAW})

    def infer_no_elements(self):
        return self.run("identity_nobatch", {"INPUT0": [np.zeros(0, np.int32)]}, {"OUTPUT0": RAW})

    def infer_all_types(self):
        inputs = {f"INPUT{i}": [np.array(v, t)] for i, (_, v, t) in enumerate(KINDS)}
        outputs, version = self.run("identity_all", inputs, {f"OUTPUT{i}": RAW for i in range(13)})
        return {name: outputs[f"OUTPUT{i}"] for i, (name, _, _) in enumerate(KINDS)}, version

    def infer_classes(self):
        return self.run("classify", {"INPUT0": [SCORES]}, {"OUTPUT0": (CLASS, 2)})

    def infer_classes_batch(self):
        batch = [SCORES, np.array([4, 3, 2, 1], np.float32)]
        return self.run("classify", {"INPUT0": batch}, {"OUTPUT0": (CLASS, 3)}, batch=2)

    def infer_classes_without_labels(self):
        numbers = np.array([3, 9, 1, 7], np.int32)
        return self.run("classify_nolabel", {"INPUT0": [numbers]}, {"OUTPUT0": (CLASS, 9)})

    def infer_classes_and_raw(self):
        numbers = np.array([1, 2, 3, 4], np.float32)
        inputs = {"INPUT0": [numbers], "INPUT1": [numbers]}
        return self.run("simple_nobatch", inputs, {"OUTPUT0": (CLASS, 2), "OUTPUT1": RAW})

    def infer_large(self):
        numbers = np.arange(1 << 20, dtype=np.int32)
        context = self.context("identity_nobatch")
        (same,) = context.run({"INPUT0": [numbers]}, {"OUTPUT0": RAW})["OUTPUT0"]
        return bool((same == numbers).all())

    def infer_async(self):
        """Run four requests concurrently, and return the start of each request's output."""
        context, done, requests = self.context("simple"), threading.Semaphore(0), {}

        def on_response(n, _context, request):
            requests[n] = request
            done.release()

        for n in range(4):
            inputs = {"INPUT0": [RANGE * n], "INPUT1": [ONES]}
            context.async_run(
                lambda ctx, request, n=n: on_response(n, ctx, request), inputs, {"OUTPUT0": RAW}
            )
        assert all(done.acquire(timeout=SECONDS) for _ in range(4))
        return [
            plain(context.get_async_run_results(requests[n]))["OUTPUT0"][0][:3] for n in range(4)
        ]

    def sequence(self):
        context = self.context("sequence", correlation_id=4242)
        return [
            plain(context.run({"INPUT": [np.array([n], np.int32)]}, {"OUTPUT": RAW}, flags=flags))
            for n, flags in ((5, START), (6, 0), (7, END))
        ]

    def stream(self):
        """Stream over gRPC asynchronously. The responses are in the order of the requests."""
        context = self.context("sequence", correlation_id=77, streaming=True)
        done, received = threading.Semaphore(0), []

        def on_response(_context, request):
            received.append(request)
            done.release()

        for n, flags in ((5, START), (6, 0), (7, END)):
            inputs = {"INPUT": [np.array([n], np.int32)]}
            context.async_run(on_response, inputs, {"OUTPUT": RAW}, flags=flags)
        assert all(done.acquire(timeout=SECONDS) for _ in range(3))
        return [plain(context.get_async_run_results(each))["OUTPUT"] for each in received]

    # errors

    def error_unknown_model(self):
        return self.run("nosuch", {"INPUT0": [RANGE]}, {"OUTPUT0": RAW})

    def error_unknown_version(self):
        return self.simple(version=99)

    def error_wrong_shape(self):
        numbers = np.arange(6, dtype=np.float32).reshape(3, 2)
        return self.run("identity_fp32", {"INPUT0": [numbers]}, {"OUTPUT0": RAW})

    def error_failing_model(self):
        numbers = np.zeros(1, np.int32)
        return self.run("failing", {"INPUT0": [numbers]}, {"OUTPUT0": RAW})

    def error_no_sequence(self):
        numbers = np.zeros(1, np.int32)
        return self.run("sequence", {"INPUT": [numbers]}, {"OUTPUT": RAW})

    def error_classes_of_strings(self):
        strings = np.array([b"a"])
        return self.run("identity_string", {"INPUT0": [strings]}, {"OUTPUT0": (CLASS, 1)})

    def error_then_success(self):
        """Cause an error in a context, and then use the context again."""
        context = self.context("sequence", correlation_id=9)
        inputs = {"INPUT": [np.array([3], np.int32)]}
        try:
            context.run(inputs, {"OUTPUT": RAW})
        except api.InferenceServerException as error:
            text = error.message()
        return [text, plain(context.run(inputs, {"OUTPUT": RAW}, flags=START | END))]


def plain(outputs):
    return {name: [_plain(each) for each in batch] for name, batch in outputs.items()}


def _plain(value):
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


def main():
    protocol, url = sys.argv[1:]
    skipped = {
        "context",
        "run",
        "simple",
        "status_of",
        *(["stream"] if protocol == "http" else []),
    }
    scenarios = Scenarios(protocol, url)
    for name in [each for each in vars(Scenarios) if each[0] != "_" and each not in skipped]:
        try:
            outcome = {"ok": getattr(scenarios, name)()}
        except api.InferenceServerException as error:
            outcome = {"error": error.message()}
        sys.stdout.write(f"\n{json.dumps([name, outcome])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
