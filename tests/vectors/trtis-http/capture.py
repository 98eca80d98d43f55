"""Write the cases of this folder and of ``trtis-grpc``: exchanges of a real v1.9 server.

    PYTHONPATH=tests python tests/vectors/trtis-http/capture.py

The bytes are those of ``tests/legacy/captures``; what they mean is worked out here, from the header
and the models as that server tells them. Of infergate only the message classes are used.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from infergate.codecs.protos import SCHEMA

HERE = Path(__file__).resolve().parent
HTTP, GRPC = HERE, HERE.parent / "trtis-grpc"
LEGACY = HERE.parents[1] / "legacy"
SERVER = "TensorRT Inference Server 1.9.0, captured"
CLIENT = "tensorrtserver 1.9.0 (the client library), captured"
CONCERNED = re.compile(
    r"simple|simple_string|identity_\w+|classify|classify_nolabel|simple_nobatch|reshape_scalar"
)
SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4, 12: 8}
STRING = 13
NAMES = {
    1: "BOOL", 2: "UINT8", 3: "UINT16", 4: "UINT32", 5: "UINT64", 6: "INT8", 7: "INT16",
    8: "INT32", 9: "INT64", 10: "FP16", 11: "FP32", 12: "FP64", 13: "BYTES",
}  # fmt: skip
MOST = 15_000
"""Bytes of a head that the transport lets in."""


def message(name: str) -> Any:
    return SCHEMA.message_class(f"nvidia.inferenceserver.{name}")


MODELS = {
    name: status.config
    for name, status in text_format.Parse(
        (LEGACY / "models.txt").read_text(), message("ServerStatus")()
    ).model_status.items()
}
VERSIONS = {"simple_nobatch": ["1", "3"]}

# ---- what differs from the real server (docs/fidelity-trtis.md), by the capture's name

REFUSED = {
    "infer_string_garbage": ["INPUT0", "length of element 0"],
    "err_dup_input": ["input 'INPUT0' already exists in request"],
    "err_dims_negative": ["unexpected shape for input 'INPUT0'"],
}
"""Requests that the server answered, or in other words."""
GARBAGE = {
    "infer_no_outputs": ["lacks output 'OUTPUT0'"],
    "infer_no_outputs_binary": ["lacks output 'OUTPUT0'"],
    "infer_string_garbage": ["OUTPUT0"],
    "err_dup_output": ["output 'OUTPUT0' was not requested, or occurs twice"],
}
"""Answers to what a backend is never asked, or that are no tensors."""
NEVER_ASKED = ("cls_count_zero", "cls_empty")
"""Whose answers announce values that are not there, a defect of the server."""


def told(name: str) -> str:
    return re.sub(r"^\d+_", "", name)


def metadata(model: str) -> dict[str, Any]:
    config = MODELS[model]
    first = [-1] if config.max_batch_size else []

    def tensors(given: Any) -> list[dict[str, Any]]:
        return [
            {"name": t.name, "datatype": NAMES[t.data_type], "shape": [*first, *t.dims]}
            for t in given
        ]

    return {
        "type": "ModelMetadata", "name": model, "versions": VERSIONS.get(model, ["1"]),
        "platform": config.platform, "inputs": tensors(config.input),
        "outputs": tensors(config.output), "max_batch_size": config.max_batch_size,
    }  # fmt: skip


def request_of(model: str, version: str, header: Any, datas: Any) -> dict[str, Any]:
    """The canonical meaning. ``datas`` are the raw bytes, or a list of each input's."""
    config = MODELS[model]
    known = {one.name: one for one in config.input}
    batch = [header.batch_size] if config.max_batch_size else []
    inputs, position = [], 0
    for index, each in enumerate(header.input):
        dims = list(each.dims) or list(known[each.name].dims)
        placed = place_of(each)
        if placed:
            data = b""
        elif isinstance(datas, bytes):
            datatype = known[each.name].data_type
            size = each.batch_byte_size
            if datatype != STRING:
                size = header.batch_size * math.prod(dims) * SIZES[datatype]
            data = datas[position : position + size]
            position += size
        else:
            data = datas[index]
        inputs.append(placed | {
            "name": each.name, "datatype": NAMES[known[each.name].data_type],
            "shape": [*batch, *dims], "data": data.hex(),
        })  # fmt: skip
    outputs: list[dict[str, Any]] = []
    for each in header.output:
        asked: dict[str, Any] = {"name": each.name, **place_of(each)}
        if each.cls.count:
            asked["parameters"] = {"classification": each.cls.count}
        if asked not in outputs:
            outputs.append(asked)
    parameters: dict[str, Any] = {}
    if header.correlation_id:
        parameters["sequence_id"] = header.correlation_id
    if header.flags & 1:
        parameters["sequence_start"] = True
    if header.flags & 2:
        parameters["sequence_end"] = True
    found = {
        "type": "InferRequest", "model": model, "version": version,
        "id": str(header.id or ""), "parameters": parameters, "inputs": inputs, "outputs": outputs,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value not in ("", {}, [])}


def place_of(tensor: Any) -> dict[str, Any]:
    if not tensor.HasField("shared_memory"):
        return {}
    told = tensor.shared_memory
    return {"shared_memory": {"region": told.name, "offset": told.offset, "size": told.byte_size}}


def score(value: float, data_type: int) -> str:
    """As a V2 server tells it: an integer, or six decimals. The captured ones are exact so."""
    return f"{value:.0f}" if NAMES[data_type].startswith(("INT", "UINT")) else f"{value:f}"


def response_of(asks: dict[str, Any], header: Any, datas: Any) -> dict[str, Any]:
    config = MODELS[header.model_name]
    known = {one.name: one.data_type for one in config.output}
    batch = [header.batch_size] if config.max_batch_size else []
    asked = {each["name"]: each for each in asks.get("outputs", ())}
    outputs, position = [], 0
    for index, each in enumerate(header.output):
        placed = {key: at for key, at in asked.get(each.name, {}).items() if key == "shared_memory"}
        if each.batch_classes:
            elements = [
                f"{score(cls.value, known[each.name])}:{cls.idx}"
                + (f":{cls.label}" if cls.label else "")
                for row in each.batch_classes
                for cls in row.cls
            ]
            data = b"".join(len(e).to_bytes(4, "little") + e.encode() for e in elements)
            shape, datatype = [*batch, len(each.batch_classes[0].cls)], "BYTES"
        else:
            size = 0 if placed else each.raw.batch_byte_size
            data = datas[position : position + size] if isinstance(datas, bytes) else datas[index]
            position += size
            shape, datatype = [*batch, *each.raw.dims], NAMES[known[each.name]]
        outputs.append(
            {"name": each.name, "datatype": datatype, "shape": shape, "data": data.hex(), **placed}
        )
    found = {
        "type": "InferResponse", "model": header.model_name, "version": str(header.model_version),
        "id": asks.get("id", ""), "outputs": outputs,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value not in ("", [])}


def error(kind: str, *mentions: str) -> dict[str, Any]:
    return {"error": {"kind": kind, "mentions": list(mentions)}}


def status_error(status: Any) -> dict[str, Any]:
    """What a backend's status means."""
    if "unknown model" in status.msg:
        return error("NOT_FOUND", status.msg)
    kinds = {
        3: "BACKEND_ERROR",
        4: "NOT_FOUND",
        5: "BAD_REQUEST",
        6: "NO_BACKEND",
        8: "BAD_REQUEST",
    }
    return error(kinds[status.code], status.msg)


def save(folder: Path, name: str, wire: bytes, case: dict[str, Any]) -> None:
    place = folder / name
    place.mkdir()
    (place / ("wire.http" if folder is HTTP else "wire.rpc")).write_bytes(wire)
    (place / "case.json").write_text(json.dumps(case, indent=1, ensure_ascii=False) + "\n")


def cases(name: str) -> Iterator[dict[str, Any]]:
    for line in (LEGACY / "captures" / name).read_text("utf-8").splitlines():
        yield json.loads(line)


# ---- HTTP


def head_of(raw: bytes) -> tuple[str, dict[str, str], bytes]:
    head, _, body = raw.partition(b"\r\n\r\n")
    start, *lines = head.decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (ln.partition(":") for ln in lines)
    }
    return start, headers, body


def cut(raw: bytes) -> bytes:
    """The first message of ``raw``, without an interim answer before it."""
    start, headers, body = head_of(raw)
    if start.startswith("HTTP/1.1 100"):
        return cut(body)
    length = int(headers.get("content-length", len(body)))
    return raw[: len(raw) - len(body)] + body[:length]


def http_case(case: dict[str, Any], prefix: str = "", *, client: bool = False) -> None:
    request, response = cut(case["request"].encode("latin-1")), b""
    if case["response"]:
        response = cut(case["response"].encode("latin-1"))
    start, headers, body = head_of(request)
    method, target, _ = start.split(" ")
    path, _, query = target.partition("?")
    match = re.fullmatch(r"/api/(infer|status|modelcontrol/\w+)/([^/]+)(?:/(.*))?", path)
    if match is None or not CONCERNED.fullmatch(match[2]) or len(request) - len(body) > MOST:
        return
    name = prefix + told(case["name"]).replace("_", "-")
    answered = head_of(response) if response else None
    about = f"{told(case['name'])}: {method} {path}"
    asked = {"about": about, "source": CLIENT if client else SERVER, "side": "request"}
    meaning = http_meaning(case, match, (headers, body), answered)
    if match[1] == "infer":
        asked["model"] = metadata(match[2])
    if client and match[1] == "infer":
        asked["both_ways"] = True
    save(HTTP, f"request-{name}", request, {**asked, **meaning})
    asked_for = "canonical" in meaning and told(case["name"]) not in NEVER_ASKED
    if answered is not None and asked_for:
        answer = {"about": about, "source": SERVER, "side": "response"}
        answer["asks"] = meaning["canonical"]
        http_answer(case, name, answer, response, query)


def http_meaning(case: Any, match: Any, request: Any, answered: Any) -> dict[str, Any]:
    headers, body = request
    what, model, rest = match.groups()
    status = answered[0].split(" ")[1] if answered else ""
    if status == "405":
        return error("METHOD_NOT_ALLOWED", "is not allowed here")
    if what not in ("infer", "status", "modelcontrol/load", "modelcontrol/unload"):
        return error("NOT_FOUND", "no such path")
    if what != "infer":
        kind = {"status": "ServerStatus", "modelcontrol/load": "ModelLoad"}.get(what, "ModelUnload")
        if rest is not None:
            model += f"/{rest}"
        return {"canonical": {"type": f"{kind}Request", "model": model}}
    if rest is not None and not rest.isdigit():
        return error("NOT_FOUND", "no such path")
    if told(case["name"]) in REFUSED:
        return error("BAD_REQUEST", *REFUSED[told(case["name"])])
    if status == "400" and "nv-status" not in answered[1]:
        return error("BAD_REQUEST", "NV-InferRequest")
    if status == "400":
        said = text_format.Parse(answered[1]["nv-status"], message("RequestStatus")())
        if said.code == 5:
            return error("BAD_REQUEST", said.msg)
    header = text_format.Parse(headers["nv-inferrequest"], message("InferRequestHeader")())
    return {"canonical": request_of(model, rest or "", header, body)}


def http_answer(case: Any, name: str, answer: dict[str, Any], raw: bytes, query: str) -> None:
    asks = answer["asks"]
    _, headers, body = head_of(raw)
    status = text_format.Parse(headers["nv-status"], message("RequestStatus")())
    model = asks["model"]
    if asks["type"] == "ServerStatusRequest":
        answer["asks"] = asks = {"type": "ModelMetadataRequest", "model": model}
    if asks["type"] == "InferRequest":
        answer["model"] = metadata(model)
    if status.code != 1:
        meaning = status_error(status)
    elif asks["type"] == "ModelMetadataRequest":
        if "format=binary" not in query:
            return  # a server is asked for binary only
        meaning = {"canonical": metadata(model)}
    elif told(case["name"]) in GARBAGE:
        meaning = error("BACKEND_GARBAGE", *GARBAGE[told(case["name"])])
    else:
        header = text_format.Parse(headers["nv-inferresponse"], message("InferResponseHeader")())
        meaning = {"canonical": response_of(asks, header, body)}
    save(HTTP, f"answer-{name}", raw, {**answer, **meaning})


# ---- gRPC

SERVICE = "/nvidia.inferenceserver.GRPCService/"


def grpc_case(case: dict[str, Any]) -> None:
    if case["code"] != "OK":
        if told(case["name"]) == "err_garbage_bytes":
            asked = {"about": "bytes that are no message", "source": SERVER, "side": "request"}
            wire = f"{SERVICE}Infer\r\n\r\n".encode() + case["requests"][0].encode("latin-1")
            save(
                GRPC,
                "request-err-garbage-bytes",
                wire,
                {**asked, **error("BAD_REQUEST", "cannot be parsed")},
            )
        return
    pairs = list(zip(case["requests"], case["responses"], strict=True))
    for index, (request, response) in enumerate(pairs):
        name = told(case["name"]).replace("_", "-") + (f"-{index}" if len(pairs) > 1 else "")
        one = dict(case, request=request.encode("latin-1"), response=response.encode("latin-1"))
        grpc_exchange(one, name)


def grpc_exchange(case: dict[str, Any], name: str) -> None:
    method = case["method"]
    if method in ("Infer", "StreamInfer"):
        asked = message("InferRequest").FromString(case["request"])
        answered = message("InferResponse").FromString(case["response"])
        if not CONCERNED.fullmatch(asked.model_name):
            return
        meaning = grpc_meaning(case, asked, answered.request_status)
    elif method in ("Status", "ModelControl"):
        asked = message(f"{method}Request").FromString(case["request"])
        answered = message(f"{method}Response").FromString(case["response"])
        if not CONCERNED.fullmatch(asked.model_name):
            return
        kind = "ServerStatus" if method == "Status" else ("ModelUnload", "ModelLoad")[asked.type]
        meaning = {"canonical": {"type": f"{kind}Request", "model": asked.model_name}}
        meaning["both_ways"] = True
    else:
        return
    about = f"{told(case['name'])}: {method} of {asked.model_name}"
    model = {"model": metadata(asked.model_name)} if "Infer" in method else {}
    save(
        GRPC,
        f"request-{name}",
        f"{SERVICE}{method}\r\n\r\n".encode() + case["request"],
        {"about": about, "source": SERVER, "side": "request", **model, **meaning},
    )
    if "canonical" in meaning:
        answer = {"about": about, "source": SERVER, "side": "response", **model}
        answer |= grpc_answer(case, meaning["canonical"], answered)
        save(GRPC, f"answer-{name}", b"code 0\r\n\r\n" + case["response"], answer)


def grpc_meaning(case: Any, asked: Any, status: Any) -> dict[str, Any]:
    if asked.model_version < 1 and asked.model_version != -1:
        return error("NOT_FOUND", "simple")
    if told(case["name"]) in REFUSED:
        return error("BAD_REQUEST", *REFUSED[told(case["name"])])
    if status.code == 5:
        return error("BAD_REQUEST", status.msg)
    version = "" if asked.model_version == -1 else str(asked.model_version)
    datas = list(asked.raw_input)
    return {"canonical": request_of(asked.model_name, version, asked.meta_data, datas)}


def grpc_answer(case: Any, asks: dict[str, Any], answered: Any) -> dict[str, Any]:
    if asks["type"] == "ServerStatusRequest":
        asks = {"type": "ModelMetadataRequest", "model": asks["model"]}
    if answered.request_status.code != 1:
        meaning = status_error(answered.request_status)
    elif asks["type"] == "ModelMetadataRequest":
        meaning = {"canonical": metadata(asks["model"])}
    elif told(case["name"]) in GARBAGE:
        meaning = error("BACKEND_GARBAGE", *GARBAGE[told(case["name"])])
    else:
        datas = list(answered.raw_output)
        meaning = {"canonical": response_of(asks, answered.meta_data, datas)}
    return {"asks": asks, **meaning}


def main() -> None:
    for folder in (HTTP, GRPC):
        for case in folder.glob("*/case.json"):
            shutil.rmtree(case.parent)
    for case in cases("http.jsonl"):
        http_case(case)
    for case in cases("client.jsonl"):
        if case["name"].startswith("http_infer"):
            renamed = {"name": case["name"].replace(".c0", "_")}
            exchange = {"request": case["sent"], "response": case["received"]}
            http_case({**exchange, **renamed}, "client-", client=True)
    for case in cases("grpc.jsonl"):
        grpc_case(case)


if __name__ == "__main__":
    main()
